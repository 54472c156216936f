from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from gateway.actors.quota import Allowance, GiveBack, Policy
from gateway.actors.quota import shared as module
from gateway.actors.quota.windows import LOOK_AGAIN_S
from gateway.actors.runtime import Unanswered, open_runtime
from gateway.actors.store import Statement
from gateway.errors import StoreUnavailable
from tests.actors.quota.nodes import START, Node, Scene, at_once, shared

FREE = Policy("free", 5, window_s=60)
QUOTES = Policy("unpaid_quotes", 300, window_s=60)
PAID = Policy("paid", 40, window_s=60)
DAILY = Policy("billed:search/one", 5, window_s=86_400)


def delays(rng: random.Random, longest: float) -> Callable[[], float]:
    return lambda: rng.uniform(0, longest)


# -- exact policies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
async def test_six_hundred_calls_over_two_nodes_get_exactly_the_limit(
    tmp_path: Path, seed: int, autojump_clock: MockClock
) -> None:
    rng = random.Random(seed)
    async with shared(tmp_path, Policy("free", 50)) as scene:
        nodes = [await scene.node(delay=delays(rng, 0.05)) for _ in range(2)]

        async def call(_: int) -> Allowance:
            await trio.sleep(rng.uniform(0, 0.5))
            return await rng.choice(nodes).spend()

        found = await at_once(600, call)
        assert (sum(each.granted for each in found), len(found)) == (50, 600)
        assert await scene.used() == 50


@pytest.mark.parametrize("seed", range(8))
async def test_windows_that_turn_over_in_the_middle_each_get_exactly_the_limit(
    tmp_path: Path, seed: int, autojump_clock: MockClock
) -> None:
    rng = random.Random(seed)
    async with shared(tmp_path, Policy("free", 50, window_s=2)) as scene:
        nodes = [await scene.node(delay=delays(rng, 0.02)) for _ in range(2)]

        async def call(_: int) -> Allowance:
            await trio.sleep(rng.uniform(0, 6.5))
            return await rng.choice(nodes).spend()

        found = await at_once(1_500, call)
        assert_windows(found)
        granted = Counter(each.opened_ms for each in found if each.granted)
        assert list(granted.values())[:3] == [50, 50, 50]


def assert_windows(found: list[Allowance]) -> None:
    """Assert that windows stand apart, and that none got more than the limit."""
    policy = found[0].policy
    granted = Counter(each.opened_ms for each in found if each.granted)
    opened = sorted({each.opened_ms for each in found})
    assert all(later - earlier >= policy.window_s * 1000 for earlier, later in itertools.pairwise(opened))
    assert max(granted.values()) <= policy.limit


@pytest.mark.parametrize("policy", [Policy("free", 50, window_s=2), Policy("paid", 50, window_s=2)])
async def test_nodes_whose_clocks_are_apart_count_by_that_of_the_store(
    tmp_path: Path, policy: Policy, autojump_clock: MockClock
) -> None:
    async with shared(tmp_path, policy) as scene:
        nodes = [await scene.node(clock_apart_ms=apart) for apart in (-10_000, 10_000)]
        for round_number in range(3):
            opened = START + round_number * 2_000
            found = await at_once(200, lambda number: nodes[number % 2].spend(policy.name))
            assert sum(each.granted for each in found) == 50
            assert {(each.opened_ms, each.reset_s) for each in found} == {(opened, 2)}
            await trio.sleep(2)


