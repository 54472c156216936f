"""The operations actor: claims orders, lives each in a task of its own nursery, takes on what a crash left.

No client's cancellation reaches a life: handlers only wait for it.  What is open is in this node's hands, first as a
claim, then as a life; the store's unique rows decide between orders that race for one key or one authorization.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import structlog
import trio
from ulid import ULID

from gateway.actors.leases import Held, Hold, alone
from gateway.actors.operations.claiming import claim
from gateway.actors.operations.duties import attempt, keep_up, within
from gateway.actors.operations.exposure import Funding, Limits, Room, Unsettled, elsewhere, of_payer, open_here
from gateway.actors.operations.in_hand import RETRY_AFTER_S, Life, Surroundings, ending
from gateway.actors.operations.left_over import RECONCILE_EVERY_S, TAKE_OVER_EVERY_S, LeftOver, Structure
from gateway.actors.operations.life import Event, State
from gateway.actors.operations.lingering import Lingering
from gateway.actors.operations.live import live, tell_when_slow
from gateway.actors.operations.order import Elsewhere, Exposure, Join, Leave, Order, Resolve, Submit
from gateway.actors.operations.pace import Pace
from gateway.actors.operations.reorg import Watch
from gateway.actors.operations.reservations import Reservations
from gateway.actors.operations.resolution import resolve
from gateway.actors.operations.waiting import own
from gateway.actors.runtime import Inbox, Letter
from gateway.errors import (
    CapacityExhausted,
    ExposureLimit,
    GatewayError,
    IdempotencyKeyReused,
    InternalError,
    PayerOnHold,
    PaymentAlreadyBound,
    StoreUnavailable,
)
from gateway.registry.operation import Operation

log = structlog.get_logger(__name__)

ELSEWHERE_EVERY_S = 1.0
LOOK_AGAIN_S = 0.25
"""How long one waits for an operation of another node before its key is looked up again, when nothing is heard."""
COME_BACK_S = 0.2
"""How long a free execution goes on after the last who waited for it has left."""

Message = Submit | Join | Leave | Resolve | Exposure


def new_operation_id(clock_ms: Callable[[], int]) -> str:
    """Return `op_` and a ULID: sortable by time, 80 bits of chance."""
    return f"op_{ULID.from_timestamp(clock_ms() / 1000)}"


@attrs.define(eq=False)
class Claim:
    """An order that is being claimed, those who came for the same operation meanwhile, and those who left."""

    letter: Letter[Any]
    order: Order
    queue: list[Letter[Any]] = attrs.field(factory=list)
    left: list[Submit | Join] = attrs.field(factory=list)


@attrs.define(eq=False)
class Desk:
    """The actor's state: every operation in this node's hands, by id and by the keys that name it."""

    around: Surroundings
    nursery: trio.Nursery
    watch: Watch
    unsettled: Unsettled
    lingering: Lingering
    claims: dict[str, Claim] = attrs.field(factory=dict)
    lives: dict[str, Life] = attrs.field(factory=dict)
    by_key: dict[tuple[str, str], str] = attrs.field(factory=dict)
    keys_of: dict[str, list[tuple[str, str]]] = attrs.field(factory=dict)
    left_over: LeftOver = attrs.field(init=False)

    def serve(self, letter: Letter[Message]) -> None:
        """Answer a letter, or see to it that somebody does."""
        message = letter.message
        match message:
            case Submit():
                self.submit(letter)
            case Join():
                self.join(letter, message.operation_id)
            case Leave():
                self.leave(message.question)
            case Exposure():
                letter.answer(message, self.unsettled.by_payer())
            case Resolve():
                self.nursery.start_soon(self.resolve, letter)

    # -- orders ------------------------------------------------------------------------------------------------------

    def submit(self, letter: Letter[Any]) -> None:
        """Join the operation that this order names, or claim the order."""
        order: Order = letter.message.order
        try:
            operation_id = self.named_by(order)
            if operation_id is not None:
                self.join(letter, operation_id)
                return
            self.admit(order)
        except GatewayError as failure:
            letter.refuse(failure)
            return
        operation_id = order.earlier.operation_id if order.earlier else new_operation_id(self.around.clock_ms)
        self.claims[operation_id] = Claim(letter, order)
        self.keys_of[operation_id] = order.keys
        self.by_key |= dict.fromkeys(order.keys, operation_id)
        self.unsettled.add(operation_id, order.payment)
        self.nursery.start_soon(self.claim, operation_id)

    def named_by(self, order: Order) -> str | None:
        """Return the operation in hand that an order names; raises `IdempotencyKeyReused` when it names two."""
        named = {self.by_key[key] for key in order.keys if key in self.by_key}
        if order.earlier is not None and (
            order.earlier.operation_id in self.claims or order.earlier.operation_id in self.lives
        ):
            named.add(order.earlier.operation_id)
        if len(named) > 1:
            raise IdempotencyKeyReused("the Idempotency-Key and the payment identifier name two different operations")
        return next(iter(named), None)

    def admit(self, order: Order) -> None:
        """Refuse what would go over a limit; nothing has been claimed then."""
        if order.payment is not None:
            self.unsettled.admit(order.payment)
        full = self.full("free" if order.payment is None else "paid")
        if full is not None:
            raise full

    def full(self, funding: Funding) -> GatewayError | None:
        """Return what any order of this funding would be refused with now; None where there is room."""
        limits, open_now = self.unsettled.limits, len(self.lives) + len(self.claims)
        if funding == "paid" and self.unsettled.left <= 0:
            return ExposureLimit("too much is unsettled")
        if open_now < min(limits.operations, limits.settling):
            return None
        settling = sum(life.may_have_settled for life in self.lives.values())
        if open_now - settling >= limits.operations:
            return CapacityExhausted("too many operations are open")
        if funding == "paid" and settling >= limits.settling:
            return CapacityExhausted("too many settlements are open")
        return None

    async def claim(self, operation_id: str) -> None:
        """Claim an order durably and live it; everyone who came for it meanwhile waits with it."""
        claimed = self.claims[operation_id]
        order = claimed.order
        failure: GatewayError
        try:
            life = await claim(order, operation_id, self.around)
        except GatewayError as error:
            failure = error
        except Exception as error:
            log.exception("claim_failed", operation_id=operation_id, error=repr(error))
            failure = InternalError()
        else:
            self.lives[operation_id] = life
            del self.claims[operation_id]
            life.look_from_block = self.watch.head()
            life.waiters.add(claimed.letter)
            if claimed.letter.message.until < math.inf:
                self.nursery.start_soon(self.lose_patience, claimed.letter, life, claimed.letter.message.until)
            for each in claimed.queue:
                self.wait(each, life)
            for question in claimed.left:
                self.see_off(question, life)
            await self.carry(life, Event.CLAIMED_FREE if life.payment is None else Event.CLAIMED_PAID)
            return
        del self.claims[operation_id]
        self.let_go(operation_id)
        claimed.letter.refuse(own(failure))
        for each in claimed.queue:
            if _concerns(failure, each.message, order):
                each.refuse(own(failure))
            else:
                self.submit(each)

    # -- lives -------------------------------------------------------------------------------------------------------

    async def carry(self, life: Life, first: Event) -> None:
        """Live it to its end, and then let go of it.  A defect costs this life's carrying, not the node.

        It is among `lives` by then: what is not in hand is taken on.
        """
        operation_id = life.operation_id
        self.count(life)
        if life.payment is not None:
            self.nursery.start_soon(tell_when_slow, life)
        try:
            await live(life, self.around, await self.within_limits(life, first))
        except Exception as error:
            log.exception("life_crashed", operation_id=operation_id, error=repr(error))
        finally:
            del self.lives[operation_id]
            life.waiters.refuse(life.left())
            life.gone.set()
            self.linger(life)
        if life.taken or (life.claim is not None and not life.over):
            return
        if not life.over:
            self.count(life)
            self.left_over.rest(operation_id, RECONCILE_EVERY_S * 2.0 ** min(life.tries, 10))
        elif life.state is State.RECEIPTED:
            self.watch.add(life)

    def count(self, life: Life) -> None:
        """Count a life's payment as unsettled, and as reserved where it may have been submitted."""
        self.unsettled.add(life.operation_id, life.payment)
        if life.payment is not None and life.may_have_settled:
            self.around.reservations.reserve(life.operation_id, life.payment)

    async def within_limits(self, life: Life, first: Event) -> Event:
        """Return how an operation begins, which may be over its payer's limit with what other nodes have claimed.

        Also one that is taken on: its claim may be all that there ever was of it.
        """
        payment, around = life.payment, self.around
        at_risk = first is Event.CLAIMED_PAID and life.credit is None
        if payment is None or not at_risk or not around.store.shared:
            return first
        try:
            total, life.owed_elsewhere = await of_payer(around.store, around.node, payment)
        except StoreUnavailable as error:
            error.operation_id = life.operation_id
            life.failure = error
            return Event.OVER_LIMIT
        if total > self.unsettled.limits.unsettled_per_payer:
            life.failure = self.unsettled.too_much(life.operation_id)
            return Event.OVER_LIMIT
        return first

    def linger(self, life: Life) -> None:
        """Keep a result at hand for a moment, and forget an operation that has none."""
        ended = life.ended
        if ended is None or life.served is None:
            self.let_go(life.operation_id)
            return
        self.unsettled.drop(life.operation_id)
        for gone in self.lingering.add(ended, len(life.served.plain)):
            self.let_go(gone)

    def let_go(self, operation_id: str) -> None:
        """Forget an operation that is in nobody's hands any more."""
        self.unsettled.drop(operation_id)
        for key in self.keys_of.pop(operation_id, ()):
            if self.by_key.get(key) == operation_id:
                del self.by_key[key]

    def join(self, letter: Letter[Any], operation_id: str) -> None:
        """Wait for an operation that runs, or get the result of one that has just ended."""
        ended = self.lingering.get(operation_id)
        if operation_id in self.claims:
            self.claims[operation_id].queue.append(letter)
        elif operation_id in self.lives:
            self.wait(letter, self.lives[operation_id])
        elif ended is not None:
            letter.answer(letter.message, ended)
        else:
            self.nursery.start_soon(self.wait_elsewhere, letter, operation_id)

    async def wait_elsewhere(self, letter: Letter[Any], operation_id: str) -> None:
        """Let one wait a little for an operation of another node, which the store tells of."""
        with self.around.store.hear(ending(operation_id)) as ended:
            with trio.move_on_after(min(letter.message.wait_s, LOOK_AGAIN_S)):
                await ended.wait()
        letter.refuse(Elsewhere(operation_id=operation_id, retry_after=RETRY_AFTER_S))

    def wait(self, letter: Letter[Any], life: Life) -> None:
        """Let one wait for a life as long as it has patience."""
        ended = life.ended
        if ended is not None:
            letter.answer(letter.message, attrs.evolve(ended, replayed=True))
            return
        life.waiters.add(letter)
        self.nursery.start_soon(self.lose_patience, letter, life, trio.current_time() + letter.message.wait_s)

    def leave(self, question: Submit | Join) -> None:
        """Take note that somebody went away who waited for an operation."""
        try:
            operation_id = question.operation_id if isinstance(question, Join) else self.named_by(question.order)
        except IdempotencyKeyReused:
            return  # it was refused
        if operation_id in self.claims:
            self.claims[operation_id].left.append(question)
        elif operation_id in self.lives:
            self.see_off(question, self.lives[operation_id])

    def see_off(self, question: Submit | Join, life: Life) -> None:
        """Note who went away; a free execution that nobody waits for any more is stopped a little later."""
        if life.waiters.leave(question) and life.stops_when_left:
            self.nursery.start_soon(self.stop_unattended, life)

    async def stop_unattended(self, life: Life) -> None:
        """Stop an execution, unless somebody has come back for it."""
        await trio.sleep(COME_BACK_S)
        if not life.waiters.attended:
            life.stop()

    async def lose_patience(self, letter: Letter[Any], life: Life, until: float) -> None:
        """Tell an asker at `until`, on trio's clock, that it has waited long enough."""
        with trio.move_on_at(until):
            await life.gone.wait()
        life.waiters.give_up(letter, life.unfinished())

    # -- duties --------------------------------------------------------------------------------------------------------

    def in_hand(self) -> set[str]:
        """Return the operations that are being claimed or lived here."""
        return self.lives.keys() | self.claims.keys()

    def room(self) -> int:
        """Return how many more may be taken on: what waits for its settlement leaves room for what runs."""
        limits = self.unsettled.limits
        return max(limits.operations + limits.settling - len(self.lives), 0)

    def take_on(self, life: Life, first: Event) -> None:
        """Live what a crash left, or another node."""
        self.lives[life.operation_id] = life
        self.nursery.start_soon(self.carry, life, first)

    async def watch_settled(self, held: Held) -> None:
        """Watch what settled on all nodes, while this one holds the lease for it.

        An earlier holder that still writes does no harm: every step is fenced by its operation's epoch.
        """
        del held
        try:
            await attempt(self.watch.load)
            await keep_up(self.around.draining, RECONCILE_EVERY_S, self.watch.load, self.watch.check)
        finally:
            self.watch.leave()

    async def count_left_over(self, *, at_start: bool = False) -> None:
        """Count what is open on this node and not in hand, which at the start may be more than can be taken on."""
        around, before = self.around, self.in_hand()
        if around.settlement is None or not (at_start or self.unsettled.left_over(before)):
            return
        left = await open_here(around.store, around.node, around.asset.network, around.asset.address)
        self.unsettled.recount(left, before | self.in_hand())

    async def look_elsewhere(self) -> None:
        """Read what other nodes have unsettled."""
        self.unsettled.elsewhere = await elsewhere(self.around.store, self.around.node)

    async def forget(self) -> None:
        """Forget the results that have lingered long enough."""
        for gone in self.lingering.prune():
            self.let_go(gone)

    async def resolve(self, letter: Letter[Any]) -> None:
        """Record an operator's decision."""
        try:
            letter.answer(letter.message, await resolve(letter.message, self.around))
        except GatewayError as failure:
            letter.refuse(failure)
        except Exception as error:
            log.exception("resolution_failed", operation_id=letter.message.operation_id, error=repr(error))
            letter.refuse(InternalError())


