"""Whether a node is ready, told from what is known: an answer never waits for the store.

A store that does not answer has one reason, `store_unavailable`, however its silence shows; what it does to the actors
is not told beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.actors.clock import CLOCK_SKEW
from gateway.actors.runtime import Health, Phase
from gateway.actors.store import UNAVAILABLE
from gateway.actors.store_watch import StoreWatch

ANSWER_S = 0.3
"""How long an answer waits for the look at the store that it asked for."""

Fault = dict[str, str | int]


async def faults(
    store: StoreWatch, actors: Callable[[], Sequence[Health]], clock_skew: Callable[[], int | None]
) -> list[Fault]:
    """Return what keeps the node from serving: the store, or else its clock and actors that are not up.

    Each has a `part` and a `reason` for machines; an actor that crashed has a `detail`, a clock that is far from the
    store's `aheadMs`, negative where it is behind.
    """
    health = await store.look(within=ANSWER_S)
    if not health.writable:
        return [{"part": "store", "reason": health.name or UNAVAILABLE}]
    skew_ms = clock_skew()
    skewed: list[Fault] = [] if skew_ms is None else [{"part": "clock", "reason": CLOCK_SKEW, "aheadMs": skew_ms}]
    return skewed + [_of(each) for each in actors() if each.phase is not Phase.READY]


def _of(actor: Health) -> Fault:
    """Return the fault of an actor; what it crashed with is told by its kind, its words are for operators."""
    found: Fault = {"part": actor.actor, "reason": "restarting" if actor.phase is Phase.WAITING else actor.phase.value}
    if actor.last_error is not None and actor.phase is not Phase.STOPPED:
        found["detail"] = f"it crashed with {actor.last_error.partition('(')[0]}"
    return found
