from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.actors.quota import GiveBack, Message, Policy, Spend, memory, quota
from gateway.actors.runtime import Ref, open_runtime
from gateway.actors.store import Engine, Row, Statement, Value, open_sqlite
from gateway.errors import StoreUnavailable

POLICIES = {"free": Policy("free", 3), "paid": Policy("paid", 5, window_s=10), "none": Policy("none", 0)}
START = 1_795_816_156_000


@attrs.define(eq=False)
class Clock:
    now: int = START

    def __call__(self) -> int:
        return self.now


@attrs.define(eq=False)
class Unwritable:
    """A store that can be read and, while it is `away`, not written."""

    engine: Engine
    away: bool = True

    async def commit(self, *statements: Statement, relaxed: bool = False) -> list[list[Row]]:
        if self.away:
            raise StoreUnavailable("disk full")
        return await self.engine.commit(*statements, relaxed=relaxed)

    async def fetch(self, sql: str, parameters: Mapping[str, Value] = {}) -> list[Row]:
        return await self.engine.fetch(sql, parameters)

    async def look_up(self, queries: Sequence[tuple[str, Mapping[str, Value]]]) -> list[list[Row]]:
        return await self.fetch_many(queries)

    async def fetch_many(self, queries: Sequence[tuple[str, Mapping[str, Value]]]) -> list[list[Row]]:
        return await self.engine.fetch_many(queries)


@asynccontextmanager
async def counting(
    directory: Path, clock: Clock, policies: Mapping[str, Policy] = POLICIES
) -> AsyncIterator[tuple[Ref[Message], Engine]]:
    async with open_runtime() as runtime, open_sqlite(runtime, directory / "gateway.db") as store:
        yield await runtime.start("quota", partial(quota, policies=policies, store=store, clock_ms=clock)), store


async def spent(ref: Ref[Message], policy: str = "free", caller: str = "a", *, times: int = 1) -> list[bool]:
    return [(await ref.ask(Spend(policy, caller))).granted for _ in range(times)]


async def test_a_caller_has_its_calls_and_no_more(tmp_path: Path) -> None:
    async with counting(tmp_path, Clock()) as (ref, _):
        assert await spent(ref, times=5) == [True, True, True, False, False]
        assert await spent(ref, caller="b") == [True]
        assert await spent(ref, "paid") == [True]
        assert await spent(ref, "none") == [False]


async def test_six_hundred_at_once_get_exactly_the_limit(tmp_path: Path) -> None:
    granted: list[bool] = []
    async with counting(tmp_path, Clock(), {"free": Policy("free", 50)}) as (ref, _), trio.open_nursery() as nursery:

        async def one() -> None:
            granted.extend(await spent(ref))

        for _ in range(600):
            nursery.start_soon(one)
    assert (granted.count(True), len(granted)) == (50, 600)


async def test_an_allowance_counts_down_and_says_when_it_is_whole_again(tmp_path: Path) -> None:
    clock = Clock()
    async with counting(tmp_path, clock) as (ref, _):
        told: list[tuple[int, int]] = []
        for _ in range(4):
            allowance = await ref.ask(Spend("free", "a"))
            told.append((allowance.remaining, allowance.reset_s))
            clock.now += 10_500
        assert told == [(2, 60), (1, 50), (0, 39), (0, 29)]


@pytest.mark.parametrize(("after_ms", "granted"), [(59_999, False), (60_000, True), (10**9, True)])
async def test_a_window_ends_when_it_says(tmp_path: Path, after_ms: int, granted: bool) -> None:
    clock = Clock()
    async with counting(tmp_path, clock) as (ref, _):
        await spent(ref, times=3)
        clock.now += after_ms
        assert await spent(ref) == [granted]


async def test_a_clock_that_is_put_back_opens_no_new_window_and_blocks_nobody_for_long(tmp_path: Path) -> None:
    clock = Clock()
    async with counting(tmp_path, clock) as (ref, _):
        await spent(ref, times=3)
        clock.now -= 3_600_000
        refused = await ref.ask(Spend("free", "a"))
        assert (refused.granted, refused.reset_s) == (False, 60)
        clock.now += 60_000
        assert await spent(ref) == [True]


async def test_what_is_given_back_can_be_spent_again_and_no_more_than_that(tmp_path: Path) -> None:
    async with counting(tmp_path, Clock()) as (ref, _):
        for _ in range(5):
            ref.tell(GiveBack("free", "a"))
        await spent(ref, times=3)
        ref.tell(GiveBack("free", "a"))
        ref.tell(GiveBack("free", "b"))
        assert await spent(ref, times=2) == [True, False]


@pytest.mark.parametrize(("counted_ms", "granted"), [(START - 1, False), (START, True), (START + 9_000, True)])
async def test_a_call_goes_back_to_no_window_that_opened_after_it(
    tmp_path: Path, counted_ms: int, granted: bool
) -> None:
    async with counting(tmp_path, Clock()) as (ref, _):
        assert (await ref.ask(Spend("free", "a"))).opened_ms == START
        await spent(ref, times=2)
        ref.tell(GiveBack("free", "a", counted_ms))
        assert await spent(ref, times=2) == [granted, False]


