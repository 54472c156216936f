from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from gateway.actors.clock import LOOK_EVERY_S, MOST_APART_MS, NodeClock
from gateway.actors.leases import Held, Leases
from gateway.actors.runtime import open_runtime
from gateway.actors.store import PostgresqlSettings, Row, Value, open_postgresql
from tests.actors.nodes import LEASE_MS, START_S, Member, open_nodes

DAY_MS = 24 * 3600 * 1000


@attrs.define(eq=False)
class Machine:
    """A node's machine: its clock, which a test puts ahead or back, beside one that only counts."""

    ahead_ms: int = 0
    asleep_s: float = 0.0

    def now_ms(self) -> int:
        return round((START_S + trio.current_time()) * 1000) + self.ahead_ms

    def elapsed_s(self) -> float:
        return trio.current_time() - self.asleep_s


def believed(clock: NodeClock) -> bool:
    """Return whether it is now: a type checker takes a property for one that does not change."""
    return clock.believed


async def stay(_: Held) -> None:
    await trio.sleep_forever()


def clock_of(store: Member, machine: Machine) -> NodeClock:
    return NodeClock(store, machine_ms=machine.now_ms, elapsed_s=machine.elapsed_s)


@asynccontextmanager
async def ticking(store: Member, machine: Machine) -> AsyncIterator[NodeClock]:
    async with open_runtime() as runtime:
        clock = clock_of(store, machine)
        await runtime.start("clock", clock.watch)
        yield clock


@pytest.mark.parametrize("ahead_ms", [401 * DAY_MS, -401 * DAY_MS, MOST_APART_MS + 1, -MOST_APART_MS - 1])
async def test_a_clock_far_from_the_store_s_is_not_believed_and_the_store_s_is_told(
    autojump_clock: MockClock, tmp_path: Path, ahead_ms: int
) -> None:
    async with open_nodes(tmp_path) as nodes:
        machine = Machine(ahead_ms)
        async with ticking(await nodes.join("one"), machine) as clock:
            assert (clock.skew_ms, clock.believed) == (ahead_ms, False)
            assert clock() == round((START_S + trio.current_time()) * 1000)
            await trio.sleep(30)
            assert clock() == round((START_S + trio.current_time()) * 1000)


@pytest.mark.parametrize("ahead_ms", [0, 2_000, MOST_APART_MS, -MOST_APART_MS])
async def test_a_clock_near_the_store_s_is_believed(autojump_clock: MockClock, tmp_path: Path, ahead_ms: int) -> None:
    async with open_nodes(tmp_path) as nodes, ticking(await nodes.join("one"), Machine(ahead_ms)) as clock:
        assert (clock.skew_ms, clock.believed) == (None, True)
        assert clock.ahead_ms == ahead_ms


