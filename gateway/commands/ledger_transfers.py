"""Payments on the chain that no operation has: made by authorization to the payee, and unknown to the books.

A store that was restored from a backup has lost the operations of such payments.  A payee that is paid by other
services too gets theirs here as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import attrs

from gateway.actors.settlement._proof import AUTHORIZATION_USED, TRANSFER, allotted, word_of
from gateway.actors.settlement._rpc import ChainUnavailable, EndPoint, Log, Receipt, Unusable

WINDOW_BLOCKS = 302_400
"""How far back is looked at most: a week of blocks of two seconds."""
RANGE_BLOCKS = 2_000
SMALLEST_RANGE = 5


@attrs.frozen
class Paid:
    """A payment by authorization, as the chain shows it; addresses, hash and nonce in lower case."""

    transaction: str
    block_number: int
    authorizer: str
    nonce: str
    amount: int

    def line(self) -> str:
        """Return it as one line for a person."""
        what = f"{self.authorizer} paid {self.amount} by authorization {self.nonce}"
        return f"transaction {self.transaction} in block {self.block_number}: {what}, and no operation has it"


@attrs.frozen
class Payee:
    """Who is paid in which token."""

    asset: str
    pay_to: str

    @property
    def transfers(self) -> list[str | None]:
        """The topics of a transfer to the payee."""
        return ["0x" + TRANSFER.hex(), None, "0x" + word_of(self.pay_to).hex()]


async def payments_without(
    end_points: Sequence[EndPoint], payee: Payee, first: int, known: Mapping[str, int]
) -> list[Paid]:
    """Return the payments from block `first` on, `WINDOW_BLOCKS` at most, in transactions that hold unknown ones.

    `known` is how many operations each transaction paid.  Raises `ChainUnavailable` where no end point tells them.
    """
    reason = ChainUnavailable("rpc_not_configured")
    for end_point in end_points:
        try:
            return await _payments(end_point, payee, first, known)
        except ChainUnavailable as error:
            reason = error
    raise reason


async def _payments(end_point: EndPoint, payee: Payee, first: int, known: Mapping[str, int]) -> list[Paid]:
    head = (await end_point.head()).number
    paid: list[Paid] = []
    transfers = await _transfers(end_point, payee, max(first, head - WINDOW_BLOCKS), head)
    for transaction, count in transfers.items():
        if count > known.get(transaction, 0):
            receipt = await end_point.receipt(transaction)
            paid += [] if receipt is None else payments_in(receipt, payee)
    return paid


async def _transfers(end_point: EndPoint, payee: Payee, first: int, head: int) -> Mapping[str, int]:
    """Return how many transfers to the payee each transaction made, oldest first."""
    found: Counter[str] = Counter()
    size = RANGE_BLOCKS
    while first <= head:
        last = min(head, first + size - 1)
        try:
            logs = await end_point.logs(payee.asset, payee.transfers, first, last)
        except Unusable:
            # Every end point has its own idea of a range that is too long.
            if size <= SMALLEST_RANGE:
                raise
            size = max(SMALLEST_RANGE, size // 4)
            continue
        found.update(log.transaction for log in sorted(logs, key=_place))
        first = last + 1
    return found


def payments_in(receipt: Receipt, payee: Payee) -> Iterator[Paid]:
    """Return what a transaction paid the payee by authorization; other transfers are no business of the books."""
    if not receipt.succeeded:
        return
    asset = bytes.fromhex(payee.asset[2:])
    token = [log for log in receipt.logs if log.address == asset]
    made = allotted(token)
    for event in token:
        transfer = made.get(event.index)
        if event.topics[:1] == (AUTHORIZATION_USED,) and transfer and transfer.topics[2:] == (word_of(payee.pay_to),):
            yield Paid(
                transaction=receipt.transaction,
                block_number=receipt.block_number,
                authorizer="0x" + event.topics[1][12:].hex(),
                nonce="0x" + event.topics[2].hex(),
                amount=int.from_bytes(transfer.data, "big"),
            )


def _place(log: Log) -> tuple[int, int]:
    return log.block_number, log.index
