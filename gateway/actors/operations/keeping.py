"""The effects that make a step durable: keep the output, receipt it, or record an end without a charge."""

from __future__ import annotations

from typing import Any

import orjson

from gateway.actors.failpoints import failpoint
from gateway.actors.operations import rows
from gateway.actors.operations.in_hand import Life, Surroundings, ending, write
from gateway.actors.operations.life import Event, State
from gateway.actors.operations.paying import MADE
from gateway.actors.payment import Payment
from gateway.actors.settlement import Sighting, Standing
from gateway.actors.store import Statement
from gateway.errors import (
    ExecutionReconciliation,
    InternalError,
    PayerHasCode,
    PaymentAlreadyBound,
    SettlementFailed,
    SettlementPending,
)
from gateway.registry import ledger
from gateway.registry.payment.asset import Asset, usd
from gateway.registry.receipts import timestamp
from gateway.registry.sealing import seal


async def keep(life: Life, around: Surroundings) -> Event:
    """Make the output and the intent to settle durable, with what the payer now owes."""
    payment = life.paid_for()
    failpoint("keep.before")
    now = around.clock_ms()
    step = rows.keep(life.owner, sealed_output=_sealed(life), result=life.done(), look_from_block=life.look_from_block)
    owed = posted(
        life.operation_id, f"executed.{life.attempt}", ledger.payer_account(payment.payer), ledger.HOLD, payment, now
    )
    await write(life, around, State.EXECUTED, step, *owed)
    life.owed = True
    failpoint("keep.after")
    return Event.KEPT


async def receipt(life: Life, around: Surroundings) -> Event:
    """Post the ledger, sign the receipt and make both durable; only then may the result leave."""
    payment, now = life.payment, around.clock_ms()
    failpoint("receipt.before")
    earned: list[Statement] = []
    if payment is not None:
        life.settled_in = settled_in(life.sighting)
        earned = posted(life.operation_id, "receipted", ledger.HOLD, ledger.REVENUE, payment, now)
        if life.held or life.tries:
            earned.append(rows.lift_hold(payment.payer, life.owner))
    signed = around.signer.sign(
        unsigned_receipt(
            life.operation_id, life.name, life.request_hash, life.done(), around.asset, payment, life.settled_in, now
        )
    )
    step = rows.receipt(
        life.owner,
        receipt_json=orjson.dumps(signed).decode(),
        settled=life.settled_in,
        sealed_output=_sealed(life) if payment is None else None,
        result=life.done(),
        now=now,
    )
    life.told.append(rows.Happening(State.RECEIPTED, now))
    await write(life, around, State.RECEIPTED, step, *earned)
    life.receipt, life.over = signed, True
    around.store.tell(ending(life.operation_id))
    failpoint("receipt.after")
    if earned:
        around.posted()
    return Event.RECEIPT_KEPT


async def end(life: Life, around: Surroundings) -> None:
    """Record an end that charged nothing; what the payer owed is taken back, and a payer who let us down waits."""
    failure = life.failure = life.failure or InternalError(operation_id=life.operation_id)
    failpoint("fail.before")
    now = around.clock_ms()
    statements: list[Statement] = []
    payment = life.payment
    waits = life.state is State.NEEDS_OPERATOR
    if payment is not None and life.owed and not waits:
        payer = ledger.payer_account(payment.payer)
        statements += posted(life.operation_id, f"failed.{life.attempt}", ledger.HOLD, payer, payment, now)
        if _let_us_down(life):
            until = now + int(around.payer_hold_s * 1000)
            statements.append(rows.hold_payer(payment.payer, life.owner, until=until))
    if isinstance(failure, ExecutionReconciliation):
        statements.append(rows.free_authorizations(life.owner))
    elif isinstance(failure, PaymentAlreadyBound) and payment is not None:
        statements.append(rows.free_authorization(life.owner, payment.key))
    made = _made(life)
    step = rows.end(
        life.owner,
        state=life.state,
        settlement=_settlement(life, made=made is not None),
        settled=made,
        failure_code=failure.code,
        failure_detail=failure.detail,
        refused=life.refused and made is None and life.credit is None and not life.owed and not life.tries,
        now=now,
    )
    await write(life, around, life.state, step, *statements)
    life.over = True
    around.store.tell(ending(life.operation_id))
    failpoint("fail.after")
    if statements:
        around.posted()


