"""The health of a store, as told by everything that was tried, and what an observer hears of it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

import attrs

from gateway.actors.store.errors import Failure, Reason, StatementFailed
from gateway.actors.store.protocol import StoreHealth

FRESH_S = 1.0
HELD_S = 3.0
"""How long a refused statement is reported: longer than the pause between two looks of the node's periodic tasks."""

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
    """What the last write told, and what was refused of late; damage of a file is not forgotten before a restart.

    `count` is of writes.  One table may be refused while others are written: a success takes no refusal back.
    """

    observe: Observe
    now: Callable[[], float] = time.time
    count: int = 0
    _written: StoreHealth = attrs.field(init=False)
    _refusal: StoreHealth | None = None
    _refused_at: float = -math.inf
    _last_success: float = attrs.field(factory=time.monotonic)

    def __attrs_post_init__(self) -> None:
        """Begin healthy: the store was just opened."""
        self._written = StoreHealth(writable=True, reason=None, since=self.now())

    @property
    def health(self) -> StoreHealth:
        """Whether the store does what the node asks of it."""
        if self._refusal is not None and time.monotonic() > self._refused_at + HELD_S:
            self._refusal = None
            self.tell(self._written)
        return self._written if self._refusal is None or not self._written.writable else self._refusal

    @property
    def fresh(self) -> bool:
        """Whether a write succeeded just now, and nothing failed since."""
        return self._written.writable and time.monotonic() - self._last_success < FRESH_S

    @property
    def damaged(self) -> bool:
        """Whether the store was found damaged."""
        return self._written.reason is Reason.CORRUPT

    def feel(self, failure: Failure | None) -> None:
        """Take in that a write succeeded (None) or failed."""
        if failure is None:
            self.count = (self.count + 1) % 2**31
            self._last_success = time.monotonic()
        self._turn(failure)

    def refused(self, failed: StatementFailed) -> None:
        """Note that a statement was refused; it is reported for a while."""
        if not failed.of_store:
            return
        before, failure = self.health, failed.failure
        self._refused_at = time.monotonic()
        if self._refusal is None or self._refusal.name != failure.name:
            self._refusal = StoreHealth(writable=False, reason=failure.reason, since=self.now(), code=failure.code)
            if before.name != failure.name:
                _log.warning("the store refuses statements (%s): %s", failure.name, failed.cause)
                self.tell(self._refusal)

    def read_failed(self, failure: Failure) -> None:
        """Take in that a read failed, which tells of writes only where the store is damaged."""
        if failure.reason is Reason.CORRUPT:
            self._turn(failure)

    def tell(self, event: Committed | StoreHealth) -> None:
        """Let the observer hear of something."""
        try:
            self.observe(event)
        except Exception:  # noqa: BLE001 - an observer is not trusted with the store
            _log.exception("the observer of the store failed at %r", event)

    def _turn(self, failure: Failure | None) -> None:
        name = "" if failure is None else failure.name
        if name != self._written.name and not self.damaged:
            self._written = StoreHealth(writable=True, reason=None, since=self.now())
            if failure is not None:
                self._written = attrs.evolve(self._written, writable=False, reason=failure.reason, code=failure.code)
            self.tell(self.health)
