"""One operation being lived: runs the effects that `life` decides on and tells it what came of them.

A life belongs to one task of the operations actor, under no client's cancel scope.  Those who wait for it are answered
when it ends, or told that the settlement is pending once that takes longer than `settle_wait_s`; it goes on itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog
import trio

from gateway.actors.failpoints import failpoint
from gateway.actors.operations import rows
from gateway.actors.operations.in_hand import Abandoned, Life, Surroundings, open_output
from gateway.actors.operations.keeping import end, keep, receipt
from gateway.actors.operations.life import Effect, Event, State, decide
from gateway.actors.operations.paying import look, settle
from gateway.actors.operations.serving import execute, start
from gateway.actors.operations.verifying import verify

__all__ = ["EFFECTS", "live", "open_output"]

log = structlog.get_logger(__name__)

EFFECTS: dict[Effect, Callable[[Life, Surroundings], Awaitable[Event]]] = {
    Effect.VERIFY: verify,
    Effect.START: start,
    Effect.EXECUTE: execute,
    Effect.KEEP: keep,
    Effect.SETTLE: settle,
    Effect.LOOK: look,
    Effect.RECEIPT: receipt,
}
"""What is run for each effect but the last two, in the order of a paid call."""


async def live(life: Life, around: Surroundings, first: Event) -> None:
    """Live an operation to its end, or as far as this node can; who waits for a result gets it."""
    try:
        await _live(life, around, first)
    except* Abandoned as group:
        why = str(group.exceptions[0])
        log.warning("operation_abandoned", operation_id=life.operation_id, state=life.state.value, why=why)


async def _live(life: Life, around: Surroundings, event: Event) -> None:
    while True:
        before = life.state
        life.state, effect = decide(before, event)
        if life.state is not before and not life.over:
            life.told.append(rows.Happening(life.state, around.clock_ms(), event.value))
        if life.state is State.SETTLING and before is not State.SETTLING:
            life.settling.deadline = trio.current_time() + around.settle_wait_s
        if effect is Effect.END:
            await end(life, around)
            return
        if effect is Effect.REST:
            failpoint("answer.before")
            if (ended := life.ended) is not None:
                life.waiters.answer(ended)
            return
        event = await EFFECTS[effect](life, around)


async def tell_when_slow(life: Life) -> None:
    """Once the settlement takes long, tell those who wait that it is pending; who comes later has its own patience."""
    with life.settling as settling:
        await life.gone.wait()
    if settling.cancelled_caught:
        life.waiters.refuse(life.unfinished())
