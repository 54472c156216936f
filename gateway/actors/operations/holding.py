"""A payer whose settlement is refused through a fault of its own is not served on trust for a while."""

from __future__ import annotations

import re

import structlog

from gateway.actors.operations import rows
from gateway.actors.operations.covering import balance_of
from gateway.actors.operations.in_hand import Life, Surroundings
from gateway.actors.operations.reservations import Unread
from gateway.errors import StoreUnavailable

log = structlog.get_logger(__name__)

PAYERS_FAULT = re.compile(r"insufficient(?!.*gas)|invalid_.*signature|black_?list|block_?list|sanction", re.IGNORECASE)
"""Reasons of a refused settlement that only the payer can have brought about; gas is the facilitator's."""


async def hold_payer_at_fault(life: Life, refusal: str, around: Surroundings) -> None:
    """Put the payer on hold whose payment the facilitator refuses to settle, if the payer is at fault.

    The authorization is unused.  The facilitator's reason may tell whose fault it is; else the chain does, where the
    balance covers the amount no more.  What ails the facilitator itself puts nobody on hold.
    """
    payment = life.paid_for()
    if PAYERS_FAULT.search(refusal) is None:
        try:
            if await balance_of(payment, around) >= payment.amount:
                return
        except Unread as why:
            log.info("payer_not_judged", operation_id=life.operation_id, reason=str(why))
            return
    around.reservations.hold(life.operation_id, payment.payer)
    life.held = True
    until = around.clock_ms() + int(around.payer_hold_s * 1000)
    try:
        await around.store.commit(rows.hold_payer(payment.payer, life.owner, until=until))
    except StoreUnavailable as error:
        log.warning("payer_held_on_this_node_only", operation_id=life.operation_id, reason=error.detail)
