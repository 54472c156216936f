"""The effect that verifies a payment, before anything runs: the facilitator says whether it can be made.

The payer's balance is read meanwhile.  Where the facilitator refuses, the chain tells what that means.
"""

from __future__ import annotations

import structlog
import trio

from gateway.actors.failpoints import failpoint
from gateway.actors.operations.covering import covers, read_balance
from gateway.actors.operations.in_hand import RETRY_AFTER_S, Life, Surroundings, desk
from gateway.actors.operations.life import Event
from gateway.actors.operations.paying import diverted, has_code, made_before_its_quote, sight
from gateway.actors.operations.reservations import Reading, Unread
from gateway.actors.runtime import ActorError
from gateway.actors.settlement import (
    ChainUnavailable,
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
    PayerHasCode,
    PayerOnHold,
    PaymentAlreadyBound,
    PaymentRejected,
    SettlementPending,
    SignatureInvalid,
)

log = structlog.get_logger(__name__)

SETTLE_MARGIN_S = 15
OF_CODE = ("signature", "smart_wallet", "6492", "1271", "simulation")
"""Parts of the reasons of facilitators that may be about a payer who has code."""
NOT_COVERED = "not_covered"
VERIFIED = frozenset({Event.VERIFIED, Event.VERIFIED_KEPT, Event.ALREADY_PAID})


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
            life.undecided = False
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
    """Return True if so much time has passed that the authorization does not outlive the run any more.

    A crash has cost it, or it is the payment of an earlier attempt; that of a first one has just been checked.
    """
    if not life.tries and life.attempt == 1:
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
            return diverted(life)
        case Standing.CANCELLED:
            life.failure = AuthorizationUsed("the authorization was cancelled on chain and has paid nothing")
        case Standing.EXPIRED:
            life.failure = AuthorizationExpiresTooSoon("the authorization has expired")
        case Standing.UNUSED if "nonce" in reason:
            # It may see further than our end point does.
            return _undecided(life, f"the facilitator says {reason}, and the chain shows the nonce unused")
        case Standing.UNUSED:
            life.failure = await _meaning(reason, life, around)
    life.failure.operation_id = life.operation_id
    return Event.REFUSED


async def _already_paid(life: Life, around: Surroundings, seen: Sighting) -> Event:
    """Take a payment that somebody else submitted, unless it was made before its quote was issued.

    Such a payment has bought something else, of which this store knows nothing if it was restored from a backup.
    """
    try:
        earlier = life.credit is None and await made_before_its_quote(life.paid_for(), around, seen)
    except (ChainUnavailable, ActorError) as error:
        life.sighting = None  # what it paid for is not known, so it is no credit
        return _undecided(life, f"the payment is made, and when cannot be read from the chain ({error})")
    if not earlier:
        return Event.ALREADY_PAID if life.served is None else Event.VERIFIED_KEPT
    life.failure = PaymentAlreadyBound(
        f"transaction {seen.transaction} made this payment before its quote was issued", operation_id=life.operation_id
    )
    life.sighting = None  # it pays nothing here, now or later
    return Event.REFUSED


async def _meaning(reason: str, life: Life, around: Surroundings) -> GatewayError:
    if reason == "expires_too_soon":
        return AuthorizationExpiresTooSoon("the authorization does not outlive the run any more")
    if reason == NOT_COVERED:
        return InsufficientFunds("the payer's balance does not cover the amount beside what is unsettled here")
    why = f"the facilitator refused the payment: {reason}"
    if "insufficient" in reason:
        return InsufficientFunds(why)
    if any(each in reason for each in OF_CODE) and await has_code(life, around):
        return PayerHasCode(why)
    return (SignatureInvalid if reason.endswith("_signature") else PaymentRejected)(why)


def _undecided(life: Life, why: str) -> Event:
    """Tell that the payment may have been made: nobody is to sign another, and the same is looked at again."""
    life.failure = SettlementPending(why, operation_id=life.operation_id, retry_after=RETRY_AFTER_S)
    return Event.UNVERIFIABLE


def _unverifiable(life: Life, why: str) -> Event:
    life.failure = FacilitatorUnavailable(why, operation_id=life.operation_id, retry_after=RETRY_AFTER_S)
    return Event.UNVERIFIABLE
