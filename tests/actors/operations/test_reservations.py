from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from gateway.actors.operations.reservations import Reading, Reservations, Unread
from tests.actors.operations.scene import OTHER_PAYER, PAYER, PRICE, payment


def reading(reservations: Reservations, balance: int, *, elsewhere: int = 0) -> Reading:
    owed = {each: due.amount for each, due in reservations.of(PAYER).items()}
    return Reading(balance, owed, elsewhere)


async def test_one_balance_admits_one_of_many_payments(autojump_clock: MockClock) -> None:
    reservations = Reservations()
    read = reading(reservations, PRICE)
    assert [reservations.admit(f"op_{i}", payment(), read) for i in range(3)] == [True, False, False]
    assert reservations.admit("op_9", payment(payer=OTHER_PAYER), Reading(PRICE, {}))
    reservations.drop("op_0")
    assert reservations.admit("op_1", payment(), reading(reservations, PRICE))


async def test_a_payer_is_one_payer_in_any_case_of_its_address(autojump_clock: MockClock) -> None:
    reservations = Reservations()
    assert reservations.admit("op_1", payment(payer=PAYER.lower()), Reading(PRICE, {}))
    assert not reservations.admit("op_2", payment(payer=PAYER), Reading(PRICE, {}))


async def test_a_payment_that_settles_while_the_balance_is_read_still_counts(autojump_clock: MockClock) -> None:
    reservations = Reservations()
    reservations.reserve("op_1", payment())
    read = reading(reservations, PRICE)
    reservations.drop("op_1")
    assert not reservations.admit("op_2", payment(), read)


async def test_what_the_balance_has_paid_counts_no_more_and_what_other_nodes_have_does(
    autojump_clock: MockClock,
) -> None:
    reservations = Reservations()
    reservations.reserve("op_1", payment())
    assert not reservations.admit("op_2", payment(), reading(reservations, PRICE))
    assert not reservations.admit("op_2", payment(), Reading(PRICE, {"op_1": 0}, elsewhere=1))
    assert reservations.admit("op_2", payment(), Reading(PRICE, {"op_1": 0}))
    assert not reservations.admit("op_3", payment(), Reading(PRICE, {"op_1": 0}))


async def test_an_operation_does_not_stand_in_its_own_way(autojump_clock: MockClock) -> None:
    reservations = Reservations()
    for _ in range(2):
        assert reservations.admit("op_1", payment(), reading(reservations, PRICE))
    reservations.drop("op_1")
    reservations.drop("op_1")
    assert reservations.of(PAYER) == {}


def test_a_hold_lasts_until_its_operation_has_ended() -> None:
    reservations = Reservations()
    reservations.hold("op_1", PAYER)
    assert reservations.on_hold(PAYER.lower())
    assert not reservations.on_hold(OTHER_PAYER)
    reservations.drop("op_1")
    assert not reservations.on_hold(PAYER)


async def test_a_close_reading_begins_after_all_that_it_serves(autojump_clock: MockClock) -> None:
    reservations, began = Reservations(), []
    answers: list[tuple[float, float]] = []

    async def read() -> Reading:
        began.append(trio.current_time())
        await trio.sleep(1)
        return Reading(int(began[-1] * 10), {})

    async def ask(after_s: float) -> None:
        await trio.sleep(after_s)
        answers.append((after_s, (await reservations.closely(PAYER, read)).balance / 10))

    async with trio.open_nursery() as nursery:
        for number in range(30):
            nursery.start_soon(ask, number / 10)
    assert began == pytest.approx([0, 1, 2, 3], abs=0.11)
    assert len(answers) == 30
    assert all(read_at >= round(asked, 1) for asked, read_at in answers)


async def test_who_shares_a_reading_that_fails_is_told_why_and_the_next_one_is_made_anew(
    autojump_clock: MockClock,
) -> None:
    reservations, told = Reservations(), []

    async def fail() -> Reading:
        await trio.sleep(1)
        raise Unread("rpc_timeout")

    async def ask() -> None:
        with pytest.raises(Unread, match="rpc_timeout"):
            await reservations.closely(PAYER, fail)
        told.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ask)
    assert len(told) == 3

    async def read() -> Reading:
        await trio.lowlevel.checkpoint()
        return Reading(1, {})

    assert (await reservations.closely(PAYER, read)).balance == 1
