from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.actors.leases import ALONE, Held, Leases, alone
from gateway.actors.runtime import open_runtime
from gateway.actors.store import Conflict, Statement, open_sqlite
from tests.actors.nodes import LEASE_MS, Member, Nodes, open_nodes

LEASE_S = LEASE_MS / 1000
LOOK_S = LEASE_S / 4


@attrs.define(eq=False)
class Candidate:
    """A node that wants the lease "books"; `spells` are the times at which it had it and lost it."""

    store: Member
    leases: Leases
    spells: list[list[float]] = attrs.field(factory=list)
    held: Held | None = None
    done: trio.Event = attrs.field(factory=trio.Event)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    async def duty(self, held: Held) -> None:
        self.held = held
        self.spells.append([trio.current_time()])
        try:
            await self.done.wait()
        finally:
            self.spells[-1].append(trio.current_time())

    async def live(self, duty: Callable[[Held], Awaitable[None]] | None = None) -> None:
        with self.scope:
            async with open_runtime() as runtime:
                await runtime.start("leases", self.leases.watch)
                await self.leases.hold("books", duty or self.duty)

    @property
    def holds(self) -> bool:
        return bool(self.spells) and len(self.spells[-1]) == 1

    async def die(self) -> None:
        """End as by SIGKILL: nothing is given back, and nothing is renewed."""
        self.store.away = True
        self.scope.cancel()
        await wait_all_tasks_blocked()

    @property
    def fenced(self) -> Statement:
        assert self.held is not None
        return self.held.fence()


@attrs.frozen(eq=False)
class Scene:
    nodes: Nodes
    nursery: trio.Nursery

    async def candidate(self, name: str, *, deaf: bool = False) -> Candidate:
        store = await self.nodes.join(name, deaf=deaf)
        candidate = Candidate(store, Leases(store, lease_ms=LEASE_MS))
        self.nursery.start_soon(candidate.live)
        await wait_all_tasks_blocked()
        return candidate

    async def row(self) -> tuple[object, ...]:
        ((row),) = await self.nodes.real.fetch("SELECT node, epoch FROM leases WHERE name = 'books'")
        return row


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with open_nodes(tmp_path) as nodes, trio.open_nursery() as nursery:
        yield Scene(nodes, nursery)
        nursery.cancel_scope.cancel()


async def test_of_two_nodes_one_holds_a_lease_for_as_long_as_it_lives(autojump_clock: MockClock, scene: Scene) -> None:
    one, two = await scene.candidate("one"), await scene.candidate("two")
    await trio.sleep(60)
    assert (one.holds, two.holds, len(one.spells)) == (True, False, 1)
    assert await scene.row() == ("one", 1)
    assert (list(one.leases.held), list(two.leases.held)) == (["books"], [])
    assert two.leases.seen["books"].node == "one"


async def test_a_lease_that_is_held_costs_no_writes(autojump_clock: MockClock, scene: Scene) -> None:
    one, two = await scene.candidate("one"), await scene.candidate("two")
    await trio.sleep(60)
    assert (one.store.writes, two.store.writes) == (1, 0)
    assert two.store.reads == pytest.approx(60 / LOOK_S, rel=0.05)


@pytest.mark.parametrize("after", [0.0, 0.1, 0.2, 0.299, 0.7, 1.1])
async def test_another_node_takes_over_from_one_that_was_killed_within_two_seconds(
    autojump_clock: MockClock, scene: Scene, after: float
) -> None:
    one, two = await scene.candidate("one"), await scene.candidate("two", deaf=True)
    await trio.sleep(30 + after)
    killed = trio.current_time()
    await one.die()
    await trio.sleep(2)
    assert two.holds
    assert two.spells[0][0] - killed <= LEASE_S + LOOK_S + 0.01
    assert await scene.row() == ("two", 2)


async def test_a_lease_that_is_given_back_is_taken_at_once(autojump_clock: MockClock, scene: Scene) -> None:
    one, two = await scene.candidate("one"), await scene.candidate("two")
    await trio.sleep(30.05)
    one.scope.cancel()
    await wait_all_tasks_blocked()
    assert two.holds
    assert two.spells[0][0] == pytest.approx(trio.current_time())


async def test_a_lease_that_is_given_back_is_found_by_polling_alone(autojump_clock: MockClock, scene: Scene) -> None:
    one, two = await scene.candidate("one"), await scene.candidate("two", deaf=True)
    await trio.sleep(30.05)
    one.done.set()
    await trio.sleep(LOOK_S + 0.001)
    assert two.holds


async def test_hold_returns_when_the_duty_is_done(autojump_clock: MockClock, scene: Scene) -> None:
    one = await scene.candidate("one")
    one.done.set()
    await trio.sleep(0.01)
    assert one.leases.held == {}
    assert await scene.nodes.real.fetch("SELECT node_epoch FROM leases") == [(0,)]


async def test_a_duty_that_fails_gives_the_lease_back_and_is_heard(autojump_clock: MockClock, scene: Scene) -> None:
    one = await scene.candidate("one")
    one.scope.cancel()
    two = await scene.nodes.join("two")
    candidate = Candidate(two, Leases(two, lease_ms=LEASE_MS))

    async def fail(_: Held) -> None:
        raise ZeroDivisionError

    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        await candidate.live(fail)
    assert await scene.nodes.real.fetch("SELECT node, node_epoch FROM leases") == [("two", 0)]


async def test_a_holder_that_cannot_reach_the_store_ends_its_duty_before_another_begins(
    autojump_clock: MockClock, scene: Scene
) -> None:
    one, two = await scene.candidate("one"), await scene.candidate("two")
    await trio.sleep(30.05)
    with one.store.unreachable():
        await trio.sleep(5)
    assert not one.holds
    assert two.holds
    assert one.spells[0][1] <= two.spells[0][0]


