"""One operation being lived: runs the effects that `life` decides on and tells it what came of them.

A `Life` belongs to one task of the operations actor, under no client's cancel scope.  Its waiters are answered when
it ends, or told that the settlement is pending once that takes longer than `settle_wait_s`; the life itself goes on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs
import orjson
import structlog
import trio

from gateway.actors.failpoints import failpoint
from gateway.actors.operations import rows
from gateway.actors.operations.life import Effect, Event, State, decide
from gateway.actors.operations.order import Ended, Join, Submit
from gateway.actors.payment import Payment
from gateway.actors.runtime import ActorError, Letter, Ref
from gateway.actors.settlement import ChainUnavailable, Look, Settle, Sighting, Standing, Verdict, Verify
from gateway.actors.settlement import Message as SettlementMessage
from gateway.actors.store import Conflict, Statement, Store
from gateway.errors import (
    AuthorizationExpiresTooSoon,
    AuthorizationUsed,
    CapacityExhausted,
    ExecutionReconciliation,
    FacilitatorUnavailable,
    GatewayError,
    InsufficientFunds,
    InternalError,
    OperationInProgress,
    OperatorNeeded,
    PaymentRejected,
    SettlementFailed,
    SettlementPending,
    SignatureInvalid,
    StoreUnavailable,
)
from gateway.registry import ledger
from gateway.registry.canonical import result_hash
from gateway.registry.execution import Family, Served, Work
from gateway.registry.operation import Operation
from gateway.registry.payment.asset import Asset, usd
from gateway.registry.receipts import Signer, timestamp
from gateway.registry.sealing import NodeSeal, seal, unseal

log = structlog.get_logger(__name__)

MAX_OUTPUT_BYTES = 2 * 1024 * 1024
STORE_PATIENCE_S = 20.0
SETTLE_WATCH_AFTER_S = 2.0
LOOKS_BEFORE_RESETTLING = 3
UNTRACED_PATIENCE_S = 600
RETRY_AFTER_S = 2.0


class Abandoned(Exception):
    """This node stops living the operation here; its durable state is taken on later."""


@attrs.frozen
class Surroundings:
    """What every life needs of the node."""

    store: Store
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


@attrs.define(eq=False)
class Life:
    """An operation in this node's hands."""

    owner: rows.Owner
    operation: Operation
    request: Any = attrs.field(repr=False)
    request_hash: str
    payment: Payment | None = attrs.field(repr=False)
    data_key: bytes = attrs.field(repr=False)
    attempt: int
    state: State = State.CLAIMED
    recovered: bool = False
    served: Served | None = attrs.field(default=None, repr=False)
    executed_at: int | None = None
    look_from_block: int | None = None
    sighting: Sighting | None = None
    hints: list[str] = attrs.field(factory=list)
    submissions: int = 0
    looks: int = 0
    sent: bool = False
    failure: GatewayError | None = None
    ended: Ended | None = None
    waiters: list[Letter[Any]] = attrs.field(factory=list)
    told: list[rows.Happening] = attrs.field(factory=list)
    settled_in: rows.Settled | None = None
    owed: bool = False
    next_step: int = 2

    @property
    def operation_id(self) -> str:
        """The operation's id."""
        return self.owner.operation_id

    @property
    def may_have_settled(self) -> bool:
        """True once the credential may have been submitted: no answer may then carry a challenge."""
        return self.payment is not None and self.state in {State.EXECUTED, State.SETTLING, State.SETTLED}

    def unfinished(self) -> GatewayError:
        """What a waiter is told that cannot wait longer."""
        kind = SettlementPending if self.may_have_settled else OperationInProgress
        return kind(operation_id=self.operation_id, retry_after=RETRY_AFTER_S)

    def release(self, failure: GatewayError) -> None:
        """Tell all who wait that they wait in vain."""
        for letter in self.waiters:
            if not letter.settled:
                letter.refuse(failure)
        self.waiters.clear()

    def answer(self) -> None:
        """Give the result to all who wait; the one whose order made the operation gets it first."""
        if self.ended is None:
            raise RuntimeError("no result to answer with")
        for letter in self.waiters:
            if not letter.settled:
                question: Submit | Join = letter.message
                letter.answer(question, self.ended)
                self.ended = attrs.evolve(self.ended, replayed=True)
        self.waiters.clear()


