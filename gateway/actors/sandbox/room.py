"""Room for runs: slots, the memory that they share, and a short queue in which turns go round by caller.

Whose turn it is waits until it fits.  A smaller run is never let past it: a large one would else wait for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import attrs
import trio

from gateway.actors.sandbox.closed import RETRY_AFTER_S, STARTING, Closed
from gateway.actors.turns import Turns
from gateway.errors import CapacityExhausted
from gateway.sandbox.limits import Limits, fits, reserved_bytes

NEVER_FITS = "memory"
QUEUE_FULL = "queue_full"
WAITED = "waited"


@attrs.define(eq=False)
class Slot:
    """A slot in use; who uses it sets `spoiled` where it must not be used again."""

    number: int
    limits: Limits
    caller: str = ""
    spoiled: bool = False


@attrs.define(eq=False)
class _Waiting:
    """Somebody who waits, for a run that was sold or for one of the node's own."""

    limits: Limits
    sold: bool
    caller: str = ""
    got: Slot | Closed | CapacityExhausted | None = None
    _answered: trio.Event | None = None

    def answer(self, got: Slot | Closed | CapacityExhausted) -> None:
        self.got = got
        if self._answered is not None:
            self._answered.set()

    async def wait(self) -> None:
        """Return once it was answered, at once where it was before."""
        if self.got is None:
            self._answered = trio.Event()
            await self._answered.wait()


@attrs.define(eq=False)
class Room:
    """What there is room for.  Read by anyone in the loop.

    Attributes:
        memory_bytes: what all runs together may take of the host.
        queue: how many runs that were sold may wait.
        shut: why none of them is let in, None while they are.
        used: the slots in use, by number.
        quarantined: slots that are not used again until all are opened anew.
    """

    memory_bytes: int
    queue: int
    shut: Closed | None = attrs.field(factory=lambda: Closed(STARTING))
    used: dict[int, Slot] = attrs.field(factory=dict, init=False)
    quarantined: set[int] = attrs.field(factory=set, init=False)
    _free: deque[int] = attrs.field(factory=deque, init=False)
    _line: deque[_Waiting] = attrs.field(factory=deque, init=False)
    _behind: deque[_Waiting] = attrs.field(factory=deque, init=False)
    _turns: Turns = attrs.field(factory=lambda: Turns(keeps_one_free=True), init=False)
    _moved: trio.Event | None = attrs.field(default=None, init=False)

    @property
    def waiting(self) -> int:
        """How many runs that were sold wait for a slot."""
        return sum(each.sold for each in self._line)

    @property
    def usable(self) -> int:
        """How many slots there are, in use or free."""
        return len(self._free) + len(self.used)

    @property
    def reserved_bytes(self) -> int:
        """What the runs in the slots may take of the host's memory."""
        return reserved_bytes(each.limits for each in self.used.values())

    def admit(self, limits: Limits, caller: str = "") -> None:
        """Return if a run may come in now; before a price is told, its caller is not known.

        Raises `OperationUnavailable`, and `CapacityExhausted` where it never fits or as many wait as may.
        """
        if self.shut is not None:
            raise self.shut.refusal()
        self._must_fit(limits)
        if self._fits(limits) and self._turns.goes_first(caller, self._line, self.usable):
            return
        if self.waiting >= self.queue and self._gives_way(caller) is None:
            raise _full(QUEUE_FULL, "As many runs wait for a slot as may.")

    @asynccontextmanager
    async def slot(self, limits: Limits, until: float, caller: str = "") -> AsyncIterator[Slot]:
        """Hold a slot for the length of a block, after a wait that ends on trio's clock `until`.

        Raises what `admit` raises: nothing was begun then.
        """
        self.admit(limits, caller)
        waiting, last = _Waiting(limits, sold=True, caller=caller), self._gives_way(caller)
        self._line.append(waiting)
        self._give()
        if last is not None and self.waiting > self.queue and last in self._line:
            self._line.remove(last)
            last.answer(_full(QUEUE_FULL, "As many runs wait for a slot as may, and most of them are of this caller."))
        try:
            with trio.move_on_at(until):
                await waiting.wait()
            yield _slot(waiting)
        finally:
            self._leave(waiting)

    @asynccontextmanager
    async def slot_behind(self, limits: Limits, patience: float) -> AsyncIterator[Slot]:
        """Hold a slot for a run of the node's own: behind all others for `patience` seconds, then in their line.

        It is let in where the room is shut, too.  Raises `CapacityExhausted` where it never fits.
        """
        self._must_fit(limits)
        waiting = _Waiting(limits, sold=False)
        self._behind.append(waiting)
        self._give()
        try:
            with trio.move_on_after(patience):
                await waiting.wait()
            if waiting.got is None:
                self._behind.remove(waiting)
                self._line.append(waiting)
                self._give()
                await waiting.wait()
            yield _slot(waiting)
        finally:
            self._leave(waiting)

    def open_slots(self, numbers: Iterable[int]) -> None:
        """Have these slots from now on, and no others; none may be in use."""
        if self.used:
            raise RuntimeError(f"slots {sorted(self.used)} are in use")
        self._free = deque(numbers)
        self.quarantined.clear()
        self._give()

    def open(self) -> None:
        """Let runs in that were sold."""
        self.shut = None

    def close(self, why: Closed) -> None:
        """Let none of them in, and send those away that wait; those in a slot go on."""
        self.shut = why
        for each in tuple(self._line):
            if each.sold:
                self._line.remove(each)
                each.answer(why)
        self._give()

    async def emptied(self) -> None:
        """Wait until no slot is in use."""
        while self.used:
            if self._moved is None:
                self._moved = trio.Event()
            await self._moved.wait()

    def _must_fit(self, limits: Limits) -> None:
        if not fits(limits, (), self.memory_bytes):
            raise _full(NEVER_FITS, "With these limits a run takes more memory than this node has for runs.")

    def _fits(self, limits: Limits) -> bool:
        return bool(self._free) and fits(limits, [each.limits for each in self.used.values()], self.memory_bytes)

    def _give(self) -> None:
        """Give slots to those whose turn it is, as far as there are any."""
        while (first := self._first()) and self._fits(first.limits):
            (self._line if first in self._line else self._behind).remove(first)
            slot = Slot(self._free.popleft(), first.limits, first.caller)
            self.used[slot.number] = slot
            self._turns.begin(first.caller)
            first.answer(slot)

    def _gives_way(self, caller: str) -> _Waiting | None:
        return self._turns.gives_way(caller, [each for each in self._line if each.sold])

    def _first(self) -> _Waiting | None:
        return self._turns.next(self._line, self.usable) or next(iter(self._behind), None)

    def _leave(self, waiting: _Waiting) -> None:
        """Take a slot back, or somebody out of the line who has none."""
        match waiting.got:
            case Slot() as slot:
                del self.used[slot.number]
                self._turns.end(slot.caller)
                if slot.spoiled:
                    self.quarantined.add(slot.number)
                else:
                    self._free.append(slot.number)
            case None:
                (self._line if waiting in self._line else self._behind).remove(waiting)
        self._give()
        if self._moved is not None:
            self._moved.set()
            self._moved = None


def _slot(waiting: _Waiting) -> Slot:
    match waiting.got:
        case Slot() as slot:
            return slot
        case Closed() as why:
            raise why.refusal()
        case CapacityExhausted() as full:
            raise full
    raise _full(WAITED, "No slot came free in time.")


def _full(reason: str, told: str) -> CapacityExhausted:
    return CapacityExhausted(told, retry_after=RETRY_AFTER_S, extra={"reason": reason})
