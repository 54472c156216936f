"""What a run costs: one of two classes, told by its limits alone.

Source: interface.md 4.6 for the prices, spec/readings for the border between the classes.
"""

from __future__ import annotations

import enum

from gateway.sandbox.limits import DEFAULTS, Limits

LEAST = 10_000
"""The price of the short class, in millionths of a USD."""
MOST = 60_000
"""The price of the standard class, in millionths of a USD."""


class PriceClass(enum.StrEnum):
    """The classes of price, by the name that a receipt gives them."""

    SHORT = "short"
    STANDARD = "standard"

    @property
    def price(self) -> int:
        """The price in millionths of a USD."""
        return LEAST if self is PriceClass.SHORT else MOST


def price_class(limits: Limits) -> PriceClass:
    """Return the class of a run: short where no limit is over its default.

    A larger limit never makes a run cheaper.
    """
    short = all(value <= DEFAULTS[name] for name, value in limits.as_json().items())
    return PriceClass.SHORT if short else PriceClass.STANDARD