async def test_a_clean_restart_forgets_nothing(tmp_path: Path) -> None:
    clock = Clock()
    async with counting(tmp_path, clock) as (ref, _):
        await spent(ref, times=2)
        await spent(ref, "paid", times=5)
    clock.now += 9_000
    async with counting(tmp_path, clock) as (ref, _):
        assert await spent(ref, times=2) == [True, False]
        assert await spent(ref, "paid") == [False]
        clock.now += 1_000
        assert await spent(ref, "paid") == [True]


async def test_what_is_flushed_now_and_then_survives_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "FLUSH_EVERY_S", 0.01)
    async with counting(tmp_path, Clock()) as (ref, store):
        await spent(ref, times=2)
        await until_flushed(store, 2)
        ref.tell(GiveBack("free", "a"))
        await until_flushed(store, 1)


async def until_flushed(store: Engine, used: int) -> None:
    with trio.fail_after(5):
        found: Any = None
        while found != [(used,)]:
            found = await store.fetch("SELECT used FROM quota_counters")


async def test_windows_that_ended_leave_memory_and_store(tmp_path: Path) -> None:
    clock = Clock()
    counters = memory._Counters(POLICIES, clock)
    async with counting(tmp_path, clock) as (_, store):
        counters.spend(POLICIES["free"], "a")
        counters.spend(POLICIES["paid"], "a")
        await memory._flush(counters, store)
        assert len(await store.fetch("SELECT * FROM quota_counters")) == 2
        clock.now += 60_000
        await memory._flush(counters, store)
        assert (counters.windows, await store.fetch("SELECT * FROM quota_counters")) == ({}, [])


async def test_a_long_window_keeps_no_short_ones(tmp_path: Path) -> None:
    clock = Clock()
    policies = POLICIES | {"daily": Policy("daily", 5, window_s=86_400)}
    async with counting(tmp_path, clock, policies) as (ref, store):
        await spent(ref, "daily", times=5)
        await spent(ref, times=3)
        counters = memory._Counters(policies, clock)
        counters.spend(policies["free"], "b")
        await memory._flush(counters, store)
        clock.now += 60_000
        await memory._flush(counters, store)
        assert await store.fetch("SELECT quota, caller FROM quota_counters") == []
    async with counting(tmp_path, clock, policies) as (ref, store):
        assert await store.fetch("SELECT quota, caller, used FROM quota_counters") == [("daily", "a", 5)]
        assert await spent(ref, "daily") == [False]
        assert await spent(ref) == [True]


async def test_a_store_that_is_away_gets_the_counts_later(tmp_path: Path) -> None:
    clock = Clock()
    counters = memory._Counters(POLICIES, clock)
    async with counting(tmp_path, clock) as (_, engine):
        store = Unwritable(engine)
        counters.spend(POLICIES["free"], "a")
        await memory._flush(counters, store)
        assert await engine.fetch("SELECT used FROM quota_counters") == []
        store.away = False
        await memory._flush(counters, store)
        assert await engine.fetch("SELECT used FROM quota_counters") == [(1,)]


async def test_many_callers_are_flushed_in_bounded_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "FLUSH_AT_ONCE", 7)
    clock = Clock()
    counters = memory._Counters(POLICIES, clock)
    async with counting(tmp_path, clock) as (_, store):
        for number in range(40):
            counters.spend(POLICIES["free"], str(number))
        await memory._flush(counters, store)
        assert await store.fetch("SELECT COUNT(*), SUM(used) FROM quota_counters") == [(40, 40)]
        assert not any(window.dirty for window in counters.windows.values())


def test_no_more_than_so_many_callers_are_remembered_and_the_oldest_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "MAX_WINDOWS", 10)
    counters = memory._Counters(POLICIES, Clock())
    for number in range(100):
        counters.spend(POLICIES["free"], str(number))
    assert [caller for _, caller in counters.windows] == [str(number) for number in range(90, 100)]


STEPS = st.lists(st.tuples(st.sampled_from(["spend", "back", "wait", "rewind"]), st.integers(0, 70_000)), max_size=60)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(steps=STEPS)
def test_no_history_grants_more_than_the_limit_in_a_window(steps: list[tuple[str, int]]) -> None:
    clock, policy = Clock(), POLICIES["free"]
    counters = memory._Counters(POLICIES, clock)
    grants: list[int] = []
    elapsed = given_back = 0
    for step, by in steps:
        if step == "wait":
            clock.now += by
            elapsed += by
        elif step == "rewind":
            clock.now -= by
        elif step == "back":
            counters.give_back(GiveBack("free", "a"))
            given_back += 1
        else:
            allowance = counters.spend(policy, "a")
            assert 0 <= allowance.remaining <= policy.limit
            assert 0 < allowance.reset_s <= policy.window_s
            if allowance.granted:
                grants.append(elapsed)
    windows = elapsed // (policy.window_s * 1000) + 1
    assert len(grants) <= windows * policy.limit + given_back
