"""Taking on an operation that a crash left open: from its row back to a life and the event to go on with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from gateway.actors.operations import rows
from gateway.actors.operations.life import Event, State
from gateway.actors.operations.live import Life, Surroundings, open_output
from gateway.actors.payment import Payment
from gateway.actors.store import Statement
from gateway.registry.operation import Operation
from gateway.registry.sealing import SealBroken, unseal


class Unrecoverable(Exception):
    """The row cannot be taken on (a missing key, an operation this node no longer has): the operator decides."""

    def end(self, owner: rows.Owner, now: int) -> Statement:
        """Return the statement that hands the operation to the operator."""
        return rows.end(
            owner,
            state=State.NEEDS_OPERATOR,
            settlement="unknown",
            failure_code="operator_needed",
            failure_detail=str(self),
            now=now,
        )


def recover(
    row: rows.OpenRow,
    owner: rows.Owner,
    around: Surroundings,
    table: Mapping[str, Operation],
    structure: Callable[[Operation, Mapping[str, Any]], Any],
    next_step: int,
) -> tuple[Life, Event]:
    """Return the life that goes on from a row's durable state, and its first event; raises `Unrecoverable`."""
    operation = table.get(row.operation)
    if operation is None:
        raise Unrecoverable(f"this node has no operation {row.operation}")
    if row.node_wrap is None:
        raise Unrecoverable("the operation's key is gone")
    try:
        data_key = around.seal.unwrap(row.operation_id, row.node_wrap)
        body = orjson.loads(unseal(data_key, row.operation_id, "request", row.sealed_request))
        payment = None
        if row.sealed_payment is not None:
            payment = Payment.load(around.seal.unwrap(row.operation_id, row.sealed_payment))
        served = open_output(data_key, row.operation_id, row.sealed_output) if row.sealed_output else None
    except SealBroken as error:
        raise Unrecoverable(str(error)) from error
    life = Life(
        owner,
        operation,
        structure(operation, body),
        row.request_hash,
        payment,
        data_key,
        row.attempt,
        state=State(row.state),
        recovered=True,
        served=served,
        executed_at=row.executed_at,
        look_from_block=row.look_from_block,
        next_step=next_step,
    )
    life.told.append(rows.Happening(life.state, around.clock_ms(), f"taken on by {around.node}"))
    if life.state is State.EXECUTED:
        life.owed = life.sent = True
        return life, Event.RESUMED
    return life, Event.CLAIMED_FREE if payment is None else Event.CLAIMED_PAID
