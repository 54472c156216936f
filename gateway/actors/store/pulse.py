"""The health of a store, as told by everything that was tried, and what an observer hears of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import attrs

from gateway.actors.store.errors import Failure, Reason
from gateway.actors.store.protocol import StoreHealth

FRESH_S = 1.0

_log = logging.getLogger(__name__)


@attrs.frozen
class Committed:
    """What an observer hears of one group: how many `steps` shared it, how many were `undone`, and its duration."""

    steps: int
    undone: int
    seconds: float


Observe = Callable[[Committed | StoreHealth], object]
"""Hears what happens; when it raises, that is logged and the store goes on."""


@attrs.define(eq=False)
class Pulse:
    """What the last write told; damage of a file is not forgotten before a restart.  `count` is of writes."""

    observe: Observe
    now: Callable[[], float] = time.time
    health: StoreHealth = attrs.field(init=False)
    count: int = 0
    _last_success: float = attrs.field(factory=time.monotonic)

    def __attrs_post_init__(self) -> None:
        """Begin healthy: the store was just opened."""
        self.health = StoreHealth(writable=True, reason=None, since=self.now())

    @property
    def fresh(self) -> bool:
        """Whether a write succeeded just now, and nothing failed since."""
        return self.health.writable and time.monotonic() - self._last_success < FRESH_S

    @property
    def damaged(self) -> bool:
        """Whether the store was found damaged."""
        return self.health.reason is Reason.CORRUPT

    def feel(self, failure: Failure | None) -> None:
        """Take in that a write succeeded (None) or failed."""
        if failure is None:
            self.count = (self.count + 1) % 2**31
            self._last_success = time.monotonic()
        self._turn(None if failure is None else failure.reason)

    def read_failed(self, failure: Failure) -> None:
        """Take in that a read failed, which tells of writes only where the store is damaged."""
        if failure.reason is Reason.CORRUPT:
            self._turn(failure.reason)

    def tell(self, event: Committed | StoreHealth) -> None:
        """Let the observer hear of something."""
        try:
            self.observe(event)
        except Exception:  # noqa: BLE001 - an observer is not trusted with the store
            _log.exception("the observer of the store failed at %r", event)

    def _turn(self, reason: Reason | None) -> None:
        if reason is not self.health.reason and not self.damaged:
            self.health = StoreHealth(writable=reason is None, reason=reason, since=self.now())
            self.tell(self.health)
