"""Leases between processes over a real server, in real time."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from gateway.actors.findings import Findings
from gateway.actors.leases import Held, Leases
from gateway.actors.prober import Route, prober
from gateway.actors.retention import sweep
from gateway.actors.runtime import open_runtime
from gateway.actors.store import Conflict, PostgresqlSettings, PostgresqlStore, Statement, open_postgresql
from gateway.actors.store_time import confirmed
from gateway.registry.qualification import Finding, Proofs, Rules
from gateway.world.postgresql import open_server

CHILD = Path(__file__).parent / "leasing_child.py"
TAKE_OVER_S = 2.0


@attrs.define(eq=False)
class Child:
    """A node in a process of its own."""

    process: trio.Process
    unread: bytes = b""
    lines: list[str] = attrs.field(factory=list)

    async def says(self, *words: str, times: int = 1) -> float:
        """Wait for lines that begin with these words; return trio's time."""
        start = " ".join(words)
        with trio.fail_after(10):
            while sum(line.startswith(start) for line in self.lines) < times:
                assert self.process.stdout is not None
                more = await self.process.stdout.receive_some()
                assert more, f"the child has ended; it said {self.lines[-5:]}"
                *whole, self.unread = (self.unread + more).split(b"\n")
                self.lines += [line.decode() for line in whole]
        return trio.current_time()

    async def kill(self) -> float:
        self.process.send_signal(signal.SIGKILL)
        killed = trio.current_time()
        await self.process.wait()
        return killed


@asynccontextmanager
async def child(url: str, node: str, wanted: int = 1) -> AsyncIterator[Child]:
    arguments = [sys.executable, str(CHILD), url, node, str(wanted)]
    started = partial(
        trio.run_process, arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, check=False, cwd=Path.cwd()
    )
    async with trio.open_nursery() as nursery:
        process = await nursery.start(started)
        try:
            yield Child(process)
        finally:
            process.kill()


@asynccontextmanager
async def node(url: str, name: str) -> AsyncIterator[tuple[PostgresqlStore, Leases]]:
    settings = PostgresqlSettings(url)
    async with open_runtime() as runtime, open_postgresql(runtime, settings, node=name) as store:
        leases = Leases(store, lease_ms=settings.lease_ms)
        await runtime.start("leases", leases.watch)
        yield store, leases


@attrs.define(eq=False)
class Duties:
    """What this process holds; each change wakes who waits."""

    holding: dict[str, Held] = attrs.field(factory=dict)
    begun: Counter[str] = attrs.field(factory=Counter)
    holders: Counter[str] = attrs.field(factory=Counter)
    most_holders: int = 0
    changed: trio.Event = attrs.field(factory=trio.Event)

    async def duty(self, held: Held) -> None:
        self.holding[held.name] = held
        self.begun[held.name] += 1
        self.holders[held.name] += 1
        self.most_holders = max(self.most_holders, self.holders[held.name])
        self._wake()
        try:
            await trio.sleep_forever()
        finally:
            self.holders[held.name] -= 1
            if not self.holders[held.name]:
                del self.holding[held.name]
            self._wake()

    async def until(self, count: int, *, within: float = 10) -> float:
        with trio.fail_after(within):
            while len(self.holding) != count:
                await self.changed.wait()
        return trio.current_time()

    def _wake(self) -> None:
        changed, self.changed = self.changed, trio.Event()
        changed.set()


@pytest.mark.parametrize("wanted", [1, 90])
async def test_another_node_takes_all_leases_of_one_that_was_killed_within_two_seconds(
    postgresql_url: str, wanted: int
) -> None:
    duties = Duties()
    async with node(postgresql_url, "two") as (store, leases), child(postgresql_url, "one", wanted) as one:
        await one.says("took", times=wanted)
        async with trio.open_nursery() as nursery:
            for number in range(wanted):
                nursery.start_soon(leases.hold, f"l{number}", duties.duty)
            await trio.sleep(1.0)
            assert duties.holding == {}
            killed = await one.kill()
            taken = await duties.until(wanted)
            assert taken - killed < TAKE_OVER_S
            assert await store.fetch("SELECT DISTINCT node, epoch FROM leases") == [("two", 2)]
            nursery.cancel_scope.cancel()


async def test_a_node_that_stops_cleanly_hands_its_lease_on_at_once(postgresql_url: str) -> None:
    duties = Duties()
    async with node(postgresql_url, "two") as (_, leases), child(postgresql_url, "one") as one:
        await one.says("took")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leases.hold, "l0", duties.duty)
            await trio.sleep(0.5)
            assert one.process.stdin is not None
            await one.process.stdin.aclose()
            lost = await one.says("lost l0")
            assert await duties.until(1) - lost < 0.3
            nursery.cancel_scope.cancel()


