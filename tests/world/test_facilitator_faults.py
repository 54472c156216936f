from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gateway.world.chain import Rpc, account
from gateway.world.facilitator_faults import STRANGER
from gateway.world.faults import FACILITATOR_MODES
from gateway.world.world import World

pytestmark = pytest.mark.world

Pay = Callable[..., dict[str, Any]]
SETTLES_FOR_REAL = ("settle_500_after", "settle_hang_after", "settle_pending", "settle_wrong_payer")


async def post(world: World, kind: str, body: Any) -> httpx.Response | str:
    async with httpx.AsyncClient(timeout=1) as client:
        try:
            return await client.post(f"{world.facilitator_url}/{kind}", json=body)
        except httpx.TransportError as error:
            return type(error).__name__


@pytest.mark.parametrize("mode", [mode for mode in FACILITATOR_MODES if mode != "ok"])
async def test_a_fault_settles_exactly_when_its_name_says(
    world: World, client: httpx.AsyncClient, pay: Pay, fault: Any, mode: str
) -> None:
    seller = account(f"seller under {mode}")
    paid = pay(world.payers[3], seller.address)
    await fault("facilitator", mode)
    if mode.startswith("verify_") or mode in ("garbage", "refuse"):
        answer = await post(world, "verify", paid)
    else:
        answer = await post(world, "settle", paid)
    match mode:
        case "verify_500" | "settle_500_before" | "settle_500_after":
            assert isinstance(answer, httpx.Response)
            assert answer.status_code == 500
        case "verify_hang" | "settle_hang_before" | "settle_hang_after":
            assert answer == "ReadTimeout"
        case "refuse":
            assert answer == "ConnectError"
        case "garbage":
            assert isinstance(answer, httpx.Response)
            assert answer.headers["content-type"] == "text/html"
        case "settle_pending":
            assert isinstance(answer, httpx.Response)
            assert answer.json()["errorReason"] == "settlement_pending"
        case "settle_wrong_payer":
            assert isinstance(answer, httpx.Response)
            assert (answer.json()["success"], answer.json()["payer"]) == (True, STRANGER)
        case "settle_no_tx":
            assert isinstance(answer, httpx.Response)
            assert (answer.json()["success"], answer.json()["transaction"]) == (True, "")
    transfers = await Rpc(world.rpc_url, client).transfers(seller.address)
    assert len(transfers) == (1 if mode in SETTLES_FOR_REAL else 0)
    if mode in ("settle_pending", "settle_wrong_payer"):
        assert isinstance(answer, httpx.Response)
        assert answer.json()["transaction"] == transfers[0].transaction


@pytest.mark.parametrize("mode", ["verify_500", "verify_hang", "settle_500_before", "settle_hang_before"])
async def test_a_fault_leaves_the_other_call_alone(world: World, pay: Pay, fault: Any, mode: str) -> None:
    await fault("facilitator", mode)
    other = "settle" if mode.startswith("verify") else "verify"
    answer = await post(world, other, pay(world.payers[4], account("a seller who is left alone").address))
    assert isinstance(answer, httpx.Response)
    assert answer.json().get("success", answer.json().get("isValid")) is True


async def test_calls_count_whatever_happens_to_them(
    world: World, client: httpx.AsyncClient, pay: Pay, fault: Any
) -> None:
    await fault("facilitator", "garbage")
    before = (await client.get(world.faults_url)).json()["facilitator"]
    await post(world, "verify", {})
    await post(world, "settle", {})
    await client.get(f"{world.facilitator_url}/supported")
    after = (await client.get(world.faults_url)).json()["facilitator"]
    assert {kind: after[kind] - before[kind] for kind in after} == {"verify": 1, "settle": 1, "supported": 1}
