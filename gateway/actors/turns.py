"""Whose turn it is where few slots are shared by many callers: turns go round by caller, not by arrival.

A caller is the payer of a paid call and the network of a free one.  Of those that wait, the caller with the fewest
calls under way is next, then the one who had the last turn the longest ago, then the one who came first.  Where a queue
is full, the caller with the most waiting calls gives way to one who has fewer.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Protocol, TypeVar

import attrs

REMEMBERED = 1024
"""Callers whose last turn is remembered."""


class Waiting(Protocol):
    """One call that waits; `caller` is empty where it is not known, or where the node itself waits."""

    @property
    def caller(self) -> str:
        """Who makes it."""
        ...


W = TypeVar("W", bound=Waiting)


@attrs.define(eq=False)
class Turns:
    """Who has calls under way, and who had the last turns.

    With `keeps_one_free` one caller may use all slots but one, so that another caller finds a free one.
    """

    keeps_one_free: bool = False
    _active: Counter[str] = attrs.field(factory=Counter, init=False)
    _last: OrderedDict[str, int] = attrs.field(factory=OrderedDict, init=False)
    _begun: int = attrs.field(default=0, init=False)

    def may_begin(self, caller: str, slots: int) -> bool:
        """Return False where a caller has as many calls under way as it may have in so many slots."""
        return not (self.keeps_one_free and caller) or self._active[caller] < max(slots - 1, 1)

    def goes_first(self, caller: str, waiting: Iterable[W], slots: int) -> bool:
        """Return True where a call that comes now would be before all that wait."""
        if not self.may_begin(caller, slots):
            return False
        mine = self._rank(caller)
        return all(mine < self._rank(each.caller) for each in waiting if self.may_begin(each.caller, slots))

    def next(self, waiting: Iterable[W], slots: int) -> W | None:
        """Return whose turn it is of those that wait, in the order of their arrival; None where nobody may begin."""
        able = [each for each in waiting if self.may_begin(each.caller, slots)]
        return min(able, key=lambda each: self._rank(each.caller), default=None)

    def gives_way(self, caller: str, waiting: Iterable[W]) -> W | None:
        """Return who leaves a full queue for a call that comes now, the last of whoever has most there, or None."""
        line = list(waiting)
        counts = Counter(each.caller for each in line if each.caller)
        most = max(counts, key=lambda each: counts[each], default="")
        if not most or counts[most] < counts[caller] + 2:
            return None
        return next(each for each in reversed(line) if each.caller == most)

    def begin(self, caller: str) -> None:
        """Take note that a call has begun."""
        if caller:
            self._begun += 1
            self._active[caller] += 1
            self._last[caller] = self._begun
            self._last.move_to_end(caller)
            if len(self._last) > REMEMBERED:
                self._last.popitem(last=False)

    def end(self, caller: str) -> None:
        """Take note that it has ended."""
        if caller:
            self._active[caller] -= 1
            if not self._active[caller]:
                del self._active[caller]

    def _rank(self, caller: str) -> tuple[int, int]:
        return self._active[caller], self._last.get(caller, 0)
