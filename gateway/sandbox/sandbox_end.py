"""The end of a sandbox: all of it killed, waited for until it is dead, and its group removed.

Standard library only: the launcher imports this.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from gateway.sandbox.event_loop import EventLoop, Moment
from gateway.sandbox.held_sandbox import HeldSandbox

EMPTY_WITHIN_S = 5.0
NOT_YET_S = 0.001
KILL_AGAIN_S = 0.25
REMOVED_WITHIN_S = 1.0


class SandboxEnd:
    """Kills a sandbox when it is made; `dead` is called once, when all of it is dead or nothing more is waited for.

    That is never before `look`, which is to be called at once and again whenever a process was reaped.

    Attributes:
        all_dead: nothing of it lives, as was seen just before `dead` is called.
    """

    def __init__(self, sandbox: HeldSandbox, loop: EventLoop, dead: Callable[[], None]) -> None:
        self.all_dead = False
        self._sandbox = sandbox
        self._loop = loop
        self._dead: Callable[[], None] | None = dead
        self._since = time.monotonic()
        self._next: Moment | None = None
        sandbox.kill()

    def look(self) -> None:
        """Go on where all of it is dead, and else see to it."""
        if self._dead is None:
            return
        if self._next is not None:
            self._next.cancel()
        since = time.monotonic() - self._since
        self.all_dead = self._sandbox.dead
        if self.all_dead or since >= EMPTY_WITHIN_S:
            dead, self._dead = self._dead, None
            dead()
            return
        if since >= KILL_AGAIN_S and self._sandbox.group is not None:
            self._sandbox.group.kill(within=KILL_AGAIN_S)
        self._next = self._loop.after(NOT_YET_S, self.look)


def remove_group(sandbox: HeldSandbox, loop: EventLoop, then: Callable[[tuple[Path, ...]], None]) -> None:
    """Remove the group of a sandbox that is dead; `then` is called with what still stands after a second."""
    _remove(sandbox, loop, time.monotonic() + REMOVED_WITHIN_S, then)


def _remove(sandbox: HeldSandbox, loop: EventLoop, until: float, then: Callable[[tuple[Path, ...]], None]) -> None:
    left = () if sandbox.group is None else sandbox.group.remove(within=0)
    if left and time.monotonic() < until:
        loop.after(NOT_YET_S, lambda: _remove(sandbox, loop, until, then))
    else:
        then(left)
