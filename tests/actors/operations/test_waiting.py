from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from trio.testing import MockClock

from gateway.actors.operations.order import Ended, Join, Submit
from gateway.actors.operations.waiting import Waiters, own
from gateway.actors.runtime import Letter
from gateway.actors.store import StoreUncertain
from gateway.errors import (
    PROBLEMS,
    ExecutorFailed,
    GatewayError,
    InsufficientFunds,
    OperationInProgress,
    SettlementPending,
    Violation,
)
from tests.actors.operations.scene import order, payment

ENDED = Ended("op_1", "search.paid", "sha256:0", {}, {}, {}, None, None, replayed=False)


def letter(message: Submit | Join) -> Letter[Any]:
    return Letter(message, 0.0, float("inf"))


def told(letters: list[Letter[Any]]) -> Iterator[Any]:
    for each in letters:
        assert each.result is not None
        try:
            yield each.result.unwrap()
        except GatewayError as failure:
            yield failure


async def test_the_first_who_waits_gets_the_result_and_the_others_a_replay(autojump_clock: MockClock) -> None:
    waiters = Waiters(None)
    letters = [letter(Submit(order())), letter(Join("op_1")), letter(Submit(order()))]
    for each in letters:
        waiters.add(each)
    waiters.answer(ENDED)
    assert [each.replayed for each in told(letters)] == [False, True, True]
    assert not waiters.letters


async def test_one_who_has_been_answered_is_left_alone(autojump_clock: MockClock) -> None:
    waiters = Waiters(None)
    gone, here = letter(Join("op_1")), letter(Join("op_1"))
    waiters.add(gone)
    waiters.add(here)
    gone.refuse(OperationInProgress())
    waiters.answer(ENDED)
    assert [type(each) for each in told([gone, here])] == [OperationInProgress, Ended]
    waiters.give_up(here, SettlementPending())


async def test_a_refused_payment_is_told_to_those_who_brought_it(autojump_clock: MockClock) -> None:
    mine, theirs = payment(), payment()
    waiters = Waiters(mine)
    letters = [
        letter(Submit(order(paid_by=mine))),
        letter(Submit(order(paid_by=theirs))),
        letter(Join("op_1")),
        letter(Submit(order())),
    ]
    for each in letters:
        waiters.add(each)
    waiters.refuse(InsufficientFunds(operation_id="op_1"))
    failures = list(told(letters))
    assert [type(each) for each in failures] == [InsufficientFunds, *[OperationInProgress] * 3]
    assert {each.operation_id for each in failures} == {"op_1"}


async def test_any_other_failure_is_everybodys(autojump_clock: MockClock) -> None:
    waiters = Waiters(payment())
    letters = [letter(Submit(order())), letter(Join("op_1"))]
    for each in letters:
        waiters.add(each)
    waiters.refuse(ExecutorFailed("down"))
    assert [str(each) for each in told(letters)] == ["down", "down"]


@pytest.mark.parametrize("kind", [*PROBLEMS.values(), StoreUncertain])
def test_everybody_has_a_failure_of_its_own(kind: type[GatewayError]) -> None:
    failure = kind(
        "what happened",
        errors=[Violation("", "x")],
        operation_id="op_1",
        retry_after=2,
        extra={"reason": "why"},
        headers={"RateLimit": "x"},
    )
    mine = own(failure)
    assert type(mine) is kind
    assert mine is not failure
    assert vars(mine) == vars(failure)
    mine.extra["price"], mine.headers["PAYMENT-REQUIRED"] = 1, "x"
    assert (failure.extra, failure.headers) == ({"reason": "why"}, {"RateLimit": "x"})
