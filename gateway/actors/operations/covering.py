"""Does the payer's balance cover a payment and all that he was admitted for before?  The chain is asked."""

from __future__ import annotations

from functools import partial

import trio

from gateway.actors.operations.exposure import open_elsewhere
from gateway.actors.operations.in_hand import Life, Surroundings, desk
from gateway.actors.operations.reservations import Reading, Unread
from gateway.actors.payment import Payment
from gateway.actors.runtime import ActorError
from gateway.actors.settlement import ChainUnavailable, ReadBalance, ReadFunds
from gateway.errors import StoreUnavailable

CHAIN_PATIENCE_S = 15.0
ASKED_AGAIN_AFTER_S = (0.5, 1.0, 2.0, 4.0)
"""When a balance that could not be read is asked for again: where many pay at once, some of the answers come late."""


async def read_balance(life: Life, around: Surroundings) -> Reading | Unread:
    """Read the balance, beside the verification; a failure is returned, for the verification may make it moot."""
    payment = life.paid_for()
    owed = {each: due.amount for each, due in around.reservations.of(payment.payer).items()}
    try:
        balance = await balance_of(payment, around)
    except Unread as failure:
        return failure
    return Reading(balance, owed, life.owed_elsewhere)


async def covers(life: Life, around: Surroundings, reading: Reading) -> bool:
    """Reserve the payment's amount if the payer's balance covers it; return whether it does.  Raises `Unread`."""
    payment, reservations = life.paid_for(), around.reservations
    if reservations.admit(life.operation_id, payment, reading):
        return True
    closer = await reservations.closely(payment.payer, partial(_read_closely, payment, around))
    return reservations.admit(life.operation_id, payment, closer)


async def balance_of(payment: Payment, around: Surroundings) -> int:
    """Return the payer's balance at the latest block; raises `Unread`."""
    pauses = iter(ASKED_AGAIN_AFTER_S)
    while True:
        try:
            return await desk(around).ask(ReadBalance(payment.asset, payment.payer), within=CHAIN_PATIENCE_S)
        except (ChainUnavailable, ActorError) as error:
            pause = next(pauses, None)
            if pause is None:
                raise Unread(str(error) or type(error).__name__) from error
        await trio.sleep(pause)


async def _read_closely(payment: Payment, around: Surroundings) -> Reading:
    """Read the balance and the state of every authorization that it is reserved for, on all nodes, at one block."""
    dues = around.reservations.of(payment.payer)
    try:
        if around.store.shared:
            dues = await open_elsewhere(around.store, around.node, payment) | dues
        question = ReadFunds(payment.asset, payment.payer, tuple(due.nonce for due in dues.values()))
        funds = await desk(around).ask(question, within=CHAIN_PATIENCE_S)
    except (ChainUnavailable, ActorError, StoreUnavailable) as error:
        raise Unread(str(error) or type(error).__name__) from error
    owed = {each: 0 if due.nonce in funds.used else due.amount for each, due in dues.items()}
    return Reading(funds.balance, owed)
