"""Taking on an operation that a crash left open: from its row back to a life and the event to go on with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import orjson

from gateway.actors.operations import rows
from gateway.actors.operations.in_hand import Life, Surroundings, open_output
from gateway.actors.operations.life import Event, State
from gateway.actors.payment import Payment
from gateway.actors.store import Statement
from gateway.errors import ExecutionFailed, ExecutionReconciliation, GatewayError, OperatorNeeded
from gateway.registry.execution import Served
from gateway.registry.operation import Operation
from gateway.registry.sealing import KeyMissing, NodeSeal, SealBroken, unseal

TRIES = 8
"""How often one attempt is taken on before its execution counts as what crashes the node."""


@attrs.frozen
class Unrecoverable(Exception):
    """The row cannot be taken on.

    One that has not been executed ends without a charge, for its payment was never submitted; its key is burned where
    a run may have begun that must not be repeated.  Of one that has, only the operator can say whether it was paid.
    `sold` is False where nobody can try the same again, and its payment may buy something else.
    """

    why: str
    row: rows.OpenRow
    sold: bool = True

    def end(self, owner: rows.Owner, *, told: int, now: int) -> list[Statement]:
        """Return the statements of its end; `told` is how far its history goes."""
        state, settlement = State.FAILED, "none" if self.row.sealed_payment is None else "not_settled"
        kind: type[GatewayError] = ExecutionFailed
        freed: list[Statement] = []
        if self.row.state == State.EXECUTED:
            state, settlement, kind = State.NEEDS_OPERATOR, "unknown", OperatorNeeded
        elif self.row.sealed_output is None and (self.row.released or not self.sold):
            kind = ExecutionReconciliation if self.row.released else ExecutionFailed
            freed = [rows.free_authorizations(owner)]
        credit = self.row.credit if state is State.FAILED else None
        step = rows.end(
            owner,
            state=state,
            settlement=settlement if credit is None else "settled",
            settled=credit,
            failure_code=kind.code,
            failure_detail=self.why,
            now=now,
        )
        return [step, *freed, *rows.happenings(owner, told + 1, [rows.Happening(state, now, self.why)])]


def openable(row: rows.OpenRow, seal: NodeSeal) -> bool:
    """Return False where only a node with another node key can carry the operation on."""
    try:
        for wrapped in (row.node_wrap, row.sealed_payment):
            if wrapped:
                seal.unwrap(row.operation_id, wrapped)
    except KeyMissing:
        return False
    except SealBroken:
        return True
    return True


def recover(
    row: rows.OpenRow,
    owner: rows.Owner,
    around: Surroundings,
    table: Mapping[str, Operation],
    structure: Callable[[Operation, Mapping[str, Any]], Any],
    *,
    told: int,
    tries: int,
) -> tuple[Life, Event]:
    """Return the life that goes on from a row's durable state, and its first event; raises `Unrecoverable`."""
    operation = table.get(row.operation)
    executed = row.state == State.EXECUTED
    try:
        life = (
            _executed(row, owner, around, operation) if executed else _claimed(row, owner, around, operation, structure)
        )
    except _Unfit as unfit:
        raise Unrecoverable(str(unfit), row, sold=operation is not None) from unfit
    except Exception as error:
        why = f"it cannot be taken on ({error if isinstance(error, SealBroken) else type(error).__name__})"
        raise Unrecoverable(why, row) from error
    life.next_step, life.tries = told + 1, tries
    life.told.append(rows.Happening(life.state, around.clock_ms(), f"taken on by {around.node}"))
    if executed:
        return life, Event.RESUMED
    if life.served is None and row.released:
        life.failure = ExecutionReconciliation(operation_id=row.operation_id)
        return life, Event.RUN_LOST
    if life.served is None and tries > TRIES:
        raise Unrecoverable(f"it was taken on {TRIES} times in vain", row)
    return life, Event.CLAIMED_FREE if life.payment is None else Event.CLAIMED_PAID


class _Unfit(Exception):
    """What is missing of a row."""


def _claimed(
    row: rows.OpenRow,
    owner: rows.Owner,
    around: Surroundings,
    operation: Operation | None,
    structure: Callable[[Operation, Mapping[str, Any]], Any],
) -> Life:
    """Return the life of an operation that was claimed: it needs its request, and an output kept before, if any."""
    if operation is None:
        raise _Unfit(f"this node has no operation {row.operation}")
    data_key = around.seal.unwrap(row.operation_id, row.node_wrap or b"")
    body = orjson.loads(unseal(data_key, row.operation_id, "request", row.sealed_request))
    life = _life(row, owner, around, operation)
    life.data_key, life.request = data_key, structure(operation, body)
    if row.result is not None and row.sealed_output is not None and life.payment is not None:
        life.served, life.result = open_output(data_key, row.operation_id, row.sealed_output), row.result
    return life


def _executed(row: rows.OpenRow, owner: rows.Owner, around: Surroundings, operation: Operation | None) -> Life:
    """Return the life of an operation whose settlement is open: it needs its payment alone."""
    life = _life(row, owner, around, operation)
    if row.result is None or life.payment is None:
        raise _Unfit("its result or its payment is gone")
    life.result, life.served = row.result, _readable(row, around)
    life.owed = life.sent = life.resumed = True
    return life


def _life(row: rows.OpenRow, owner: rows.Owner, around: Surroundings, operation: Operation | None) -> Life:
    payment = None
    if row.sealed_payment is not None:
        payment = Payment.load(around.seal.unwrap(row.operation_id, row.sealed_payment))
    return Life(
        owner,
        row.operation,
        operation,
        None,
        row.request_hash,
        payment,
        None,
        row.attempt,
        next_step=1,
        state=State(row.state),
        look_from_block=row.look_from_block,
        credit=row.credit,
        undecided=row.settlement == "unknown",
    )


def _readable(row: rows.OpenRow, around: Surroundings) -> Served | None:
    """Return the kept output for those who wait; without it they are told to come again."""
    try:
        data_key = around.seal.unwrap(row.operation_id, row.node_wrap or b"")
        return open_output(data_key, row.operation_id, row.sealed_output or b"")
    except SealBroken:
        return None
