"""What the launcher's child does between its fork and its end as bubblewrap: gives up all that a run may not have.

Standard library only: the launcher imports this.  PDEATHSIG is set last, since a change of user clears it.
"""

from __future__ import annotations

import fcntl
import math
import os
import resource
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from gateway.sandbox.bubblewrap import (
    ARGUMENTS_AT,
    BLOCK_AT,
    COMMAND,
    FILTER_AT,
    ORDERS_AT,
    STARTER_AT,
    STATUS_AT,
)
from gateway.sandbox.kernel_calls import PR_SET_NO_NEW_PRIVS, PR_SET_PDEATHSIG, prctl
from gateway.sandbox.launcher_messages import Bounds

FAILED = 98
"""How a child ends that could not become bubblewrap; why is on the status pipe, after `COMPLAINT`."""
COMPLAINT = b"!"
ASIDE = 64
"""Descriptors are moved beyond this number first, so that none is in another's place."""
ROOM_OVER_DISK = 1 << 20
"""A file may seem this much larger than the disk is, so that a full disk says ENOSPC and not EFBIG."""
MIB = 1 << 20


class RootKept(Exception):
    """The child could not stop being root."""


@dataclass(frozen=True)
class Descriptors:
    """What bubblewrap starts with: `streams` are its own, not the command's; there may be no `filter`."""

    streams: tuple[int, int, int]
    arguments: int
    block: int
    status: int
    starter: int
    orders: int
    filter: int | None

    def places(self) -> list[tuple[int, int]]:
        """Return each with the number that it gets."""
        placed = [(each, at) for at, each in enumerate(self.streams)]
        placed += [(self.arguments, ARGUMENTS_AT), (self.block, BLOCK_AT), (self.status, STATUS_AT)]
        placed += [(self.starter, STARTER_AT), (self.orders, ORDERS_AT)]
        return placed if self.filter is None else [*placed, (self.filter, FILTER_AT)]


def become(program: Path, bounds: Bounds, descriptors: Descriptors, *, user: int | None, parent: int) -> NoReturn:
    """Become bubblewrap, whose command is the starter; `user` is the host user to be from here on, None this one.

    Never returns: where it fails it complains on the status pipe and ends.
    """
    try:
        _as_a_program_starts()
        _limit(bounds)
        _set_aside(descriptors)
        if user is not None:
            stop_being_root(user)
        if 0 in os.getresuid():
            raise RootKept("uid 0")
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            os.execve(program, [b"bwrap", b"--args", b"%d" % ARGUMENTS_AT, b"--", COMMAND], {})  # noqa: S606
    except RootKept as kept:
        complain(f"sandbox.launcher_root_uid: the launcher cannot stop being {kept}")
    except OSError as refused:
        complain(f"sandbox.setup_failed: {refused}")
    finally:
        os._exit(FAILED)


def complain(what: str) -> None:
    """Say what went wrong where the launcher reads it."""
    os.write(STATUS_AT, COMPLAINT + what.encode() + b"\n")


def stop_being_root(user: int) -> None:
    """Be this user and its group alone, for good.  Raises `RootKept`."""
    try:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    except OSError as refused:
        raise RootKept(f"uid 0 and become {user}: {refused.strerror}") from refused


def _as_a_program_starts() -> None:
    """Leave the launcher's session; what the launcher catches of signals (`EventLoop`) ends with the execution."""
    signal.set_wakeup_fd(-1)
    os.setsid()
    os.chdir("/")
    os.umask(0o022)


def _limit(bounds: Bounds) -> None:
    # Not RLIMIT_NPROC: it counts all that a user has on this machine, whose runs would then end each other's set-up.
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 256,
        resource.RLIMIT_CPU: math.ceil(bounds.cpu_us / 1_000_000) + 1,
        resource.RLIMIT_FSIZE: max(bounds.disk_bytes, bounds.artifact_bytes) + ROOM_OVER_DISK,
        resource.RLIMIT_STACK: 8 * MIB,
        resource.RLIMIT_MEMLOCK: 64 << 10,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 64,
        resource.RLIMIT_NICE: 0,
        resource.RLIMIT_RTPRIO: 0,
    }
    for what, value in limits.items():
        most = resource.getrlimit(what)[1]
        within = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(what, (within, within))
    # Where the whole machine runs out of memory, a run goes first.
    score = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    os.write(score, b"1000")
    os.close(score)


def _set_aside(descriptors: Descriptors) -> None:
    aside = [(fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, ASIDE), at) for each, at in descriptors.places()]
    for each, at in aside:
        os.dup2(each, at, inheritable=True)
    os.closerange(FILTER_AT if descriptors.filter is None else FILTER_AT + 1, os.sysconf("SC_OPEN_MAX"))