async def test_a_node_that_was_stopped_past_its_lease_writes_nothing_more_under_it(postgresql_url: str) -> None:
    async with AsyncExitStack() as stack:
        store, _ = await stack.enter_async_context(node(postgresql_url, "three"))
        one = await stack.enter_async_context(child(postgresql_url, "one"))
        await one.says("took")
        two = await stack.enter_async_context(child(postgresql_url, "two"))
        await two.says("joined")
        await trio.sleep(0.5)
        for round_, (holder, other) in enumerate([(one, two), (two, one), (one, two)], 1):
            holder.process.send_signal(signal.SIGSTOP)
            await other.says("took l0", str(round_ + 1))
            await trio.sleep(0.3)
            holder.process.send_signal(signal.SIGCONT)
            await holder.says("lost l0", times=(round_ + 1) // 2)
            await trio.sleep(0.5)
        rows = await store.fetch("SELECT value FROM node_facts WHERE name LIKE 'w%' ORDER BY name")
        epochs = [int(str(value)) for (value,) in rows]
        assert epochs == sorted(epochs)
        assert set(epochs) == {1, 2, 3, 4}


async def test_of_many_that_want_a_lease_at_once_one_has_it(postgresql_url: str) -> None:
    wanted = {f"l{number}" for number in range(8)}
    duties = Duties()  # one for all nodes: it tells of a lease that two hold at once
    async with AsyncExitStack() as stack:
        members = [await stack.enter_async_context(node(postgresql_url, f"n{number}")) for number in range(4)]
        async with trio.open_nursery() as nursery:
            for _, leases in members:
                for name in wanted:
                    nursery.start_soon(leases.hold, name, duties.duty)
            await duties.until(len(wanted))
            await trio.sleep(1)  # long enough for another to take what it may not
            # A slow machine may cost a node its lease, and then another takes it: what stands once must stand again.
            await duties.until(len(wanted))
            assert duties.holding.keys() == wanted
            assert duties.most_holders == 1
            nursery.cancel_scope.cancel()


async def test_a_holder_that_loses_its_server_ends_its_duty_and_goes_on_when_it_is_back() -> None:
    duties = Duties()
    with open_server() as server:
        async with node(server.create_database("leases"), "one") as (_, leases), trio.open_nursery() as nursery:
            nursery.start_soon(leases.hold, "l0", duties.duty)
            await duties.until(1)
            server.kill()
            killed = trio.current_time()
            assert await duties.until(0) - killed < 1.3
            server.restart()
            await duties.until(1)
            assert duties.begun["l0"] == 2
            nursery.cancel_scope.cancel()


async def test_a_step_of_an_earlier_holder_is_undone(postgresql_url: str) -> None:
    duties = Duties()
    async with node(postgresql_url, "one") as (store, leases), trio.open_nursery() as nursery:
        nursery.start_soon(leases.hold, "l0", duties.duty)
        await duties.until(1)
        fence = duties.holding["l0"].fence()
        await store.commit(fence, Statement("INSERT INTO node_facts (name, value) VALUES ('fact', '')", rows=1))
        await store.commit(Statement("UPDATE leases SET node = 'thief', epoch = 2", rows=1))
        with pytest.raises(Conflict):
            await store.commit(fence, Statement("DELETE FROM node_facts"))
        assert await store.fetch("SELECT COUNT(*) FROM node_facts WHERE name = 'fact'") == [(1,)]
        nursery.cancel_scope.cancel()


async def test_two_nodes_probe_each_route_once_an_interval_and_both_sell_it(postgresql_url: str) -> None:
    rules = Rules(interval_s=0.4)
    probes: Counter[str] = Counter()

    async def probe(name: str) -> Finding:
        probes[name] += 1
        await trio.sleep(0.01)
        return Finding(ok=True)

    routes = [Route(f"search/{letter}", partial(probe, letter), "s") for letter in "abcdefgh"]
    proofs = [Proofs(trio.current_time), Proofs(trio.current_time)]
    async with node(postgresql_url, "one") as one, node(postgresql_url, "two") as two, open_runtime() as runtime:
        for each, published in zip((one, two), proofs, strict=True):
            body = partial(
                prober,
                routes=routes,
                proofs=published,
                utc=lambda: datetime.now(UTC),
                rules=rules,
                findings=Findings(each[0], each[1].hold),
            )
            await runtime.start(f"prober {each[0].membership.node}", body)
            await trio.sleep(0.2)
        before = Counter(probes)
        for _ in range(40):
            await trio.sleep(0.1)
            assert all(published.of(route.route_id).open for published in proofs for route in routes)
        counts = [probes[letter] - before[letter] for letter in "abcdefgh"]
        assert all(8 <= count <= 10 for count in counts), counts
        names = [{published.of(route.route_id).qualification_id for route in routes} for published in proofs]
        assert len(names[0] & names[1]) > 0


async def test_what_was_left_behind_is_swept_here_too(postgresql_url: str) -> None:
    async with node(postgresql_url, "one") as (store, _):
        await store.commit(
            Statement("INSERT INTO leases VALUES ('old', 'gone', 1, 1, 0)"),
            Statement("INSERT INTO findings VALUES ('old', '', 'gone', 0, 1, '{}')"),
        )
        await sweep(store, confirmed(time.time_ns() // 1_000_000))
        assert await store.fetch("SELECT name FROM leases") == await store.fetch("SELECT route FROM findings") == []
