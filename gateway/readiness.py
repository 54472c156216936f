"""Whether a node is ready, told from what is known: an answer never waits for the store.

A look at the store goes on behind the answers, one at a time and only while somebody asks.  A store that does not
answer has one reason, `store_unavailable`, however its silence shows; what it does to the actors is not told beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Never, final

import trio

from gateway.actors.runtime import Health, Inbox, Phase
from gateway.actors.store import Engine, Reason, StoreHealth

ANSWER_S = 0.3
"""How long an answer waits for the look that it asked for."""
SILENT_S = 1.5
"""After how long a store that is looked at counts as silent; a busy one takes less."""
UNAVAILABLE = "store_unavailable"

_SILENCES = frozenset({Reason.STALLED, Reason.SLOW, Reason.OVERLOADED, Reason.LEASE_LOST, Reason.CRASHED})
"""The reasons that one silence of a store has, as different parts meet it."""

Fault = dict[str, str]


@final
class ReadinessWatch:
    """What keeps a node from serving; `watch` is the actor that looks at the store."""

    def __init__(self, store: Engine, actors: Callable[[], Sequence[Health]]) -> None:
        self._store = store
        self._actors = actors
        self._known: StoreHealth | None = None
        self._began: float | None = None
        self._asked = trio.Event()
        self._looked = trio.Event()

    async def watch(self, inbox: Inbox[Never]) -> None:
        """The actor "readiness": look at the store whenever somebody asks."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_looking)
            inbox.ready()
            async for _ in inbox:
                pass
            nursery.cancel_scope.cancel()

    async def faults(self) -> list[Fault]:
        """Return what keeps the node from serving: the store, or else actors that are not up.

        Each has a `part` and a `reason` for machines; an actor that crashed has a `detail`.
        """
        looked = self._looked
        self._asked.set()
        with trio.move_on_after(ANSWER_S):
            await looked.wait()
        store = self._of_store()
        return [store] if store is not None else [_of(each) for each in self._actors() if each.phase is not Phase.READY]

    async def _keep_looking(self) -> None:
        while True:
            await self._asked.wait()
            self._asked, self._began = trio.Event(), trio.current_time()
            try:
                self._known = await self._store.probe()
            finally:
                self._began = None
            looked, self._looked = self._looked, trio.Event()
            looked.set()

    def _of_store(self) -> Fault | None:
        if self._began is not None and trio.current_time() > self._began + SILENT_S:
            return {"part": "store", "reason": UNAVAILABLE}
        for health in (self._store.health, self._known):
            if health is not None and not health.writable:
                return {"part": "store", "reason": UNAVAILABLE if health.reason in _SILENCES else health.name}
        return None


def _of(actor: Health) -> Fault:
    """Return the fault of an actor; what it crashed with is told by its kind, its words are for operators."""
    found = {"part": actor.actor, "reason": "restarting" if actor.phase is Phase.WAITING else actor.phase.value}
    if actor.last_error is not None and actor.phase is not Phase.STOPPED:
        found["detail"] = f"it crashed with {actor.last_error.partition('(')[0]}"
    return found
