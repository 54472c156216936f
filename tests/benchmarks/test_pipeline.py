"""What the road of an operation costs in CPU time, without HTTP: a quote, a replay, a refusal, a free call."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from tests.http.shop import BODY, LIMITS, Answer, Shop, open_shop

pytestmark = pytest.mark.benchmark

CALLS = 2_000
ROUNDS = 3
TOGETHER = 32
KEY = "0123456789abcdef0123"
ENDLESS = dict.fromkeys(LIMITS, 10**9)

Ask = Callable[[Shop, int], Awaitable[Answer]]


async def quote(shop: Shop, number: int) -> Answer:
    return await shop.post(key=f"{number:020d}")


async def probe(shop: Shop, number: int) -> Answer:
    del number
    return await shop.post(body=b"")


async def replay(shop: Shop, number: int) -> Answer:
    del number
    return await shop.post(key=KEY)


async def refusal(shop: Shop, number: int) -> Answer:
    del number
    return await shop.post(body=BODY | {"maxResults": 11})


async def free(shop: Shop, number: int) -> Answer:
    return await shop.post("search.free", key=f"free{number:020d}")


async def cost(shop: Shop, ask: Ask, status: int, *, together: int) -> tuple[float, float]:
    """Return microseconds of CPU a call: of the loop's thread, and of the whole process."""
    numbers = iter(range(CALLS))

    async def one_after_another() -> None:
        for number in numbers:
            answer = await ask(shop, number)
            assert answer.status == status, answer.body

    loop, process = time.thread_time(), time.process_time()
    async with trio.open_nursery() as nursery:
        for _ in range(together):
            nursery.start_soon(one_after_another)
    return (time.thread_time() - loop) / CALLS * 1e6, (time.process_time() - process) / CALLS * 1e6


@pytest.mark.parametrize(
    ("ask", "status"),
    [(quote, 402), (probe, 402), (replay, 200), (refusal, 400), (free, 200)],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_cpu_time_of_a_call_without_http(tmp_path: Path, ask: Ask, status: int) -> None:
    for together in (1, TOGETHER):
        rounds = []
        for turn in range(ROUNDS):
            directory = tmp_path / f"{together}-{turn}"
            directory.mkdir()
            async with open_shop(directory, limits=ENDLESS) as shop:
                await shop.buy(key=KEY)
                rounds.append(await cost(shop, ask, status, together=together))
        loop, process = min(rounds)
        print(f"\n{ask.__name__}, {together} at a time: {loop:.0f} us in the loop, {process:.0f} us in all")
