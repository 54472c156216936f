"""What each payer's balance is reserved for, so that one balance pays for one operation only.

An operation is admitted once the balance covers its amount and all that was admitted before; the amount is reserved
from then until the operation has ended.  Nothing is awaited between comparing and reserving: of authorizations that
race for one balance the first is admitted and the others are refused.

A payment that is mined and not yet receipted is missing in the balance and still reserved.  Therefore an apparent
shortfall is read closely before it counts: the balance and the state of each reserved authorization at one block, of
which those that are used there count no more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping

import attrs
import trio

from gateway.actors.payment import Payment


class Unread(Exception):
    """The balance could not be read; the text is a machine reason."""


@attrs.frozen
class Due:
    """What an operation is to be paid, and the nonce of the authorization that pays it."""

    amount: int
    nonce: str


@attrs.frozen
class Reading:
    """A balance, and what it was reserved for when its reading began.

    Attributes:
        owed: the reserved amounts by operation; 0 where the balance has paid it already.
        elsewhere: what other nodes have open, where `owed` does not name it.
    """

    balance: int
    owed: Mapping[str, int]
    elsewhere: int = 0


@attrs.define(eq=False)
class _Round:
    """One close reading, for all that asked for it before it began."""

    done: trio.Event = attrs.field(factory=trio.Event)
    reading: Reading | None = None
    failure: str = "unread"


@attrs.define(eq=False)
class Reservations:
    """The reserved amounts of this node's operations, and the payers on hold because of one of them."""

    _by_payer: defaultdict[str, dict[str, Due]] = attrs.field(factory=lambda: defaultdict(dict))
    _payer_of: dict[str, str] = attrs.field(factory=dict)
    _holds: dict[str, str] = attrs.field(factory=dict)
    _next: dict[str, _Round] = attrs.field(factory=dict)
    _under_way: dict[str, _Round] = attrs.field(factory=dict)

    def of(self, payer: str) -> dict[str, Due]:
        """Return what is reserved of a payer's balance, by operation."""
        return dict(self._by_payer.get(payer.lower(), {}))

    def admit(self, operation_id: str, payment: Payment, reading: Reading) -> bool:
        """Reserve a payment's amount if the balance covers it beside all that is reserved; return whether it does.

        What was reserved when the reading began counts as the reading tells, also if its operation has ended since:
        the balance may be from before that.
        """
        owed = {each: due.amount for each, due in self.of(payment.payer).items()} | dict(reading.owed)
        owed.pop(operation_id, None)
        if reading.balance < payment.amount + sum(owed.values()) + reading.elsewhere:
            return False
        self.reserve(operation_id, payment)
        return True

    def reserve(self, operation_id: str, payment: Payment) -> None:
        """Reserve the amount of a payment that may have been submitted already."""
        self.drop(operation_id)
        payer = self._payer_of[operation_id] = payment.payer.lower()
        self._by_payer[payer][operation_id] = Due(payment.amount, payment.nonce)

    def drop(self, operation_id: str) -> None:
        """Reserve nothing more for an operation, and lift the hold that it put on its payer."""
        payer = self._payer_of.pop(operation_id, None)
        if payer is not None:
            del self._by_payer[payer][operation_id]
            if not self._by_payer[payer]:
                del self._by_payer[payer]
        self._holds.pop(operation_id, None)

    def hold(self, operation_id: str, payer: str) -> None:
        """Put a payer on hold until this operation has ended."""
        self._holds[operation_id] = payer.lower()

    def on_hold(self, payer: str) -> bool:
        """Return True if a settlement of this payer was refused that is still open here."""
        return payer.lower() in self._holds.values()

    async def closely(self, payer: str, read: Callable[[], Awaitable[Reading]]) -> Reading:
        """Return a close reading that began after this call; raises `Unread`.

        A payer's balance is read by one at a time, for all that ask meanwhile.
        """
        payer = payer.lower()
        turn = self._next.get(payer)
        if turn is None:
            turn = self._next[payer] = _Round()
            await self._read(payer, turn, read)
        else:
            await turn.done.wait()
        if turn.reading is None:
            raise Unread(turn.failure)
        return turn.reading

    async def _read(self, payer: str, turn: _Round, read: Callable[[], Awaitable[Reading]]) -> None:
        try:
            if payer in self._under_way:
                await self._under_way[payer].done.wait()
        finally:
            del self._next[payer]
        self._under_way[payer] = turn
        try:
            turn.reading = await read()
        except Unread as error:
            turn.failure = str(error)
        finally:
            del self._under_way[payer]
            turn.done.set()
