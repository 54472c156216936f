"""The effects that concern a payment: verify it, settle it, look for it on chain.

Whatever the facilitator answers, the chain decides whether something was paid.
"""

from __future__ import annotations

from itertools import count

import structlog
import trio

from gateway.actors.failpoints import failpoint
from gateway.actors.operations.covering import covers, read_balance
from gateway.actors.operations.holding import hold_payer_at_fault
from gateway.actors.operations.in_hand import RETRY_AFTER_S, Life, Surroundings, desk, pause
from gateway.actors.operations.life import Event
from gateway.actors.operations.reservations import Reading, Unread
from gateway.actors.payment import Payment
from gateway.actors.runtime import ActorError
from gateway.actors.settlement import (
    BlockTime,
    ChainUnavailable,
    HasCode,
    Look,
    Settle,
    Sighting,
    Standing,
    Verdict,
    Verification,
    Verify,
)
from gateway.errors import (
    AuthorizationExpiresTooSoon,
    AuthorizationUsed,
    FacilitatorUnavailable,
    GatewayError,
    InsufficientFunds,
    OperatorNeeded,
    PayerHasCode,
    PayerOnHold,
    PaymentAlreadyBound,
    PaymentRejected,
    SettlementFailed,
    SettlementPending,
    SignatureInvalid,
)

log = structlog.get_logger(__name__)

SETTLE_WATCH_AFTER_S = 2.0
SETTLE_MARGIN_S = 15
LOOKS_BEFORE_RESETTLING = 5
"""After the first submission; what was submitted again, or refused, is looked for once before it is submitted again."""
LONGEST_PAUSE_S = 60.0
LONGEST_PAUSE_ONCE_MADE_S = 15.0
LOOKS_BEFORE_GIVING_UP = 5
UNTRACED_PATIENCE_S = 600
OF_CODE = ("signature", "smart_wallet", "6492", "1271", "simulation")
"""Parts of the reasons of facilitators that may be about a payer who has code."""
NOT_COVERED = "not_covered"
CLOCK_SLACK_S = 60
"""How far the clocks of the chain and of this node may be apart before that counts."""
MADE = frozenset({Standing.PAID, Standing.SHALLOW})
"""Where a payment stands that has been made, deep enough or not yet."""


VERIFIED = frozenset({Event.VERIFIED, Event.VERIFIED_KEPT, Event.ALREADY_PAID})

# -- verify ------------------------------------------------------------------------------------------------------------


async def verify(life: Life, around: Surroundings) -> Event:
    """Ask whether the payment can be made; a payer who is not to blame for the answer is cleared at once.

    One whose payment the facilitator refused is to blame even where the chain cannot be read: a crowd of such payments
    may be the reason for that.
    """
    event = await _verified(life, around)
    life.refused = event is Event.REFUSED
    blameless = event in VERIFIED or isinstance(life.failure, FacilitatorUnavailable)
    if blameless and life.cleared is not None:
        life.cleared()
    return event


async def _verified(life: Life, around: Surroundings) -> Event:
    """Ask the facilitator; when it refuses, the chain tells whether somebody has paid already."""
    failpoint("verify.before")
    if _comes_too_late(life, around):
        return await _refused(life, around, "expires_too_soon")
    verification, reading = await _verification_and_balance(life, around)
    failpoint("verify.after")
    match verification.verdict:
        case Verdict.VALID:
            return await _admitted(life, around, reading)
        case Verdict.UNAVAILABLE:
            return _unverifiable(life, f"the facilitator did not verify the payment ({verification.reason})")
        case Verdict.INVALID:
            return await _refused(life, around, verification.reason)


async def _verification_and_balance(life: Life, around: Surroundings) -> tuple[Verification, Reading | Unread]:
    """Return what the facilitator says of the payment, and the payer's balance, which is read meanwhile."""
    reading: Reading | Unread = Unread("not read")

    async def read() -> None:
        nonlocal reading
        reading = await read_balance(life, around)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        try:
            verification = await desk(around).ask(Verify(life.paid_for()), within=around.verify_timeout_s + 5)
        except ActorError as error:
            verification = Verification(Verdict.UNAVAILABLE, type(error).__name__)
        if verification.verdict is not Verdict.VALID:
            nursery.cancel_scope.cancel()
    return verification, reading


