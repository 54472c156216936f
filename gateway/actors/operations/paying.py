"""The effects that concern the settlement of a payment: ask for it, and look for it on chain.

Whatever the facilitator answers, the chain decides whether something was paid.
"""

from __future__ import annotations

from itertools import count

import structlog
import trio

from gateway.actors.operations.holding import hold_payer_at_fault
from gateway.actors.operations.in_hand import Life, Surroundings, desk, pause
from gateway.actors.operations.life import Event
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
)
from gateway.errors import (
    OperatorNeeded,
    PayerHasCode,
    SettlementFailed,
)

log = structlog.get_logger(__name__)

SETTLE_WATCH_AFTER_S = 2.0
LOOKS_BEFORE_RESETTLING = 5
"""After the first submission; what was submitted again, or refused, is looked for once before it is submitted again."""
LONGEST_PAUSE_S = 60.0
LONGEST_PAUSE_ONCE_MADE_S = 15.0
LOOKS_BEFORE_GIVING_UP = 5
UNTRACED_PATIENCE_S = 600
CLOCK_SLACK_S = 60
"""How far the clocks of the chain and of this node may be apart before that counts."""
MADE = frozenset({Standing.PAID, Standing.SHALLOW})
"""Where a payment stands that has been made, deep enough or not yet."""


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
    if life.sighting.standing is Standing.EXPIRED and life.sent and await has_code(life, around):
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
            return diverted(life)
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


async def made_before_its_quote(payment: Payment, around: Surroundings, seen: Sighting) -> bool:
    """Tell by the blocks; of a quote that does not say its block, by the clocks."""
    number = seen.block_number or 0
    if payment.quoted_head is not None:
        return number <= payment.quoted_head
    if not payment.quoted_at:
        return False
    return await desk(around).ask(BlockTime(number), within=30) < payment.quoted_at


async def has_code(life: Life, around: Surroundings) -> bool:
    """Return True if the chain shows that the payer has code: the token then asks that, not the payer's key."""
    try:
        return await desk(around).ask(HasCode(life.paid_for().payer), within=10)
    except (ChainUnavailable, ActorError):
        return False


def diverted(life: Life) -> Event:
    """Hand an authorization to the operator that took the payer's tokens and did not pay the quoted amount."""
    seen = life.sighting
    where = "" if seen is None or seen.transaction is None else f" by transaction {seen.transaction}"
    why = f"the authorization was used{where}, and made another transfer than the quoted one"
    log.error("payment_diverted", operation_id=life.operation_id, transaction=seen and seen.transaction)
    life.failure = OperatorNeeded(why, operation_id=life.operation_id)
    return Event.DIVERTED
