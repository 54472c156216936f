"""How an operation is shown to who asks for it by id: where it stands, what that means, and what to do now."""

from __future__ import annotations

from typing import Any

from gateway.actors.idempotency import Shown
from gateway.actors.operations import State
from gateway.errors import PROBLEMS

NEXT = {
    State.RECEIPTED: "Send the same request with the same Idempotency-Key to get the result again, without a charge.",
    State.FAILED: "Nothing was charged. The same request and key may be sent again.",
    State.EXPIRED: "The stored result has expired. Use a fresh Idempotency-Key to buy a new one.",
    State.NEEDS_OPERATOR: "The operator has been asked to decide. Do not sign another payment for this request.",
}
IN_FLIGHT = "In progress. Poll this resource, or send the same request with the same Idempotency-Key again."
PENDING = "The chain decides. Do not sign another payment; poll this resource."

SETTLEMENTS = {"none": "not_required", "settled": "settled", "not_settled": "not_settled", "unknown": "unknown"}


def view(shown: Shown) -> dict[str, Any]:
    """Return the JSON of `GET /v1/operations/{operationId}`; its settlement has three values."""
    document: dict[str, Any] = {
        "operationId": shown.operation_id,
        "operation": shown.operation,
        "state": shown.state.value.upper(),
        "funding": shown.funding,
        "attempt": shown.attempt,
        "requestHash": shown.request_hash,
        "settlement": {
            "status": SETTLEMENTS[shown.settlement],
            "transaction": shown.transaction,
            "network": shown.network,
        },
        "transitions": list(shown.transitions),
        "receipt": dict(shown.receipt) if shown.receipt else None,
        "next": _next(shown),
    }
    if shown.failure_code is not None:
        kind = PROBLEMS.get(shown.failure_code)
        document["failure"] = {"code": shown.failure_code, "title": kind.title if kind else shown.failure_code}
    if shown.output is not None:
        document |= {"output": dict(shown.output), "execution": dict(shown.execution or {})}
    return document


def _next(shown: Shown) -> str:
    if shown.state in NEXT:
        return NEXT[shown.state]
    return PENDING if shown.settlement == "unknown" else IN_FLIGHT
