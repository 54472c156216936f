from __future__ import annotations

import pytest
from trio.testing import MockClock

from gateway.actors.operations.exposure import Left, Limits, Unsettled
from gateway.errors import ExposureLimit
from tests.actors.operations.scene import OTHER_PAYER, PAYER, PRICE, payment


def test_nothing_is_unsettled_at_first() -> None:
    unsettled = Unsettled(Limits())
    unsettled.drop("op_1")
    unsettled.add("op_1", None)
    assert (unsettled.total, unsettled.by_payer()) == (0, {})


async def test_an_operation_counts_once_however_often_it_is_added(autojump_clock: MockClock) -> None:
    unsettled = Unsettled(Limits())
    for _ in range(3):
        unsettled.add("op_1", payment())
    unsettled.add("op_2", payment())
    assert (unsettled.total, unsettled.by_payer()) == (12000, {PAYER.lower(): 12000})
    for _ in range(2):
        unsettled.drop("op_1")
    assert unsettled.by_payer() == {PAYER.lower(): 6000}


async def test_a_payer_is_one_payer_in_any_case_of_its_address(autojump_clock: MockClock) -> None:
    unsettled = Unsettled(Limits(unsettled_per_payer=11_999))
    unsettled.add("op_1", payment(payer=PAYER.lower()))
    with pytest.raises(ExposureLimit, match="payer"):
        unsettled.admit(payment(payer=PAYER))
    unsettled.admit(payment(payer=OTHER_PAYER))


async def test_the_limits_themselves_are_allowed(autojump_clock: MockClock) -> None:
    unsettled = Unsettled(Limits(unsettled_per_payer=12_000, unsettled=12_000))
    unsettled.add("op_1", payment())
    unsettled.admit(payment())
    unsettled.add("op_2", payment())
    with pytest.raises(ExposureLimit, match="too much is unsettled"):
        unsettled.admit(payment(payer=OTHER_PAYER))


async def test_what_is_open_in_the_store_and_not_in_hand_counts_and_nothing_else_does(
    autojump_clock: MockClock,
) -> None:
    unsettled = Unsettled(Limits())
    unsettled.add("op_1", payment())
    unsettled.add("op_gone", payment())
    assert not unsettled.left_over({"op_1", "op_gone"})
    left = [Left(f"op_{number}", number % 2 == 0, payment(payer=OTHER_PAYER)) for number in range(1, 101)]
    unsettled.recount(left, {"op_1"})
    assert unsettled.by_payer() == {PAYER.lower(): PRICE, OTHER_PAYER.lower(): 99 * PRICE}
    assert len(unsettled.reservations.of(OTHER_PAYER)) == 50
    assert unsettled.left_over({"op_1"})
    unsettled.recount([], {"op_1"})
    assert unsettled.by_payer() == {PAYER.lower(): PRICE}
    assert unsettled.reservations.of(OTHER_PAYER) == {}
