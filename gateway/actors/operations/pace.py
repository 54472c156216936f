"""The pace of a node's background requests to its facilitator and its chain: a token bucket over all operations.

Only what is asked again waits for a turn: payments that are submitted again, and looks after the first few.  So a
settlement that stays open, or a thousand of them, costs neither end point more than this.
"""

from __future__ import annotations

import attrs
import trio

TURNS_A_SECOND = 10.0
TURNS_AT_ONCE = 20


@attrs.define(eq=False)
class Pace:
    """Gives out turns, in the order in which they are asked for."""

    _next: float = float("-inf")

    def turn(self) -> float:
        """Take the next turn, and return in how many seconds it comes."""
        now = trio.current_time()
        at = max(self._next, now - (TURNS_AT_ONCE - 1) / TURNS_A_SECOND)
        self._next = at + 1 / TURNS_A_SECOND
        return max(at - now, 0.0)
