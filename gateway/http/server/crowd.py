"""Which connection has a place when there are too many, and which one loses its own.

A place is taken from a connection that waits for its client, never from a request that is being answered: first from
the one that has idled longest, then from one that stalls, in the network that has most connections.  One network never
has all places.  A connection for which there is none gets a spare one, where only health is answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from math import inf
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

import attrs
import trio

SPARE = 64
"""Connections beyond the bound that may be open, for health."""
PATIENCE_S = 1.0
"""How long a request or the reading of an answer may stand still before its place can be taken."""
FRESH_S = 0.2
"""How long after its accept a connection without a request keeps its place, since the first may be on its way."""


class Place(Enum):
    """What a connection may ask for."""

    REGULAR = auto()
    SPARE = auto()  # health only


class Guest(Protocol):
    """What the crowd needs to know of a connection, and what it does to it.

    Attributes:
        network: its peer's; empty if many callers come from there.
        place: what it was given.
        idle: nothing of a request has arrived since the last answer, or since its accept.
        gives_way_from: from when its place may be taken; infinite while a request is being answered.
        held: bytes of `body_memory_bytes` that it holds.
    """

    network: str
    place: Place
    idle: bool
    gives_way_from: float

    @property
    def held(self) -> int: ...  # noqa: D102
    def evict(self) -> None: ...  # noqa: D102


G = TypeVar("G", bound=Guest)
_GIVES_WAY_FROM = attrgetter("gives_way_from")


@attrs.define(eq=False)
class Crowd(Generic[G]):
    """The open connections of a server, of which at most `bound` have a regular place."""

    bound: int
    _placed: dict[G, None] = attrs.field(factory=dict, init=False)
    _spare: dict[G, None] = attrs.field(factory=dict, init=False)
    _networks: Counter[str] = attrs.field(factory=Counter, init=False)

    def __iter__(self) -> Iterator[G]:
        """Iterate over all that are open."""
        return iter([*self._placed, *self._spare])

    @property
    def share(self) -> int:
        """How many places one network may have."""
        return self.bound - self.bound // 8

    def place_for(self, network: str) -> Place | None:
        """Return what place a new connection has, closing another one for it if need be; None: it must be closed."""
        if network and self._networks[network] >= self.share:
            loser = self._first_to_go(network)
        elif len(self._placed) >= self.bound:
            loser = self._first_to_go()
        else:
            return Place.REGULAR
        if loser is not None:
            self._evict(loser)
            return Place.REGULAR
        if len(self._spare) >= SPARE:
            loser = next((each for each in self._spare if each.gives_way_from < inf), None)
            if loser is None:
                return None
            self._evict(loser)
        return Place.SPARE

    def add(self, guest: G) -> None:
        """Count a connection in."""
        if guest.place is Place.SPARE:
            self._spare[guest] = None
        else:
            self._placed[guest] = None
            self._networks[guest.network] += 1

    def remove(self, guest: G) -> None:
        """Count a connection out, if it is not yet."""
        self._spare.pop(guest, None)
        if guest in self._placed:
            del self._placed[guest]
            self._networks[guest.network] -= 1
            if not self._networks[guest.network]:
                del self._networks[guest.network]

    def free_memory(self, asking: G) -> bool:
        """Close a connection that stalls while it holds memory which another one asks for; false if none does."""
        now = trio.current_time()
        slow = [each for each in self._placed if each.gives_way_from <= now and each.held and each is not asking]
        loser = self._slowest(slow)
        if loser is None:
            return False
        self._evict(loser)
        return True

    def _first_to_go(self, network: str | None = None) -> G | None:
        """Return whose place may be taken first, among all or in one network; a flood runs it for each connection."""
        now = trio.current_time()
        if network is None:
            guests = [each for each in self._placed if each.gives_way_from <= now]
        else:
            guests = [each for each in self._placed if each.gives_way_from <= now and each.network == network]
        idle = min((each for each in guests if each.idle), key=_GIVES_WAY_FROM, default=None)
        if idle is not None:
            return idle
        return self._slowest(guests) if network is None else min(guests, key=_GIVES_WAY_FROM, default=None)

    def _slowest(self, among: Iterable[G]) -> G | None:
        return max(among, key=lambda each: (self._crowding(each.network), -each.gives_way_from), default=None)

    def _crowding(self, network: str) -> int:
        return self._networks[network] if network else 1

    def _evict(self, loser: G) -> None:
        self.remove(loser)
        loser.evict()