def _made(life: Life) -> rows.Settled | None:
    """Return where the payment was made, as far as this attempt or an earlier one saw; the payer is owed for it."""
    seen = life.sighting
    if seen is None or seen.standing is Standing.UNTRACED:
        return life.credit
    return settled_in(seen) if seen.standing in MADE else None


def _settlement(life: Life, *, made: bool) -> str:
    if life.payment is None:
        return "none"
    if life.state is State.NEEDS_OPERATOR:
        return "unknown"
    if made:
        return "settled"
    undecided = isinstance(life.failure, SettlementPending) or (life.undecided and life.sighting is None)
    return "unknown" if undecided else "not_settled"


def _let_us_down(life: Life) -> bool:
    """Return True if a payment failed to settle that was refused or cancelled; an outage is not the payer's fault."""
    cancelled = life.sighting is not None and life.sighting.standing is Standing.CANCELLED
    return isinstance(life.failure, SettlementFailed | PayerHasCode) and (life.settlement_refused or cancelled)


def _sealed(life: Life) -> bytes:
    if life.served is None or life.data_key is None:
        raise RuntimeError(f"{life.operation_id} has no output")
    return seal(life.data_key, life.operation_id, "output", life.served.plain)


# -- what a decision of the operator and a reorganisation need as well -------------------------------------------------


def settled_in(seen: Sighting | None) -> rows.Settled:
    """Return where a sighting saw the payment."""
    if seen is None or seen.transaction is None or seen.block_number is None or seen.block_hash is None:
        raise RuntimeError("a settlement that was not seen on chain")
    return rows.Settled(seen.transaction, seen.block_number, seen.block_hash)


def posted(operation_id: str, step: str, debit: str, credit: str, payment: Payment, now: int) -> list[Statement]:
    """Return the posting that moves the amount of a payment from `debit` to `credit`."""
    return rows.postings(
        ledger.move(
            operation_id=operation_id,
            step=step,
            debit=debit,
            credit=credit,
            network=payment.network,
            asset=payment.asset,
            amount=payment.amount,
            at=now,
        )
    )


def unsigned_receipt(
    operation_id: str,
    operation: str,
    request_hash: str,
    result: rows.Result,
    asset: Asset,
    payment: Payment | None,
    settled: rows.Settled | None,
    now: int,
) -> dict[str, Any]:
    """Return what the receipt of a served operation says; `now` is its issue time in milliseconds since 1970."""
    amount = payment.amount if payment else 0
    said: dict[str, Any] = {
        "receiptId": "rcpt_" + operation_id.removeprefix("op_"),
        "operationId": operation_id,
        "operation": operation,
        "requestHash": request_hash,
        "quoteId": payment.quote_id if payment else None,
        "funding": "paid" if payment else "free",
        "charge": {
            "asset": payment.asset if payment else asset.address,
            "network": payment.network if payment else asset.network,
            "amountAtomic": str(amount),
            "decimals": asset.decimals,
            "usd": usd(amount, asset.decimals),
        },
        "settlement": {
            "status": "settled" if settled else "not_required",
            "transaction": settled.transaction if settled else None,
            "network": payment.network if payment and settled else None,
            "authorizationNonce": payment.nonce if payment else None,
        },
        "resultHash": result.hash,
        "route": orjson.loads(result.route),
        "issuedAt": timestamp(now),
    }
    if payment is not None:
        said |= {"payer": payment.payer, "payTo": payment.pay_to}
    return said
