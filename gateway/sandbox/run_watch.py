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
from gateway.sandbox.outside_check import status_of

CORES = os.cpu_count() or 1
SOONEST_S = 0.001
GROWTH = 4 << 30
"""Bytes a second that memory grows by at most, reckoned high: how soon the next look has to be."""
SOONEST_LOOK_S, LATEST_LOOK_S = 0.005, 0.05
COUNTED_LATE = 64 * 4096 * CORES
"""Bytes that a group's figures of memory may be behind one another: the kernel's batches, one a core."""
FIRST_SEARCH_S, LAST_SEARCH_S = 0.0005, 0.1


class RunWatch:
    """Stops a run at the first bound that it passes; begins when it is made, ends with `finish`."""

    def __init__(
        self,
        group: Group,
        bounds: Bounds,
        loop: EventLoop,
        init: int,
        written: Sequence[int],
        stop: Callable[[str], None],
    ) -> None:
        """`written` are the directories that it may write to; `stop` is called with one of `outcome.Stop`."""
        self.stopped: str | None = None
        self._group = group
        self._bounds = bounds
        self._loop = loop
        self._init = init
        self._written = tuple(written)
        self._stop = stop
        self._command = Descriptor(-1)
        self._init_held = _held(init)
        self._began = time.monotonic()
        self._cpu_before_us = group.cpu_us()
        self._timers: dict[str, Moment] = {}
        self._oom = group.oom_events
        if self._oom is not None:
            loop.watch(self._oom, self._look_for_oom)
        self._next("wall", bounds.wall_us / 1_000_000, lambda: stop("wall"))
        self._next("cpu", self._cpu_lasts_s(bounds.cpu_us), self._look_at_cpu)
        self._next("memory", SOONEST_LOOK_S, self._look_at_memory)
        self._search_after = FIRST_SEARCH_S
        self._next("command", self._search_after, self._search_command)

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
        self._init_held.close()
        return round((time.monotonic() - self._began) * 1_000_000)

    def command_status(self) -> int | None:
        """Return the wait(2) status of the command itself, once it is over; None where the kernel does not tell."""
        if self._command.fileno() < 0:
            return None
        status = exit_status(self._command.fileno())
        self._command.close()
        return status

    def init_killed(self) -> bool:
        """Return whether the first process of the sandbox was killed, and not for memory; asked before the run is.

        Nobody within can do that.  It is also False where the kernel does not tell.
        """
        status = None if self._init_held.fileno() < 0 else exit_status(self._init_held.fileno())
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
            soon = min(max((most - used) / GROWTH, SOONEST_LOOK_S), LATEST_LOOK_S)
            self._next("memory", soon, self._look_at_memory)

    def _look_for_oom(self) -> None:
        if self._group.oom_seen():
            self._stop("memory")

    def _search_command(self) -> None:
        """Take hold of the command, the first child of the sandbox's init, for its status when it is over."""
        try:
            with open(f"/proc/{self._init}/task/{self._init}/children", "rb") as file:  # noqa: PTH123 - no decoding
                children = [int(each) for each in file.read().split()]
            if children and status_of(children[0])["NSpid"].split()[-1] == "2":
                self._command = Descriptor(os.pidfd_open(children[0]))
                return
        except OSError:
            return
        self._search_after *= 2
        if self._search_after < LAST_SEARCH_S:
            self._next("command", self._search_after, self._search_command)


def _held(pid: int) -> Descriptor:
    try:
        return Descriptor(os.pidfd_open(pid))
    except OSError:
        return Descriptor(-1)


def bytes_written(directories: Sequence[int]) -> int:
    """Return the bytes that the filesystems of these directories hold; they are memory, and not its processes'."""
    told = [os.fstatvfs(each) for each in directories]
    return sum((each.f_blocks - each.f_bfree) * each.f_frsize for each in told)


def bytes_of_image(group: Group) -> int:
    """Return the bytes charged to a group for pages of the image that it happened to be the first to read."""
    told = fields(Files(), group.oom_watched.with_name("memory.stat"))
    files = told.get("total_cache", told.get("file", 0))
    return max(files - told.get("total_shmem", told.get("shmem", 0)), 0)
