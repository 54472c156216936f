"""What is known of the store now: by all that was tried, and by a look every few seconds or when somebody asks.

While the store cannot be written nothing is sold, so nothing else would find out that it can be again.
"""

from __future__ import annotations

from typing import Never, final

import attrs
import trio

from gateway.actors.runtime import Inbox
from gateway.actors.store import Engine, Reason, StoreHealth

LOOK_EVERY_S = 5.0
LOOK_AGAIN_S = 0.5
"""The pause between two looks at a store that could not be written."""
SILENT_S = 2.0
"""After how long a store that is looked at counts as silent."""
STEPS = 8
"""That time is waited for in so many steps: a node that did not get the processor meanwhile blames no store."""


@final
class StoreWatch:
    """Tells of the store without asking it; `watch` is the actor that looks."""

    def __init__(self, store: Engine) -> None:
        self._store = store
        self._found: StoreHealth | None = None
        self._silent = False
        self._wanted = trio.Event()
        self._looked = trio.Event()

    async def look(self, *, within: float) -> StoreHealth:
        """Return what is known, after a look that is begun now if that ends `within` so many seconds."""
        looked = self._looked
        self._wanted.set()
        with trio.move_on_after(within):
            await looked.wait()
        return self.health()

    def health(self) -> StoreHealth:
        """Return what is known of the store now."""
        known = self._store.health
        if not known.writable:
            return known
        if self._silent:
            return attrs.evolve(known, writable=False, reason=Reason.STALLED)
        if self._found is not None and not self._found.writable:
            return self._found
        return known

    async def watch(self, inbox: Inbox[Never]) -> None:
        """Look at the store again and again."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_looking)
            inbox.ready()
            async for _ in inbox:
                pass
            nursery.cancel_scope.cancel()

    async def _keep_looking(self) -> None:
        while True:
            self._wanted = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._lose_patience)
                self._found = await self._store.probe()
                nursery.cancel_scope.cancel()
            self._silent = False
            looked, self._looked = self._looked, trio.Event()
            looked.set()
            with trio.move_on_after(LOOK_EVERY_S if self.health().writable else LOOK_AGAIN_S):
                await self._wanted.wait()

    async def _lose_patience(self) -> None:
        for _ in range(STEPS):
            await trio.sleep(SILENT_S / STEPS)
        self._silent = True