async def live(life: Life, around: Surroundings, first: Event) -> None:
    """Live an operation to its end, or until `Abandoned`; every waiter is answered in any case."""
    event = first
    effects: dict[Effect, Callable[[Life, Surroundings], Awaitable[Event]]] = {
        Effect.VERIFY: verify,
        Effect.START: start,
        Effect.EXECUTE: execute,
        Effect.KEEP: keep,
        Effect.SETTLE: settle,
        Effect.LOOK: look,
        Effect.RECEIPT: receipt,
    }
    try:
        async with trio.open_nursery() as nursery:
            while True:
                before = life.state
                life.state, effect = decide(life.state, event)
                if life.state is not before:
                    life.told.append(rows.Happening(life.state, around.clock_ms(), event.value))
                if life.state is State.SETTLING and before is not State.SETTLING:
                    nursery.start_soon(release_when_slow, life, around)
                if effect is Effect.REST:
                    failpoint("answer.before")
                    life.answer()
                    break
                if effect is Effect.END:
                    await end(life, around)
                    break
                event = await effects[effect](life, around)
            nursery.cancel_scope.cancel()
    except* Abandoned as group:
        log.warning(
            "operation_abandoned", operation_id=life.operation_id, state=life.state.value, why=str(group.exceptions[0])
        )
    finally:
        life.release(life.failure if life.failure and life.state.ended else _left(life))


def _left(life: Life) -> GatewayError:
    if life.may_have_settled:
        return life.unfinished()
    return StoreUnavailable(
        "the operation could not be carried on here; it is taken on again by itself",
        operation_id=life.operation_id,
        retry_after=RETRY_AFTER_S,
    )


async def release_when_slow(life: Life, around: Surroundings) -> None:
    """Once the settlement takes long, tell those who wait that it is pending."""
    while True:
        await trio.sleep(around.settle_wait_s)
        life.release(life.unfinished())


# -- effects, in the order of a paid call ------------------------------------------------------------------------------


async def verify(life: Life, around: Surroundings) -> Event:
    """Ask the facilitator; when it refuses, the chain tells whether somebody has paid already."""
    payment = _payment(life)
    failpoint("verify.before")
    try:
        verification = await _settlement(around).ask(Verify(payment), within=around.verify_timeout_s + 5)
    except ActorError as error:
        life.failure = FacilitatorUnavailable(
            type(error).__name__, operation_id=life.operation_id, retry_after=RETRY_AFTER_S
        )
        return Event.UNVERIFIABLE
    failpoint("verify.after")
    if verification.verdict is Verdict.VALID:
        return Event.VERIFIED if life.served is None else Event.VERIFIED_KEPT
    if verification.verdict is Verdict.UNAVAILABLE:
        life.failure = FacilitatorUnavailable(
            f"the facilitator did not verify the payment ({verification.reason})",
            operation_id=life.operation_id,
            retry_after=RETRY_AFTER_S,
        )
        return Event.UNVERIFIABLE
    try:
        life.sighting = await _look(life, around)
    except (ChainUnavailable, ActorError) as error:
        life.failure = FacilitatorUnavailable(
            f"the facilitator refused ({verification.reason}) and the chain cannot be read ({error})",
            operation_id=life.operation_id,
            retry_after=RETRY_AFTER_S,
        )
        return Event.UNVERIFIABLE
    return _after_refusal(life, life.sighting.standing, verification.reason)


def _after_refusal(life: Life, standing: Standing, reason: str) -> Event:
    match standing:
        case Standing.PAID | Standing.SHALLOW:
            return Event.ALREADY_PAID if life.served is None else Event.VERIFIED_KEPT
        case Standing.CANCELLED:
            life.failure = AuthorizationUsed("the authorization is spent on chain and has paid nothing")
        case Standing.UNTRACED:
            life.failure = FacilitatorUnavailable(
                "the authorization is spent on chain, and its transaction cannot be found yet",
                operation_id=life.operation_id,
                retry_after=RETRY_AFTER_S,
            )
            return Event.UNVERIFIABLE
        case Standing.EXPIRED:
            life.failure = AuthorizationExpiresTooSoon("the authorization has expired")
        case Standing.UNUSED:
            kind = PaymentRejected
            if "insufficient" in reason:
                kind = InsufficientFunds
            elif reason.endswith("_signature"):
                kind = SignatureInvalid
            life.failure = kind(f"the facilitator refused the payment: {reason}")
    return Event.REFUSED


