"""An operation in this node's hands: what is known of it, what it needs of the node, how its steps become durable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import attrs
import orjson
import trio

from gateway.actors.operations import rows
from gateway.actors.operations.life import State
from gateway.actors.operations.order import Elsewhere, Ended
from gateway.actors.operations.pace import Pace
from gateway.actors.operations.reservations import Reservations
from gateway.actors.operations.waiting import Waiters
from gateway.actors.payment import Payment
from gateway.actors.runtime import Ref
from gateway.actors.settlement import Message as SettlementMessage
from gateway.actors.settlement import Sighting
from gateway.actors.store import Conflict, Engine, Statement, StoreUncertain
from gateway.errors import GatewayError, OperationInProgress, SettlementPending, StoreUnavailable
from gateway.registry.execution import Family, Served
from gateway.registry.operation import Operation
from gateway.registry.payment.asset import Asset
from gateway.registry.receipts import Signer
from gateway.registry.sealing import NodeSeal, unseal

STORE_PATIENCE_S = 20.0
RETRY_AFTER_S = 2.0
REFUSALS_AT_ONCE = 8
"""Refused payments that are looked for on the chain at once: a crowd of them leaves its end point to the others."""


class ClaimLater(Protocol):
    """Returns the statements of a claim for the step that makes it durable."""

    def __call__(self, *, over: bool) -> Sequence[Statement]:
        """Return them; `over` where nothing is left open by that step."""
        ...


class Abandoned(Exception):
    """This node stops living the operation here; its durable state is taken on later."""


@attrs.frozen
class Surroundings:
    """What every life needs of the node."""

    store: Engine
    settlement: Ref[SettlementMessage] | None
    families: Mapping[str, Family]
    seal: NodeSeal
    signer: Signer
    asset: Asset
    node: str
    clock_ms: Callable[[], int]
    draining: trio.Event
    posted: Callable[[], None]
    settle_wait_s: float
    payer_hold_s: float
    verify_timeout_s: float
    settle_timeout_s: float
    reservations: Reservations = attrs.field(factory=Reservations)
    pace: Pace = attrs.field(factory=Pace)
    refusals: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(REFUSALS_AT_ONCE))


@attrs.define(eq=False)
class Life:
    """An operation in this node's hands.

    Attributes:
        operation: the table's entry; None where only a settlement is left to see to.
        data_key: what its output is sealed under; None where that is so and the key cannot be had.
        tries: how often this attempt was taken on, after crashes.
        served: the output, from the execution or from the store.
        result: what the receipt says of the output; there as soon as there is one.
        resumed: it was taken on after its payment may have been submitted.
        sent: the facilitator may have got the payment to settle.
        refusal: why the facilitator last refused to settle it; None where it did not.
        settlement_refused: it has refused to settle it once or more.
        held: its payer was put on hold because of that.
        owed_elsewhere: what its payer had open on other nodes when its claim stood.
        owed: the ledger says that the payer owes.
        credit: where the chain showed the payment made before this attempt.
        undecided: an earlier attempt could not tell whether its payment was made, and this one could not yet.
        failure: why it ended without a result; told to those who wait once `over`.
        over: its end is durable.
        taken: another owner has taken it on.
        claim: the statements of its claim, where the first durable step takes them along (`over`: if that is its end).
        unsure: a step was tried of which nobody knows whether it was stored.
        told: history that the next durable step takes along, from number `next_step` on.
        gone: nobody lives it any more; who waits has been answered.
        settling: the scope of who tells when its settlement takes long, at the deadline that this sets.
        running: the scope of its execution, while that runs.
        released: what must never run twice may have begun in this attempt.
        stopped: nobody waits for it, and its execution is not to go on.
        budget: the node-wide quota that it was counted on, if any.
        cleared: called once the payment is verified, or cannot be for a reason that is not the payer's.
        refused: the payment was refused, and the chain shows it unused, or spent without paying.
        network: that of the caller, empty once that was forgotten.
    """

    owner: rows.Owner
    name: str
    operation: Operation | None
    request: Any = attrs.field(repr=False)
    request_hash: str
    payment: Payment | None = attrs.field(repr=False)
    data_key: bytes | None = attrs.field(repr=False)
    attempt: int
    next_step: int
    state: State = State.CLAIMED
    tries: int = 0
    served: Served | None = attrs.field(default=None, repr=False)
    result: rows.Result | None = None
    look_from_block: int | None = None
    sighting: Sighting | None = None
    hints: list[str] = attrs.field(factory=list)
    submissions: int = 0
    looks: int = 0
    resumed: bool = False
    sent: bool = False
    refusal: str | None = None
    settlement_refused: bool = False
    held: bool = False
    owed_elsewhere: int = 0
    owed: bool = False
    credit: rows.Settled | None = None
    undecided: bool = False
    settled_in: rows.Settled | None = None
    receipt: Mapping[str, Any] | None = None
    failure: GatewayError | None = None
    over: bool = False
    taken: bool = False
    claim: ClaimLater | None = attrs.field(default=None, repr=False)
    unsure: bool = False
    told: list[rows.Happening] = attrs.field(factory=list)
    gone: trio.Event = attrs.field(factory=trio.Event)
    settling: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    running: trio.CancelScope | None = None
    released: bool = False
    stopped: bool = False
    budget: str | None = None
    cleared: Callable[[], None] | None = attrs.field(default=None, repr=False)
    refused: bool = False
    network: str = attrs.field(default="", repr=False)
    waiters: Waiters = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Make room for those who wait."""
        self.waiters = Waiters(self.payment)

    @property
    def operation_id(self) -> str:
        """The operation's id."""
        return self.owner.operation_id

    @property
    def may_have_settled(self) -> bool:
        """True once the credential may have been submitted: no answer may then carry a challenge."""
        return self.payment is not None and self.state in {State.EXECUTED, State.SETTLING, State.SETTLED}

    @property
    def ended(self) -> Ended | None:
        """The result to answer with; None until the receipt is durable, or where this node cannot open the output."""
        if not self.over or self.receipt is None or self.served is None:
            return None
        return Ended(
            operation_id=self.operation_id,
            operation=self.name,
            request_hash=self.request_hash,
            output=self.served.output,
            execution=self.served.execution,
            receipt=self.receipt,
            protocol=self.payment.protocol if self.payment else None,
            challenge_id=self.payment.challenge_id if self.payment else None,
            replayed=False,
        )

    @property
    def stops_when_left(self) -> bool:
        """True where nobody is owed a result once nobody waits for it."""
        return self.payment is None and self.operation is not None and self.operation.stops_when_left

    def stop(self) -> None:
        """Have the execution stopped, if it has not ended yet."""
        self.stopped = True
        if self.running is not None:
            self.running.cancel()

    def paid_for(self) -> Payment:
        """Return the payment of a paid operation."""
        if self.payment is None:
            raise RuntimeError(f"{self.operation_id} is free")
        return self.payment

    def done(self) -> rows.Result:
        """Return what the receipt says of the output."""
        if self.result is None:
            raise RuntimeError(f"{self.operation_id} has no result")
        return self.result

    def unfinished(self) -> GatewayError:
        """What one is told that cannot wait longer."""
        kind = SettlementPending if self.may_have_settled else OperationInProgress
        return kind(operation_id=self.operation_id, retry_after=RETRY_AFTER_S)

    def left(self) -> GatewayError:
        """What those are told that still wait when this node lets go of the operation."""
        if self.over:
            return self.failure or OperationInProgress(operation_id=self.operation_id, retry_after=RETRY_AFTER_S)
        if self.taken:
            return Elsewhere(operation_id=self.operation_id, retry_after=RETRY_AFTER_S)
        if self.may_have_settled:
            return self.unfinished()
        if self.claim is None:
            then = "it is taken on again by itself"
        else:
            then = "nobody knows whether it was stored" if self.unsure else "nothing of it was stored"
        return StoreUnavailable(
            f"the operation could not be carried on here; {then}",
            operation_id=self.operation_id,
            retry_after=RETRY_AFTER_S,
        )


