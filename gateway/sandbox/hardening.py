"""What bubblewrap cannot do, done to a sandbox while its command is blocked.

Nothing that was written can be executed, and `/proc` tells of nothing but the sandbox's own processes.  A forked child
enters the sandbox's user and mount namespaces as their owner and mounts anew there.
Standard library only: the launcher imports this.  Source: mount(2), proc(5) (`subset=pid`, Linux 5.8).
"""

from __future__ import annotations

import os
import signal
import sys

from gateway.sandbox.bubblewrap import OUT, SCRATCH
from gateway.sandbox.kernel_calls import (
    CLONE_NEWNS,
    CLONE_NEWUSER,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_REMOUNT,
    PR_SET_PDEATHSIG,
    mount,
    owner_of_namespace,
    prctl,
    setns,
)
from gateway.sandbox.launcher_child import RootKept, stop_being_root

NOTHING_RUNS = MS_NOSUID | MS_NODEV | MS_NOEXEC
PROC_OPTIONS = b"subset=pid,hidepid=invisible"
UNKNOWN = 255


def begin(init: int, *, user: int | None) -> int:
    """Fork a child that hardens the sandbox of this init, and return its pid; it exits with 0, or with an errno."""
    pid = os.fork()
    if pid == 0:
        try:
            if user is not None:
                stop_being_root(user)
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            _harden(init)
            os._exit(0)
        except OSError as refused:
            sys.stderr.write(f"hardening: {refused}\n")
            os._exit(refused.errno or UNKNOWN)
        except RootKept as kept:
            sys.stderr.write(f"hardening: cannot stop being {kept}\n")
        finally:
            os._exit(UNKNOWN)
    return pid


def _harden(init: int) -> None:
    mounts = os.open(f"/proc/{init}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    setns(owner_of_namespace(mounts), CLONE_NEWUSER)
    setns(mounts, CLONE_NEWNS)
    for place in (SCRATCH, OUT):
        mount(None, place.encode(), MS_BIND | MS_REMOUNT | NOTHING_RUNS, None)
    mount(b"proc", b"/proc", MS_REMOUNT | NOTHING_RUNS, PROC_OPTIONS)
