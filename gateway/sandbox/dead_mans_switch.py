"""Ends what a launcher leaves when it is killed: PDEATHSIG reaches bubblewrap, but not its child while that is blocked.

A process of its own that waits for the launcher's end of a pipe to close, removes the launcher's groups with all in
them, and ends.  It holds the launcher's end of the node's socket meanwhile: when the node hears of the launcher's
death, nothing of it lives.  Standard library only: the launcher imports this.
"""

from __future__ import annotations

import os
import signal

from gateway.sandbox.cgroup_files import Descriptor
from gateway.sandbox.cgroups import Cgroups

ENDS_A_SERVICE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class DeadMansSwitch:
    """Stands from when it is made until `end`; `pid` is the process that waits."""

    def __init__(self, cgroups: Cgroups, prefix: str) -> None:
        """`prefix` begins the names of this launcher's groups, and of none that another launcher makes."""
        waits, held = os.pipe2(os.O_CLOEXEC)
        # Until it ignores them it is not to be ended by them either.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS_A_SERVICE)
        self.pid = os.fork()
        if self.pid == 0:
            os.close(held)
            _wait(waits, cgroups, prefix)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(waits)
        self._held = Descriptor(held)

    def end(self) -> None:
        """Let it look once more and end; whoever made it reaps it."""
        self._held.close()


def _wait(waits: int, cgroups: Cgroups, prefix: str) -> None:
    """Wait, sweep, and end this process."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in ENDS_A_SERVICE:
            signal.signal(each, signal.SIG_IGN)
        os.setsid()
        os.read(waits, 1)
        left = cgroups.sweep(prefix).left
        if left:
            os.write(2, f"launcher: {', '.join(map(str, left))} cannot be removed\n".encode())
    finally:
        os._exit(0)
