"""What `operations` is asked and what it answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from gateway.actors.payment import Payment
from gateway.actors.runtime import Ask
from gateway.errors import PROBLEMS, GatewayError, InternalError, OperationInProgress
from gateway.registry.operation import Operation
from gateway.registry.sealing import KeyName


@attrs.frozen
class Earlier:
    """The failed attempt that this order takes on again: same key, same request.

    Where the chain shows that attempt paid (somebody else submitted its payment and the execution then failed), the
    next one runs on that payment, whatever credential comes with it or none.
    """

    operation_id: str
    epoch: int
    attempt: int
    data_key: bytes = attrs.field(repr=False)
    sealed_output: bytes | None = attrs.field(repr=False)
    failure: Failure | None = None


@attrs.frozen
class Failure:
    """How an attempt failed, as its row tells it; `nonce` is that of the authorization it was paid with, if any."""

    code: str
    detail: str
    nonce: str | None

    def error(self, operation_id: str) -> GatewayError:
        """Return what those who waited for the attempt are told."""
        kind = PROBLEMS.get(self.code, InternalError)
        return kind(self.detail, operation_id=operation_id)


class Overtaken(OperationInProgress):
    """Another node was first with this key: nothing of this claim was stored, the key is to be looked up again."""


class Elsewhere(OperationInProgress):
    """Another node has the operation, or will take it on: the key is to be looked up again."""


@attrs.frozen
class Order:
    """A call that passed the pipeline up to its claim.

    `names` holds, for each name that the caller gave the operation, its `KeyName` under every pepper (current first);
    `callers` the names of the caller, of its network and its payer, under every pepper (current first).
    `budget` is the node-wide quota that a free call was counted on, if any.  `fresh` says that nobody can know its only
    name yet, which was made for this very call: it has no rivals, on no node.  `cleared` is called once the payment is
    verified, or cannot be for a reason that is not the payer's.  `network` is that of the caller.
    """

    operation: Operation
    body: Mapping[str, Any] = attrs.field(repr=False)
    request: Any = attrs.field(repr=False)
    request_hash: str
    names: tuple[tuple[KeyName, ...], ...]
    callers: tuple[tuple[str, ...], ...]
    payment: Payment | None
    earlier: Earlier | None = None
    budget: str | None = None
    fresh: bool = False
    cleared: Callable[[], None] | None = attrs.field(default=None, eq=False, repr=False)
    network: str = attrs.field(default="", repr=False)

    @property
    def keys(self) -> list[tuple[str, str]]:
        """What the order is known by to who sends it again: (name under the current pepper, request hash)."""
        return [(versions[0].hmac, self.request_hash) for versions in self.names]


@attrs.frozen
class Ended:
    """A receipted operation."""

    operation_id: str
    operation: str
    request_hash: str
    output: Mapping[str, Any] = attrs.field(repr=False)
    execution: Mapping[str, Any]
    receipt: Mapping[str, Any]
    protocol: str | None
    challenge_id: str | None
    replayed: bool


@attrs.frozen
class Submit(Ask[Ended]):
    """Run this order, or join the one that already runs for `wait_s` seconds at most.

    `until` is when the asker wants to be answered even if its own order still runs, on trio's clock.
    Refused with a `GatewayError` when the operation ends without a result or is not decided in time.
    """

    order: Order
    wait_s: float = 25.0
    until: float = math.inf


@attrs.frozen
class Join(Ask[Ended]):
    """Wait for an operation that is open, `wait_s` seconds at most; refused like `Submit`."""

    operation_id: str
    wait_s: float = 25.0


@attrs.frozen(eq=False)
class Leave:
    """Whoever asked `question`, this very object, went away: nobody waits for its answer any more."""

    question: Submit | Join


@attrs.frozen
class Resolve(Ask[str]):
    """Record an operator's decision on an operation that waits for one; answers its new state.

    `paid_by` is the transaction that paid, which the chain must show; without it the operation was not and will not
    be paid.  Refused with `ResolutionRefused` where there is nothing to decide or the chain says otherwise.
    """

    operation_id: str
    paid_by: str | None
    why: str


@attrs.frozen
class Exposure(Ask[Mapping[str, int]]):
    """Unsettled amounts by payer, in atomic units."""