def _concerns(failure: GatewayError, message: Submit | Join, claimed: Order) -> bool:
    """Return True if the failure of a claim is also that of another who came for the same operation.

    A payment that is bound elsewhere, a payer on hold and a caller who used the key before are one's own trouble.
    """
    if not isinstance(failure, PaymentAlreadyBound | PayerOnHold | IdempotencyKeyReused) or isinstance(message, Join):
        return True
    theirs, order = message.order.payment, message.order
    same_payment = theirs is not None and claimed.payment is not None and theirs.key == claimed.payment.key
    return order.callers == claimed.callers and (same_payment or theirs is claimed.payment)


async def operations(
    inbox: Inbox[Message],
    *,
    around: Surroundings,
    table: Mapping[str, Operation],
    structure: Structure,
    limits: Limits,
    head: Callable[[], int | None],
    hold: Hold = alone,
    room: Room | None = None,
) -> None:
    """Serve orders until the mailbox closes, then let what runs come to an end or to its next durable state.

    `room` tells others whether there is any.
    """
    around = attrs.evolve(around, reservations=Reservations(), pace=Pace())
    async with trio.open_nursery() as nursery:
        unsettled = Unsettled(limits, around.reservations)
        desk = Desk(around, nursery, Watch(around, head), unsettled, Lingering(trio.current_time))
        desk.left_over = LeftOver(around, table, structure, desk.in_hand, desk.room, desk.take_on)
        await desk.count_left_over(at_start=True)
        await desk.left_over.take_up()
        if around.store.shared:
            nursery.start_soon(keep_up, around.draining, ELSEWHERE_EVERY_S, desk.look_elsewhere)
        reconcile_every_s = TAKE_OVER_EVERY_S if around.store.shared else RECONCILE_EVERY_S
        nursery.start_soon(
            keep_up, around.draining, reconcile_every_s, desk.left_over.take_up, desk.count_left_over, desk.forget
        )
        watching = trio.CancelScope()
        nursery.start_soon(within, watching, hold, "reorganisations", desk.watch_settled)
        if room is not None:
            room.look = desk.full
        inbox.ready(at_once=desk.serve)
        async for letter in inbox:
            desk.serve(letter)
        around.draining.set()
        watching.cancel()
