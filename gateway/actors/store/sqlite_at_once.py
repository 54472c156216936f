"""Relaxed steps in the loop's own thread: nothing of them waits for the disk, and a thread costs more than they do.

What may wait is left to the writer's thread: the lock of another program, the copying of the log into the file and the
flush that its restart takes, a connection that must be opened again, a large value.  A file that keeps the loop waiting
all the same is written to from the thread for a while; so it is where steps come together, which share a transaction.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import attrs
import trio

from gateway.actors.store.errors import Failure, Reason
from gateway.actors.store.sqlite_writer import Result, Step, Writer

LARGEST_STEP = 256 * 1024
"""Bytes of the blobs that a step may store."""
IN_A_ROW = 128
"""Steps after which the thread gets some, so that the log is checkpointed where it is due."""
FOR_THE_THREAD = 2
"""One checkpoints the log, the next begins it anew."""
ALONE = 32
"""How often a step must have come to the thread alone, after some came together, until one is stored at once."""
SLOW_S = 0.1
REST_S = 5.0
"""How long the thread gets all steps after one took longer than `SLOW_S`."""

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
    _turn: int = 0
    _alone: int = ALONE
    _not_before: float = 0.0

    def store(self, step: Step) -> Result | None:
        """Store a relaxed step; None where it was not, and is for the thread."""
        if not self._fit(step):
            return None
        began = self.clock()
        try:
            result = self.writer.run_at_once(step)
        except Exception:  # noqa: BLE001 - a defect of the writer is its actor's death, and no more here
            _log.exception("a step could not be stored at once")
            return Failure(Reason.CRASHED, uncertain=True)
        ended = self.clock()
        if ended - began > SLOW_S:
            self._not_before = ended + REST_S
        return None if result == Failure(Reason.LOCKED) else result

    @property
    def crowded(self) -> bool:
        """Whether steps came together lately."""
        return self._alone < ALONE

    def came(self, steps: int) -> None:
        """Hear how many steps came to the thread together."""
        self._alone = 0 if steps > 1 else self._alone + 1

    def _fit(self, step: Step) -> bool:
        if not self.open or not self.writing.available_tokens or self.writer.connection is None:
            return False
        if self.crowded or self.clock() < self._not_before or _size(step) > LARGEST_STEP:
            return False
        self._turn = (self._turn + 1) % (IN_A_ROW + FOR_THE_THREAD)
        return self._turn < IN_A_ROW


def _size(step: Step) -> int:
    return sum(len(value) for each in step for value in each.parameters.values() if type(value) is bytes)
