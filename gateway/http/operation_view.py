"""How an operation is shown to who asks for it by id: where it stands, what that means, and what to do now."""

from __future__ import annotations

from typing import Any

from gateway.actors.idempotency import Shown
from gateway.actors.operations import State
from gateway.errors import PROBLEMS, ExecutionReconciliation

REPLAY = "Send the same request with the same Idempotency-Key to get the result again, without a charge."
RESULT_GONE = "The result is past its retention. Use a fresh Idempotency-Key for a new one."
AGAIN = "Nothing was charged. Send the same request and key again, unless its answer asked for another request."
PAID_AGAIN = "The payment was made. Send the same request with the same key again: it needs no other payment."
FRESH_KEY = "Use a fresh Idempotency-Key. Nothing was charged."
OPERATOR = "The operator has been asked to decide. Do not sign another payment for this request."
IN_FLIGHT = "In progress. Poll this resource, or send the same request with the same Idempotency-Key again."
PENDING = "The chain decides. Do not sign another payment; poll this resource."
UNDECIDED = "The payment may have been made. Do not sign another; send the same request, key and payment again."

NOT_REQUIRED = "not_required"
"""The settlement of a free operation; that of a paid one is `settled`, `not_settled` or `unknown`."""
SETTLEMENTS = {"none": NOT_REQUIRED, "settled": "settled", "not_settled": "not_settled", "unknown": "unknown"}
"""The values on the wire, by those that rows have."""


def view(shown: Shown) -> dict[str, Any]:
    """Return the JSON of `GET /v1/operations/{operationId}`."""
    document: dict[str, Any] = {
        "operationId": shown.operation_id,
        "operation": shown.operation,
        "state": shown.state.value.upper(),
        "funding": shown.funding,
        "attempt": shown.attempt,
        "requestHash": shown.request_hash,
        "settlement": {
            "status": SETTLEMENTS.get(shown.settlement, "unknown"),
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
    match shown.state:
        case State.RECEIPTED | State.EXPIRED:
            return REPLAY if shown.kept else RESULT_GONE
        case State.NEEDS_OPERATOR:
            return OPERATOR
        case State.FAILED:
            return _after_failure(shown)
        case _:
            return PENDING if shown.settlement == "unknown" else IN_FLIGHT


def _after_failure(shown: Shown) -> str:
    if shown.failure_code == ExecutionReconciliation.code:
        return FRESH_KEY
    return {"settled": PAID_AGAIN, "unknown": UNDECIDED}.get(shown.settlement, AGAIN)
