"""An operator's decision on an operation that waits for one: it was paid by this transaction, or it never will be."""

from __future__ import annotations

from typing import Any

from gateway.actors.operations import rows
from gateway.actors.operations.life import State
from gateway.actors.operations.live import Surroundings
from gateway.actors.operations.order import Resolve
from gateway.actors.runtime import Letter
from gateway.actors.store import Conflict, Statement
from gateway.errors import GatewayError, OperationInProgress, OperationNotFound
from gateway.registry import ledger


async def resolve(letter: Letter[Any], around: Surroundings) -> None:
    """Record the decision with its reason; the operation ends `failed`, and its key can buy the kept result again."""
    message: Resolve = letter.message
    try:
        letter.answer(message, await _resolve(message, around))
    except GatewayError as failure:
        letter.refuse(failure)


async def _resolve(message: Resolve, around: Surroundings) -> str:
    found = await around.store.fetch(
        "SELECT state, epoch, attempt, payer, network, asset, amount FROM operations"
        " WHERE operation_id = :operation_id",
        {"operation_id": message.operation_id},
    )
    if not found:
        raise OperationNotFound(operation_id=message.operation_id)
    state, epoch, attempt, payer, network, asset, amount = found[0]
    epoch = int(epoch or 0)
    if state != State.NEEDS_OPERATOR:
        raise OperationInProgress(f"the operation is {state}, not needs_operator", operation_id=message.operation_id)
    step = await around.store.fetch(
        "SELECT COALESCE(MAX(step), 0) + 1 FROM operation_events WHERE operation_id = :operation_id",
        {"operation_id": message.operation_id},
    )
    owner = rows.Owner(message.operation_id, around.node, epoch)
    told = rows.Happening(State.FAILED, around.clock_ms(), f"operator: {message.why}")
    update = Statement(
        """
        UPDATE operations SET state = 'failed', settlement = 'not_settled', failure_code = 'settlement_failed',
            failure_detail = :why
        WHERE operation_id = :operation_id AND epoch = :epoch AND state = 'needs_operator'
        """,
        {"operation_id": message.operation_id, "epoch": epoch, "why": message.why},
        rows=1,
    )
    owed = ledger.move(
        operation_id=message.operation_id,
        step=f"failed.{attempt}",
        debit=ledger.HOLD,
        credit=ledger.payer_account(str(payer)),
        network=str(network),
        asset=str(asset),
        amount=int(amount or 0),
        at=around.clock_ms(),
    )
    try:
        await around.store.commit(update, *rows.postings(owed), *rows.happenings(owner, int(step[0][0] or 1), [told]))
    except Conflict as conflict:
        raise OperationInProgress("the operation changed meanwhile", operation_id=message.operation_id) from conflict
    return State.FAILED.value
