from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.actors.prober import Message, ProbeNow, Route, Snapshot, prober, reporter
from gateway.actors.runtime import Inbox, Ref, Runtime, open_runtime
from gateway.registry.qualification import Finding, Outcome, Proofs, State

START = datetime(2026, 1, 1, tzinfo=UTC)
FAILED = Outcome("search/a", ok=False, reason="timeout", ms=8000)


def utc() -> datetime:
    return START + timedelta(seconds=trio.current_time())


@attrs.define
class Engine:
    """A back end whose health a test turns up and down; `probes` holds the times of its probes."""

    finding: Finding = attrs.field(factory=lambda: Finding(ok=True))
    hangs: bool = False
    breaks: bool = False
    probes: list[float] = attrs.field(factory=list)

    async def probe(self) -> Finding:
        self.probes.append(trio.current_time())
        if self.breaks:
            raise ZeroDivisionError
        if self.hangs:
            await trio.sleep_forever()
        await trio.sleep(0.1)
        return self.finding


@attrs.frozen
class Scene:
    ref: Ref[Message]
    proofs: Proofs
    runtime: Runtime

    def reason(self, route_id: str = "search/a") -> str | None:
        return self.proofs.of(route_id).reason

    def open(self, route_id: str = "search/a") -> bool:
        return self.proofs.of(route_id).open


@asynccontextmanager
async def scene(*engines: Engine, jitter: Callable[[], float] = lambda: 1.0) -> AsyncIterator[Scene]:
    routes = [Route(f"search/{name}", engine.probe) for name, engine in zip("abcdef", engines, strict=False)]
    proofs = Proofs(trio.current_time)
    async with open_runtime() as runtime:
        body = partial(prober, routes=routes, proofs=proofs, utc=utc, jitter=jitter)
        yield Scene(await runtime.start("prober", body), proofs, runtime)


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def test_every_route_is_probed_before_the_prober_is_ready(autojump_clock: MockClock) -> None:
    async with scene(Engine(), Engine(Finding(ok=False, reason="unreachable"))) as here:
        assert here.open("search/a")
        assert here.proofs.of("search/a").state is State.AVAILABLE
        assert (here.open("search/b"), here.reason("search/b")) == (False, "unreachable")


async def test_the_first_probes_run_side_by_side_and_a_hanging_one_costs_five_seconds(
    autojump_clock: MockClock,
) -> None:
    async with scene(Engine(hangs=True), Engine(hangs=True), Engine()) as here:
        assert trio.current_time() == pytest.approx(5.0)
        assert here.reason("search/a") == here.reason("search/b") == "probe_timeout"
        assert here.open("search/c")


async def test_a_route_that_is_well_is_probed_every_interval(autojump_clock: MockClock) -> None:
    engine = Engine()
    async with scene(engine):
        await trio.sleep(50)
    assert [round(at, 1) for at in engine.probes] == [0.0, 15.1, 30.2, 45.3]


async def test_jitter_stretches_the_interval(autojump_clock: MockClock) -> None:
    engine = Engine()
    async with scene(engine, jitter=lambda: 1.1):
        await trio.sleep(20)
    assert [round(at, 1) for at in engine.probes] == [0.0, 16.6]


async def test_a_route_that_is_ill_is_probed_after_one_second_doubling_to_fifteen(autojump_clock: MockClock) -> None:
    engine = Engine(Finding(ok=False, reason="status_500"))
    async with scene(engine):
        await trio.sleep(62)
    pauses = [round(later - earlier, 1) for earlier, later in zip(engine.probes, engine.probes[1:], strict=False)]
    assert pauses == [1.1, 2.1, 4.1, 8.1, 15.1, 15.1, 15.1]


async def test_a_back_end_that_dies_closes_its_route_within_one_interval_and_opens_it_again_by_itself(
    autojump_clock: MockClock,
) -> None:
    engine = Engine()
    async with scene(engine) as here:
        engine.finding = Finding(ok=False, reason="unreachable")
        await trio.sleep(15.5)
        assert (here.open(), here.reason()) == (False, "unreachable")
        engine.finding = Finding(ok=True)
        await trio.sleep(1.5)
        assert here.open()


async def test_a_probe_that_raises_closes_its_own_route_only(autojump_clock: MockClock) -> None:
    async with scene(Engine(breaks=True), Engine()) as here:
        assert here.reason("search/a") == "probe_crashed"
        assert here.open("search/b")
        assert here.runtime.health()[0].crashes == 0


async def test_one_failed_call_closes_nothing_and_brings_the_next_probe_forward(autojump_clock: MockClock) -> None:
    engine = Engine()
    async with scene(engine) as here:
        await trio.sleep(5)
        here.ref.tell(FAILED)
        await settle()
        assert here.open()
        assert [round(at, 1) for at in engine.probes] == [0.0, 5.1]


