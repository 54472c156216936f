"""Relaxed steps in the loop's own thread: nothing of them waits for the disk, and a thread costs more than they do.

What may wait is left to the writer's thread: the lock of another program, the copying of the log into the file and the
flush that its restart takes, a connection that must be opened again, large values, many steps.  A file that keeps the
loop waiting all the same, or fails, is written to from the thread for a while.  Steps that come together go through the
writer's queue, from where they share a transaction.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import attrs
import trio

from gateway.actors.store.errors import Failure, Reason
from gateway.actors.store.sqlite_writer import Result, Step, Writer

LARGEST = 256 * 1024
"""Bytes of the blobs that are stored at once."""
MOST_TOGETHER = 32
IN_A_ROW = 128
"""Steps after which the thread gets some, so that the log is checkpointed where it is due."""
FOR_THE_THREAD = 2
"""Groups: one checkpoints the log, the next begins it anew."""
ALONE = 32
"""How often a step must have come through the queue alone, after some came together, until one goes past it."""
SLOW_S = 0.1
REST_S = 5.0
"""How long the thread gets all steps after one took longer than `SLOW_S`, or the file failed."""

_LOCKED = Failure(Reason.LOCKED)
_log = logging.getLogger(__name__)


@attrs.define(eq=False)
class AtOnce:
    """Stores steps at once where that keeps nobody waiting.

    Attributes:
        writing: has a token to give while nobody else uses the writer.
        open: the writer's actor takes steps; set by that.
    """

    writer: Writer
    writing: trio.CapacityLimiter
    clock: Callable[[], float] = time.perf_counter
    open: bool = False
    _stored: int = 0
    _left: int = 0
    _alone: int = ALONE
    _not_before: float = 0.0

    def store(self, step: Step) -> Result | None:
        """Store a relaxed step past the queue; None where it was not, and is for the queue."""
        results = None if self.crowded or self._left else self.store_together([step])
        return None if results is None else results[0]

    def store_together(self, steps: Sequence[Step]) -> list[Result] | None:
        """Store relaxed steps, in one transaction if that can be; None where they were not, and are for the thread."""
        if not self._fit(steps):
            return None
        began = self.clock()
        try:
            results = self.writer.run_at_once(steps)
        except Exception:  # noqa: BLE001 - a defect of the writer is its actor's death, and no more here
            _log.exception("a step could not be stored at once")
            return [Failure(Reason.CRASHED, uncertain=True) for _ in steps]
        ended = self.clock()
        locked = all(each == _LOCKED for each in results)
        if ended - began > SLOW_S or (not locked and any(isinstance(each, Failure) for each in results)):
            self._not_before = ended + REST_S
        if locked:
            self._left = max(self._left, 1)  # for who waits for the lock
            return None
        return results

    @property
    def idle(self) -> bool:
        """Whether the writer is there, and nobody uses it."""
        return self.open and self.writing.available_tokens > 0

    @property
    def crowded(self) -> bool:
        """Whether steps came together lately."""
        return self._alone < ALONE

    def came(self, steps: int) -> None:
        """Hear how many steps came through the queue together."""
        self._alone = 0 if steps > 1 else self._alone + 1

    def _fit(self, steps: Sequence[Step]) -> bool:
        if not self.idle or self.writer.connection is None:
            return False
        if len(steps) > MOST_TOGETHER or self.clock() < self._not_before or sum(map(_size, steps)) > LARGEST:
            return False
        if self._left:
            self._left -= 1
            return False
        self._stored += len(steps)
        if self._stored >= IN_A_ROW:
            self._stored, self._left = 0, FOR_THE_THREAD
        return True


def _size(step: Step) -> int:
    return sum(len(value) for each in step for value in each.parameters.values() if type(value) is bytes)
