"""The facilitator as the node meets it: the real one behind a door that can lie, hang, or be shut.

`before` means before the real settlement reached the chain, `after` means after it was mined.  A mode leaves the other
calls alone: under `verify_500` settling works, under `settle_pending` verifying does.
"""

from __future__ import annotations

from typing import Any

import httpx
import orjson

from gateway.world import faults
from gateway.world.door import Call, Reply, Silence
from gateway.world.faults import Faults

CALLS = ("verify", "settle", "supported")
STRANGER = "0x00000000000000000000000000000000DeaDBeef"
BROKEN = Reply.json({"error": "internal error"}, 500)
GARBAGE = Reply(200, b"<!doctype html><title>502 Bad Gateway</title><h1>Bad Gateway</h1>", "text/html")

BEFORE: dict[str, Reply | Silence] = {"settle_500_before": BROKEN, "settle_hang_before": Silence()}
AFTER: dict[str, Reply | Silence] = {"settle_500_after": BROKEN, "settle_hang_after": Silence()}


class FacilitatorDoor:
    """Answers the facilitator's three calls in the mode in force."""

    def __init__(self, state: Faults, client: httpx.AsyncClient, upstream: str) -> None:
        self._faults = state
        self._client = client
        self._upstream = upstream

    async def answer(self, call: Call) -> Reply | Silence:
        """Answer one call; the mode is the one in force when the call came."""
        kind = call.path.strip("/")
        if kind not in CALLS:
            return Reply.json({"error": f"there is no {call.path}"}, 404)
        self._faults.count(faults.FACILITATOR, kind)
        mode = self._faults.mode(faults.FACILITATOR)
        if mode == "garbage":
            return GARBAGE
        if kind == "verify" and mode.startswith("verify_"):
            return BROKEN if mode == "verify_500" else Silence()
        if kind == "settle" and mode.startswith("settle_"):
            return await self._settle(call, mode)
        return await self._pass(call)

    async def _settle(self, call: Call, mode: str) -> Reply | Silence:
        if mode == "settle_no_tx":
            return Reply.json(_claimed(call))
        if mode in BEFORE:
            return BEFORE[mode]
        settled = await self._pass(call)
        if mode in AFTER:
            return AFTER[mode]
        if settled.status != 200:
            return settled
        told = orjson.loads(settled.body)
        return Reply.json(_pending(told) if mode == "settle_pending" else told | {"payer": STRANGER})

    async def _pass(self, call: Call) -> Reply:
        try:
            answer = await self._client.request(
                call.method,
                self._upstream + call.path,
                content=call.body,
                headers={"content-type": call.headers.get("content-type", "application/json")},
            )
        except httpx.HTTPError as error:
            return Reply.json({"error": f"the facilitator behind the door is gone: {error}"}, 502)
        return Reply(answer.status_code, answer.content)


def _pending(told: dict[str, Any]) -> dict[str, Any]:
    """Return what the SDK says of a settlement that it sent and stopped waiting for."""
    pending = {"success": False, "errorReason": "settlement_pending", "errorMessage": "not confirmed in time"}
    return pending | {name: told[name] for name in ("transaction", "network", "payer") if name in told}


def _claimed(call: Call) -> dict[str, Any]:
    """Return the lie of a success that names no transaction; nothing was sent to the chain."""
    try:
        asked = orjson.loads(call.body)
        payer = asked["paymentPayload"]["payload"]["authorization"]["from"]
        network = asked["paymentRequirements"]["network"]
    except (ValueError, KeyError, TypeError):
        payer, network = STRANGER, ""
    return {"success": True, "payer": payer, "transaction": "", "network": network}
