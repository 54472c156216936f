"""The effects that make a result: begin, and run the family's executor within the operation's deadline."""

from __future__ import annotations

from functools import partial

import structlog
import trio

from gateway.actors.failpoints import failpoint
from gateway.actors.operations import rows
from gateway.actors.operations.in_hand import RETRY_AFTER_S, Abandoned, Life, Surroundings, write
from gateway.actors.operations.life import Event, State
from gateway.errors import (
    ExecutionCancelled,
    ExecutionReconciliation,
    GatewayError,
    InternalError,
    PaymentRequired,
    StoreUnavailable,
)
from gateway.registry.canonical import result_hash
from gateway.registry.execution import Served, Work
from gateway.registry.operation import Operation
from gateway.registry.receipts import timestamp

log = structlog.get_logger(__name__)


async def start(life: Life, around: Surroundings) -> Event:
    """Begin."""
    del life, around
    return Event.STARTED


async def execute(life: Life, around: Surroundings) -> Event:
    """Run the family's executor within the operation's deadline."""
    operation = life.operation
    if operation is None:
        raise RuntimeError(f"{life.operation_id} cannot be executed here")
    failpoint("execute.before")
    started = around.clock_ms()
    try:
        served = await _served(life, around, operation)
    except GatewayError as failure:
        return _failed(life, failure)
    finished = around.clock_ms()
    failpoint("execute.after")
    measured = {
        "startedAt": timestamp(started),
        "finishedAt": timestamp(finished),
        "durationMs": finished - started,
        "attempt": life.attempt,
        "node": around.node,
    }
    try:
        life.served = Served(served.output, served.execution | measured)
        size = len(life.served.plain)
        life.result = rows.Result(result_hash(served.output), rows.route_json(served.output.get("route")), finished)
    except Exception as error:
        log.exception("output_unfit", operation_id=life.operation_id, operation=operation.id, error=repr(error))
        return _failed(life, _without_result(life, InternalError()))
    if size > operation.result_cap:
        return _failed(life, _without_result(life, _too_large(operation)))
    return Event.SERVED_FREE if life.payment is None else Event.SERVED_PAID


async def _served(life: Life, around: Surroundings, operation: Operation) -> Served:
    """Return what the executor gives; raises the `GatewayError` that its failure means.

    Its scope ends at the deadline, or when nobody waits any more.
    """
    within = operation.time_for(life.request)
    deadline = trio.current_time() + within
    release = partial(_release, life, around)
    work = Work(
        life.operation_id,
        operation.id,
        life.request,
        life.attempt,
        deadline,
        life.budget,
        release,
        life.network,
        payer=life.payment.payer.lower() if life.payment else "",
    )
    if life.stopped:
        raise ExecutionCancelled
    try:
        with trio.CancelScope(deadline=deadline) as life.running:
            return await around.families[operation.family].execute(work)
    except PaymentRequired as failure:
        log.exception("executor_asked_for_payment", operation_id=life.operation_id, operation=operation.id)
        raise InternalError from failure
    except GatewayError:
        raise
    except Exception as error:
        log.exception("executor_crashed", operation_id=life.operation_id, operation=operation.id, error=repr(error))
        raise _without_result(life, InternalError()) from error
    finally:
        life.running = None
    if life.stopped:
        raise ExecutionCancelled
    raise _without_result(life, operation.failure(f"not finished within {within:g} s", extra={"reason": "deadline"}))


def _too_large(operation: Operation) -> GatewayError:
    return operation.failure("the result is too large to be kept", extra={"reason": "result_too_large"})


def _without_result(life: Life, failure: GatewayError) -> GatewayError:
    """Return what it means that there is no result: of what may have begun, that it must not begin again."""
    return ExecutionReconciliation() if life.released else failure


async def _release(life: Life, around: Surroundings) -> None:
    """Make it durable that this attempt may have begun (`Work.release`).

    Where that is not certain, it must not begin; a crash then takes it for one that did, which is the safe side.
    """
    failpoint("release.before")
    try:
        await write(life, around, State.CLAIMED, rows.release(life.owner, attempt=life.attempt), flushed=True)
    except Abandoned as error:
        raise StoreUnavailable(str(error), retry_after=RETRY_AFTER_S) from error
    life.released = True
    failpoint("release.after")


def _failed(life: Life, failure: GatewayError) -> Event:
    failure.operation_id = life.operation_id
    life.failure, life.served, life.result = failure, None, None
    return Event.RUN_LOST if isinstance(failure, ExecutionReconciliation) else Event.SERVE_FAILED
