from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.actors.runtime import Ask, Inbox, Runtime, open_runtime
from gateway.actors.store import Reason, StoreHealth
from gateway.actors.store_watch import SILENT_S, StoreWatch
from gateway.readiness import ANSWER_S, Fault, faults

WELL = StoreHealth(writable=True, reason=None, since=0.0)


def ill(reason: Reason, code: str = "") -> StoreHealth:
    return StoreHealth(writable=False, reason=reason, since=0.0, code=code)


@attrs.define(eq=False)
class Store:
    """A store that answers a look after a while, or never."""

    takes: float = 0.0
    health: StoreHealth = WELL
    found: StoreHealth | None = None
    looks: int = 0

    async def probe(self) -> StoreHealth:
        self.looks += 1
        await trio.sleep(self.takes)
        return self.found or self.health


@attrs.frozen
class Break(Ask[None]):
    pass


async def fragile(inbox: Inbox[Break]) -> None:
    inbox.ready()
    async for _ in inbox:
        raise ValueError("with words for operators only")


Asking = Callable[[], Awaitable[list[Fault]]]


@asynccontextmanager
async def watched(store: Store, skew_ms: int | None = None) -> AsyncIterator[tuple[Asking, Runtime]]:
    async with open_runtime() as runtime:
        watch = StoreWatch(store)  # type: ignore[arg-type]  # all that is asked of it
        await runtime.start("store-watch", watch.watch)
        yield partial(faults, watch, runtime.health, lambda: skew_ms), runtime


async def timed(ask: Callable[[], Any]) -> tuple[Any, float]:
    began = trio.current_time()
    return await ask(), trio.current_time() - began


async def test_a_store_that_is_well_is_ready_at_once(autojump_clock: MockClock) -> None:
    async with watched(Store()) as (asking, _):
        assert await timed(asking) == ([], 0.0)


async def test_an_answer_never_waits_for_a_store_that_is_silent(autojump_clock: MockClock) -> None:
    store = Store()
    async with watched(store) as (asking, _):
        assert await asking() == []
        store.takes = 1e6
        answers = []
        for _n in range(20):
            found, took = await timed(asking)
            assert took < ANSWER_S + 0.01
            answers.append(found)
            await trio.sleep(0.2)
        assert answers[0] == []
        assert answers[-1] == [{"part": "store", "reason": "store_unavailable"}]
        turns = [before != after for before, after in pairwise(answers)]
        assert sum(turns) == 1, "it does not flicker"
        assert store.looks <= 3, "one look at a time"


async def test_a_store_that_is_slow_for_less_than_that_stays_ready(autojump_clock: MockClock) -> None:
    async with watched(Store(takes=SILENT_S - 0.1)) as (asking, _):
        for _n in range(20):
            assert await asking() == []


@pytest.mark.parametrize("reason", [Reason.STALLED, Reason.SLOW, Reason.OVERLOADED, Reason.LEASE_LOST, Reason.CRASHED])
async def test_a_silence_has_one_reason_however_it_shows(autojump_clock: MockClock, reason: Reason) -> None:
    async with watched(Store(health=ill(reason))) as (asking, _):
        assert await asking() == [{"part": "store", "reason": "store_unavailable"}]


@pytest.mark.parametrize(
    ("health", "reason"),
    [
        (ill(Reason.DISK_FULL), "disk_full"),
        (ill(Reason.PERMISSION_DENIED), "store_permission_denied"),
        (ill(Reason.REFUSED, "P0001"), "store_refused_p0001"),
    ],
)
async def test_what_is_known_of_a_store_is_named(autojump_clock: MockClock, health: StoreHealth, reason: str) -> None:
    async with watched(Store(found=health)) as (asking, _):
        assert await asking() == [{"part": "store", "reason": reason}]


async def test_a_clock_that_is_far_from_the_store_s_is_named_with_how_far(autojump_clock: MockClock) -> None:
    async with watched(Store(), -401 * 24 * 3600 * 1000) as (asking, _):
        assert await asking() == [{"part": "clock", "reason": "clock_skew", "aheadMs": -34_646_400_000}]


async def test_an_actor_that_restarts_is_named_with_the_kind_of_its_crash(autojump_clock: MockClock) -> None:
    async with watched(Store()) as (asking, runtime):
        ref = await runtime.start("fragile", fragile)
        ref.tell(Break())
        await trio.testing.wait_all_tasks_blocked()
        fault = {"part": "fragile", "reason": "restarting", "detail": "it crashed with ValueError"}
        assert await asking() == [fault]
        await trio.sleep(1)
        assert await asking() == []


async def test_an_actor_that_a_silent_store_keeps_down_is_not_told_beside_it(autojump_clock: MockClock) -> None:
    async with watched(Store(health=ill(Reason.STALLED))) as (asking, runtime):
        ref = await runtime.start("fragile", fragile)
        ref.tell(Break())
        await trio.testing.wait_all_tasks_blocked()
        assert await asking() == [{"part": "store", "reason": "store_unavailable"}]
