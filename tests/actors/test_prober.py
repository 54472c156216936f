from __future__ import annotations

import itertools
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.actors.findings import Findings
from gateway.actors.leases import Leases
from gateway.actors.prober import Message, ProbeNow, Route, Snapshot, prober, reporter
from gateway.actors.runtime import Inbox, Ref, Runtime, open_runtime
from gateway.registry.call_evidence import Weight
from gateway.registry.qualification import (
    Evidence,
    Finding,
    Observation,
    Outcome,
    Proofs,
    Rules,
    State,
    proof_basis,
)
from tests.actors.nodes import LEASE_MS, Member, Nodes, open_nodes

START = datetime(2026, 1, 1, tzinfo=UTC)
FAILED = Outcome("search/a", ok=False, reason="timeout", ms=8000)
LOST = Outcome("ai/a", ok=False, reason="status_500", ms=40)
SERVED = Outcome("ai/a", ok=True, ms=900)
ONE_FAILURE = Rules(failures_to_close=1)
HOUR_S = 3600
OFTEN = Rules(canary_interval_s=60)


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


@attrs.define
class Model(Engine):
    """A back end that is also proved by canaries: small real calls, whose times are in `canaries`."""

    answer: Finding = attrs.field(factory=lambda: Finding(ok=True))
    silent: bool = False
    broken: bool = False
    takes_s: float = 1.0
    canaries: list[float] = attrs.field(factory=list)
    at_once: int = 0
    most_at_once: int = 0

    async def canary(self) -> Finding:
        self.canaries.append(trio.current_time())
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.broken:
                raise ZeroDivisionError
            await trio.sleep(math.inf if self.silent else self.takes_s)
        finally:
            self.at_once -= 1
        return self.answer


@asynccontextmanager
async def model_scene(model: Model, *, canary: bool = True, rules: Rules = ONE_FAILURE) -> AsyncIterator[Scene]:
    """A model whose route is closed by one failed call, beside a search engine whose route is not."""
    routes = [
        Route("ai/a", model.probe, rules=rules, canary=model.canary if canary else None),
        Route("search/a", Engine().probe),
    ]
    proofs = Proofs(trio.current_time)
    async with open_runtime() as runtime:
        body = partial(prober, routes=routes, proofs=proofs, utc=utc)
        yield Scene(await runtime.start("prober", body), proofs, runtime)


async def until(happened: Callable[[], bool]) -> None:
    with trio.fail_after(2 * HOUR_S):
        while not happened():  # noqa: ASYNC110 - on a clock that jumps
            await trio.sleep(0.1)


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


async def test_whoever_takes_notes_is_told_of_every_probe_and_call_with_what_is_proved_then(
    autojump_clock: MockClock,
) -> None:
    told: list[tuple[Evidence, Observation | None]] = []
    async with open_runtime() as runtime:
        body = partial(
            prober,
            routes=[Route("search/a", Engine().probe)],
            proofs=Proofs(trio.current_time),
            utc=utc,
            noted=lambda evidence, observation: told.append((evidence, observation)),
        )
        ref = await runtime.start("prober", body)
        for _ in range(3):
            ref.tell(FAILED)
        await settle()
    assert [(each.reason, noted) for each, noted in told] == [
        (None, Observation(ok=True, probe=True, ms=100)),
        (None, Observation(ok=False, probe=False, ms=8000)),
        (None, Observation(ok=False, probe=False, ms=8000)),
        ("consecutive_failures", Observation(ok=False, probe=False, ms=8000)),
    ]


async def test_good_calls_of_an_open_route_renew_its_figures_once_a_second_and_are_all_noted(
    autojump_clock: MockClock,
) -> None:
    told: list[Observation | None] = []
    proofs = Proofs(trio.current_time)
    async with open_runtime() as runtime:
        body = partial(
            prober,
            routes=[Route("ai/a", Engine().probe)],
            proofs=proofs,
            utc=utc,
            noted=lambda _evidence, observation: told.append(observation),
        )
        ref = await runtime.start("prober", body)
        for ms in (900, 500, 700):
            ref.tell(Outcome("ai/a", ok=True, ms=ms))
        await settle()
        assert proofs.of("ai/a").p50_ms == 100  # of the probe, less than a second ago
        assert [each.ms for each in told if each is not None] == [100, 900, 500, 700]
        await trio.sleep(1.0)
        ref.tell(Outcome("ai/a", ok=True, ms=600))
        await settle()
        assert proofs.of("ai/a").p50_ms == 650
        ref.tell(Outcome("ai/a", ok=True, ms=10))
        ref.tell(Outcome("ai/a", ok=False, reason="timeout"))
        await settle()
        assert proofs.of("ai/a").p50_ms == 600  # a failure is told at once, and all before it
        assert proofs.of("ai/a").error_rate == round(1 / 7, 6)


