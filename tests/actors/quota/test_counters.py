from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import trio

from gateway.actors.quota import Policy, counters
from gateway.actors.quota.counters import Taken
from gateway.actors.store import NodeStore, Statement

FREE = Policy("free", 5, window_s=60)
Stores = Sequence[NodeStore]


async def took(store: NodeStore, wanted: Mapping[str, int], policy: Policy = FREE) -> dict[str, Taken]:
    results = await store.commit(*counters.take(policy, list(wanted.items())))
    taken = [Taken.of(row) for rows in results for row in rows]
    assert {each.quota for each in taken} == {policy.name}
    return {each.caller: each for each in taken}


async def got(store: NodeStore, calls: int, caller: str = "a") -> tuple[int, int]:
    """How many calls were given of so many, and how many are used now."""
    taken = (await took(store, {caller: calls}))[caller]
    return taken.calls, taken.used


async def grow_older(store: NodeStore, ms: int) -> None:
    await store.commit(Statement("UPDATE quota_counters SET window_start = window_start - :ms", {"ms": ms}))


async def rows(store: NodeStore) -> list[Any]:
    return await store.fetch("SELECT quota, caller, used FROM quota_counters ORDER BY quota, caller")


async def test_a_caller_gets_what_there_is_room_for(stores: Stores) -> None:
    store, other = stores
    assert [await got(store, 1), await got(other, 3), await got(store, 4), await got(other, 2)] == [
        (1, 1),
        (3, 4),
        (1, 5),
        (0, 5),
    ]
    assert await got(other, 5, "b") == (5, 5)


async def test_a_window_opens_with_its_first_call_and_stays(stores: Stores) -> None:
    store, other = stores
    first = (await took(store, {"a": 1}))["a"]
    assert first.opened_ms == first.now_ms
    await grow_older(store, 30_000)
    second = (await took(other, {"a": 1}))["a"]
    assert second.opened_ms == first.opened_ms - 30_000
    assert 30_000 <= second.now_ms - second.opened_ms < 40_000


@pytest.mark.parametrize(("older_ms", "used"), [(50_000, 5), (60_000, 3), (10**9, 3)])
async def test_a_window_that_has_ended_makes_place_for_the_next(stores: Stores, older_ms: int, used: int) -> None:
    store, _ = stores
    await got(store, 4)
    await grow_older(store, older_ms)
    taken = (await took(store, {"a": 3}))["a"]
    assert (taken.used, taken.opened_ms == taken.now_ms) == (used, used == 3)


@pytest.mark.parametrize(("ahead_ms", "used"), [(50_000, 5), (70_000, 1)])
async def test_a_window_of_a_clock_that_was_far_ahead_is_dropped(stores: Stores, ahead_ms: int, used: int) -> None:
    store, _ = stores
    await got(store, 4)
    await grow_older(store, -ahead_ms)
    assert await got(store, 1) == (1, used)


async def test_a_limit_that_was_lowered_takes_nothing_away_and_gives_nothing(stores: Stores) -> None:
    store, _ = stores
    await got(store, 4)
    lower = Policy("free", 2)
    assert (await took(store, {"a": 1}, lower))["a"].calls == 0
    assert await got(store, 1) == (1, 5)


async def test_policies_and_callers_are_counted_apart(stores: Stores) -> None:
    store, _ = stores
    await took(store, {"a": 1, "b": 2})
    await took(store, {"a": 3}, Policy("paid", 9))
    assert await rows(store) == [("free", "a", 1), ("free", "b", 2), ("paid", "a", 3)]


@pytest.mark.parametrize("callers", [1, 2, 3, 63, 64, 65, 300])
async def test_any_number_of_callers_is_counted_by_few_statements(stores: Stores, callers: int) -> None:
    store, _ = stores
    wanted = {f"caller{number:03}": number % 7 + 1 for number in range(callers)}
    taken = await took(store, {caller: min(calls, FREE.limit) for caller, calls in wanted.items()})
    assert {caller: each.calls for caller, each in taken.items()} == {
        caller: min(calls, 5) for caller, calls in wanted.items()
    }
    statements = list(counters.take(FREE, list(wanted.items())))
    assert len(statements) <= callers // 64 + 6
    assert sum(statement.rows or 0 for statement in statements) == callers


def test_statements_are_few_for_an_engine_to_know() -> None:
    sizes = [list(counters.take(FREE, [(str(n), 1) for n in range(size)])) for size in range(1, 300)]
    assert len({statement.sql for statements in sizes for statement in statements}) == 7


async def test_what_is_given_back_is_there_again_and_never_less_than_nothing(stores: Stores) -> None:
    store, other = stores
    await got(store, 5)
    await other.commit(counters.give_back(FREE, "a", 2, None), counters.give_back(FREE, "nobody", 2, None))
    assert await rows(store) == [("free", "a", 3)]
    await other.commit(counters.give_back(FREE, "a", 9, None))
    assert await rows(store) == [("free", "a", 0)]


@pytest.mark.parametrize(("apart_ms", "used"), [(-1, 5), (0, 3), (59_000, 3)])
async def test_nothing_goes_back_to_a_window_that_opened_later(stores: Stores, apart_ms: int, used: int) -> None:
    store, _ = stores
    opened = (await took(store, {"a": 5}))["a"].opened_ms
    await store.commit(counters.give_back(FREE, "a", 2, opened + apart_ms))
    assert await rows(store) == [("free", "a", used)]


async def test_nothing_goes_back_to_a_window_that_has_ended(stores: Stores) -> None:
    store, _ = stores
    await got(store, 5)
    await grow_older(store, 60_000)
    await store.commit(counters.give_back(FREE, "a", 2, None))
    assert await rows(store) == [("free", "a", 5)]


async def test_what_ended_as_long_ago_as_it_lasted_is_swept_by_policy(stores: Stores) -> None:
    store, _ = stores
    daily = Policy("daily", 5, window_s=86_400)
    await took(store, {"a": 1})
    await took(store, {"node": 1}, daily)
    await grow_older(store, 110_000)
    await store.commit(counters.sweep(FREE), counters.sweep(daily))
    assert await rows(store) == [("daily", "node", 1), ("free", "a", 1)]
    await grow_older(store, 10_000)
    await store.commit(counters.sweep(FREE), counters.sweep(daily))
    assert await rows(store) == [("daily", "node", 1)]


@pytest.mark.parametrize("seed", range(3))
async def test_nodes_that_count_for_the_same_callers_at_once_lose_and_make_nothing(stores: Stores, seed: int) -> None:
    rng = random.Random(seed)
    policy = Policy("free", 60)
    given: dict[str, int] = {}

    async def count(store: NodeStore) -> None:
        for _ in range(20):
            wanted = {caller: rng.randrange(1, 4) for caller in sorted(rng.sample("abcdefgh", 5))}
            for caller, each in (await took(store, wanted, policy)).items():
                assert each.calls in {wanted[caller], 60 - each.used + each.calls}
                given[caller] = given.get(caller, 0) + each.calls

    async with trio.open_nursery() as nursery:
        for store in stores:
            nursery.start_soon(count, store)
            nursery.start_soon(count, store)
    assert await rows(stores[0]) == [("free", caller, used) for caller, used in sorted(given.items())]
    assert max(given.values()) <= 60
