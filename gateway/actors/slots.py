"""Slots of something that can do only so much at once, and a short queue for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import trio

from gateway.errors import CapacityExhausted


@attrs.frozen(eq=False)
class Slots:
    """`slots` at once and at most `queue` that wait: who comes then is refused at once, rather than served too late.

    `full` makes the refusal.
    """

    slots: int
    queue: int
    full: Callable[[], CapacityExhausted]
    _limiter: trio.CapacityLimiter = attrs.field(
        default=attrs.Factory(lambda self: trio.CapacityLimiter(self.slots), takes_self=True), init=False
    )

    def admit(self) -> None:
        """Return if one more may wait; raises `CapacityExhausted`."""
        taken = self._limiter.statistics()
        if taken.borrowed_tokens >= self.slots and taken.tasks_waiting >= self.queue:
            raise self.full()

    @asynccontextmanager
    async def slot(self, until: float) -> AsyncIterator[None]:
        """Hold a slot for the length of a block, after a wait that ends on trio's clock `until`.

        Raises `CapacityExhausted`.
        """
        self.admit()
        with trio.move_on_at(until) as waiting:
            await self._limiter.acquire()
        if waiting.cancelled_caught:
            raise self.full()
        try:
            yield
        finally:
            self._limiter.release()
