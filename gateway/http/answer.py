"""The 200 of a receipted operation: the envelope of interface.md 2.1 and its headers, first answer and replay alike.

And the header by which x402 tells that a payment could not be settled.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

import attrs
import orjson

from gateway.actors.operations import Ended
from gateway.errors import GatewayError, SettlementFailed
from gateway.http import mpp, x402
from gateway.http.openai_wire import completion_body
from gateway.registry.payment.terms import Credential


@attrs.frozen
class Outgoing:
    """A 200; `replayed` says that it is a stored result."""

    operation_id: str
    body: bytes = attrs.field(repr=False)
    headers: Mapping[str, str]
    replayed: bool


def outgoing(
    ended: Ended,
    more: Mapping[str, str] | None = None,
    *,
    form: Literal["envelope", "chat_completion"] = "envelope",
) -> Outgoing:
    """Return the 200 of a receipted operation in the form of its operation, with `more` headers."""
    headers = {"Content-Type": "application/json", "Cache-Control": "private"} | dict(more or {})
    if ended.replayed:
        headers["Idempotency-Replayed"] = "true"
    headers |= receipt_headers(ended)
    body = envelope(ended) if form == "envelope" else completion_body(ended)
    return Outgoing(ended.operation_id, body, headers, ended.replayed)


def envelope(ended: Ended) -> bytes:
    """Return the body of interface.md 2.1."""
    members = {
        "operationId": ended.operation_id,
        "state": "RECEIPTED",
        "replayed": ended.replayed,
        "requestHash": ended.request_hash,
        "receipt": ended.receipt,
        "output": ended.output,
        "execution": ended.execution,
    }
    return orjson.dumps(members, default=dict)


def receipt_headers(ended: Ended) -> dict[str, str]:
    """Return the payment headers of the protocol that paid, from the stored receipt."""
    receipt = ended.receipt
    if ended.protocol is None:
        return {}
    settlement, charge = receipt["settlement"], receipt["charge"]
    if ended.protocol == "x402":
        response = x402.payment_response(
            payer=receipt["payer"],
            transaction=settlement["transaction"],
            network=settlement["network"],
            amount=int(charge["amountAtomic"]),
        )
        return {"PAYMENT-RESPONSE": response}
    issued = int(datetime.fromisoformat(receipt["issuedAt"]).timestamp())
    chain_id = int(settlement["network"].partition(":")[2])
    return {"Payment-Receipt": mpp.receipt(settlement["transaction"], issued, ended.challenge_id or "", chain_id)}


def failed_settlement(failure: GatewayError, credential: Credential | None) -> dict[str, str]:
    """Return the payment header of a failure where settling the x402 payment that came along was tried, and failed.

    Only of what the chain has decided: while that is open, nobody may be told that a payment failed.
    """
    tried = failure.extra.get("settlement")
    if credential is None or credential.protocol != "x402" or not (tried or isinstance(failure, SettlementFailed)):
        return {}
    response = x402.payment_failed(
        reason=failure.code,
        message=failure.detail,
        payer=credential.authorization.authorizer,
        transaction=str((tried or {}).get("transaction", "")),
        network=credential.asset.network,
    )
    return {"PAYMENT-RESPONSE": response}