async def _admitted(life: Life, around: Surroundings, reading: Reading | Unread) -> Event:
    """Reserve the amount of a payment that the facilitator verified, unless the balance does not cover it as well."""
    try:
        if isinstance(reading, Unread):
            raise reading
        covered = await covers(life, around, reading)
    except Unread as why:
        return _unverifiable(life, f"the payer's balance cannot be read ({why})")
    if not covered:
        return await _refused(life, around, NOT_COVERED)
    if life.served is not None:
        return Event.VERIFIED_KEPT
    if around.reservations.on_hold(life.paid_for().payer):
        life.failure = PayerOnHold(operation_id=life.operation_id, retry_after=around.payer_hold_s)
        return Event.REFUSED
    return Event.VERIFIED


def _comes_too_late(life: Life, around: Surroundings) -> bool:
    """Return True if a crash has cost so much time that the authorization does not outlive the run any more."""
    if not life.tries:
        return False
    run_s = life.operation.time_for(life.request) if life.operation and life.served is None else 0
    return life.paid_for().valid_before < around.clock_ms() / 1000 + run_s + SETTLE_MARGIN_S


async def _refused(life: Life, around: Surroundings, reason: str) -> Event:
    """Let the chain say what a refusal means: a payment that was made, or one that cannot be."""
    try:
        async with around.refusals:
            life.sighting = await sight(life, around)
    except (ChainUnavailable, ActorError) as error:
        return _undecided(life, f"the facilitator refused ({reason}) and the chain cannot be read ({error})")
    match life.sighting.standing:
        case Standing.PAID | Standing.SHALLOW:
            return await _already_paid(life, around, life.sighting)
        case Standing.UNTRACED:
            return _undecided(life, "the authorization is spent on chain, and its transaction cannot be found yet")
        case Standing.DIVERTED:
            return _diverted(life)
        case Standing.CANCELLED:
            life.failure = AuthorizationUsed("the authorization was cancelled on chain and has paid nothing")
        case Standing.EXPIRED:
            life.failure = AuthorizationExpiresTooSoon("the authorization has expired")
        case Standing.UNUSED if "nonce" in reason:
            return _unverifiable(life, f"the facilitator says {reason}, and the chain shows the nonce unused")
        case Standing.UNUSED:
            life.failure = await _meaning(reason, life, around)
    life.failure.operation_id = life.operation_id
    return Event.REFUSED


async def _already_paid(life: Life, around: Surroundings, seen: Sighting) -> Event:
    """Take a payment that somebody else submitted, unless it was made before its quote was issued.

    Such a payment has bought something else, of which this store knows nothing if it was restored from a backup.
    """
    try:
        earlier = life.credit is None and await _made_before_its_quote(life.paid_for(), around, seen)
    except (ChainUnavailable, ActorError) as error:
        return _undecided(life, f"the payment is made, and when cannot be read from the chain ({error})")
    if not earlier:
        return Event.ALREADY_PAID if life.served is None else Event.VERIFIED_KEPT
    life.failure = PaymentAlreadyBound(
        f"transaction {seen.transaction} made this payment before its quote was issued", operation_id=life.operation_id
    )
    life.sighting = None  # it pays nothing here, now or later
    return Event.REFUSED


async def _made_before_its_quote(payment: Payment, around: Surroundings, seen: Sighting) -> bool:
    """Tell by the blocks; of a quote that does not say its block, by the clocks."""
    number = seen.block_number or 0
    if payment.quoted_head is not None:
        return number <= payment.quoted_head
    if not payment.quoted_at:
        return False
    return await desk(around).ask(BlockTime(number), within=30) < payment.quoted_at


