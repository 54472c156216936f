"""Unsettled exposure: what is open and paid for, and not yet settled, by payer and in all."""

from __future__ import annotations

from collections import defaultdict

import attrs

from gateway.actors.payment import Payment
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
    """The unsettled amounts of the operations in this node's hands, each counted once however often it is added."""

    limits: Limits
    total: int = 0
    _by_payer: defaultdict[str, int] = attrs.field(factory=lambda: defaultdict(int))
    _by_operation: dict[str, tuple[str, int]] = attrs.field(factory=dict)

    def admit(self, payment: Payment) -> None:
        """Return if this much more may be unsettled; raises `ExposureLimit`."""
        if self._by_payer.get(payment.payer.lower(), 0) + payment.amount > self.limits.unsettled_per_payer:
            raise ExposureLimit("too much of this payer is unsettled", retry_after=RETRY_AFTER_S)
        if self.total + payment.amount > self.limits.unsettled:
            raise ExposureLimit("too much is unsettled on this node", retry_after=RETRY_AFTER_S)

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
