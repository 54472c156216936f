"""What every call needs of the node beside its executor, as far as it is known without asking anybody."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from gateway.actors.runtime import Ref
from gateway.actors.store import StoreHealth
from gateway.errors import CapacityExhausted, StoreUnavailable

OVERLOADED = "overloaded"
UNWRITABLE = "unwritable"


def _unknown() -> None:
    return None


@attrs.frozen(eq=False)
class Means:
    """The store that a call is claimed in and the actors that it asks.

    Attributes:
        health: what is known of the store now; None where nothing is.
        actors: those that a call asks, in that order.
    """

    health: Callable[[], StoreHealth | None] = _unknown
    actors: Sequence[Ref[Any]] = ()

    def admit(self) -> None:
        """Return if a call could be claimed and carried out now; raises `StoreUnavailable` or `CapacityExhausted`."""
        health = self.health()
        if health is not None and not health.writable:
            story = "the store cannot be written" if health.reason is None else health.reason.story
            reason = health.name or UNWRITABLE
            raise StoreUnavailable(f"{story[0].upper()}{story[1:]}; nothing was begun.", extra={"reason": reason})
        for actor in self.actors:
            closed = actor.closed
            if closed == OVERLOADED:
                raise CapacityExhausted("The node takes no more calls now.", extra={"reason": closed})
            if closed is not None:
                raise StoreUnavailable("A part of the node is not up; nothing was begun.", extra={"reason": closed})