async def start(life: Life, around: Surroundings) -> Event:
    """Begin, unless a run that must not be repeated may have begun before a crash."""
    del around
    if life.recovered and not life.operation.repeatable:
        life.failure = ExecutionReconciliation(operation_id=life.operation_id)
        return Event.RUN_LOST
    return Event.STARTED


async def execute(life: Life, around: Surroundings) -> Event:
    """Run the family's executor within the operation's deadline."""
    failpoint("execute.before")
    operation = life.operation
    deadline = trio.current_time() + operation.deadline_s
    work = Work(life.operation_id, operation.id, life.request, life.attempt, deadline)
    started = around.clock_ms()
    try:
        with trio.fail_at(deadline):
            served = await around.families[operation.family].execute(work)
    except GatewayError as failure:
        life.failure = failure
    except trio.TooSlowError:
        life.failure = operation.failure(f"not finished within {operation.deadline_s:g} s")
    except Exception as error:
        log.exception("executor_crashed", operation_id=life.operation_id, operation=operation.id, error=repr(error))
        life.failure = InternalError()
    else:
        finished = around.clock_ms()
        life.executed_at = finished
        execution = served.execution | {
            "startedAt": timestamp(started),
            "finishedAt": timestamp(finished),
            "durationMs": finished - started,
            "attempt": life.attempt,
            "node": around.node,
        }
        life.served = Served(served.output, execution)
        failpoint("execute.after")
        if len(_plain_output(life.served)) <= MAX_OUTPUT_BYTES:
            return Event.SERVED_FREE if life.payment is None else Event.SERVED_PAID
        life.failure = operation.failure("the result is too large to be kept")
        life.served = None
    life.failure.operation_id = life.operation_id
    return Event.RUN_LOST if isinstance(life.failure, ExecutionReconciliation) else Event.SERVE_FAILED


async def keep(life: Life, around: Surroundings) -> Event:
    """Make the output and the intent to settle durable, with what the payer now owes."""
    payment, served = _payment(life), _served(life)
    failpoint("keep.before")
    now = around.clock_ms()
    owed = ledger.move(
        operation_id=life.operation_id,
        step=f"executed.{life.attempt}",
        debit=ledger.payer_account(payment.payer),
        credit=ledger.HOLD,
        network=payment.network,
        asset=payment.asset,
        amount=payment.amount,
        at=now,
    )
    step = rows.keep(
        life.owner,
        sealed_output=seal(life.data_key, life.operation_id, "output", _plain_output(served)),
        result_hash=result_hash(served.output),
        route=rows.route_json(served.output.get("route")),
        executed_at=life.executed_at or now,
        look_from_block=life.look_from_block,
    )
    await _write(life, around, State.EXECUTED, step, *rows.postings(owed))
    life.owed = True
    failpoint("keep.after")
    return Event.KEPT


async def settle(life: Life, around: Surroundings) -> Event:
    """Ask the facilitator to settle, and watch the chain meanwhile: its answer is only a hint."""
    if life.submissions:
        await _pause(around, min(2.0 ** (life.submissions - 1), 30.0))
    life.submissions += 1
    life.looks = 0
    ref, payment = _settlement(around), _payment(life)
    async with trio.open_nursery() as nursery:

        async def submit() -> None:
            try:
                submission = await ref.ask(Settle(payment), within=around.settle_timeout_s + 5)
            except ActorError as error:
                log.warning("settle_unanswered", operation_id=life.operation_id, error=type(error).__name__)
                life.sent = True
            else:
                life.sent = life.sent or submission.sent
                if submission.transaction and submission.transaction not in life.hints:
                    life.hints.append(submission.transaction)
                log.info("settle_answered", operation_id=life.operation_id, reason=submission.reason)
            nursery.cancel_scope.cancel()

        async def watch() -> None:
            await trio.sleep(SETTLE_WATCH_AFTER_S)
            while True:
                try:
                    sighting = await _look(life, around)
                except (ChainUnavailable, ActorError):
                    sighting = None
                if sighting and sighting.standing in {Standing.PAID, Standing.SHALLOW}:
                    life.sent = True
                    nursery.cancel_scope.cancel()
                await trio.sleep(1)

        nursery.start_soon(submit)
        nursery.start_soon(watch)
    return Event.SUBMITTED


