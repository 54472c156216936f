"""Which connection has a place when there are too many, and which one loses its own.

A place is taken from a connection that waits for its client, never from a request that is being answered: first from
the one that has idled longest, then from one that stalls, in the network that has most connections.  One network never
has all places.  A connection for which there is none gets a spare one, where only health is answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import Generic, Protocol, TypeVar

import attrs
import trio

SPARE = 64
"""Connections beyond the bound that may be open, for health."""
PATIENCE_S = 1.0
"""How long a request or the reading of an answer may stand still before its place can be taken."""


class Place(Enum):
    """What a connection may ask for."""

    REGULAR = auto()
    SPARE = auto()  # health only


class Guest(Protocol):
    """What the crowd needs to know of a connection, and what it does to it.

    Attributes:
        network: its peer's; empty if many callers come from there.
        place: what it was given.
        busy: a request is being answered.
        idle: nothing of a request has arrived since the last answer, or for a moment since its accept.
        idle_since: time of that answer, or of the accept.
        stalled_since: since when the client has not sent, or read, what is due next; infinite where nothing is due.
        held: bytes of `body_memory_bytes` that it holds.
    """

    network: str
    place: Place
    idle_since: float

    @property
    def busy(self) -> bool: ...  # noqa: D102
    @property
    def idle(self) -> bool: ...  # noqa: D102
    @property
    def stalled_since(self) -> float: ...  # noqa: D102
    @property
    def held(self) -> int: ...  # noqa: D102
    def evict(self) -> None: ...  # noqa: D102


G = TypeVar("G", bound=Guest)


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
            loser = self._first_to_go(each for each in self._placed if each.network == network)
        elif len(self._placed) >= self.bound:
            loser = self._first_to_go(self._placed)
        else:
            return Place.REGULAR
        if loser is not None:
            self._evict(loser)
            return Place.REGULAR
        if len(self._spare) >= SPARE:
            loser = next((each for each in self._spare if not each.busy), None)
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
        loser = self._slowest(each for each in self._placed if each.held and each is not asking)
        if loser is None:
            return False
        self._evict(loser)
        return True

    def _first_to_go(self, among: Iterable[G]) -> G | None:
        guests = list(among)
        idle = min((each for each in guests if each.idle), key=lambda each: each.idle_since, default=None)
        return idle if idle is not None else self._slowest(guests)

    def _slowest(self, among: Iterable[G]) -> G | None:
        latest = trio.current_time() - PATIENCE_S
        slow = [each for each in among if each.stalled_since <= latest]
        return max(slow, key=lambda each: (self._crowding(each.network), -each.stalled_since), default=None)

    def _crowding(self, network: str) -> int:
        return self._networks[network] if network else 1

    def _evict(self, loser: G) -> None:
        self.remove(loser)
        loser.evict()
