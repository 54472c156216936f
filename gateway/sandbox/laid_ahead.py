"""Sandboxes laid ahead of need: in each slot one at most, of the kind that was last asked to be there again.

It is held as every other is, with nothing of a command in it, and given to one run, or destroyed.  Standard library
only: the launcher imports this.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress

from gateway.sandbox.bubblewrap_start import Kind, Place
from gateway.sandbox.event_loop import Moment
from gateway.sandbox.held_sandbox import Events, HeldSandbox, SetupFailed
from gateway.sandbox.sandbox_end import SandboxEnd, remove_group

LONGEST_LAID_S = 600.0
"""How old one may be that is given out."""


class LaidAhead:
    """What is laid in the slots of a launcher, and what of it is being destroyed."""

    def __init__(
        self, place: Place, user: Callable[[int], int | None], tell: Callable[[int, Kind], None] = lambda *_: None
    ) -> None:
        """`user` tells the host user of a slot, None for the launcher's own; `tell` hears what is held in which."""
        self._place = place
        self._user = user
        self._tell = tell
        self._kinds: dict[int, Kind] = {}
        self._laid: dict[int, HeldSandbox] = {}
        self._due: dict[int, Moment] = {}
        self._ending: dict[HeldSandbox, SandboxEnd] = {}

    def want(self, slot: int, kind: Kind) -> None:
        """Have this kind be what is laid in a slot from now on."""
        self._kinds[slot] = kind

    def lay_in(self, seconds: float, slot: int) -> None:
        """Lay a sandbox in a slot that has no run, in so many seconds, instead of what may be laid there."""
        self._forget_due(slot)
        if slot in self._kinds:
            self._due[slot] = self._place.loop.after(seconds, lambda: self._lay(slot))

    def take(self, slot: int, kind: Kind) -> HeldSandbox | None:
        """Return what is laid in a slot where it is of this kind, also one that is still being set up.

        Anything else is destroyed, and nothing more is laid there until it is asked for.
        """
        # What has just died is known first.
        self._place.loop.reap()
        self._forget_due(slot)
        laid = self._laid.pop(slot, None)
        if laid is None:
            return None
        if not same(laid.kind, kind):
            self._destroy(laid)
            return None
        if laid.held and not laid.waits():
            _note(f"what was laid in slot {slot} does not wait any more")
            self._destroy(laid)
            return None
        return laid

    def _lay(self, slot: int) -> None:
        self._discard(slot)
        kind = self._kinds[slot]
        laid = HeldSandbox(
            self._place,
            kind,
            self._user(slot),
            Events(
                lambda: self._tell(slot, kind),
                lambda reason, detail: self._lost(slot, reason, detail),
                lambda: self._over(slot),
            ),
        )
        self._laid[slot] = laid
        try:
            laid.start()
        except SetupFailed as failed:
            self._lost(slot, failed.reason, failed.detail)
            return
        self._due[slot] = self._place.loop.after(LONGEST_LAID_S, lambda: self._lay(slot))

    def _over(self, slot: int) -> None:
        self._lost(slot, *self._laid[slot].complaint())

    def _lost(self, slot: int, reason: str, detail: str) -> None:
        """Tell of it in the log, and wait for the next run: that one tells the node."""
        _note(f"what was laid in slot {slot} is lost: {reason}: {detail}")
        self._forget_due(slot)
        self._discard(slot)

    def _discard(self, slot: int) -> None:
        laid = self._laid.pop(slot, None)
        if laid is not None:
            self._destroy(laid)

    def _destroy(self, laid: HeldSandbox) -> None:
        laid.events = Events(_nothing, _nothing, _nothing)
        end = self._ending[laid] = SandboxEnd(laid, self._place.loop, lambda: self._dead(laid))
        end.look()

    def _dead(self, laid: HeldSandbox) -> None:
        del self._ending[laid]
        laid.close()
        remove_group(laid, self._place.loop, lambda left: _note(f"{left[0]} cannot be removed") if left else None)

    def _forget_due(self, slot: int) -> None:
        due = self._due.pop(slot, None)
        if due is not None:
            due.cancel()

    def look_whether_dead(self) -> None:
        """Go on with what is being destroyed; called again whenever a process was reaped."""
        for each in tuple(self._ending.values()):
            each.look()

    def kill(self) -> None:
        """Kill all there is, and do not wait for its death."""
        for slot in tuple(self._due):
            self._forget_due(slot)
        for each in (*self._laid.values(), *self._ending):
            each.kill()

    def abandon(self) -> None:
        """Wait until all that was killed is dead, and let go of the rest."""
        for each in (*self._laid.values(), *self._ending):
            if each.group is not None:
                each.group.kill()
            each.close()


def same(one: Kind, other: Kind) -> bool:
    """Return whether a sandbox of one kind can be given to a run of the other."""
    return one.filter == other.filter and one.bounds.set_up_as(other.bounds)


def _nothing(*_: object) -> None:
    return None


def _note(what: str) -> None:
    with suppress(OSError):
        os.write(sys.stderr.fileno(), f"launcher: {what}\n".encode())