async def look(life: Life, around: Surroundings) -> Event:
    """Ask the chain, and let it decide."""
    if life.looks:
        await _pause(around, min(0.25 * 2.0 ** (life.looks - 1), 15.0))
    life.looks += 1
    try:
        sighting = life.sighting = await _look(life, around)
    except (ChainUnavailable, ActorError) as error:
        log.info("chain_undecided", operation_id=life.operation_id, reason=str(error))
        return Event.UNDECIDED
    match sighting.standing:
        case Standing.PAID:
            return Event.CONFIRMED
        case Standing.UNUSED:
            waiting = life.sent and life.looks < LOOKS_BEFORE_RESETTLING
            return Event.UNDECIDED if waiting else Event.UNUSED
        case Standing.EXPIRED | Standing.CANCELLED:
            why = (
                "expired unused" if sighting.standing is Standing.EXPIRED else "was cancelled, or spent without paying"
            )
            life.failure = SettlementFailed(f"the authorization {why}", operation_id=life.operation_id)
            return Event.DEAD
        case Standing.UNTRACED if _long_dead(life, around):
            life.failure = OperatorNeeded(
                "the authorization is spent and its transaction cannot be found", operation_id=life.operation_id
            )
            return Event.LOST_TRACK
        case _:
            return Event.UNDECIDED


def _long_dead(life: Life, around: Surroundings) -> bool:
    return around.clock_ms() // 1000 >= _payment(life).valid_before + UNTRACED_PATIENCE_S


async def receipt(life: Life, around: Surroundings) -> Event:
    """Post the ledger, sign the receipt and make both durable; only then may the result leave."""
    served, payment, now = _served(life), life.payment, around.clock_ms()
    failpoint("receipt.before")
    settled = None
    earned: list[Statement] = []
    if payment is not None:
        settled = life.settled_in = _settled(life)
        earned = rows.postings(
            ledger.move(
                operation_id=life.operation_id,
                step="receipted",
                debit=ledger.HOLD,
                credit=ledger.REVENUE,
                network=payment.network,
                asset=payment.asset,
                amount=payment.amount,
                at=now,
            )
        )
    signed = sign_receipt(life, around, settled, now)
    step = rows.receipt(
        life.owner,
        receipt_json=orjson.dumps(signed).decode(),
        settled=settled,
        sealed_output=seal(life.data_key, life.operation_id, "output", _plain_output(served)),
        result_hash=signed["resultHash"],
        route=rows.route_json(served.output.get("route")),
        executed_at=life.executed_at or now,
        now=now,
    )
    life.told.append(rows.Happening(State.RECEIPTED, now))
    await _write(life, around, State.RECEIPTED, step, *earned)
    failpoint("receipt.after")
    around.posted()
    life.ended = Ended(
        operation_id=life.operation_id,
        operation=life.operation.id,
        request_hash=life.request_hash,
        output=served.output,
        execution=served.execution,
        receipt=signed,
        protocol=payment.protocol if payment else None,
        challenge_id=payment.challenge_id if payment else None,
        replayed=False,
    )
    return Event.RECEIPT_KEPT


def sign_receipt(life: Life, around: Surroundings, settled: rows.Settled | None, now: int) -> dict[str, Any]:
    """Return the signed receipt of a served operation; `now` is its issue time in milliseconds."""
    payment, served = life.payment, _served(life)
    asset = around.asset
    amount = payment.amount if payment else 0
    unsigned: dict[str, Any] = {
        "receiptId": "rcpt_" + life.operation_id.removeprefix("op_"),
        "operationId": life.operation_id,
        "operation": life.operation.id,
        "requestHash": life.request_hash,
        "quoteId": payment.quote_id if payment else None,
        "funding": "paid" if payment else "free",
        "charge": {
            "asset": asset.address,
            "network": asset.network,
            "amountAtomic": str(amount),
            "decimals": asset.decimals,
            "usd": usd(amount, asset.decimals),
        },
        "settlement": {
            "status": "settled" if settled else "not_required",
            "transaction": settled.transaction if settled else None,
            "network": asset.network if settled else None,
            "authorizationNonce": payment.nonce if payment else None,
        },
        "resultHash": result_hash(served.output),
        "route": orjson.loads(rows.route_json(served.output.get("route"))),
        "issuedAt": timestamp(now),
    }
    if payment is not None:
        unsigned |= {"payer": payment.payer, "payTo": payment.pay_to}
    return around.signer.sign(unsigned)


