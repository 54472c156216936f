from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import pytest

from gateway.actors.runtime import Ask, Inbox, open_runtime
from gateway.actors.store import Reason, Row, StoreUnavailable, StoreUncertain
from gateway.actors.store.asking import answered


@attrs.frozen
class Step(Ask[list[list[Row]]]):
    pass


ANSWER: list[list[Row]] = [[(1,)]]


async def refusal(body: Callable[[Inbox[Step]], Awaitable[None]], *, stop: bool = False) -> StoreUnavailable:
    ref: Any = None
    async with open_runtime(grace=0.1) as runtime:
        ref = await runtime.start("store", body, capacity=1)
        if not stop:
            with pytest.raises(StoreUnavailable) as caught:
                await answered(ref.ask(Step(), within=0.05))
            return caught.value
    with pytest.raises(StoreUnavailable) as caught:
        await answered(ref.ask(Step(), within=0.05))
    return caught.value


async def silent(inbox: Inbox[Step]) -> None:
    inbox.ready()
    held = [letter async for letter in inbox]
    assert held


async def crashing(inbox: Inbox[Step]) -> None:
    inbox.ready()
    async for _ in inbox:
        raise OSError("the disk is on fire")


async def serving(inbox: Inbox[Step]) -> None:
    inbox.ready()
    async for letter in inbox:
        message: Step = letter.message
        letter.answer(message, ANSWER)


async def test_an_answer_is_passed_on() -> None:
    async with open_runtime() as runtime:
        assert await answered((await runtime.start("store", serving)).ask(Step())) == ANSWER


async def test_of_a_writer_that_is_gone_nothing_was_stored() -> None:
    gone = await refusal(serving, stop=True)
    assert (type(gone), gone.extra["reason"]) == (StoreUnavailable, Reason.STOPPED)


@pytest.mark.parametrize(("body", "reason"), [(silent, Reason.STALLED), (crashing, Reason.CRASHED)])
async def test_of_a_writer_that_took_the_step_and_does_not_answer_the_outcome_is_unknown(
    body: Callable[[Inbox[Step]], Awaitable[None]], reason: Reason
) -> None:
    unknown = await refusal(body)
    assert (type(unknown), unknown.extra["reason"]) == (StoreUncertain, reason)
