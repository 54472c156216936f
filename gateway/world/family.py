"""A running program together with the processes that it started: stopped, let go on, or killed as one."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

WAIT_S = 30.0
LOOK_S = 0.02
WAKER = ("/bin/sh", "-c", 'read -r _; kill -CONT "$@"', "waker")

Family = Mapping[int, int]
"""A pidfd for each process id: it names this very process, and no later one of that id."""


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a program and its children with SIGKILL; returns when all are gone.  Raises `TimeoutError`."""
    with halted(process) as family:
        _send(family, signal.SIGKILL)
        process.wait(WAIT_S)
        for pid, pidfd in family.items():
            if not select.select([pidfd], [], [], WAIT_S)[0]:
                raise TimeoutError(f"process {pid} did not end when it was killed")


def pause(process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """Stop a program and its children where they are (SIGSTOP); returns when all stand.  Raises `TimeoutError`.

    What is stopped cannot end, not even with us.  So this returns a program that lets the family go on once its input
    is closed, which happens when we die: to be closed after `resume` or `kill`.
    """
    with halted(process) as family:
        waker = subprocess.Popen(  # noqa: S603 - the command is ours
            [*WAKER, *map(str, family)], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        _send(family, signal.SIGSTOP)
        deadline = time.monotonic() + WAIT_S
        while not all(map(_stands, family)):
            if time.monotonic() > deadline:
                waker.communicate()
                raise TimeoutError(f"of the processes {sorted(family)} not all stopped")
            time.sleep(LOOK_S)
        return waker


def resume(process: subprocess.Popen[bytes]) -> None:
    """Let a program and its children go on after `pause`."""
    with halted(process) as family:
        _send(dict(reversed(family.items())), signal.SIGCONT)


@contextmanager
def halted(process: subprocess.Popen[bytes]) -> Iterator[dict[int, int]]:
    """Yield a program, first, and its children, while it is stopped and can start no more; nothing if it has ended."""
    family: dict[int, int] = {}
    if process.poll() is not None:
        yield family
        return
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    try:
        for pid in (process.pid, *_children(process.pid)):
            with suppress(ProcessLookupError):
                family[pid] = os.pidfd_open(pid)
        yield family
    finally:
        for pidfd in family.values():
            os.close(pidfd)


def _send(family: Family, number: signal.Signals) -> None:
    for pidfd in family.values():
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, number)


def _children(parent: int) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*"):
        if _facts(int(path.name))[1:2] == [str(parent)]:
            yield int(path.name)


def _stands(pid: int) -> bool:
    """Whether a process is stopped, or has ended (Z until its parent, which is stopped too, hears of it)."""
    return _facts(pid)[:1] in (["T"], ["Z"], [])


def _facts(pid: int) -> list[str]:
    """Return state, parent and what follows in proc(5) stat, after the name in brackets that may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