async def test_a_dead_back_end_is_closed_by_one_failed_call_and_the_probe_that_follows(
    autojump_clock: MockClock,
) -> None:
    engine = Engine()
    async with scene(engine) as here:
        await trio.sleep(5)
        engine.finding = Finding(ok=False, reason="unreachable")
        here.ref.tell(FAILED)
        await trio.sleep(0.2)
        assert here.reason() == "unreachable"


async def test_three_failed_calls_close_a_route_whose_probe_is_well(autojump_clock: MockClock) -> None:
    engine = Engine()
    async with scene(engine) as here:
        for _ in range(3):
            here.ref.tell(FAILED)
        await settle()
        assert (here.open(), here.reason()) == (False, "consecutive_failures")
        await trio.sleep(0.9)
        assert not here.open()
        await trio.sleep(0.3)
        assert here.open()


async def test_a_half_open_route_stays_closed_twice_as_long_after_another_failure(autojump_clock: MockClock) -> None:
    async with scene(Engine()) as here:
        for _ in range(3):
            here.ref.tell(FAILED)
        await trio.sleep(1.5)
        assert here.open()
        here.ref.tell(FAILED)
        await settle()
        assert not here.open()
        await trio.sleep(1.8)
        assert not here.open()
        await trio.sleep(0.5)
        assert here.open()


async def test_outcomes_of_unknown_routes_are_ignored(autojump_clock: MockClock) -> None:
    async with scene(Engine()) as here:
        here.ref.tell(Outcome("search/gone", ok=False, reason="timeout"))
        await settle()
        assert set(await here.ref.ask(Snapshot())) == {"search/a"}


async def test_a_snapshot_tells_of_every_route(autojump_clock: MockClock) -> None:
    async with scene(Engine(), Engine(Finding(ok=False, reason="x"))) as here:
        snapshot = await here.ref.ask(Snapshot())
        assert {route_id: each.state for route_id, each in snapshot.items()} == {
            "search/a": State.AVAILABLE,
            "search/b": State.UNAVAILABLE,
        }
        assert snapshot["search/a"].last_probe_at == START + timedelta(seconds=0.1)
        assert snapshot["search/a"].valid_until == START + timedelta(seconds=45.1)


async def test_probe_now_probes_at_once_and_answers_with_what_it_found(autojump_clock: MockClock) -> None:
    sick, well = Engine(Finding(ok=False, reason="x")), Engine()
    async with scene(sick, well) as here:
        sick.finding = Finding(ok=True)
        found = await here.ref.ask(ProbeNow("search/a"))
        assert {route_id: each.open for route_id, each in found.items()} == {"search/a": True}
        assert len(well.probes) == 1
        assert set(await here.ref.ask(ProbeNow())) == {"search/a", "search/b"}
        assert len(well.probes) == 2
        assert dict(await here.ref.ask(ProbeNow("search/none"))) == {}


async def test_the_prober_answers_while_a_probe_hangs(autojump_clock: MockClock) -> None:
    engine = Engine()
    async with scene(engine) as here, trio.open_nursery() as nursery:
        engine.hangs = True
        nursery.start_soon(partial(here.ref.ask, ProbeNow(), within=10.0))
        await settle()
        before = trio.current_time()
        assert (await here.ref.ask(Snapshot()))["search/a"].open
        assert trio.current_time() == before


async def test_each_probe_is_a_proof_with_a_name_of_its_own(autojump_clock: MockClock) -> None:
    async with scene(Engine(), Engine()) as here:
        first = {here.proofs.of(each).qualification_id for each in ("search/a", "search/b")}
        await trio.sleep(16)
        second = {here.proofs.of(each).qualification_id for each in ("search/a", "search/b")}
        assert len(first | second) == 4


async def test_nothing_stays_open_after_the_prober_has_stopped(autojump_clock: MockClock) -> None:
    async with scene(Engine()) as here:
        assert here.open()
    assert here.open()
    await trio.sleep(45)
    assert here.reason() == "proof_expired"


async def test_the_prober_drains_at_once_while_a_probe_hangs(autojump_clock: MockClock) -> None:
    engine = Engine()
    async with scene(engine):
        engine.hangs = True
        await trio.sleep(16)
        stopped = trio.current_time()
    assert trio.current_time() == stopped


async def test_the_reporter_never_raises_for_a_full_or_closed_mailbox(autojump_clock: MockClock) -> None:
    async def deaf(inbox: Inbox[Message]) -> None:
        inbox.ready()
        await trio.sleep(1)

    async with open_runtime() as runtime:
        report = reporter(await runtime.start("deaf", deaf, capacity=1))
        report(FAILED)
        report(FAILED)
        await trio.sleep(2)
        report(FAILED)
