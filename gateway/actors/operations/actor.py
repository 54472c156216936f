"""The operations actor: claims orders, lives each in a task of its own nursery, takes on what a crash left.

No client's cancellation reaches a life: handlers only wait for it.  What is open is in `lives`; the store's unique
rows decide between orders that race for one key or one authorization.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import orjson
import structlog
import trio
from ulid import ULID

from gateway.actors.failpoints import failpoint
from gateway.actors.operations import rows
from gateway.actors.operations.life import Event, State
from gateway.actors.operations.live import Abandoned, Life, Surroundings, live, open_output
from gateway.actors.operations.order import Exposure, Join, Order, Resolve, Submit
from gateway.actors.operations.recovery import Unrecoverable, recover
from gateway.actors.operations.reorg import Watch
from gateway.actors.operations.resolution import resolve
from gateway.actors.runtime import Inbox, Letter
from gateway.actors.store import Conflict, StatementFailed, StoreUncertain
from gateway.errors import (
    CapacityExhausted,
    ExposureLimit,
    GatewayError,
    IdempotencyKeyReused,
    InternalError,
    OperationInProgress,
    PayerOnHold,
    PaymentAlreadyBound,
    StoreUnavailable,
)
from gateway.registry.operation import Operation
from gateway.registry.sealing import new_data_key, seal

log = structlog.get_logger(__name__)

LEASE_MS = 60_000
RECONCILE_EVERY_S = 5.0
RECONCILE_AT_ONCE = 64
RETRY_AFTER_S = 2.0

Message = Submit | Join | Resolve | Exposure


@attrs.frozen
class Limits:
    """How much may be open at once: operations, and unsettled atomic units a payer and in all."""

    operations: int = 512
    unsettled_per_payer: int = 5_000_000
    unsettled: int = 100_000_000


def new_operation_id(clock_ms: Callable[[], int]) -> str:
    """Return `op_` and a ULID: sortable by time, 80 bits of chance."""
    return f"op_{ULID.from_timestamp(clock_ms() / 1000)}"


@attrs.define(eq=False)
class _Desk:
    """The actor's state: every life in this node's hands, by id and by what else names it."""

    around: Surroundings
    table: Mapping[str, Operation]
    structure: Callable[[Operation, Mapping[str, Any]], Any]
    limits: Limits
    nursery: trio.Nursery
    watch: Watch
    lives: dict[str, Life] = attrs.field(factory=dict)
    claiming: dict[tuple[str, str], list[Letter[Any]]] = attrs.field(factory=dict)
    by_key: dict[tuple[str, str], Life] = attrs.field(factory=dict)
    exposed: dict[str, int] = attrs.field(factory=dict)

    # -- orders ------------------------------------------------------------------------------------------------------

    def submit(self, letter: Letter[Any]) -> None:
        """Join the life that has this order's key, or claim the order."""
        order = letter.message.order
        keys = [(name[0].hmac, order.request_hash) for name in order.names]
        for key in keys:
            if key in self.by_key:
                self.wait(letter, self.by_key[key], letter.message.wait_s)
                return
            if key in self.claiming:
                self.claiming[key].append(letter)
                return
        try:
            self.admit(order)
        except GatewayError as failure:
            letter.refuse(failure)
            return
        queue: list[Letter[Any]] = []
        for key in keys:
            self.claiming[key] = queue
        self.expose(order, +1)
        self.nursery.start_soon(self.claim, letter, keys, queue)

    def admit(self, order: Order) -> None:
        """Refuse what would go over a limit; nothing has been claimed then."""
        if len(self.lives) + len(self.claiming) >= self.limits.operations:
            raise CapacityExhausted("too many operations are open", retry_after=RETRY_AFTER_S)
        payment = order.payment
        if payment is None:
            return
        if self.exposed.get(payment.payer, 0) + payment.amount > self.limits.unsettled_per_payer:
            raise ExposureLimit("too much of this payer is unsettled", retry_after=RETRY_AFTER_S)
        if sum(self.exposed.values()) + payment.amount > self.limits.unsettled:
            raise ExposureLimit("too much is unsettled on this node", retry_after=RETRY_AFTER_S)

    def expose(self, order: Order | Life, sign: int) -> None:
        """Count an operation's amount as unsettled, or no longer."""
        if order.payment is None:
            return
        payer = order.payment.payer
        left = self.exposed.get(payer, 0) + sign * order.payment.amount
        if left:
            self.exposed[payer] = left
        else:
            self.exposed.pop(payer, None)

    async def claim(self, letter: Letter[Any], keys: list[tuple[str, str]], queue: list[Letter[Any]]) -> None:
        """Claim an order durably and live it; everyone who came with the same key meanwhile waits with it."""
        order = letter.message.order
        failure: GatewayError | None = None
        try:
            life = await self.claimed(order)
        except GatewayError as error:
            failure = error
        except StatementFailed as error:
            log.exception("claim_failed", error=str(error))
            failure = InternalError()
        finally:
            for key in keys:
                self.claiming.pop(key, None)
        if failure is not None:
            self.expose(order, -1)
            for each in (letter, *queue):
                if not each.settled:
                    each.refuse(failure)
            return
        for key in keys:
            self.by_key[key] = life
        self.wait(letter, life, None)
        for each in queue:
            self.wait(each, life, each.message.wait_s)
        await self.carry(life, Event.CLAIMED_FREE if life.payment is None else Event.CLAIMED_PAID, keys)

    async def claimed(self, order: Order) -> Life:
        """Commit the claim; raises the `GatewayError` that a lost race or a store at fault means."""
        around, earlier = self.around, order.earlier
        now = around.clock_ms()
        await self.refuse_held_payer(order, now)
        operation_id = earlier.operation_id if earlier else new_operation_id(around.clock_ms)
        data_key = earlier.data_key if earlier else new_data_key()
        attempt = earlier.attempt + 1 if earlier else 1
        owner = rows.Owner(operation_id, around.node, earlier.epoch + 1 if earlier else 1)
        sealed = rows.Sealed(
            request=seal(data_key, operation_id, "request", _plain(order.body)),
            payment=around.seal.wrap(operation_id, order.payment.dump()) if order.payment else None,
            node_wrap=around.seal.wrap(operation_id, data_key),
            key_wraps=[name[0].wrap(operation_id, data_key) for name in order.names],
        )
        lease = now + LEASE_MS
        next_step = 2
        if earlier is None:
            steps = rows.claim(owner, order, sealed, now=now, lease_until=lease)
        else:
            told = await self.told(operation_id)
            next_step = told + 2
            steps = rows.reclaim(owner, order, sealed, now=now, lease_until=lease, attempt=attempt, step=told + 1)
        failpoint("claim.before")
        try:
            await around.store.commit(*(statement for _, statement in steps))
        except Conflict as conflict:
            raise _lost(steps[conflict.index][0]) from conflict
        except StoreUncertain as error:
            error.operation_id = operation_id
            raise
        failpoint("claim.after")
        life = Life(
            owner,
            order.operation,
            order.request,
            order.request_hash,
            order.payment,
            data_key,
            attempt,
            next_step=next_step,
        )
        if earlier is not None and earlier.sealed_output is not None and order.payment is not None:
            life.served = open_output(data_key, operation_id, earlier.sealed_output)
        return life

    async def refuse_held_payer(self, order: Order, now: int) -> None:
        """Refuse a payer whose payment failed to settle a while ago."""
        if order.payment is None:
            return
        found = await self.around.store.fetch(
            "SELECT hold_until FROM payer_holds WHERE payer = :payer AND hold_until > :now",
            {"payer": order.payment.payer.lower(), "now": now},
        )
        if found and isinstance(found[0][0], int):
            raise PayerOnHold(
                "an earlier payment of this payer failed to settle after its result was made",
                retry_after=(found[0][0] - now) / 1000,
            )

    async def told(self, operation_id: str) -> int:
        """Return how far an operation's history goes."""
        found = await self.around.store.fetch(
            "SELECT COALESCE(MAX(step), 0) FROM operation_events WHERE operation_id = :operation_id",
            {"operation_id": operation_id},
        )
        return found[0][0] if isinstance(found[0][0], int) else 0

    # -- lives -------------------------------------------------------------------------------------------------------

    async def carry(self, life: Life, first: Event, keys: list[tuple[str, str]]) -> None:
        """Live it to its end, and then let go of it.  A defect costs this life's carrying, not the node."""
        self.lives[life.operation_id] = life
        try:
            if life.payment is not None and life.look_from_block is None:
                life.look_from_block = self.watch.head()
            await live(life, self.around, first)
        except Exception as error:
            log.exception("life_crashed", operation_id=life.operation_id, error=repr(error))
        finally:
            self.lives.pop(life.operation_id, None)
            for key in keys:
                self.by_key.pop(key, None)
            self.expose(life, -1)
        if life.state is State.RECEIPTED and life.settled_in is not None:
            self.watch.add(life)

    def wait(self, letter: Letter[Any], life: Life, wait_s: float | None) -> None:
        """Let an asker wait for a life, `wait_s` seconds at most; the one whose order it is waits for its end."""
        if letter.settled:
            return
        if life.ended is not None:
            letter.answer(letter.message, attrs.evolve(life.ended, replayed=True))
            return
        life.waiters.append(letter)
        if wait_s is not None:
            self.nursery.start_soon(self.lose_patience, letter, life, wait_s)

    async def lose_patience(self, letter: Letter[Any], life: Life, wait_s: float) -> None:
        """Tell an asker that it waited long enough."""
        with trio.move_on_after(wait_s):
            await self.around.draining.wait()
        if not letter.settled and letter in life.waiters:
            life.waiters.remove(letter)
            letter.refuse(life.unfinished())

    def join(self, letter: Letter[Any]) -> None:
        """Wait for an operation that a look-up found open."""
        life = self.lives.get(letter.message.operation_id)
        if life is None:
            letter.refuse(OperationInProgress(operation_id=letter.message.operation_id, retry_after=RETRY_AFTER_S))
        else:
            self.wait(letter, life, letter.message.wait_s)

    # -- what a crash left ---------------------------------------------------------------------------------------------

    async def reconcile(self) -> None:
        """Take on every open operation that is in nobody's hands."""
        around = self.around
        found = await around.store.fetch(
            rows.OPEN, {"now": around.clock_ms(), "node": around.node, "limit": RECONCILE_AT_ONCE + len(self.lives)}
        )
        for row in map(rows.open_row, found):
            if row.operation_id in self.lives or around.draining.is_set():
                continue
            owner = rows.Owner(row.operation_id, around.node, row.epoch + 1)
            try:
                await around.store.commit(rows.take_over(owner, lease_until=around.clock_ms() + LEASE_MS))
            except Conflict:
                continue
            try:
                life, first = recover(
                    row, owner, around, self.table, self.structure, 1 + await self.told(row.operation_id)
                )
            except Unrecoverable as error:
                log.exception("operation_unrecoverable", operation_id=row.operation_id, error=str(error))
                await around.store.commit(error.end(owner, around.clock_ms()))
                continue
            log.info("operation_taken_on", operation_id=row.operation_id, state=row.state, epoch=owner.epoch)
            self.lives[life.operation_id] = life
            self.expose(life, +1)
            self.nursery.start_soon(self.carry, life, first, [])

    async def keep_reconciling(self) -> None:
        """Reconcile and look for reorganisations, again and again."""
        while True:
            with trio.move_on_after(RECONCILE_EVERY_S):
                await self.around.draining.wait()
            if self.around.draining.is_set():
                return
            try:
                await self.reconcile()
                await self.watch.check()
            except (StoreUnavailable, Conflict, Abandoned) as error:
                log.warning("reconcile_failed", error=str(error))


