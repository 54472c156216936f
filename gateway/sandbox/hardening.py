"""What bubblewrap cannot do, done to a sandbox while its command is blocked.

Nothing that was written can be executed, and `/proc` tells of nothing but the sandbox's own processes and changes none
of them.  A forked child waits until all is set up, enters the sandbox's user and mount namespaces as their owner, and
mounts anew there; it is forked while bubblewrap sets up, which takes no time then.  Standard library only: the launcher
imports this.  Source: mount(2), proc(5) (`subset=pid`, Linux 5.8; `mem`, which a process may write over its own code).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from gateway.sandbox.bubblewrap import OUT, SCRATCH
from gateway.sandbox.cgroup_files import Descriptor
from gateway.sandbox.kernel_calls import (
    CLONE_NEWNS,
    CLONE_NEWUSER,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    MS_REMOUNT,
    PR_SET_PDEATHSIG,
    mount,
    owner_of_namespace,
    prctl,
    setns,
)
from gateway.sandbox.launcher_child import RootKept, stop_being_root
from gateway.sandbox.outside_check import blocked

NOTHING_RUNS = MS_NOSUID | MS_NODEV | MS_NOEXEC
PROC_OPTIONS = b"subset=pid,hidepid=invisible"
BLOCKED_WITHIN_S = 10.0
LOOK_AGAIN_S = 0.0002
"""Between two looks whether bubblewrap has set up, which takes it some 3 ms."""
UNKNOWN, ROOT_KEPT = 255, 254
"""How it ends beside an errno: for no reason that has a number, and because it could not stop being root."""
DONE = b"\0"


class Hardening:
    """A child that hardens one sandbox; `pid` exits with 0, an errno or `ROOT_KEPT`, and is reaped by who made this.

    `done` is a descriptor that is readable when it is done, and at its end where it failed: that is known 1 ms before
    its exit is.
    """

    def __init__(self, user: int | None) -> None:
        """`user` is the host user that the sandbox runs as, None who this process is."""
        hears, tells = os.pipe2(os.O_CLOEXEC)
        done, says = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if self.pid == 0:
            _harden_what_is_told(hears, says, user)
        os.close(hears)
        os.close(says)
        self._tells = Descriptor(tells)
        self._done = Descriptor(done)

    @property
    def done(self) -> int:
        """Its number, or -1 after `close`."""
        return self._done.fileno()

    def succeeded(self) -> bool:
        """Return what there is to read at `done`: whether the sandbox is hardened."""
        return os.read(self.done, 1) == DONE

    def aim(self, init: int) -> None:
        """Tell it the sandbox's first process, as the host counts; one that is dead is not told."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._tells.fileno(), str(init).encode())
        self._tells.close()

    def close(self) -> None:
        """Have nothing more to do with it: without an aim it ends."""
        self._tells.close()
        self._done.close()


def _harden_what_is_told(hears: int, says: int, user: int | None) -> None:
    """Harden, and end this process."""
    code = UNKNOWN
    try:
        # What it has from the launcher is not to be held open: sockets, pipes and directories of runs.
        os.dup2(hears, 0)
        os.dup2(says, 1)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        if user is not None:
            stop_being_root(user)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        told = os.read(0, 32)
        if told:
            _await_blocked(int(told))
            _harden(int(told))
            os.write(1, DONE)
        code = 0
    except OSError as refused:
        _note(str(refused))
        code = refused.errno or UNKNOWN
    except RootKept as kept:
        _note(f"cannot stop being {kept}")
        code = ROOT_KEPT
    finally:
        os._exit(code)


def _note(what: str) -> None:
    os.write(2, f"launcher: hardening: {what}\n".encode())


def _await_blocked(init: int) -> None:
    until = time.monotonic() + BLOCKED_WITHIN_S
    while not blocked(init):
        if time.monotonic() > until:
            raise TimeoutError(None, "bubblewrap does not come to its end")
        time.sleep(LOOK_AGAIN_S)


def _harden(init: int) -> None:
    mounts = os.open(f"/proc/{init}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    setns(owner_of_namespace(mounts), CLONE_NEWUSER)
    setns(mounts, CLONE_NEWNS)
    for place in (SCRATCH, OUT):
        mount(None, place.encode(), MS_BIND | MS_REMOUNT | NOTHING_RUNS, None)
    # Through `/proc/PID/mem` a process writes what it may only execute, and what another of its user has in memory.
    mount(b"proc", b"/proc", MS_REMOUNT | MS_RDONLY | NOTHING_RUNS, PROC_OPTIONS)