async def _meaning(reason: str, life: Life, around: Surroundings) -> GatewayError:
    if reason == "expires_too_soon":
        return AuthorizationExpiresTooSoon("the authorization does not outlive the run any more")
    if reason == NOT_COVERED:
        return InsufficientFunds("the payer's balance does not cover the amount beside what is unsettled here")
    why = f"the facilitator refused the payment: {reason}"
    if "insufficient" in reason:
        return InsufficientFunds(why)
    if any(each in reason for each in OF_CODE) and await _has_code(life, around):
        return PayerHasCode(why)
    return (SignatureInvalid if reason.endswith("_signature") else PaymentRejected)(why)


async def _has_code(life: Life, around: Surroundings) -> bool:
    """Return True if the chain shows that the payer has code: the token then asks that, not the payer's key."""
    try:
        return await desk(around).ask(HasCode(life.paid_for().payer), within=10)
    except (ChainUnavailable, ActorError):
        return False


def _undecided(life: Life, why: str) -> Event:
    """Tell that the payment may have been made: nobody is to sign another, and the same is looked at again."""
    life.failure = SettlementPending(why, operation_id=life.operation_id, retry_after=RETRY_AFTER_S)
    return Event.UNVERIFIABLE


def _diverted(life: Life) -> Event:
    """Hand an authorization to the operator that took the payer's tokens and did not pay the quoted amount."""
    seen = life.sighting
    where = "" if seen is None or seen.transaction is None else f" by transaction {seen.transaction}"
    why = f"the authorization was used{where}, and made another transfer than the quoted one"
    log.error("payment_diverted", operation_id=life.operation_id, transaction=seen and seen.transaction)
    life.failure = OperatorNeeded(why, operation_id=life.operation_id)
    return Event.DIVERTED


def _unverifiable(life: Life, why: str) -> Event:
    life.failure = FacilitatorUnavailable(why, operation_id=life.operation_id, retry_after=RETRY_AFTER_S)
    return Event.UNVERIFIABLE


# -- settle ------------------------------------------------------------------------------------------------------------


async def settle(life: Life, around: Surroundings) -> Event:
    """Ask the facilitator to settle, and watch the chain meanwhile: its answer is only a hint."""
    if not life.submissions and life.sighting is not None and life.sighting.standing in MADE:
        return Event.SUBMITTED  # somebody else has submitted it
    if life.submissions:
        await pause(around, min(2.0 ** min(life.submissions, 10), LONGEST_PAUSE_S))
    if life.submissions or life.resumed:
        await pause(around, around.pace.turn())
    life.submissions += 1
    life.refusal = None
    life.looks = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch, life, around, nursery.cancel_scope)
        await _submit(life, around)
        nursery.cancel_scope.cancel()
    return Event.SUBMITTED


async def _submit(life: Life, around: Surroundings) -> None:
    try:
        submission = await desk(around).ask(Settle(life.paid_for()), within=around.settle_timeout_s + 5)
    except ActorError as error:
        log.warning("settle_unanswered", operation_id=life.operation_id, error=type(error).__name__)
        life.sent = True
    else:
        log.info("settle_answered", operation_id=life.operation_id, reason=submission.reason)
        if submission.refused:
            life.refusal, life.settlement_refused = submission.reason, True
        life.sent = life.sent or submission.sent
        if submission.transaction and submission.transaction not in life.hints:
            life.hints.append(submission.transaction)


async def _watch(life: Life, around: Surroundings, scope: trio.CancelScope) -> None:
    """Look for the payment while the facilitator has not answered yet."""
    await trio.sleep(SETTLE_WATCH_AFTER_S)
    for looks in count():
        if looks:
            await trio.sleep(min(2.0 ** (looks - 1), LONGEST_PAUSE_ONCE_MADE_S))
        if looks or life.submissions > 1:
            await trio.sleep(around.pace.turn())
        try:
            sighting = await sight(life, around)
        except (ChainUnavailable, ActorError):
            sighting = None
        if sighting is not None and sighting.standing in MADE:
            life.sent = True
            scope.cancel()


# -- look --------------------------------------------------------------------------------------------------------------


