"""What is known of the store now: by all that was tried, and by a look every few seconds.

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


@final
class StoreWatch:
    """Tells of the store without asking it; `watch` is the actor that looks."""

    def __init__(self, store: Engine) -> None:
        self._store = store
        self._found: StoreHealth | None = None
        self._began: float | None = None

    def health(self) -> StoreHealth:
        """Return what is known of the store now."""
        known = self._store.health
        if not known.writable:
            return known
        if self._began is not None and trio.current_time() >= self._began + SILENT_S:
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
            self._began = trio.current_time()
            try:
                self._found = await self._store.probe()
            finally:
                self._began = None
            await trio.sleep(LOOK_EVERY_S if self.health().writable else LOOK_AGAIN_S)