async def test_all_that_wait_are_decided_in_one_step(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with shared(tmp_path, FREE, DAILY) as scene:
        node = await scene.node(delay=lambda: 0.01)

        async def call(number: int) -> Allowance:
            if number:
                await trio.sleep(0.005)  # while the first is on its way
            return await node.spend(DAILY.name if number % 3 == 0 else "free", f"caller{number % 100}")

        found = await at_once(400, call)
        assert len(node.road.steps) == 2
        assert len(node.road.steps[1]) < 10
        assert len(found) == 400


async def test_one_step_counts_for_so_many_callers_and_the_others_have_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr(module, "STEP_CALLERS", 7)
    async with shared(tmp_path, FREE) as scene:
        node = await scene.node()
        found = await at_once(100, lambda number: node.spend(caller=str(number)))
        assert all(each.granted and each.remaining == 4 for each in found)
        assert max(sum(each.rows or 0 for each in step) for step in node.road.steps) == 7


async def test_a_step_changes_its_rows_in_the_order_of_all_nodes(tmp_path: Path, autojump_clock: MockClock) -> None:
    rng = random.Random(4)
    async with shared(tmp_path, FREE, DAILY) as scene:
        node = await scene.node(delay=lambda: 0.01)
        rows = [(policy, f"caller{number:02}") for policy in (FREE.name, DAILY.name) for number in range(40)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.spend)
            await trio.sleep(0.005)  # while that is on its way
            for policy, caller in rng.sample(rows, len(rows)):
                if rng.random() < 0.5:
                    node.give_back(policy, caller)
                if rng.random() < 0.5:
                    nursery.start_soon(node.spend, policy, caller)
        changed = [row for statement in node.road.steps[1] for row in rows_of(statement)]
        assert len(node.road.steps) == 2
        assert len(set(changed)) > 50
        assert changed == sorted(changed)


def rows_of(statement: Statement) -> Iterator[tuple[str, str]]:
    """The rows that a statement changes, by policy and caller, in order."""
    for name, value in statement.parameters.items():
        if name.startswith("caller"):
            yield str(statement.parameters["quota"]), str(value)


async def test_who_is_over_the_limit_costs_one_step_a_second(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with shared(tmp_path, FREE) as scene:
        node = await scene.node()
        assert await node.spent(times=5) == 5
        node.road.steps.clear()
        for _ in range(1_000):
            assert not (await node.spend()).granted
            await trio.sleep(0.01)
        assert len(node.road.steps) <= 10


async def test_a_limit_of_nothing_asks_nobody(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with shared(tmp_path, Policy("free", 0)) as scene:
        node = await scene.node()
        refused = await node.spend()
        assert (refused.granted, refused.remaining, refused.reset_s, node.road.steps) == (False, 0, 60, [])


async def test_an_allowance_counts_down_over_all_nodes_and_says_when_it_is_whole_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with shared(tmp_path, FREE) as scene:
        nodes = [await scene.node(), await scene.node()]
        told: list[tuple[bool, int, int]] = []
        for number in range(7):
            allowance = await nodes[number % 2].spend()
            told.append((allowance.granted, allowance.remaining, allowance.reset_s))
            await trio.sleep(8.5)
        assert told == [
            (True, 4, 60),
            (True, 3, 52),
            (True, 2, 43),
            (True, 1, 35),
            (True, 0, 26),
            (False, 0, 18),
            (False, 0, 9),
        ]


async def test_those_who_wait_together_are_told_what_each_leaves(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with shared(tmp_path, FREE) as scene:
        node = await scene.node()
        found = await at_once(8, lambda _: node.spend())
        assert sorted(each.remaining for each in found if each.granted) == [0, 1, 2, 3, 4]
        assert [each.remaining for each in found if not each.granted] == [0, 0, 0]


# -- shares ------------------------------------------------------------------------------------------------------------


async def test_thirty_quotes_are_one_write(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with shared(tmp_path, QUOTES) as scene:
        node = await scene.node()
        assert await node.spent("unpaid_quotes", times=30) == 30
        assert len(node.road.steps) == 1
        assert await node.spent("unpaid_quotes", times=270) == 270
        assert len(node.road.steps) == 10
        assert await node.spent("unpaid_quotes", times=50) == 0
        assert len(node.road.steps) <= 11


async def test_the_shares_of_many_callers_are_one_step(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with shared(tmp_path, QUOTES) as scene:
        node = await scene.node(delay=lambda: 0.01)

        async def call(number: int) -> Allowance:
            if number:
                await trio.sleep(0.005)
            return await node.spend("unpaid_quotes", f"caller{number % 200}")

        assert all(each.granted for each in await at_once(2_000, call))
        assert len(node.road.steps) == 2


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("policy", [QUOTES, PAID])
async def test_shares_over_two_nodes_never_grant_more_than_the_limit(
    tmp_path: Path, policy: Policy, seed: int, autojump_clock: MockClock
) -> None:
    rng = random.Random(seed)
    async with shared(tmp_path, attrs.evolve(policy, window_s=2)) as scene:
        nodes = [await scene.node(delay=delays(rng, 0.02)) for _ in range(2)]

        async def call(_: int) -> Allowance:
            await trio.sleep(rng.uniform(0, 6.5))
            return await rng.choice(nodes).spend(policy.name)

        found = await at_once(policy.limit * 15, call)
        assert_windows(found)
        granted = Counter(each.opened_ms for each in found if each.granted)
        assert min(list(granted.values())[:3]) >= policy.limit - policy.share


async def test_the_limit_is_granted_in_full_once_no_share_is_held_back(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with shared(tmp_path, QUOTES) as scene:
        nodes = [await scene.node(), await scene.node()]
        assert await nodes[0].spent("unpaid_quotes", times=1) == 1
        assert await nodes[1].spent("unpaid_quotes", times=400) == 270
        assert await nodes[0].spent("unpaid_quotes", times=400) == 29


async def test_a_node_that_was_killed_holds_one_share_back_until_the_window_ends(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with shared(tmp_path, QUOTES) as scene:
        killed, other = await scene.node(), await scene.node()
        assert await killed.spent("unpaid_quotes", times=31) == 31
        assert await other.spent("unpaid_quotes", times=400) == 240
        await trio.sleep(60)
        assert await other.spent("unpaid_quotes", times=400) == 300


async def test_a_node_that_stops_gives_its_shares_back(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with shared(tmp_path, QUOTES, PAID) as scene:
        async with open_runtime() as runtime:
            node = await scene.node(runtime=runtime)
            for caller in range(600):
                await node.spend("unpaid_quotes", str(caller))
            await node.spent("paid", "0", times=3)
        assert await scene.used("paid", "0") == 3
        used = await scene.store.fetch("SELECT DISTINCT used FROM quota_counters WHERE quota = 'unpaid_quotes'")
        assert used == [(1,)]


async def test_a_share_is_not_spent_when_its_window_has_ended(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with shared(tmp_path, PAID) as scene:
        nodes = [await scene.node(), await scene.node()]
        assert (await nodes[0].spend("paid")).opened_ms == START
        await trio.sleep(60)
        assert await nodes[1].spent("paid", times=50) == 40
        assert await nodes[0].spent("paid", times=5) == 0


async def test_what_is_left_of_a_share_counts_among_what_remains(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with shared(tmp_path, PAID) as scene:
        nodes = [await scene.node(), await scene.node()]
        assert [(await nodes[0].spend("paid")).remaining for _ in range(3)] == [39, 38, 37]
        assert (await nodes[1].spend("paid")).remaining == 35  # four are the other node's
        assert (await nodes[0].spend("paid")).remaining == 36  # as of the store's last answer to it


# -- giving back -------------------------------------------------------------------------------------------------------


async def test_what_a_node_gives_back_it_can_spend_at_once_and_no_more_than_that(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with shared(tmp_path, FREE, PAID) as scene:
        node = await scene.node()
        for policy in (FREE, PAID):
            for _ in range(3):
                node.give_back(policy.name)
            assert await node.spent(policy.name, times=policy.limit + 5) == policy.limit
            node.give_back(policy.name)
            node.give_back(policy.name, "b")
            assert await node.spent(policy.name, times=2) == 1


async def test_what_is_given_back_while_the_last_call_is_being_counted_can_be_spent_soon(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with shared(tmp_path, FREE) as scene:
        node = await scene.node(delay=lambda: 0.02)
        await node.spent(times=4)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.spend)
            await trio.sleep(0.01)
            node.give_back()
        await trio.sleep(0.1)
        assert await node.spent(times=2) == 1


async def test_who_has_waited_longer_comes_first_to_what_is_given_back(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    told: list[tuple[str, bool]] = []
    async with shared(tmp_path, FREE, PAID) as scene:
        node = await scene.node()
        await node.spent("paid", times=40)
        await trio.sleep(LOOK_AGAIN_S)
        node.road.until_open = trio.Event()

        async def call(name: str) -> None:
            told.append((name, (await node.spend("paid")).granted))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.spend)  # keeps the store busy
            await trio.sleep(0.1)
            nursery.start_soon(call, "first")
            await trio.sleep(0.1)
            node.give_back("paid")
            nursery.start_soon(call, "second")
            await trio.sleep(0.1)
            node.road.until_open.set()
        assert sorted(told) == [("first", True), ("second", False)]


@pytest.mark.parametrize("policy", [FREE, PAID])
async def test_what_one_node_gives_back_the_other_can_spend_soon(
    tmp_path: Path, policy: Policy, autojump_clock: MockClock
) -> None:
    async with shared(tmp_path, policy) as scene:
        nodes = [await scene.node(), await scene.node()]
        assert await nodes[0].spent(policy.name, times=policy.limit) == policy.limit
        assert await nodes[1].spent(policy.name) == 0
        for _ in range(policy.share + 1):  # a share keeps what it has room for
            nodes[0].give_back(policy.name)
        await trio.sleep(LOOK_AGAIN_S)
        assert await nodes[1].spent(policy.name, times=2) == 1


@pytest.mark.parametrize("policy", [FREE, QUOTES, PAID])
@pytest.mark.parametrize("giver", [0, 1])
async def test_nothing_is_given_back_to_a_later_window(
    tmp_path: Path, policy: Policy, giver: int, autojump_clock: MockClock
) -> None:
    async with shared(tmp_path, policy) as scene:
        nodes = [await scene.node(), await scene.node()]
        first = await nodes[0].spend(policy.name)
        await trio.sleep(60)
        second = await nodes[0].spend(policy.name)
        before = await scene.used(policy.name)
        nodes[giver].give_back(policy.name, counted_ms=first.opened_ms)
        nodes[giver].give_back(policy.name, counted_ms=second.opened_ms - 1)
        await trio.sleep(1)
        assert await scene.used(policy.name) == before
        assert await nodes[0].spent(policy.name, times=policy.limit + 5) == policy.limit - 1
        nodes[giver].give_back(policy.name, counted_ms=second.opened_ms)
        await trio.sleep(LOOK_AGAIN_S)
        assert await nodes[giver].spent(policy.name, times=2) == 1


async def test_no_row_is_given_back_below_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with shared(tmp_path, FREE) as scene:
        nodes = [await scene.node(), await scene.node()]
        await nodes[0].spend()
        for node in nodes * 5:
            node.give_back()
        nodes[0].give_back(caller="nobody")
        await trio.sleep(1)
        assert (await scene.used(), await scene.used(caller="nobody")) == (0, None)
        assert sum(each.granted for each in await at_once(20, lambda number: nodes[number % 2].spend())) == 5


async def test_a_node_keeps_no_more_than_a_share_of_what_is_given_back(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with shared(tmp_path, PAID) as scene:
        nodes = [await scene.node(), await scene.node()]
        assert await nodes[0].spent("paid", times=40) == 40
        for _ in range(40):
            nodes[0].give_back("paid")
        await trio.sleep(LOOK_AGAIN_S)
        assert await scene.used("paid") == PAID.share
        assert await nodes[1].spent("paid", times=50) == 36


# -- a store that is away ----------------------------------------------------------------------------------------------


async def test_what_the_store_cannot_decide_is_refused_with_its_reason_and_not_counted(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with shared(tmp_path, FREE) as scene:
        node = await scene.node()
        node.road.cut = True
        refusals: list[StoreUnavailable] = []
        for _ in range(2):
            with pytest.raises(StoreUnavailable) as refusal:
                await node.spend()
            refusals.append(refusal.value)
        assert refusals[0] is not refusals[1]
        assert (refusals[0].status, refusals[0].extra, refusals[0].retry_after) == (503, {"reason": "disk_full"}, 7)
        assert await scene.used() is None
        node.road.cut = False
        assert await node.spent(times=7) == 5


async def test_each_of_many_that_wait_is_refused_with_an_error_of_its_own(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    refusals: list[StoreUnavailable] = []
    async with shared(tmp_path, FREE) as scene:
        node = await scene.node()
        node.road.cut = True

        async def call() -> None:
            with pytest.raises(StoreUnavailable) as refusal:
                await node.spend()
            refusals.append(refusal.value)

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(call)
    assert len({id(each) for each in refusals}) == 20


async def test_a_share_is_spent_while_the_store_is_away(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with shared(tmp_path, PAID) as scene:
        node = await scene.node()
        await node.spend("paid")
        node.road.cut = True
        assert await node.spent("paid", times=3) == 3
        with pytest.raises(StoreUnavailable):
            await node.spend("paid")


async def test_what_is_given_back_while_the_store_is_away_arrives_later_by_itself(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with shared(tmp_path, FREE) as scene:
        node = await scene.node()
        await node.spent(times=4)
        node.road.cut = True
        node.give_back()
        await trio.sleep(5)
        node.give_back()
        await trio.sleep(5)
        assert await scene.used() == 4
        node.road.cut = False
        await trio.sleep(1)
        assert await scene.used() == 2


async def test_what_is_given_back_is_not_kept_longer_than_a_window(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with shared(tmp_path, FREE) as scene:
        nodes = [await scene.node(), await scene.node()]
        await nodes[0].spent(times=4)
        nodes[0].road.cut = True
        nodes[0].give_back()
        await trio.sleep(60)
        await nodes[1].spend()
        nodes[0].road.cut = False
        await trio.sleep(5)
        assert await scene.used() == 1


async def test_what_may_have_been_given_back_is_not_given_twice(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with shared(tmp_path, FREE) as scene:
        node = await scene.node()
        await node.spent(times=4)
        node.road.answers_lost = True
        node.give_back()
        await trio.sleep(5)
        node.road.answers_lost = False
        await trio.sleep(5)
        assert await scene.used() == 3


async def test_a_call_that_may_have_been_counted_is_refused(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with shared(tmp_path, FREE) as scene:
        node = await scene.node()
        node.road.answers_lost = True
        with pytest.raises(StoreUnavailable) as refusal:
            await node.spend()
        assert refusal.value.extra == {"reason": "stalled"}
        node.road.answers_lost = False
        assert await node.spent(times=7) == 4


async def test_who_has_left_before_the_store_is_asked_is_not_counted(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with shared(tmp_path, FREE) as scene:
        node = await scene.node()
        node.road.until_open = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.spend)
            await trio.sleep(1)
            for _ in range(3):
                with pytest.raises(Unanswered):
                    await node.spend(within=1)
            node.road.until_open.set()
        assert await scene.used() == 1


async def test_calls_of_who_has_left_before_the_store_answered_are_given_back(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with shared(tmp_path, FREE) as scene:
        node = await scene.node()
        node.road.until_open = trio.Event()
        with pytest.raises(Unanswered):
            await node.spend(within=1)
        assert await scene.used() == 1
        node.road.until_open.set()
        await trio.sleep(1)
        assert await scene.used() == 0


async def test_no_more_than_so_many_wait_and_the_road_from_memory_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 10)
    async with shared(tmp_path, FREE, PAID) as scene:
        node = await scene.node()
        await node.spend("paid")
        node.road.until_open = trio.Event()
        told: list[str] = []

        async def call(number: int) -> None:
            await trio.sleep(0.1 if number else 0)
            try:
                await node.spend(caller=str(number))
                told.append("granted")
            except StoreUnavailable as error:
                told.append(error.extra["reason"])

        async with trio.open_nursery() as nursery:
            for number in range(31):
                nursery.start_soon(call, number)
            await trio.sleep(1)
            assert told == ["overloaded"] * 20
            assert await node.spent("paid", times=3) == 3
            node.road.until_open.set()
        assert told[20:] == ["granted"] * 11


async def test_a_node_that_stops_while_the_store_is_away_does_not_wait_for_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with shared(tmp_path, PAID) as scene:
        async with open_runtime() as runtime:
            node = await scene.node(runtime=runtime)
            await node.spend("paid")
            node.road.cut = True
            began = trio.current_time()
        assert trio.current_time() - began < module.LEAVE_S
        assert await scene.used("paid") == PAID.share


# -- what is kept ------------------------------------------------------------------------------------------------------


async def test_windows_that_ended_leave_the_store(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with shared(tmp_path, FREE, DAILY) as scene:
        node = await scene.node()
        await node.spend()
        await node.spend(DAILY.name)
        await trio.sleep(2 * 60 + module.SWEEP_EVERY_S)
        assert (await scene.used(), await scene.used(DAILY.name)) == (None, 1)
        await trio.sleep(2 * 86_400)
        assert await scene.used(DAILY.name) is None


async def test_sweeping_goes_on_when_the_store_was_away(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with shared(tmp_path, FREE) as scene:
        node = await scene.node()
        await node.spend()
        node.road.cut = True
        await trio.sleep(600)
        node.road.cut = False
        await trio.sleep(module.SWEEP_EVERY_S + 1)
        assert await scene.used() is None


# -- any history -------------------------------------------------------------------------------------------------------


POLICIES = (
    Policy("free", 7, window_s=10),
    Policy("unpaid_quotes", 40, window_s=10),
    Policy("paid", 6, window_s=15),
    Policy("billed:search/one", 9, window_s=60),
)


@attrs.define(eq=False)
class History:
    """What happened to each caller's windows: what was granted and not given back, and when they opened."""

    standing: Counter[tuple[str, str, int]] = attrs.field(factory=Counter)
    granted: list[tuple[str, Allowance]] = attrs.field(factory=list)
    opened: dict[tuple[str, str], set[int]] = attrs.field(factory=dict)

    def told(self, caller: str, allowance: Allowance) -> None:
        policy = allowance.policy
        assert 0 <= allowance.remaining <= policy.limit
        assert 0 < allowance.reset_s <= policy.window_s
        self.opened.setdefault((policy.name, caller), set()).add(allowance.opened_ms)
        if allowance.granted:
            self.granted.append((caller, allowance))
            key = policy.name, caller, allowance.opened_ms
            self.standing[key] += 1
            assert self.standing[key] <= policy.limit

    def give_back(self, rng: random.Random, node: Node) -> None:
        caller, allowance = self.granted.pop(rng.randrange(len(self.granted)))
        key = allowance.policy.name, caller, allowance.opened_ms
        self.standing[key] -= 1
        node.ref.tell(GiveBack(allowance.policy.name, caller, allowance.opened_ms))

    def assert_windows_stand_apart(self) -> None:
        for (name, _), opened in self.opened.items():
            (policy,) = (policy for policy in POLICIES if policy.name == name)
            ordered = sorted(opened)
            apart = [later - earlier for earlier, later in itertools.pairwise(ordered)]
            assert all(each >= policy.window_s * 1000 for each in apart)


@pytest.mark.parametrize("seed", range(25))
async def test_no_history_grants_more_than_the_limit_in_a_window(
    tmp_path: Path, seed: int, autojump_clock: MockClock
) -> None:
    rng = random.Random(seed)
    history = History()
    async with shared(tmp_path, *POLICIES) as scene:
        nodes = [await scene.node(delay=delays(rng, rng.choice([0.001, 0.02, 0.3]))) for _ in range(3)]

        async def call() -> None:
            policy, caller = rng.choice(POLICIES), rng.choice("ab")
            try:
                history.told(caller, await rng.choice(nodes).spend(policy.name, caller))
            except StoreUnavailable:
                return

        async with trio.open_nursery() as nursery:
            for _ in range(120):
                match rng.choice(["burst", "burst", "back", "wait", "long", "cut", "joined"]):
                    case "burst":
                        for _ in range(rng.randrange(40)):
                            nursery.start_soon(call)
                    case "back" if history.granted:
                        for _ in range(rng.randrange(min(len(history.granted), 10))):
                            history.give_back(rng, rng.choice(nodes))
                    case "wait":
                        await trio.sleep(rng.uniform(0, 1))
                    case "long":
                        await trio.sleep(rng.uniform(0, 12))
                    case "cut":
                        rng.choice(nodes).road.cut = rng.random() < 0.5
                    case _:
                        nodes[rng.randrange(3)] = await scene.node(delay=delays(rng, 0.02))
                await trio.lowlevel.checkpoint()
        history.assert_windows_stand_apart()
        await assert_limits_are_granted_in_full(scene)


async def assert_limits_are_granted_in_full(scene: Scene) -> None:
    """Assert that fresh nodes in fresh windows grant all of each limit."""
    await trio.sleep(2 * 60)
    nodes = [await scene.node(), await scene.node()]
    for policy in POLICIES:
        for caller in "ab":
            granted = sum([await node.spent(policy.name, caller, times=2 * policy.limit) for node in nodes])
            assert granted == policy.limit