async def end(life: Life, around: Surroundings) -> None:
    """Record an end that charged nothing; what the payer owed is taken back, and a payer who let us down waits."""
    failure = life.failure or InternalError(operation_id=life.operation_id)
    life.failure = failure
    failpoint("fail.before")
    now = around.clock_ms()
    statements: list[Statement] = []
    payment = life.payment
    waits = life.state is State.NEEDS_OPERATOR
    if payment is not None and life.owed and not waits:
        statements = rows.postings(
            ledger.move(
                operation_id=life.operation_id,
                step=f"failed.{life.attempt}",
                debit=ledger.HOLD,
                credit=ledger.payer_account(payment.payer),
                network=payment.network,
                asset=payment.asset,
                amount=payment.amount,
                at=now,
            )
        )
        if isinstance(failure, SettlementFailed):
            until = now + int(around.payer_hold_s * 1000)
            statements.append(rows.hold_payer(payment.payer, life.owner, until=until))
    settlement = "none" if payment is None else "unknown" if waits else "not_settled"
    step = rows.end(
        life.owner,
        state=life.state,
        settlement=settlement,
        failure_code=failure.code,
        failure_detail=failure.detail,
        now=now,
    )
    await _write(life, around, life.state, step, *statements)
    failpoint("fail.after")
    around.posted()


# -- what the effects share --------------------------------------------------------------------------------------------


async def _write(life: Life, around: Surroundings, state: State, *statements: Statement) -> None:
    """Commit a step that leaves the operation in `state`, with the history told so far.

    Tries again while the store is away and gives up after a while; raises `Abandoned`.
    """
    told = rows.happenings(life.owner, life.next_step, life.told)
    gives_up = trio.current_time() + STORE_PATIENCE_S
    pause = 0.1
    while True:
        try:
            await around.store.commit(*statements, *told)
            break
        except Conflict as conflict:
            if await _stands(life, around, state):
                break
            raise Abandoned("another owner has taken the operation on") from conflict
        except StoreUnavailable as error:
            if trio.current_time() >= gives_up or around.draining.is_set():
                raise Abandoned(f"the store is unavailable: {error.detail}") from error
            await trio.sleep(pause)
            pause = min(pause * 2, 2.0)
    life.next_step += len(life.told)
    life.told.clear()


async def _stands(life: Life, around: Surroundings, state: State) -> bool:
    """Return True if the step that conflicts is our own, committed by a try whose answer was lost."""
    try:
        found = await around.store.fetch(
            "SELECT state, epoch FROM operations WHERE operation_id = :operation_id",
            {"operation_id": life.operation_id},
        )
    except StoreUnavailable as error:
        raise Abandoned(f"the store cannot be read: {error.detail}") from error
    return found == [(state.value, life.owner.epoch)]


async def _pause(around: Surroundings, seconds: float) -> None:
    """Wait, unless the node drains: what is durable is taken on at the next start."""
    with trio.move_on_after(seconds):
        await around.draining.wait()
    if around.draining.is_set():
        raise Abandoned("the node is shutting down")


async def _look(life: Life, around: Surroundings) -> Sighting:
    message = Look(_payment(life), life.look_from_block, tuple(life.hints))
    return await _settlement(around).ask(message, within=60)


def _payment(life: Life) -> Payment:
    if life.payment is None:
        raise RuntimeError(f"{life.operation_id} is free")
    return life.payment


def _served(life: Life) -> Served:
    if life.served is None:
        raise RuntimeError(f"{life.operation_id} has no output")
    return life.served


def _settled(life: Life) -> rows.Settled:
    seen = life.sighting
    if seen is None or seen.transaction is None or seen.block_number is None or seen.block_hash is None:
        raise RuntimeError(f"{life.operation_id} has not been seen on chain")
    return rows.Settled(seen.transaction, seen.block_number, seen.block_hash)


def _settlement(around: Surroundings) -> Ref[SettlementMessage]:
    if around.settlement is None:
        raise CapacityExhausted("payments are not configured")
    return around.settlement


def _plain_output(served: Served) -> bytes:
    return orjson.dumps({"output": served.output, "execution": served.execution})


def open_output(data_key: bytes, operation_id: str, sealed: bytes) -> Served:
    """Open a kept output; raises `SealBroken`."""
    plain = orjson.loads(unseal(data_key, operation_id, "output", sealed))
    return Served(plain["output"], plain["execution"])
