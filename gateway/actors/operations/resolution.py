"""An operator's decision on an operation that waits for one: it was paid by this transaction, or it never will be.

The chain has the last word here too: what it shows paid is never ended as unpaid, and the other way round.
"""

from __future__ import annotations

from typing import Any

import attrs
import orjson

from gateway.actors.operations import rows
from gateway.actors.operations.in_hand import Surroundings
from gateway.actors.operations.keeping import posted, settled_in, unsigned_receipt
from gateway.actors.operations.life import State
from gateway.actors.operations.order import Resolve
from gateway.actors.operations.reorg import signed_anew
from gateway.actors.payment import Payment
from gateway.actors.runtime import ActorError
from gateway.actors.settlement import ChainUnavailable, Look, Sighting, Standing
from gateway.actors.store import Conflict, Row, Statement
from gateway.errors import OperationNotFound, OperatorNeeded, ResolutionRefused
from gateway.registry import ledger

LOOK_WITHIN_S = 20.0

HELD = """
    SELECT SUM(amount) FROM ledger_entries WHERE operation_id = :operation_id AND account = 'hold'
"""
WAITING = """
    SELECT operation_id, operation, state, epoch, attempt, request_hash, protocol, network, asset, payer, pay_to,
        amount, nonce, valid_before, quote_id, price_version, challenge_id, look_from_block, result_hash, route,
        executed_at, receipt, failure_code
    FROM operations WHERE operation_id = :operation_id
"""


@attrs.frozen
class _Waiting:
    """An operation that waits for the operator, from its row; `receipt` of one that a reorganisation took back."""

    owner: rows.Owner
    operation: str
    state: State
    attempt: int
    request_hash: str
    payment: Payment
    look_from_block: int | None
    result: rows.Result
    receipt: dict[str, Any] | None


async def resolve(message: Resolve, around: Surroundings) -> str:
    """Record a decision with its reason; return the state that it leaves the operation in.

    Raises `OperationNotFound`, `ResolutionRefused` or `StoreUnavailable`.
    """
    found = await around.store.fetch(WAITING, {"operation_id": message.operation_id})
    if not found:
        raise OperationNotFound(operation_id=message.operation_id)
    waiting = _waiting(found[0], around)
    seen = await _look(waiting, message, around)
    if message.paid_by is None:
        return await _unpaid(waiting, message, seen, around)
    return await _paid(waiting, message, seen, around)


def _waiting(row: Row, around: Surroundings) -> _Waiting:
    names = [part.split()[-1] for part in WAITING[: WAITING.index("FROM")].split(",")]
    told: dict[str, Any] = dict(zip(names, row, strict=True))
    operation_id, state = str(told["operation_id"]), State(str(told["state"]))
    if told["failure_code"] != OperatorNeeded.code or state not in {State.NEEDS_OPERATOR, State.RECEIPTED}:
        raise ResolutionRefused(f"it is {state} and waits for no decision", operation_id=operation_id)
    return _Waiting(
        rows.Owner(operation_id, around.node, told["epoch"]),
        told["operation"],
        state,
        told["attempt"],
        told["request_hash"],
        Payment.of_columns(told),
        told["look_from_block"],
        rows.Result(str(told["result_hash"]), str(told["route"]), int(told["executed_at"] or 0)),
        orjson.loads(told["receipt"]) if told["receipt"] else None,
    )


async def _look(waiting: _Waiting, message: Resolve, around: Surroundings) -> Sighting | None:
    """Return what the chain shows; None where this node is on another one (or none) and cannot ask."""
    payment = waiting.payment
    if around.settlement is None or payment.network != around.asset.network:
        return None
    hints = () if message.paid_by is None else (message.paid_by.lower(),)
    try:
        return await around.settlement.ask(Look(payment, waiting.look_from_block, hints), within=LOOK_WITHIN_S)
    except (ChainUnavailable, ActorError) as error:
        raise ResolutionRefused(
            f"the chain cannot be read ({error}); try again", operation_id=waiting.owner.operation_id
        ) from error


async def _paid(waiting: _Waiting, message: Resolve, seen: Sighting | None, around: Surroundings) -> str:
    if seen is None or seen.standing is not Standing.PAID:
        what = "this node cannot read its chain" if seen is None else f"the chain shows it {seen.standing.value}"
        raise ResolutionRefused(
            f"{message.paid_by} does not prove it paid: {what}", operation_id=waiting.owner.operation_id
        )
    owner, payment, now = waiting.owner, waiting.payment, around.clock_ms()
    settled = settled_in(seen)
    if waiting.receipt is not None:
        receipt = orjson.dumps(signed_anew(waiting.receipt, settled, around.signer)).decode()
        await _commit(
            waiting, message, around, State.RECEIPTED, rows.resettle(owner, receipt_json=receipt, settled=settled)
        )
        return State.RECEIPTED.value
    unsigned = unsigned_receipt(
        owner.operation_id,
        waiting.operation,
        waiting.request_hash,
        waiting.result,
        around.asset,
        payment,
        settled,
        now,
    )
    step = rows.receipt(
        owner,
        receipt_json=orjson.dumps(around.signer.sign(unsigned)).decode(),
        settled=settled,
        sealed_output=None,
        result=waiting.result,
        now=now,
    )
    earned = posted(owner.operation_id, "receipted", ledger.HOLD, ledger.REVENUE, payment, now)
    await _commit(waiting, message, around, State.RECEIPTED, rows.reopen(owner), step, *earned)
    return State.RECEIPTED.value


async def _unpaid(waiting: _Waiting, message: Resolve, seen: Sighting | None, around: Surroundings) -> str:
    owner, payment, now = waiting.owner, waiting.payment, around.clock_ms()
    if seen is not None and seen.standing in {Standing.PAID, Standing.SHALLOW, Standing.UNUSED}:
        shows = f"{seen.standing.value}{f' by {seen.transaction}' if seen.transaction else ''}"
        raise ResolutionRefused(f"the chain shows its authorization {shows}", operation_id=owner.operation_id)
    payer = ledger.payer_account(payment.payer)
    taken_back: list[Statement] = []
    if waiting.receipt is not None:
        taken_back = posted(owner.operation_id, "unsettled", ledger.REVENUE, payer, payment, now)
    elif await _is_held(waiting, around):
        taken_back = posted(owner.operation_id, f"failed.{waiting.attempt}", ledger.HOLD, payer, payment, now)
    state = State.RECEIPTED if waiting.receipt is not None else State.FAILED
    step = rows.unpaid(owner, state=state, settlement="not_settled", why=message.why, now=now)
    await _commit(waiting, message, around, state, step, *taken_back)
    return state.value


async def _is_held(waiting: _Waiting, around: Surroundings) -> bool:
    """Return False where the operation came to the operator before its result was made: its payer owed nothing."""
    found = await around.store.fetch(HELD, {"operation_id": waiting.owner.operation_id})
    return any(total for (total,) in found)


async def _commit(waiting: _Waiting, message: Resolve, around: Surroundings, state: State, *steps: Statement) -> None:
    owner = waiting.owner
    told, _ = await rows.history(around.store, owner.operation_id)
    happening = rows.Happening(state, around.clock_ms(), f"operator: {message.why}")
    try:
        await around.store.commit(*steps, *rows.happenings(owner, told + 1, [happening]))
    except Conflict as conflict:
        raise ResolutionRefused("it changed meanwhile; look again", operation_id=owner.operation_id) from conflict
    around.posted()
