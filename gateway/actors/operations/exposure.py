"""Unsettled exposure: what is open and paid for, and not yet settled, by payer and in all.

The limits are those of all nodes of a store together.  What the others have open is read every second and counted in;
a payer's limit is exact all the same, for what other nodes claimed meanwhile is read once more when a claim stands,
before it is verified.  The total may be exceeded by what the other nodes admit within that second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Literal

import attrs

from gateway.actors.operations.reservations import Due, Reservations
from gateway.actors.payment import PUBLIC_COLUMNS, Payment
from gateway.actors.store import NodeStore
from gateway.errors import ExposureLimit, GatewayError


@attrs.frozen
class Limits:
    """How much may be open at once.

    Attributes:
        operations: those that are claimed, verified or executed; those that only wait for their settlement count not.
        settling: those that wait for their settlement; beyond it nothing paid is begun.
        unsettled_per_payer: atomic units.
        unsettled: atomic units of all payers.
    """

    operations: int = 512
    settling: int = 2048
    unsettled_per_payer: int = 5_000_000
    unsettled: int = 100_000_000


Funding = Literal["free", "paid"]


@attrs.define(eq=False)
class Room:
    """Whether the operations actor has room for another order.  Read by anyone in the loop, `look` set by the actor."""

    look: Callable[[Funding], GatewayError | None] | None = None

    def full(self, funding: Funding) -> GatewayError | None:
        """Return what any order of this funding would be refused with now; None where there is room."""
        return None if self.look is None else self.look(funding)


@attrs.frozen
class Left:
    """An open paid operation of this node; its payment may have been submitted if it was `executed`."""

    operation_id: str
    executed: bool
    payment: Payment


@attrs.define(eq=False)
class Unsettled:
    """The unsettled amounts of this node's open operations, each counted once however often it is added.

    Attributes:
        reservations: what of the payers' balances they are admitted for; what is dropped here is dropped there.
        elsewhere: what other nodes have, by payer, as it was last read.
    """

    limits: Limits
    reservations: Reservations = attrs.field(factory=Reservations)
    total: int = 0
    elsewhere: Mapping[str, int] = attrs.field(factory=dict)
    _by_payer: defaultdict[str, int] = attrs.field(factory=lambda: defaultdict(int))
    _by_operation: dict[str, tuple[str, int]] = attrs.field(factory=dict)

    def admit(self, payment: Payment) -> None:
        """Return if this much more may be unsettled; raises `ExposureLimit`."""
        payer = payment.payer.lower()
        of_payer = self._by_payer.get(payer, 0) + self.elsewhere.get(payer, 0)
        if of_payer + payment.amount > self.limits.unsettled_per_payer:
            raise self.too_much()
        if self.left - payment.amount < 0:
            raise ExposureLimit("too much is unsettled")

    @property
    def left(self) -> int:
        """How much more may be unsettled of all payers together."""
        return self.limits.unsettled - self.total - sum(self.elsewhere.values())

    def too_much(self, operation_id: str | None = None) -> ExposureLimit:
        """Return what a payer is told that is over its limit."""
        return ExposureLimit("too much of this payer is unsettled", operation_id=operation_id)

    def add(self, operation_id: str, payment: Payment | None) -> None:
        """Count an operation's payment as unsettled."""
        self._forget(operation_id)
        if payment is not None:
            payer = payment.payer.lower()
            self._by_operation[operation_id] = payer, payment.amount
            self._by_payer[payer] += payment.amount
            self.total += payment.amount

    def drop(self, operation_id: str) -> None:
        """Count an operation's payment no longer."""
        self._forget(operation_id)
        self.reservations.drop(operation_id)

    def _forget(self, operation_id: str) -> None:
        payer, amount = self._by_operation.pop(operation_id, ("", 0))
        if amount:
            self.total -= amount
            self._by_payer[payer] -= amount
            if not self._by_payer[payer]:
                del self._by_payer[payer]

    def recount(self, left: Iterable[Left], in_hand: AbstractSet[str]) -> None:
        """Count what is open on this node and in nobody's hands, and nothing else that is not in hand."""
        found = {each.operation_id: each for each in left if each.operation_id not in in_hand}
        for gone in self._by_operation.keys() - in_hand - found.keys():
            self.drop(gone)
        for each in found.values():
            self.add(each.operation_id, each.payment)
            if each.executed:
                self.reservations.reserve(each.operation_id, each.payment)

    def left_over(self, in_hand: AbstractSet[str]) -> bool:
        """Return True if something is counted that is not in hand."""
        return not self._by_operation.keys() <= in_hand

    def by_payer(self) -> dict[str, int]:
        """Return what is unsettled by payer, addresses in lower case."""
        return dict(self._by_payer)


ELSEWHERE = """
    SELECT payer, SUM(amount) FROM operations
    WHERE ended_at IS NULL AND payer IS NOT NULL AND node <> :node GROUP BY payer
"""
OF_PAYER = """
    SELECT COALESCE(SUM(amount), 0), COALESCE(SUM(CASE WHEN node <> :node THEN amount ELSE 0 END), 0)
    FROM operations WHERE ended_at IS NULL AND payer = :payer AND payer IS NOT NULL
"""
OPEN_ELSEWHERE = """
    SELECT operation_id, amount, nonce FROM operations
    WHERE ended_at IS NULL AND payer = :payer AND payer IS NOT NULL AND node <> :node
        AND network = :network AND asset = :asset
"""
OPEN_HERE = f"""
    SELECT operation_id, state, {", ".join(PUBLIC_COLUMNS)} FROM operations
    WHERE ended_at IS NULL AND payer IS NOT NULL AND node = :node AND network = :network AND asset = :asset
"""  # noqa: S608 - constants of the payment's module


async def elsewhere(store: NodeStore, node: str) -> dict[str, int]:
    """Return what other nodes have unsettled, by payer, addresses in lower case.  Raises `StoreUnavailable`."""
    found: defaultdict[str, int] = defaultdict(int)
    for payer, amount in await store.fetch(ELSEWHERE, {"node": node}):
        found[str(payer).lower()] += int(amount or 0)
    return dict(found)


async def of_payer(store: NodeStore, node: str, payment: Payment) -> tuple[int, int]:
    """Return what a payer has unsettled on all nodes, and on all but this one.  Raises `StoreUnavailable`."""
    ((total, others),) = await store.fetch(OF_PAYER, {"payer": payment.payer, "node": node})
    return int(total or 0), int(others or 0)


async def open_elsewhere(store: NodeStore, node: str, payment: Payment) -> dict[str, Due]:
    """Return what is due to other nodes of a payer's balance, by operation.  Raises `StoreUnavailable`."""
    of = {"payer": payment.payer, "node": node, "network": payment.network, "asset": payment.asset}
    return {
        str(operation_id): Due(int(amount or 0), str(nonce))
        for operation_id, amount, nonce in await store.fetch(OPEN_ELSEWHERE, of)
    }


async def open_here(store: NodeStore, node: str, network: str, asset: str) -> list[Left]:
    """Return every open paid operation of a node.  Raises `StoreUnavailable`."""
    found = await store.fetch(OPEN_HERE, {"node": node, "network": network, "asset": asset})
    return [
        Left(
            str(operation_id),
            state == "executed",
            Payment.of_columns(dict(zip(PUBLIC_COLUMNS, public, strict=True))),
        )
        for operation_id, state, *public in found
    ]
