"""Slots of something that can do only so much at once, and a short queue for them in which turns go round by caller."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import trio

from gateway.actors.turns import Turns
from gateway.errors import CapacityExhausted


@attrs.define(eq=False)
class _Waiting:
    caller: str
    has_slot: bool = False
    answered: trio.Event = attrs.field(factory=trio.Event)


@attrs.define(eq=False)
class Slots:
    """`slots` at once and at most `queue` that wait: who comes then is refused at once, rather than served too late.

    `full` makes the refusal.
    """

    slots: int
    queue: int
    full: Callable[[], CapacityExhausted]
    _used: int = attrs.field(default=0, init=False)
    _line: list[_Waiting] = attrs.field(factory=list, init=False)
    _turns: Turns = attrs.field(factory=Turns, init=False)

    def admit(self, caller: str = "") -> None:
        """Return if one more may wait; raises `CapacityExhausted`."""
        if self._used < self.slots and self._turns.goes_first(caller, self._line, self.slots):
            return
        if len(self._line) >= self.queue and self._turns.gives_way(caller, self._line) is None:
            raise self.full()

    @asynccontextmanager
    async def slot(self, until: float, caller: str = "") -> AsyncIterator[None]:
        """Hold a slot for the length of a block, after a wait that ends on trio's clock `until`.

        Raises `CapacityExhausted`.
        """
        self.admit(caller)
        waiting, last = _Waiting(caller), self._turns.gives_way(caller, self._line)
        self._line.append(waiting)
        self._give()
        if last is not None and len(self._line) > self.queue and last in self._line:
            self._line.remove(last)
            last.answered.set()
        try:
            with trio.move_on_at(until):
                await waiting.answered.wait()
            if not waiting.has_slot:
                raise self.full()
            yield
        finally:
            if waiting.has_slot:
                self._used -= 1
                self._turns.end(caller)
            elif waiting in self._line:
                self._line.remove(waiting)
            self._give()

    def _give(self) -> None:
        while self._used < self.slots and (first := self._turns.next(self._line, self.slots)):
            self._line.remove(first)
            self._used += 1
            self._turns.begin(first.caller)
            first.has_slot = True
            first.answered.set()
