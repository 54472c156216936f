"""One at a time for each key: who comes second with a key waits for the first and is answered alike.

What is durable is decided by the store's unique rows.  A lane only keeps requests apart that arrive together, so that
sixty-four equal ones cost one look-up, one quota and one operation, whichever of them is first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import attrs
import trio

from gateway.actors.operations import Ended
from gateway.errors import GatewayError

Key = tuple[str, str]
"""HMAC of a caller's key, and request hash."""


@attrs.define(eq=False)
class Turn:
    """A request that has the lane; `outcome` is what became of it, where that holds for those behind it too.

    `payment` names the authorization that came along: with another one a failure may well be a success.
    """

    payment: object = None
    outcome: Ended | GatewayError | None = None
    over: trio.Event = attrs.field(factory=trio.Event)

    def shared_with(self, payment: object) -> Ended | GatewayError | None:
        """Return the outcome as it holds for a request that waited behind this one with `payment`."""
        if isinstance(self.outcome, Ended):
            return attrs.evolve(self.outcome, replayed=True)
        return self.outcome if payment == self.payment else None


@attrs.define(eq=False)
class Lanes:
    """The requests under way, by the names of their keys."""

    _turns: dict[Key, Turn] = attrs.field(factory=dict)

    def ahead(self, keys: Sequence[Key]) -> Turn | None:
        """Return the turn that one of these keys waits for."""
        return next((turn for turn in map(self._turns.get, keys) if turn is not None), None)

    @contextmanager
    def turn(self, keys: Sequence[Key], payment: object) -> Iterator[Turn]:
        """Have the lane of these keys, which nobody is ahead on, for the length of a block."""
        turn = Turn(payment)
        self._turns.update(dict.fromkeys(keys, turn))
        try:
            yield turn
        finally:
            for key in keys:
                del self._turns[key]
            turn.over.set()
