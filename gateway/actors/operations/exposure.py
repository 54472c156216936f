"""Unsettled exposure: what is open and paid for, and not yet settled, by payer and in all.

The limits are those of all nodes of a store together.  What the others have open is read every second and counted in;
a payer's limit is exact all the same, for what other nodes claimed meanwhile is read once more when a claim stands,
before it is verified.  The total may be exceeded by what the other nodes admit within that second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import attrs

from gateway.actors.payment import Payment
from gateway.actors.store import NodeStore
from gateway.errors import ExposureLimit

RETRY_AFTER_S = 2.0


@attrs.frozen
class Limits:
    """How much may be open at once: operations, and unsettled atomic units a payer and in all."""

    operations: int = 512
    unsettled_per_payer: int = 5_000_000
    unsettled: int = 100_000_000


@attrs.define(eq=False)
class Unsettled:
    """The unsettled amounts of the operations in this node's hands, each counted once however often it is added.

    `elsewhere` is what other nodes have, by payer, as it was last read.
    """

    limits: Limits
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
        if self.total + sum(self.elsewhere.values()) + payment.amount > self.limits.unsettled:
            raise ExposureLimit("too much is unsettled", retry_after=RETRY_AFTER_S)

    def too_much(self, operation_id: str | None = None) -> ExposureLimit:
        """Return what a payer is told that is over its limit."""
        return ExposureLimit(
            "too much of this payer is unsettled", operation_id=operation_id, retry_after=RETRY_AFTER_S
        )

    def add(self, operation_id: str, payment: Payment | None) -> None:
        """Count an operation's payment as unsettled."""
        self.drop(operation_id)
        if payment is not None:
            payer = payment.payer.lower()
            self._by_operation[operation_id] = payer, payment.amount
            self._by_payer[payer] += payment.amount
            self.total += payment.amount

    def drop(self, operation_id: str) -> None:
        """Count an operation's payment no longer."""
        payer, amount = self._by_operation.pop(operation_id, ("", 0))
        if amount:
            self.total -= amount
            self._by_payer[payer] -= amount
            if not self._by_payer[payer]:
                del self._by_payer[payer]

    def by_payer(self) -> dict[str, int]:
        """Return what is unsettled by payer, addresses in lower case."""
        return dict(self._by_payer)


ELSEWHERE = """
    SELECT payer, SUM(amount) FROM operations
    WHERE ended_at IS NULL AND payer IS NOT NULL AND node <> :node GROUP BY payer
"""
OF_PAYER = """
    SELECT COALESCE(SUM(amount), 0) FROM operations WHERE ended_at IS NULL AND payer = :payer AND payer IS NOT NULL
"""


async def elsewhere(store: NodeStore, node: str) -> dict[str, int]:
    """Return what other nodes have unsettled, by payer, addresses in lower case.  Raises `StoreUnavailable`."""
    found: defaultdict[str, int] = defaultdict(int)
    for payer, amount in await store.fetch(ELSEWHERE, {"node": node}):
        found[str(payer).lower()] += int(amount or 0)
    return dict(found)


async def of_payer(store: NodeStore, payment: Payment) -> int:
    """Return what a payer has unsettled on all nodes, in atomic units.  Raises `StoreUnavailable`."""
    ((amount,),) = await store.fetch(OF_PAYER, {"payer": payment.payer})
    return int(amount or 0)
