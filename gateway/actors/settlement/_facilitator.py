"""The x402 facilitator over HTTP: `/supported`, `/verify`, `/settle`.

Semantic refusals are HTTP 200; any other status, broken JSON or a wrong shape is a fault of the facilitator and says
nothing of the payment.  Whatever `/settle` answers is a hint only: the chain decides.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Any

import attrs
import orjson

from gateway.registry.http_call import HttpAnswer, HttpCall, UpstreamFailed

TRANSACTION = re.compile(r"0x[0-9a-fA-F]{64}\Z")
PENDING = re.compile("pending|timeout|timed_out", re.IGNORECASE)
"""Reasons of a settlement that was sent and may still be mined, though `success` is false."""
MAX_BYTES = 256 * 1024
SUPPORTED_TIMEOUT_S = 5.0
REFUSING = frozenset({400, 402, 409, 412, 422})
"""Statuses with which some facilitators refuse a payment that they were asked to verify; others tell of an outage."""


class Verdict(Enum):
    """What `/verify` said."""

    VALID = "valid"
    INVALID = "invalid"
    UNAVAILABLE = "unavailable"


@attrs.frozen
class Verification:
    """A verdict with the facilitator's reason."""

    verdict: Verdict
    reason: str = ""


@attrs.frozen
class Submission:
    """What `/settle` answered.

    Attributes:
        transaction: a hint where to look.
        sent: False when the payment cannot have arrived.
        refused: the facilitator said that it did not settle it, and not that it is still at it.
    """

    transaction: str | None
    reason: str
    sent: bool
    refused: bool = False


@attrs.frozen
class Facilitator:
    """One facilitator, spoken to through `call`."""

    url: str
    call: Callable[[HttpCall], Awaitable[HttpAnswer]]
    verify_timeout_s: float
    settle_timeout_s: float

    async def supports(self, network: str) -> str | None:
        """Return None if `exact` on `network` is supported now, else the machine reason why it is not known to be."""
        try:
            answer = await self._ask("GET", "/supported", b"", SUPPORTED_TIMEOUT_S)
        except UpstreamFailed as failure:
            return f"facilitator_{failure.reason}"
        kinds = answer.get("kinds")
        if not isinstance(kinds, list):
            return "facilitator_garbage"
        for kind in kinds:
            if isinstance(kind, dict) and (kind.get("x402Version"), kind.get("scheme"), kind.get("network")) == (
                2,
                "exact",
                network,
            ):
                return None
        return "facilitator_does_not_support_network"

    async def verify(self, body: Mapping[str, Any], payer: str) -> Verification:
        """Ask whether a payment of `payer` is valid."""
        try:
            answer = await self._ask("POST", "/verify", orjson.dumps(body), self.verify_timeout_s, _refuses)
        except UpstreamFailed as failure:
            return Verification(Verdict.UNAVAILABLE, failure.reason)
        valid = answer.get("isValid")
        if valid is False:
            return Verification(Verdict.INVALID, _reason(answer.get("invalidReason")))
        if valid is not True:
            return Verification(Verdict.UNAVAILABLE, "garbage")
        named = answer.get("payer")
        if named is not None and str(named).lower() != payer.lower():
            return Verification(Verdict.UNAVAILABLE, "wrong_payer")  # it has verified something else
        return Verification(Verdict.VALID)

    async def settle(self, body: Mapping[str, Any]) -> Submission:
        """Ask to settle a payment."""
        try:
            answer = await self._ask("POST", "/settle", orjson.dumps(body), self.settle_timeout_s, _refuses_to_settle)
        except UpstreamFailed as failure:
            return Submission(None, failure.reason, failure.sent)
        hint = answer.get("transaction")
        transaction = hint.lower() if isinstance(hint, str) and TRANSACTION.match(hint) else None
        reason = "success" if answer.get("success") is True else _reason(answer.get("errorReason"))
        refused = answer.get("success") is False and PENDING.search(reason) is None
        return Submission(transaction, reason, sent=True, refused=refused)

    async def _ask(
        self,
        method: str,
        path: str,
        content: bytes,
        timeout_s: float,
        refuses: Callable[[Mapping[str, Any]], bool] = lambda _: False,
    ) -> dict[str, Any]:
        """Return what it answers; with a status of `REFUSING` only a document that `refuses` is an answer."""
        headers = (("content-type", "application/json"), ("accept", "application/json"))
        url = self.url.rstrip("/") + path
        answer = await self.call(
            HttpCall(method, url, headers, content, timeout_s=timeout_s, max_bytes=MAX_BYTES, target="facilitator")
        )
        if answer.status != 200 and answer.status not in REFUSING:
            raise _Fault(f"status_{answer.status}")
        try:
            document = orjson.loads(answer.content)
        except orjson.JSONDecodeError:
            document = None
        if answer.status != 200 and not (isinstance(document, dict) and refuses(document)):
            raise _Fault(f"status_{answer.status}")
        if not isinstance(document, dict):
            raise _Fault("garbage")
        return document


def _refuses(document: Mapping[str, Any]) -> bool:
    return document.get("isValid") is False


def _refuses_to_settle(document: Mapping[str, Any]) -> bool:
    return document.get("success") is False and isinstance(document.get("errorReason"), str)


class _Fault(UpstreamFailed):
    """It answered, but not as a facilitator does."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def _reason(text: object) -> str:
    """Keep a stranger's reason only if it looks like one of the protocol's words."""
    return text if isinstance(text, str) and re.fullmatch(r"[A-Za-z0-9_.:-]{1,100}", text) else "unspecified"