# -- rules of a route's own --------------------------------------------------------------------------------------------


async def test_one_failed_call_closes_a_route_whose_rules_say_so_at_once_with_the_call_s_own_reason(
    autojump_clock: MockClock,
) -> None:
    async with model_scene(Model(), canary=False) as here:
        here.ref.tell(LOST)
        here.ref.tell(FAILED)
        await settle()
        assert (here.open("ai/a"), here.reason("ai/a")) == (False, "status_500")
        assert here.open("search/a")


async def test_a_closed_route_opens_by_a_probe_after_a_back_off_that_doubles_up_to_the_interval(
    autojump_clock: MockClock,
) -> None:
    async with model_scene(Model(), canary=False) as here:
        pauses = []
        for _ in range(7):
            here.ref.tell(LOST)
            await settle()
            closed = trio.current_time()
            await until(lambda: here.open("ai/a"))
            pauses.append(trio.current_time() - closed)
        assert pauses == pytest.approx([1.1, 2.1, 4.1, 8.1, 15.1, 15.1, 15.1], abs=0.11)


async def test_after_a_good_call_the_back_off_begins_anew(autojump_clock: MockClock) -> None:
    async with model_scene(Model(), canary=False) as here:
        for outcome in (LOST, LOST, SERVED, LOST):
            here.ref.tell(outcome)
            await trio.sleep(3)
        assert here.open("ai/a")


async def test_a_dead_back_end_that_a_call_closed_is_probed_ever_more_rarely(autojump_clock: MockClock) -> None:
    model = Model()
    async with model_scene(model, canary=False) as here:
        model.finding = Finding(ok=False, reason="unreachable")
        here.ref.tell(LOST)
        await trio.sleep(HOUR_S)
        assert not here.open("ai/a")
        assert HOUR_S / 15.1 - 1 <= len(model.probes) <= HOUR_S / 15.1 + 6


async def test_stragglers_of_a_hanging_back_end_do_not_close_what_has_opened_again(autojump_clock: MockClock) -> None:
    async with model_scene(Model(), canary=False) as here:
        began = trio.current_time()
        here.ref.tell(attrs.evolve(LOST, began=began))
        await trio.sleep(5)
        assert here.open("ai/a")
        here.ref.tell(attrs.evolve(LOST, began=began))
        await settle()
        assert here.open("ai/a")
        here.ref.tell(attrs.evolve(LOST, began=trio.current_time()))
        await settle()
        assert not here.open("ai/a")


async def test_a_route_s_own_interval_is_kept_and_so_is_its_validity(autojump_clock: MockClock) -> None:
    model = Model()
    async with model_scene(model, canary=False, rules=Rules(interval_s=60)) as here:
        assert here.proofs.of("ai/a").expires == pytest.approx(180.1)
        await trio.sleep(130)
    assert [round(at, 1) for at in model.probes] == [0.0, 60.1, 120.2]


# -- canaries ----------------------------------------------------------------------------------------------------------


async def test_a_canary_comes_before_a_route_opens_and_once_an_hour_while_nobody_calls(
    autojump_clock: MockClock,
) -> None:
    model = Model()
    async with model_scene(model) as here:
        assert here.open("ai/a")
        assert proof_basis(here.proofs.of("ai/a").qualification_id or "", "ai/a") == "canary"
        await trio.sleep(15.2)
        assert here.proofs.of("ai/a").basis == "probe"
        for _ in range(6 * HOUR_S + 200):
            await trio.sleep(1)
            assert here.open("ai/a")
    assert [round(at / HOUR_S, 2) for at in model.canaries] == pytest.approx([0, 1, 2, 3, 4, 5, 6], abs=0.03)
    assert len(model.probes) == pytest.approx((6 * HOUR_S + 200) / 15.1, abs=2)


