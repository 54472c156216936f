"""Operations: from a claim to a receipt, exactly once, whatever crashes in between."""

from gateway.actors.operations.actor import operations
from gateway.actors.operations.exposure import Funding, Limits, Room
from gateway.actors.operations.in_hand import Surroundings
from gateway.actors.operations.life import Effect, Event, Impossible, State, decide
from gateway.actors.operations.order import (
    Earlier,
    Elsewhere,
    Ended,
    Exposure,
    Join,
    Leave,
    Order,
    Overtaken,
    Resolve,
    Submit,
)

__all__ = [
    "Earlier",
    "Effect",
    "Elsewhere",
    "Ended",
    "Event",
    "Exposure",
    "Funding",
    "Impossible",
    "Join",
    "Leave",
    "Limits",
    "Order",
    "Overtaken",
    "Resolve",
    "Room",
    "State",
    "Submit",
    "Surroundings",
    "decide",
    "operations",
]
