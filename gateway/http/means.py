"""What every call needs of the node beside its executor, as far as it is known without asking anybody."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from gateway.actors.operations import Funding
from gateway.actors.runtime import Ref
from gateway.actors.store import StoreHealth
from gateway.errors import CapacityExhausted, GatewayError, StoreUnavailable

OVERLOADED = "overloaded"
UNWRITABLE = "unwritable"


def _unknown() -> None:
    return None


def _has_room(_: Funding) -> None:
    return None


@attrs.frozen(eq=False)
class Means:
    """The store that a call is claimed in and the actors that it asks.

    Attributes:
        health: what is known of the store now; None where nothing is.
        actors: those that a call asks, in that order.
        room: what a call of a funding would be refused with for want of room; None where there is some.
    """

    health: Callable[[], StoreHealth | None] = _unknown
    actors: Sequence[Ref[Any]] = ()
    room: Callable[[Funding], GatewayError | None] = _has_room

    def admit(self, funding: Funding) -> None:
        """Return if a call could be claimed and carried out now; raises the `refusal` where it could not."""
        refusal = self.refusal(funding)
        if refusal is not None:
            raise refusal

    @property
    def closed(self) -> str | None:
        """The machine word for why nothing could be sold now; None while it could."""
        missing = self.refusal("paid")
        return None if missing is None else str(missing.extra.get("reason", missing.code))

    def refusal(self, funding: Funding) -> GatewayError | None:
        """Return what a call would be refused with, whatever it asks for; None where it would run."""
        health = self.health()
        if health is not None and not health.writable:
            story = "the store cannot be written" if health.reason is None else health.reason.story
            reason = health.name or UNWRITABLE
            return StoreUnavailable(f"{story[0].upper()}{story[1:]}; nothing was begun.", extra={"reason": reason})
        for actor in self.actors:
            closed = actor.closed
            if closed == OVERLOADED:
                return CapacityExhausted("The node takes no more calls now.", extra={"reason": closed})
            if closed is not None:
                return StoreUnavailable("A part of the node is not up; nothing was begun.", extra={"reason": closed})
        return self.room(funding)
