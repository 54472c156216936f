"""What an ask costs, beside a bare memory channel with an Event for the answer."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import attrs
import pytest
import trio

from gateway.actors.runtime import Ask, Inbox, open_runtime

ROUNDS = 4_000


@attrs.frozen
class Ping(Ask[int]):
    number: int


@attrs.define(eq=False)
class Slip:
    number: int
    done: trio.Event = attrs.field(factory=trio.Event)
    answer: int = 0


async def actor(inbox: Inbox[Ping]) -> None:
    inbox.ready()
    async for letter in inbox:
        letter.answer(letter.message, letter.message.number)


async def rate(ask: Callable[[int], Awaitable[int]], askers: int) -> float:
    """Round trips a CPU second, `askers` at a time."""

    async def many() -> None:
        for number in range(ROUNDS // askers):
            assert await ask(number) == number

    started = time.process_time()
    async with trio.open_nursery() as nursery:
        for _ in range(askers):
            nursery.start_soon(many)
    return ROUNDS / (time.process_time() - started)


async def through_a_channel(askers: int) -> float:
    send, receive = trio.open_memory_channel[Slip](64)

    async def serve() -> None:
        async for slip in receive:
            slip.answer = slip.number
            slip.done.set()

    async def ask(number: int) -> int:
        slip = Slip(number)
        await send.send(slip)
        await slip.done.wait()
        return slip.answer

    async with trio.open_nursery() as nursery, send, receive:
        nursery.start_soon(serve)
        figure = await rate(ask, askers)
        nursery.cancel_scope.cancel()
    return figure


async def through_an_actor(askers: int) -> float:
    async with open_runtime() as runtime:
        ref = await runtime.start("actor", actor)
        return await rate(lambda number: ref.ask(Ping(number)), askers)


@pytest.mark.benchmark
@pytest.mark.parametrize("askers", [1, 16, 128])
async def test_asks_per_cpu_second_beside_a_bare_channel(askers: int) -> None:
    pairs = [(await through_a_channel(askers), await through_an_actor(askers)) for _ in range(5)]
    channel, ask = (max(each) for each in zip(*pairs, strict=True))
    print(
        f"\n{askers:>4} askers: {ask:>7,.0f} asks/CPU s, bare channel and Event {channel:>7,.0f}/CPU s, "
        f"an ask costs {channel / ask:.2f}x"
    )
