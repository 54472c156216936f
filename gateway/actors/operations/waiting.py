"""Those who wait for an operation: each is answered once, and told nothing of a payment that is not theirs."""

from __future__ import annotations

import copy
from typing import Any

import attrs

from gateway.actors.operations.order import Ended, Join, Submit
from gateway.actors.payment import Payment
from gateway.actors.runtime import Letter
from gateway.errors import ExecutionCancelled, GatewayError, OperationInProgress, PaymentRequired

SOON_S = 1.0


def own(failure: GatewayError) -> GatewayError:
    """Return a failure of the asker's own: what an answer adds to it (a challenge, headers) reaches nobody else."""
    mine = copy.copy(failure)
    mine.extra, mine.headers = dict(failure.extra), dict(failure.headers)
    return mine


@attrs.define(eq=False)
class Waiters:
    """The letters that wait for one operation, in the order in which they came; `payment` is what pays for it.

    Of each letter: its asker is still there.  `awaited` is True once somebody was told to come back for the result.
    """

    payment: Payment | None
    letters: dict[Letter[Any], bool] = attrs.field(factory=dict)
    awaited: bool = False

    def add(self, letter: Letter[Any]) -> None:
        """Let one more wait."""
        self.letters[letter] = True

    def answer(self, ended: Ended) -> None:
        """Give all of them the result; the first gets it as new, the others as a replay."""
        for number, letter in enumerate(self._taken()):
            question: Submit | Join = letter.message
            letter.answer(question, attrs.evolve(ended, replayed=True) if number else ended)

    def refuse(self, failure: GatewayError) -> None:
        """Tell all of them that it ended without a result."""
        for letter in self._taken():
            letter.refuse(self._told(letter.message, failure))

    def give_up(self, letter: Letter[Any], failure: GatewayError) -> None:
        """Tell one that it waited long enough, if it still waits."""
        if letter in self.letters:
            del self.letters[letter]
            self.awaited = True
            letter.refuse(failure)

    def leave(self, question: Submit | Join) -> bool:
        """Note that who asked this went away; return True if that leaves nobody."""
        gone = [letter for letter in self.letters if letter.message is question]
        self.letters |= dict.fromkeys(gone, False)
        return bool(gone) and not self.attended

    @property
    def attended(self) -> bool:
        """True while somebody is there to be answered, or was told to come back."""
        return self.awaited or any(self.letters.values())

    def _told(self, message: Submit | Join, failure: GatewayError) -> GatewayError:
        """Return what one is told: a refused payment is the business of those who brought it.

        Who came while an execution was being stopped that everybody else had left is to ask again.
        """
        if isinstance(failure, ExecutionCancelled):
            return OperationInProgress(operation_id=failure.operation_id, retry_after=SOON_S)
        if not isinstance(failure, PaymentRequired) or self._brought(message):
            return own(failure)
        return OperationInProgress(
            "the attempt that was running under this key has failed on its payment; send the same request again",
            operation_id=failure.operation_id,
            retry_after=SOON_S,
        )

    def _brought(self, message: Submit | Join) -> bool:
        if isinstance(message, Join) or message.order.payment is None or self.payment is None:
            return False
        return message.order.payment.key == self.payment.key

    def _taken(self) -> list[Letter[Any]]:
        letters = [letter for letter in self.letters if not letter.settled]
        self.letters.clear()
        return letters
