"""A released run watched: its processor time, its memory, its time from start to end, and its command's own status.

Standard library only: the launcher imports this.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from gateway.sandbox.cgroup_files import CPU_PERIOD_US, Descriptor, Files, fields
from gateway.sandbox.cgroups import Group
from gateway.sandbox.event_loop import EventLoop, Moment
from gateway.sandbox.kernel_calls import exit_status
from gateway.sandbox.launcher_messages import Bounds

CORES = os.cpu_count() or 1
SOONEST_S = 0.001
GROWTH = 4 << 30
"""Bytes a second that memory grows by at most, reckoned high: how soon the next look has to be."""
SOONEST_LOOK_S, LATEST_LOOK_S = 0.005, 0.05
COUNTED_LATE = 64 * 4096 * CORES
"""Bytes that a group's figures of memory may be behind one another: the kernel's batches, one a core."""


class RunWatch:
    """Stops a run at the first bound that it passes; begins when it is made, ends with `finish`."""

    def __init__(
        self,
        group: Group,
        bounds: Bounds,
        loop: EventLoop,
        pidfds: tuple[Descriptor, Descriptor],
        written: Sequence[int],
        stop: Callable[[str], None],
        *,
        began: float,
        cpu_before_us: int,
    ) -> None:
        """Watch a run that was let go of just now, at `began` on the monotonic clock.

        `pidfds` are those of the sandbox's first process and of its command, `written` the directories that it may
        write to; `stop` is called with one of `outcome.Stop`; `cpu_before_us` is the processor time of its set-up.  The
        descriptors stay the caller's.
        """
        self.stopped: str | None = None
        self._group = group
        self._bounds = bounds
        self._loop = loop
        self._init, self._command = pidfds
        self._written = tuple(written)
        self._stop = stop
        self._began = began
        self._cpu_before_us = cpu_before_us
        self._timers: dict[str, Moment] = {}
        self._oom = group.oom_events
        if self._oom is not None:
            loop.watch(self._oom, self._look_for_oom)
        self._next("wall", bounds.wall_us / 1_000_000, lambda: stop("wall"))
        self._next("cpu", self._cpu_lasts_s(bounds.cpu_us), self._look_at_cpu)
        self._next("memory", _memory_lasts_s(bounds.memory_bytes), self._look_at_memory)

    def cpu_us(self) -> int:
        """Return the processor time since the release, in microseconds."""
        return self._group.cpu_us() - self._cpu_before_us

    def finish(self) -> int:
        """Watch no more, and return the time since the release, in microseconds."""
        if self._oom is not None:
            self._loop.unwatch(self._oom)
            self._oom = None
        for each in self._timers.values():
            each.cancel()
        return round((time.monotonic() - self._began) * 1_000_000)

    def command_status(self) -> int | None:
        """Return the wait(2) status of the command itself, once it is over; None where the kernel does not tell."""
        return None if self._command.fileno() < 0 else exit_status(self._command.fileno())

    def init_killed(self) -> bool:
        """Return whether the first process of the sandbox was killed, and not for memory; asked before the run is.

        Nobody within can do that.  It is also False where the kernel does not tell.
        """
        status = None if self._init.fileno() < 0 else exit_status(self._init.fileno())
        return status is not None and os.WIFSIGNALED(status) and not self._group.oom_kills()

    def _next(self, what: str, seconds: float, call: Callable[[], None]) -> None:
        self._timers[what] = self._loop.after(seconds, call)

    def _cpu_lasts_s(self, left_us: int) -> float:
        """Return how long this much processor time lasts at least.

        It has one core, but within a period of the kernel's it may run ahead on all there are.
        """
        return max(left_us / CORES / 1_000_000, (left_us - 2 * CPU_PERIOD_US) / 1_000_000, SOONEST_S)

    def _look_at_cpu(self) -> None:
        left = self._bounds.cpu_us - self.cpu_us()
        if left <= 0:
            self._stop("cpu")
        else:
            self._next("cpu", self._cpu_lasts_s(left), self._look_at_cpu)

    def _look_at_memory(self) -> None:
        most = self._bounds.memory_bytes
        used = self._group.memory()
        if used > most:
            used -= bytes_written(self._written) + bytes_of_image(self._group) + COUNTED_LATE
        if used > most or (self._oom is None and self._group.oom_seen()):
            self._stop("memory")
        else:
            self._next("memory", _memory_lasts_s(most - used), self._look_at_memory)

    def _look_for_oom(self) -> None:
        if self._group.oom_seen():
            self._stop("memory")


def _memory_lasts_s(left: int) -> float:
    """Return after how long to look again where there is so much left, in bytes."""
    return min(max(left / GROWTH, SOONEST_LOOK_S), LATEST_LOOK_S)


def bytes_written(directories: Sequence[int]) -> int:
    """Return the bytes that the filesystems of these directories hold; they are memory, and not its processes'."""
    told = [os.fstatvfs(each) for each in directories]
    return sum((each.f_blocks - each.f_bfree) * each.f_frsize for each in told)


def bytes_of_image(group: Group) -> int:
    """Return the bytes charged to a group for pages of the image that it happened to be the first to read."""
    told = fields(Files(), group.oom_watched.with_name("memory.stat"))
    files = told.get("total_cache", told.get("file", 0))
    return max(files - told.get("total_shmem", told.get("shmem", 0)), 0)