async def test_a_clock_that_is_set_is_noticed_at_once_and_told_once(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with open_nodes(tmp_path) as nodes:
        machine = Machine()
        with capture_logs() as told:
            async with ticking(await nodes.join("one"), machine) as clock:
                machine.ahead_ms = DAY_MS
                assert believed(clock) is False
                await trio.sleep(5 * LOOK_EVERY_S)
                assert believed(clock) is False
                machine.ahead_ms = 0
                assert believed(clock)
                await trio.sleep(5 * LOOK_EVERY_S)
        assert [(each["event"], each["ahead_ms"]) for each in told if "clock" in each["event"]] == [
            ("clock_skew", DAY_MS),
            ("clock_right_again", 0),
        ]


async def test_a_machine_that_slept_goes_on_by_the_store_s_clock_after_the_next_look(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with open_nodes(tmp_path) as nodes:
        machine = Machine()
        async with ticking(await nodes.join("one"), machine) as clock:
            await trio.sleep(10)
            machine.asleep_s = 60.0
            assert believed(clock) is False
            await trio.sleep(LOOK_EVERY_S + 0.1)
            assert believed(clock)
            assert clock.ahead_ms == 0


async def test_a_store_s_clock_that_jumps_makes_the_node_stand_aside(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Its server may have been restored, or another one has taken over: who of the two is right nobody knows."""

    @attrs.define(eq=False)
    class Jumping:
        real: Member
        ahead_ms: int = 0
        shared: bool = True

        async def fetch(self, sql: str, parameters: Mapping[str, Value] = {}) -> list[Row]:
            ((now,),) = await self.real.fetch(sql, parameters)
            return [(int(now or 0) + self.ahead_ms,)]

    async with open_nodes(tmp_path) as nodes, open_runtime() as runtime:
        store, machine = Jumping(await nodes.join("one")), Machine()
        clock = NodeClock(store, machine_ms=machine.now_ms, elapsed_s=machine.elapsed_s)  # type: ignore[arg-type]  # all of a store that it needs
        await runtime.start("clock", clock.watch)
        store.ahead_ms = 401 * DAY_MS
        await trio.sleep(LOOK_EVERY_S + 0.1)
        assert clock.skew_ms == -401 * DAY_MS
        store.ahead_ms = 0
        await trio.sleep(LOOK_EVERY_S + 0.1)
        assert clock.skew_ms is None


async def test_while_the_store_is_away_time_goes_on_by_the_last_look(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with open_nodes(tmp_path) as nodes:
        machine = Machine()
        member = await nodes.join("one")
        async with ticking(member, machine) as clock:
            with member.unreachable():
                await trio.sleep(30)
                assert believed(clock)
                assert clock.ahead_ms == 0
                machine.ahead_ms = -DAY_MS
                assert clock.skew_ms == -DAY_MS


async def test_nothing_goes_by_a_clock_before_the_first_look(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with open_nodes(tmp_path) as nodes, open_runtime() as runtime, trio.open_nursery() as nursery:
        member, begun = await nodes.join("one"), trio.Event()
        clock = clock_of(member, Machine())

        async def begin() -> None:
            await runtime.start("clock", clock.watch)
            begun.set()

        with member.unreachable():
            nursery.start_soon(begin)
            await trio.sleep(10)
            assert not begun.is_set()
            assert believed(clock) is False
        await begun.wait()
        assert believed(clock)


async def test_a_store_of_one_node_has_the_machine_s_clock(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with open_nodes(tmp_path) as nodes:
        machine = Machine(DAY_MS)
        clock = NodeClock(nodes.real, machine_ms=machine.now_ms, elapsed_s=machine.elapsed_s)
        assert clock() == machine.now_ms()
        assert (clock.skew_ms, clock.believed) == (None, True)


async def test_a_node_takes_no_lease_while_its_clock_is_wrong_and_gives_back_those_it_has(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with open_nodes(tmp_path) as nodes, trio.open_nursery() as nursery:
        machines = {"wrong": Machine(401 * DAY_MS), "right": Machine()}
        all_leases: dict[str, Leases] = {}

        async def live(name: str) -> None:
            member = await nodes.join(name)
            async with open_runtime() as runtime:
                clock = clock_of(member, machines[name])
                await runtime.start("clock", clock.watch)
                leases = Leases(member, lease_ms=LEASE_MS, believed=lambda: clock.believed)
                all_leases[name] = leases
                await runtime.start("leases", leases.watch)
                await leases.hold("retention", stay)

        def holders() -> list[str]:
            return [name for name, leases in all_leases.items() if leases.held]

        nursery.start_soon(live, "wrong")
        await trio.sleep(10)
        assert holders() == []
        nursery.start_soon(live, "right")
        await trio.sleep(10)
        assert holders() == ["right"]
        machines["wrong"].ahead_ms, machines["right"].ahead_ms = 0, -401 * DAY_MS
        await trio.sleep(LEASE_MS / 1000)
        assert holders() == ["wrong"]
        machines["wrong"].ahead_ms = 60_000
        await trio.sleep(10)
        assert holders() == []
        machines["right"].ahead_ms = 0
        await trio.sleep(1)
        assert holders() == ["right"]
        nursery.cancel_scope.cancel()


async def test_the_clock_of_a_real_server_is_seen(postgresql_url: str) -> None:
    async with (
        open_runtime() as runtime,
        open_postgresql(runtime, PostgresqlSettings(postgresql_url), node="one") as store,
    ):
        clock = NodeClock(store)
        await runtime.start("clock", clock.watch)
        assert believed(clock)
        assert abs(clock.ahead_ms) < MOST_APART_MS
