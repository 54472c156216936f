"""The node's clock.

On a store that nodes share, time is the store's: every node tells it from the last look at the store's clock and the
seconds that have passed since.  The machine's own clock is held against it.  While the two are more than
`MOST_APART_MS` apart the node takes no lease, is not ready and sells nothing; it goes on by itself when they agree
again.  A store of one node has no other clock than the machine's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Never, final

import attrs
import structlog
import trio

from gateway.actors.runtime import Inbox
from gateway.actors.store import NodeStore
from gateway.errors import StoreUnavailable

log = structlog.get_logger(__name__)

CLOCK_SKEW = "clock_skew"
"""The machine reason of a node whose clock is far from the store's."""
MOST_APART_MS = 10_000
"""Less than the 15 s by which an authorization must outlive its run, and much less than the life of a quote."""
LOOK_EVERY_S = 2.0
FIRST_LOOK_AGAIN_S = 0.5
EXACT_MS = 500
"""A look that took longer than twice this tells nothing new of the time."""
SLACK_MS = 100
"""By how much a look must differ from what is known before the known time is corrected: small steps help nobody."""


def wall_ms() -> int:
    """Return milliseconds since 1970 by this machine's clock."""
    return time.time_ns() // 1_000_000


@attrs.frozen
class _Look:
    """The store's clock said `store_ms`, give or take `error_ms`, at `at` on the monotonic clock."""

    store_ms: int
    at: float
    error_ms: int


@final
class NodeClock:
    """Milliseconds since 1970 when called; the actor "clock" is its `watch`, where nodes share the store.

    `machine_ms` is this machine's clock, `elapsed_s` counts seconds and is never set.
    """

    def __init__(
        self,
        store: NodeStore,
        *,
        machine_ms: Callable[[], int] = wall_ms,
        elapsed_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._machine_ms = machine_ms
        self._elapsed_s = elapsed_s
        self._look: _Look | None = None
        self._told = False

    def __call__(self) -> int:
        """Return the time: by the store's clock where nodes share it, else by this machine's."""
        look = self._look
        if look is None:
            return self._machine_ms()
        return look.store_ms + round((self._elapsed_s() - look.at) * 1000)

    @property
    def ahead_ms(self) -> int:
        """How far this machine's clock is ahead of the store's; negative where it is behind."""
        return self._machine_ms() - self()

    @property
    def skew_ms(self) -> int | None:
        """`ahead_ms` where that is more than `MOST_APART_MS` for certain, else None."""
        if self._look is None:
            return None
        ahead = self.ahead_ms
        return ahead if abs(ahead) - self._look.error_ms > MOST_APART_MS else None

    @property
    def believed(self) -> bool:
        """Whether this node may do what other nodes rely on: they share no store with it, or its clock agrees."""
        return not self._store.shared or (self._look is not None and self.skew_ms is None)

    async def watch(self, inbox: Inbox[Never]) -> None:
        """The actor "clock": look at the store's clock regularly, and once before anything goes by it."""
        async with trio.open_nursery() as nursery:
            while not await self._looked():  # noqa: ASYNC110 - nobody tells that the store is back
                await trio.sleep(FIRST_LOOK_AGAIN_S)
            nursery.start_soon(self._keep_looking)
            inbox.ready()
            async for _ in inbox:
                pass
            nursery.cancel_scope.cancel()

    async def _keep_looking(self) -> None:
        while True:
            await trio.sleep(LOOK_EVERY_S)
            await self._looked()

    async def _looked(self) -> bool:
        """Look once at the store's clock; return False where it cannot be seen."""
        began = self._elapsed_s()
        try:
            ((now,),) = await self._store.fetch("SELECT :store_ms")
        except StoreUnavailable:
            return False
        took = self._elapsed_s() - began
        self._take(_Look(int(now or 0), began + took / 2, round(took * 500)))
        self._tell()
        return True

    def _take(self, look: _Look) -> None:
        """Go by a look from now on, where it corrects what is known."""
        known = self._look
        if known is None:
            self._look = look
            return
        off = abs(look.store_ms - known.store_ms - (look.at - known.at) * 1000)
        if look.error_ms <= EXACT_MS and off > look.error_ms + SLACK_MS:
            self._look = look

    def _tell(self) -> None:
        """Log that the clocks have parted, or agree again."""
        skew = self.skew_ms
        if (skew is not None) == self._told:
            return
        self._told = skew is not None
        if skew is None:
            log.info("clock_right_again", ahead_ms=self.ahead_ms)
        else:
            log.error(CLOCK_SKEW, ahead_ms=skew, fix="set this machine's clock or the store's (NTP)")