async def look(life: Life, around: Surroundings) -> Event:
    """Ask the chain, and let it decide."""
    if life.looks:
        made = life.sighting is not None and life.sighting.standing in MADE
        longest = LONGEST_PAUSE_ONCE_MADE_S if made else LONGEST_PAUSE_S
        await pause(around, min(0.25 * 2.0 ** min(life.looks - 1, 10), longest))
    if life.resumed or life.submissions > 1 or life.looks >= LOOKS_BEFORE_RESETTLING:
        await pause(around, around.pace.turn())
    life.looks += 1
    try:
        life.sighting = await sight(life, around)
        if life.sighting.standing is Standing.PAID and await _precedes_its_quote(life, around, life.sighting):
            return _of_something_else(life, life.sighting)
    except (ChainUnavailable, ActorError) as error:
        log.info("chain_undecided", operation_id=life.operation_id, reason=str(error))
        return Event.UNDECIDED
    event = await _shown(life, around, life.sighting)
    if life.sighting.standing is Standing.UNUSED and life.refusal is not None:
        await hold_payer_at_fault(life, life.refusal, around)
    if life.sighting.standing is Standing.EXPIRED and life.sent and await _has_code(life, around):
        life.failure = PayerHasCode("the payment could not be settled", operation_id=life.operation_id)
    if event is Event.DEAD and life.failure is not None:
        transaction = life.hints[-1] if life.hints else ""
        life.failure.extra["settlement"] = {"status": "failed", "transaction": transaction}
    return event


async def _shown(life: Life, around: Surroundings, seen: Sighting) -> Event:
    """Return what it means for a payment that may have been submitted where the chain shows it."""
    match seen.standing:
        case Standing.PAID:
            return Event.CONFIRMED
        case Standing.UNUSED:
            once = life.resumed or life.submissions > 1 or life.refusal is not None
            waiting = life.sent and life.looks < (1 if once else LOOKS_BEFORE_RESETTLING)
            return Event.UNDECIDED if waiting else Event.UNUSED
        case Standing.EXPIRED | Standing.CANCELLED:
            life.failure = SettlementFailed(_why(seen), operation_id=life.operation_id)
            return Event.DEAD
        case Standing.DIVERTED:
            return _diverted(life)
        case Standing.UNTRACED if life.looks >= LOOKS_BEFORE_GIVING_UP and await long_dead(
            life.paid_for(), around, seen
        ):
            life.failure = OperatorNeeded(
                "the authorization is spent and its transaction cannot be found", operation_id=life.operation_id
            )
            return Event.LOST_TRACK
        case _:
            return Event.UNDECIDED


async def _precedes_its_quote(life: Life, around: Surroundings, seen: Sighting) -> bool:
    """Return True where the facilitator has verified, and did not settle now, what was used before the quote.

    A chain that was reorganised may have become shorter, so the time of the block has to say the same.
    """
    payment, number = life.paid_for(), seen.block_number or 0
    if payment.quoted_head is None or number > payment.quoted_head or life.credit is not None:
        return False
    return await desk(around).ask(BlockTime(number), within=30) < payment.quoted_at - CLOCK_SLACK_S


def _of_something_else(life: Life, seen: Sighting) -> Event:
    why = f"transaction {seen.transaction} made this payment in block {seen.block_number}, before its quote was issued"
    log.error("payment_of_before_its_quote", operation_id=life.operation_id, transaction=seen.transaction)
    life.failure = OperatorNeeded(why, operation_id=life.operation_id)
    return Event.DIVERTED


def _why(seen: Sighting) -> str:
    if seen.standing is Standing.EXPIRED:
        return "the authorization expired unused"
    return "the authorization was cancelled"


async def long_dead(payment: Payment, around: Surroundings, seen: Sighting) -> bool:
    """Return True where a payment expired long ago by the chain's time: no clock of ours gives anything up."""
    try:
        chain_s = await desk(around).ask(BlockTime(seen.head), within=30)
    except (ChainUnavailable, ActorError):
        return False
    return chain_s >= payment.valid_before + UNTRACED_PATIENCE_S


async def sight(life: Life, around: Surroundings) -> Sighting:
    """Look once where the payment stands; raises `ChainUnavailable` or an `ActorError`."""
    return await desk(around).ask(Look(life.paid_for(), life.look_from_block, tuple(life.hints)), within=60)
