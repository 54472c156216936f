"""Two nodes over one store, on each engine and in real time."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import pytest
import trio

from gateway.actors.quota import Allowance, GiveBack, Message, Policy, Spend, quota
from gateway.actors.runtime import Ref, open_runtime
from gateway.actors.store import NodeStore, Statement
from tests.actors.quota.nodes import at_once

POLICIES = {
    policy.name: policy
    for policy in (
        Policy("free_search", 50, window_s=60),
        Policy("scrape", 50, window_s=1),
        Policy("unpaid_quotes", 300, window_s=60),
        Policy("paid", 40, window_s=1),
    )
}
Nodes = Sequence[Ref[Message]]


@pytest.fixture
async def nodes(stores: Sequence[NodeStore]) -> AsyncIterator[Nodes]:
    """The quota actors of two nodes whose clocks are 10 seconds apart from the store's."""
    async with open_runtime() as runtime:
        yield [
            await runtime.start(
                f"quota-{apart_ms}",
                partial(quota, policies=POLICIES, store=store, clock_ms=partial(int, apart_ms)),
                capacity=1_024,
            )
            for store, apart_ms in zip(stores, (-10_000, 10_000), strict=True)
        ]


@pytest.mark.parametrize("seed", range(3))
async def test_six_hundred_calls_at_a_limit_of_fifty_get_exactly_fifty(nodes: Nodes, seed: int) -> None:
    rng = random.Random(seed)
    found = await at_once(600, lambda _: rng.choice(nodes).ask(Spend("free_search", "a")))
    assert sum(each.granted for each in found) == 50
    assert len({each.opened_ms for each in found}) == 1


@pytest.mark.parametrize("name", ["scrape", "paid"])
async def test_no_window_gets_more_than_the_limit_while_windows_turn_over(nodes: Nodes, name: str) -> None:
    found: list[Allowance] = []
    enough = trio.current_time() + 3.3

    async def keep_asking(node: Ref[Message]) -> None:
        while trio.current_time() < enough:
            found.append(await node.ask(Spend(name, "a")))

    async with trio.open_nursery() as nursery:
        for number in range(16):
            nursery.start_soon(keep_asking, nodes[number % 2])
    policy = POLICIES[name]
    granted = Counter(each.opened_ms for each in found if each.granted)
    opened = sorted({each.opened_ms for each in found})
    assert all(later >= earlier + 1_000 for earlier, later in itertools.pairwise(opened))
    assert max(granted.values()) <= policy.limit
    assert all(granted[each] >= policy.limit - policy.share for each in opened[:2])


async def test_shares_of_both_nodes_are_no_more_than_the_limit(nodes: Nodes, stores: Sequence[NodeStore]) -> None:
    found = await at_once(900, lambda number: nodes[number % 2].ask(Spend("unpaid_quotes", "a")))
    assert 270 <= sum(each.granted for each in found) <= 300
    assert await stores[0].fetch("SELECT used FROM quota_counters") == [(300,)]


async def test_what_one_node_gives_back_the_other_can_spend(nodes: Nodes, stores: Sequence[NodeStore]) -> None:
    (*_, allowance) = await at_once(50, lambda _: nodes[0].ask(Spend("free_search", "a")))
    nodes[0].tell(GiveBack("free_search", "a", allowance.opened_ms - 1))
    nodes[0].tell(GiveBack("free_search", "a", allowance.opened_ms))
    with trio.fail_after(5):
        used: Any = None
        while used != [(49,)]:
            used = await stores[1].fetch("SELECT used FROM quota_counters")
    assert [(await nodes[1].ask(Spend("free_search", "a"))).granted for _ in range(2)] == [True, False]


async def test_nodes_that_count_and_give_back_for_the_same_callers_never_wait_for_each_other(
    nodes: Nodes, stores: Sequence[NodeStore]
) -> None:
    rng = random.Random(1)
    balance: Counter[str] = Counter()

    async def keep_counting(node: Ref[Message]) -> None:
        for _ in range(60):
            caller = rng.choice("abcdefgh")
            allowance = await node.ask(Spend("free_search", caller), within=5)
            balance[caller] += allowance.granted
            if allowance.granted and rng.random() < 0.5:
                node.tell(GiveBack("free_search", caller, allowance.opened_ms))
                balance[caller] -= 1

    async with trio.open_nursery() as nursery:
        for number in range(16):
            nursery.start_soon(keep_counting, nodes[number % 2])
    for node in nodes:
        await node.ask(Spend("free_search", "last"))  # its step is after all that was given back
    await stores[0].commit(Statement("DELETE FROM quota_counters WHERE caller = 'last'"))
    used: Any = await stores[0].fetch("SELECT caller, used FROM quota_counters")
    assert dict(used) == dict(balance)