async def test_no_canary_is_sent_while_real_calls_succeed(autojump_clock: MockClock) -> None:
    model = Model()
    async with model_scene(model) as here:
        for _ in range(12):
            await trio.sleep(HOUR_S / 2)
            here.ref.tell(SERVED)
        assert here.open("ai/a")
    assert len(model.canaries) == 1


async def test_no_canary_is_sent_to_what_its_probe_finds_ill(autojump_clock: MockClock) -> None:
    model = Model(Finding(ok=False, reason="status_401"))
    async with model_scene(model) as here:
        await trio.sleep(2 * HOUR_S)
        assert here.reason("ai/a") == "status_401"
    assert model.canaries == []


async def test_a_failed_canary_closes_like_a_failed_probe_with_its_reason(autojump_clock: MockClock) -> None:
    model = Model()
    async with model_scene(model) as here:
        model.answer = Finding(ok=False, reason="wrong_model")
        await trio.sleep(HOUR_S + 20)
        assert (here.open("ai/a"), here.reason("ai/a")) == (False, "wrong_model")
        assert here.proofs.of("ai/a").state is State.UNAVAILABLE


async def test_a_route_that_its_canary_refuses_stays_closed_however_well_its_probe_is_and_costs_little(
    autojump_clock: MockClock,
) -> None:
    model = Model(answer=Finding(ok=False, reason="wrong_model"))
    async with model_scene(model) as here:
        for _ in range(24 * HOUR_S // 5):
            await trio.sleep(5)
            assert here.reason("ai/a") == "wrong_model"
    pauses = [later - earlier for earlier, later in zip(model.canaries, model.canaries[1:], strict=False)]
    assert all(later >= earlier - 20 for earlier, later in itertools.pairwise(pauses))
    assert 12 + 22 <= len(model.canaries) <= 12 + 24


async def test_a_route_that_its_canary_refused_opens_again_by_itself(autojump_clock: MockClock) -> None:
    model = Model(answer=Finding(ok=False, reason="empty_choices"))
    async with model_scene(model) as here:
        await trio.sleep(60)
        model.answer = Finding(ok=True)
        await trio.sleep(60 + 15.1 + 2)
        assert here.open("ai/a")
        assert here.proofs.of("ai/a").reason is None


async def test_a_half_open_route_is_opened_by_one_canary_and_by_nothing_less(autojump_clock: MockClock) -> None:
    model = Model()
    async with model_scene(model) as here:
        here.ref.tell(LOST)
        await trio.sleep(1.5)
        assert not here.open("ai/a")
        assert model.at_once == 1
        await trio.sleep(1)
        assert here.open("ai/a")
        assert len(model.canaries) == 2
        await trio.sleep(60)
    assert len(model.canaries) == 2


async def test_canaries_of_a_route_that_fails_again_and_again_are_one_a_half_opening(autojump_clock: MockClock) -> None:
    model, closings = Model(), 0
    async with model_scene(model) as here:
        while trio.current_time() < HOUR_S:
            if here.open("ai/a"):
                here.ref.tell(LOST)
                closings += 1
            await trio.sleep(0.5)
    assert len(model.canaries) - 1 <= closings <= len(model.canaries)
    assert closings < HOUR_S / 15


async def test_two_canaries_of_a_route_never_run_at_a_time_and_the_second_is_not_needed(
    autojump_clock: MockClock,
) -> None:
    model = Model(takes_s=10)
    async with model_scene(model) as here:
        await trio.sleep(HOUR_S - 30)
        async with trio.open_nursery() as nursery:
            for _ in range(40):
                nursery.start_soon(partial(here.ref.ask, ProbeNow("ai/a"), within=60.0))
                await trio.sleep(1)
    assert (len(model.canaries), model.most_at_once) == (2, 1)


async def test_a_canary_that_hangs_is_given_up_and_the_proof_before_it_stands_until_then(
    autojump_clock: MockClock,
) -> None:
    model = Model()
    async with model_scene(model) as here:
        model.silent = True
        await until(lambda: len(model.canaries) == 2)
        while model.at_once:
            assert here.open("ai/a")
            await trio.sleep(0.5)
        await settle()
        assert here.reason("ai/a") == "canary_timeout"


async def test_a_canary_that_raises_closes_its_own_route_only(autojump_clock: MockClock) -> None:
    async with model_scene(Model(broken=True)) as here:
        assert here.reason("ai/a") == "canary_crashed"
        assert here.open("search/a")


async def test_the_start_does_not_wait_long_for_a_first_canary_and_the_route_stays_closed_until_it_is_back(
    autojump_clock: MockClock,
) -> None:
    model = Model(takes_s=15)
    async with model_scene(model) as here:
        assert trio.current_time() == pytest.approx(10.0)
        assert (here.open("ai/a"), here.reason("ai/a")) == (False, "not_probed")
        assert here.open("search/a")
        await trio.sleep(5.2)
        assert here.open("ai/a")
    assert len(model.canaries) == 1


async def test_who_asks_for_a_probe_of_a_route_that_its_canary_refused_gets_a_canary_at_once(
    autojump_clock: MockClock,
) -> None:
    model = Model(answer=Finding(ok=False, reason="status_402"))
    async with model_scene(model) as here:
        await trio.sleep(HOUR_S)
        model.answer = Finding(ok=True)
        found = await here.ref.ask(ProbeNow("ai/a"), within=30.0)
        assert found["ai/a"].open


async def test_who_asks_for_a_probe_of_an_open_route_costs_no_canary(autojump_clock: MockClock) -> None:
    model = Model()
    async with model_scene(model) as here:
        for _ in range(50):
            assert (await here.ref.ask(ProbeNow("ai/a")))["ai/a"].open
    assert len(model.canaries) == 1


async def test_a_call_that_fails_while_a_canary_runs_closes_the_route_whatever_the_canary_finds(
    autojump_clock: MockClock,
) -> None:
    model = Model(takes_s=0.5)
    async with model_scene(model) as here:
        await until(lambda: len(model.canaries) == 2)
        here.ref.tell(LOST)
        await trio.sleep(0.6)
        assert model.at_once == 0
        assert (here.open("ai/a"), here.reason("ai/a")) == (False, "status_500")


# -- what callers bring about ------------------------------------------------------------------------------------------


def doubt(caller: str) -> Outcome:
    return Outcome("ai/a", ok=False, reason="tool_call", ms=40, weight=Weight.DOUBT, caller=caller)


async def test_a_caller_in_doubt_brings_about_a_look_and_one_canary_and_closes_nothing(
    autojump_clock: MockClock,
) -> None:
    model = Model()
    async with model_scene(model) as here:
        for _ in range(200):
            await trio.sleep(1)
            here.ref.tell(doubt("192.0.2.1"))
            await settle()
            assert here.open("ai/a")
        assert len(model.canaries) == 2


async def test_a_back_end_that_answers_nothing_sound_is_closed_by_the_canary_that_doubt_brings_about(
    autojump_clock: MockClock,
) -> None:
    model = Model()
    async with model_scene(model) as here:
        await trio.sleep(20)
        model.answer = Finding(ok=False, reason="empty_choices")
        here.ref.tell(doubt("192.0.2.1"))
        await trio.sleep(2.5)
        assert here.reason("ai/a") == "empty_choices"
        model.answer = Finding(ok=True)
        await until(lambda: here.open("ai/a"))


async def test_a_fault_that_one_caller_repeats_closes_for_no_longer_than_a_look(autojump_clock: MockClock) -> None:
    closed = 0.0
    async with model_scene(Model(), canary=False) as here:
        for _ in range(60):
            fault = attrs.evolve(LOST, weight=Weight.FAULT, caller="192.0.2.1", began=trio.current_time())
            here.ref.tell(fault)
            await settle()
            began = trio.current_time()
            assert not here.open("ai/a")
            await until(lambda: here.open("ai/a"))
            closed += trio.current_time() - began
            await trio.sleep(5)
    assert closed <= 1.3 + 59 * 0.2 + 0.01  # as often as this test looks


# -- several nodes -----------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Place:
    """A node that probes: `cut` cuts it off from the back ends, `kill` ends it as by SIGKILL."""

    store: Member
    leases: Leases
    ref: Ref[Message]
    proofs: Proofs
    scope: trio.CancelScope
    network: Network

    def open(self, route_id: str = "search/a") -> bool:
        return self.proofs.of(route_id).open

    def reason(self, route_id: str = "search/a") -> str | None:
        return self.proofs.of(route_id).reason

    def leads(self, route_id: str = "search/a") -> bool:
        return any(name.startswith(f"probe/{route_id}/") for name in self.leases.held)

    def kill(self) -> None:
        self.store.away = True
        self.scope.cancel()


@attrs.define
class Network:
    """What a node sees of the back ends; `probes` counts those it made."""

    cut: bool = False
    probes: int = 0

    async def probe(self, engine: Engine) -> Finding:
        self.probes += 1
        found = await engine.probe()
        return Finding(ok=False, reason="unreachable") if self.cut else found


@attrs.frozen(eq=False)
class Town:
    """Nodes over one store that have the same back ends."""

    nodes: Nodes
    nursery: trio.Nursery
    engines: Sequence[Engine]

    async def place(self, name: str, *, settings: str | None = "s", deaf: bool = False, away: bool = False) -> Place:
        place: Place = await self.nursery.start(partial(self._live, name, settings, deaf=deaf, away=away))
        return place

    async def _live(
        self,
        name: str,
        settings: str | None,
        *,
        deaf: bool,
        away: bool,
        task_status: trio.TaskStatus[Place],
    ) -> None:
        store, network = await self.nodes.join(name, deaf=deaf), Network()
        leases, proofs = Leases(store, lease_ms=LEASE_MS), Proofs(trio.current_time)
        routes = [
            Route(
                f"search/{letter}",
                partial(network.probe, engine),
                settings,
                OFTEN,
                engine.canary if isinstance(engine, Model) else None,
            )
            for letter, engine in zip("abcdef", self.engines, strict=False)
        ]
        store.away = away
        with trio.CancelScope() as scope:
            async with open_runtime() as runtime:
                await runtime.start("leases", leases.watch)
                findings = Findings(store, leases.hold)
                body = partial(prober, routes=routes, proofs=proofs, utc=utc, findings=findings)
                ref = await runtime.start("prober", body)
                task_status.started(Place(store, leases, ref, proofs, scope, network))
                await trio.sleep_forever()

    async def findings(self) -> int:
        ((count,),) = await self.nodes.real.fetch("SELECT COUNT(*) FROM findings")
        return int(count or 0)


@asynccontextmanager
async def town(directory: Path, *engines: Engine) -> AsyncIterator[Town]:
    async with open_nodes(directory) as nodes, trio.open_nursery() as nursery:
        yield Town(nodes, nursery, engines)
        nursery.cancel_scope.cancel()


async def two_places(here: Town) -> tuple[Place, Place]:
    """Two nodes of which the first looks for both."""
    one = await here.place("one")
    await trio.sleep(1)
    two = await here.place("two")
    assert one.leads()
    return one, two


async def test_two_nodes_together_probe_each_route_once_an_interval(autojump_clock: MockClock, tmp_path: Path) -> None:
    engines = [Engine() for _ in range(5)]
    async with town(tmp_path, *engines) as here:
        one, two = await two_places(here)
        await trio.sleep(150)
        for engine in engines:
            pauses = [later - earlier for earlier, later in zip(engine.probes, engine.probes[1:], strict=False)]
            assert all(15 <= pause < 15.2 for pause in pauses)
            assert len(pauses) == 10
        assert two.network.probes == 0
        for letter in "abcde":
            mine, theirs = one.proofs.of(f"search/{letter}"), two.proofs.of(f"search/{letter}")
            assert theirs.open
            assert theirs.qualification_id == mine.qualification_id
            assert 0 <= mine.expires - theirs.expires < 0.01


async def test_one_canary_an_interval_is_enough_for_two_nodes(autojump_clock: MockClock, tmp_path: Path) -> None:
    model = Model()
    async with town(tmp_path, model) as here:
        one, two = await two_places(here)
        await trio.sleep(250)
        assert one.open()
        assert two.open()
        assert two.network.probes == 0
    assert len(model.canaries) == 5


async def test_a_failed_canary_closes_on_all_nodes_and_they_do_not_try_by_turns(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    model = Model()
    async with town(tmp_path, model) as here:
        places = await two_places(here)
        model.answer = Finding(ok=False, reason="wrong_model")
        await trio.sleep(200)
        assert [place.reason() for place in places] == ["wrong_model"] * 2
        assert 2 <= len(model.canaries) <= 10
        model.answer = Finding(ok=True)
        await trio.sleep(80)
        assert [place.open() for place in places] == [True] * 2


@pytest.mark.parametrize("deaf", [False, True])
async def test_a_back_end_that_dies_is_closed_on_all_nodes_and_opens_again_by_itself(
    autojump_clock: MockClock, tmp_path: Path, deaf: bool
) -> None:
    engine = Engine()
    async with town(tmp_path, engine) as here:
        places = [await here.place(name, deaf=deaf) for name in ("one", "two", "three")]
        await trio.sleep(20)
        engine.finding = Finding(ok=False, reason="unreachable")
        await trio.sleep(16.5)
        assert [place.reason() for place in places] == ["unreachable"] * 3
        engine.finding = Finding(ok=True)
        await trio.sleep(16)
        assert [place.open() for place in places] == [True] * 3


async def test_a_dead_back_end_is_probed_by_all_nodes_together_as_often_as_by_one(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    engine = Engine()
    async with town(tmp_path, engine) as here:
        for name in ("one", "two", "three"):
            await here.place(name)
        engine.finding = Finding(ok=False, reason="unreachable")
        await trio.sleep(100)
        before = len(engine.probes)
        await trio.sleep(300)
        assert len(engine.probes) - before <= 300 / 15 + 3


async def test_a_node_that_starts_takes_the_fresh_finding_of_another_and_probes_nothing(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    engine = Engine()
    async with town(tmp_path, engine) as here:
        one = await here.place("one")
        await trio.sleep(10)
        began = trio.current_time()
        two = await here.place("two")
        assert trio.current_time() == began
        assert two.open()
        assert two.network.probes == 0
        assert two.proofs.of("search/a").expires == pytest.approx(one.proofs.of("search/a").expires, abs=0.01)


async def test_a_node_that_starts_with_no_finding_there_probes_itself(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    engine = Engine()
    async with town(tmp_path, engine) as here:
        await here.place("one", settings="other")
        await trio.sleep(5)
        two = await here.place("two")
        assert two.open()
        assert two.network.probes == 1


async def test_a_node_that_starts_without_the_store_probes_itself(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with town(tmp_path, Engine()) as here:
        one = await here.place("one", away=True)
        assert one.open()
        assert one.network.probes == 1


async def test_a_stale_finding_opens_nothing(autojump_clock: MockClock, tmp_path: Path) -> None:
    engine = Engine()
    async with town(tmp_path, engine) as here:
        one = await here.place("one")
        await trio.sleep(1)
        one.kill()
        await trio.sleep(46)
        engine.finding = Finding(ok=False, reason="unreachable")
        two = await here.place("two")
        assert (two.open(), two.reason()) == (False, "unreachable")
        assert two.network.probes == 1


async def test_a_finding_under_other_settings_is_not_taken(autojump_clock: MockClock, tmp_path: Path) -> None:
    engine = Engine()
    async with town(tmp_path, engine) as here:
        one, two = await here.place("one", settings="s1"), await here.place("two", settings="s2")
        two.network.cut = True
        await trio.sleep(60)
        assert one.leads()
        assert (one.open(), two.reason()) == (True, "unreachable")
        assert await here.findings() == 2


async def test_a_route_whose_proof_is_a_node_s_own_is_probed_by_each(autojump_clock: MockClock, tmp_path: Path) -> None:
    engine = Engine()
    async with town(tmp_path, engine) as here:
        one, two = await here.place("one", settings=None), await here.place("two", settings=None)
        await trio.sleep(40)
        assert (one.network.probes, two.network.probes) == (3, 3)
        assert (one.leads(), await here.findings()) == (False, 0)


async def test_another_node_probes_on_within_two_seconds_of_what_is_due(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    engine = Engine()
    async with town(tmp_path, engine) as here:
        one, two = await two_places(here)
        await trio.sleep(28)
        due = engine.probes[-1] + 15.1
        one.kill()
        await trio.sleep(2)
        assert two.leads()
        await trio.sleep(60)
        assert two.open()
        assert engine.probes[2] == pytest.approx(due, abs=0.1)


async def test_a_node_that_dies_in_the_middle_of_a_probe_tells_nothing_and_another_probes_at_once(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    engine = Engine()
    async with town(tmp_path, engine) as here:
        one, two = await two_places(here)
        await trio.sleep(10)
        engine.hangs = True
        await trio.sleep(6)
        assert len(engine.probes) == 2
        one.kill()
        killed = trio.current_time()
        engine.hangs = False
        await trio.sleep(2)
        assert len(engine.probes) == 3
        assert engine.probes[2] - killed < 2
        assert (two.open(), two.network.probes) == (True, 1)


async def test_without_any_prober_the_routes_close_when_their_proofs_expire(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with town(tmp_path, Engine()) as here:
        one, two = await two_places(here)
        one.kill()
        two.kill()
        await trio.sleep(43)
        assert two.open()
        await trio.sleep(2)
        assert two.reason() == "proof_expired"


async def test_own_failed_calls_close_a_route_on_their_node_alone(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with town(tmp_path, Engine()) as here:
        one, two = await two_places(here)
        two.network.cut = True
        for _ in range(3):
            two.ref.tell(FAILED)
        await settle()
        assert (one.open(), two.reason()) == (True, "consecutive_failures")
        await trio.sleep(60)
        assert one.open()
        assert not two.open()


async def test_a_node_cut_off_from_a_back_end_that_others_reach_looks_itself_and_opens_when_it_is_back(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with town(tmp_path, Engine()) as here:
        one, two = await two_places(here)
        two.network.cut = True
        two.ref.tell(FAILED)
        await trio.sleep(0.2)
        assert (two.reason(), two.network.probes) == ("unreachable", 1)
        await trio.sleep(100)
        assert (one.open(), two.reason()) == (True, "unreachable")
        two.network.cut = False
        await trio.sleep(16)
        assert two.open()
        probes = two.network.probes
        await trio.sleep(100)
        assert two.network.probes == probes


async def test_a_node_whose_route_its_calls_closed_is_half_open_after_a_probe_of_its_own(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with town(tmp_path, Engine()) as here:
        _, two = await two_places(here)
        for _ in range(3):
            two.ref.tell(FAILED)
        await trio.sleep(0.9)
        assert not two.open()
        await trio.sleep(0.4)
        assert two.open()
        two.ref.tell(FAILED)
        await settle()
        assert not two.open()


@pytest.mark.parametrize("deaf", [False, True])
async def test_a_node_that_cannot_reach_a_back_end_leaves_the_probing_to_one_that_can(
    autojump_clock: MockClock, tmp_path: Path, deaf: bool
) -> None:
    async with town(tmp_path, Engine()) as here:
        one = await here.place("one", deaf=deaf)
        await trio.sleep(1)
        two = await here.place("two", deaf=deaf)
        await trio.sleep(10)
        one.network.cut = True
        await trio.sleep(6.6)
        assert (one.reason(), two.open()) == ("unreachable", True)
        assert two.leads()
        await trio.sleep(100)
        assert (one.open(), two.open(), two.leads()) == (False, True, True)


async def test_while_the_store_is_away_each_node_keeps_its_own_proofs(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    engine = Engine()
    async with town(tmp_path, engine) as here:
        one, two = await two_places(here)
        with one.store.unreachable(), two.store.unreachable():
            for _ in range(100):
                await trio.sleep(1)
                assert one.open()
                assert two.open()
            assert two.network.probes <= 100 / 30 + 1
        await trio.sleep(1)
        before = len(engine.probes)
        await trio.sleep(151)
        assert len(engine.probes) - before == 10


async def test_a_frozen_finding_is_taken_in_once(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with town(tmp_path, Engine()) as here:
        _, two = await two_places(here)
        first = two.proofs.of("search/a")
        for _ in range(10):
            await trio.sleep(1)
            assert two.proofs.of("search/a") == first


async def test_an_operator_s_probe_on_a_node_that_leads_is_told_to_the_others(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    engine = Engine()
    async with town(tmp_path, engine) as here:
        one, two = await two_places(here)
        engine.finding = Finding(ok=False, reason="x")
        await one.ref.ask(ProbeNow())
        await trio.sleep(0.15)
        assert two.reason() == "x"


async def test_on_a_store_of_one_node_nothing_is_written(autojump_clock: MockClock, tmp_path: Path) -> None:
    engine, proofs = Engine(), Proofs(trio.current_time)
    async with open_nodes(tmp_path) as nodes, open_runtime() as runtime:
        findings = Findings(nodes.real, Leases(nodes.real).hold)
        routes = [Route("search/a", engine.probe, "s")]
        await runtime.start("prober", partial(prober, routes=routes, proofs=proofs, utc=utc, findings=findings))
        await trio.sleep(50)
        assert [round(at, 1) for at in engine.probes] == [0.0, 15.1, 30.2, 45.3]
        assert await nodes.real.fetch("SELECT (SELECT COUNT(*) FROM findings), (SELECT COUNT(*) FROM leases)") == [
            (0, 0)
        ]
