"""Questions asked beside each other."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from gateway.actors.settlement import ChainUnavailable
from gateway.actors.settlement._together import Reply, together


async def after(seconds: float, word: str) -> str:
    await trio.sleep(seconds)
    return word


async def fails(seconds: float) -> str:
    await trio.sleep(seconds)
    raise ChainUnavailable("rpc_timeout")


async def test_questions_take_as_long_as_the_longest(autojump_clock: MockClock) -> None:
    began = trio.current_time()
    async with together() as asked:
        one, other = asked.ask(lambda: after(1, "one")), asked.ask(lambda: after(2, "other"))
    assert trio.current_time() == began + 2
    assert (one.answer, other.answer) == ("one", "other")


async def test_a_failure_is_told_where_its_answer_is_wanted(autojump_clock: MockClock) -> None:
    async with together() as asked:
        failed, answered = asked.ask(lambda: fails(1)), asked.ask(lambda: after(2, "other"))
    assert answered.answer == "other"
    with pytest.raises(ChainUnavailable, match="rpc_timeout"):
        _ = failed.answer


async def test_a_defect_is_not_taken_for_an_answer(autojump_clock: MockClock) -> None:
    async def breaks() -> str:
        raise ZeroDivisionError

    with pytest.RaisesGroup(ZeroDivisionError):
        async with together() as asked:
            asked.ask(breaks)
            asked.ask(lambda: after(60, "never"))
    assert trio.current_time() < 60


def test_an_open_question_has_no_answer() -> None:
    with pytest.raises(RuntimeError):
        _ = Reply[str]().answer