def _plain(body: Mapping[str, Any]) -> bytes:
    return orjson.dumps(dict(body))


def _lost(what: str) -> GatewayError:
    """Return what a conflict in the claim means."""
    if what == "payment":
        return PaymentAlreadyBound()
    if what == "caller":
        return IdempotencyKeyReused()
    return OperationInProgress(retry_after=RETRY_AFTER_S)


async def operations(
    inbox: Inbox[Message],
    *,
    around: Surroundings,
    table: Mapping[str, Operation],
    structure: Callable[[Operation, Mapping[str, Any]], Any],
    limits: Limits,
    head: Callable[[], int | None],
) -> None:
    """Serve orders until the mailbox closes, then let what runs come to an end or to its next durable state."""
    async with trio.open_nursery() as nursery:
        desk = _Desk(around, table, structure, limits, nursery, Watch(around, head))
        await desk.watch.load()
        await desk.reconcile()
        nursery.start_soon(desk.keep_reconciling)
        inbox.ready()
        async for letter in inbox:
            message = letter.message
            match message:
                case Submit():
                    desk.submit(letter)
                case Join():
                    desk.join(letter)
                case Exposure():
                    letter.answer(message, dict(desk.exposed))
                case Resolve():
                    nursery.start_soon(resolve, letter, around)
        around.draining.set()