async def test_a_holder_whose_store_does_not_answer_ends_its_duty_before_another_begins(
    autojump_clock: MockClock, scene: Scene
) -> None:
    one, two = await scene.candidate("one"), await scene.candidate("two")
    await trio.sleep(30.05)
    with one.store.hanging():
        await trio.sleep(5)
    assert not one.holds
    assert one.spells[0][1] <= two.spells[0][0]


async def test_a_duty_goes_on_by_itself_when_the_store_is_back(autojump_clock: MockClock, scene: Scene) -> None:
    one = await scene.candidate("one")
    for number, absence in enumerate((one.store.hanging, one.store.unreachable)):
        await trio.sleep(30)
        with absence():
            away = trio.current_time()
            await trio.sleep(30)
            assert not one.holds
            assert one.spells[number][1] - away <= LEASE_S
        await trio.sleep(1)
        assert one.holds
    assert await scene.row() == ("one", 3)


async def test_a_short_absence_of_the_store_ends_no_duty(autojump_clock: MockClock, scene: Scene) -> None:
    one = await scene.candidate("one")
    await trio.sleep(30.05)
    with one.store.unreachable():
        await trio.sleep(LEASE_S / 3)
    await trio.sleep(30)
    assert (one.holds, len(one.spells)) == (True, 1)


async def test_a_node_that_joined_anew_loses_what_it_held_and_takes_it_again(
    autojump_clock: MockClock, scene: Scene
) -> None:
    one = await scene.candidate("one")
    await trio.sleep(30.05)
    lost = trio.current_time()
    await one.store.join()
    await trio.sleep(1)
    assert one.spells[0][1] - lost <= LOOK_S
    assert one.spells[1][0] - lost <= LOOK_S
    assert one.held is not None
    assert one.held.node_epoch == 2


async def test_a_duty_is_cancelled_within_a_look_when_another_has_its_lease(
    autojump_clock: MockClock, scene: Scene
) -> None:
    one = await scene.candidate("one")
    await trio.sleep(30.05)
    await scene.nodes.real.commit(Statement("UPDATE leases SET node = 'thief', epoch = epoch + 1", rows=1))
    stolen = trio.current_time()
    await trio.sleep(1)
    assert one.spells[0][1] - stolen <= LOOK_S
    assert len(one.spells) == 2  # nobody is joined as the thief


async def test_a_taking_whose_answer_was_lost_is_found_again(autojump_clock: MockClock, scene: Scene) -> None:
    store = await scene.nodes.join("one")
    store.answers_lost = 1
    one = Candidate(store, Leases(store, lease_ms=LEASE_MS))
    scene.nursery.start_soon(one.live)
    await trio.sleep(LOOK_S + 0.01)
    assert one.holds
    assert await scene.row() == ("one", 2)


async def test_the_fence_stops_what_an_earlier_holder_still_writes(autojump_clock: MockClock, scene: Scene) -> None:
    one, two = await scene.candidate("one"), await scene.candidate("two")
    fact = Statement("INSERT INTO node_facts (name, value) VALUES ('by', :epoch)", {"epoch": "1"}, rows=1)
    await one.store.commit(one.fenced)
    stale = one.fenced
    with one.store.unreachable():
        await trio.sleep(3)
    await trio.sleep(1)
    with pytest.raises(Conflict) as caught:
        await one.store.commit(stale, fact)
    assert caught.value.index == 0
    await two.store.commit(two.fenced, fact)


async def test_the_fence_tells_two_spells_of_one_node_apart(autojump_clock: MockClock, scene: Scene) -> None:
    one = await scene.candidate("one")
    stale = one.fenced
    await scene.nodes.real.commit(Statement("UPDATE leases SET epoch = epoch + 1", rows=1))
    await trio.sleep(1)
    assert len(one.spells) == 2
    with pytest.raises(Conflict):
        await one.store.commit(stale)
    await one.store.commit(one.fenced)


async def test_each_lease_has_a_holder_of_its_own(autojump_clock: MockClock, scene: Scene) -> None:
    one, two = await scene.candidate("one"), await scene.candidate("two")
    scene.nursery.start_soon(two.leases.hold, "poller", Candidate(two.store, two.leases).duty)
    await trio.sleep(1)
    assert (list(one.leases.held), list(two.leases.held)) == (["books"], ["poller"])


async def test_a_lease_that_is_wanted_twice_on_one_node_is_a_mistake(autojump_clock: MockClock, scene: Scene) -> None:
    one = await scene.candidate("one")
    with pytest.raises(RuntimeError, match="wanted twice"):
        await one.leases.hold("books", one.duty)


async def test_many_nodes_hand_a_lease_on_and_never_hold_it_together(autojump_clock: MockClock, scene: Scene) -> None:
    candidates = [await scene.candidate(f"n{number:02d}") for number in range(12)]
    for _ in range(11):
        await trio.sleep(2)
        (holder,) = [each for each in candidates if each.holds]
        await holder.die()
        candidates.remove(holder)
    await trio.sleep(2)
    assert candidates[0].holds
    assert (await scene.row())[1] == 12


async def test_on_a_store_of_one_node_a_duty_just_runs_and_nothing_is_written(tmp_path: Path) -> None:
    async with open_runtime() as runtime, open_sqlite(runtime, tmp_path / "gateway.db") as store:
        leases = Leases(store)
        await runtime.start("leases", leases.watch)
        found = []

        async def duty(held: Held) -> None:
            found.append(held)
            await store.commit(held.fence())

        await leases.hold("books", duty)
        await alone("books", duty)
        assert found == [ALONE, ALONE]
        assert await store.fetch("SELECT * FROM leases") == []