def ending(operation_id: str) -> str:
    """Return the topic that is told when an operation ends."""
    return f"operation/{operation_id}"


# -- durable steps -----------------------------------------------------------------------------------------------------


async def write(life: Life, around: Surroundings, state: State, *statements: Statement, flushed: bool = False) -> None:
    """Commit a step that leaves the operation in `state`, with its claim if that is due, and the history told so far.

    It is flushed where there is money in it or it is to be `flushed`; a power loss may take others back.  Tries again
    while the store is away and gives up after a while; raises `Abandoned`.
    """
    claimed = () if life.claim is None else life.claim(over=state is not State.CLAIMED)
    told = rows.happenings(life.owner, life.next_step, life.told)
    relaxed = life.payment is None and life.credit is None and not flushed
    gives_up = trio.current_time() + STORE_PATIENCE_S
    pause = 0.1
    while True:
        try:
            await around.store.commit(*claimed, *statements, *told, relaxed=relaxed)
            break
        except Conflict as conflict:
            stands = await _stands(life, around)
            if stands is state:
                break
            if life.claim is not None and stands is State.CLAIMED:
                life.claim, claimed = None, ()  # an earlier step took it along, whose answer was lost
                continue
            life.taken = True
            raise Abandoned("another owner has taken the operation on") from conflict
        except StoreUnavailable as error:
            life.unsure |= isinstance(error, StoreUncertain)
            if trio.current_time() >= gives_up or around.draining.is_set():
                raise Abandoned(f"the store is unavailable: {error.detail}") from error
            await trio.sleep(pause)
            pause = min(pause * 2, 2.0)
    life.claim = None
    life.next_step += len(life.told)
    life.told.clear()


async def _stands(life: Life, around: Surroundings) -> State | None:
    """Return the state of what conflicts where it is our own, of a try whose answer was lost; else None."""
    try:
        found = await around.store.fetch(
            "SELECT state FROM operations WHERE operation_id = :operation_id AND epoch = :epoch",
            {"operation_id": life.operation_id, "epoch": life.owner.epoch},
        )
    except StoreUnavailable as error:
        raise Abandoned(f"the store cannot be read: {error.detail}") from error
    return State(str(found[0][0])) if found else None


def desk(around: Surroundings) -> Ref[SettlementMessage]:
    """Return the settlement actor; raises `Abandoned` on a node that has none."""
    if around.settlement is None:
        raise Abandoned("payments are not configured")
    return around.settlement


async def pause(around: Surroundings, seconds: float) -> None:
    """Wait, unless the node drains: what is durable is taken on at the next start.  Raises `Abandoned`."""
    with trio.move_on_after(seconds):
        await around.draining.wait()
    if around.draining.is_set():
        raise Abandoned("the node is shutting down")


# -- outputs -----------------------------------------------------------------------------------------------------------


def open_output(data_key: bytes, operation_id: str, sealed: bytes) -> Served:
    """Open what was sealed of `Served.plain`; raises `SealBroken`."""
    plain = orjson.loads(unseal(data_key, operation_id, "output", sealed))
    return Served(plain["output"], plain["execution"])
