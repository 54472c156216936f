from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.actors import probe_history
from gateway.actors.probe_history import COLUMNS, MOST_WAITING, ProbeHistory, written
from gateway.actors.probe_thinning import spell_of
from gateway.actors.prober import Route, prober, reporter
from gateway.actors.runtime import Runtime, open_runtime
from gateway.actors.store import Row, Statement, Store, open_postgresql
from gateway.actors.store.postgresql_settings import PostgresqlSettings
from gateway.registry.qualification import Evidence, Finding, Observation, Outcome, Proofs, Rules, State
from gateway.registry.spells import FINE_MS, Spell
from tests.actors.nodes import START_S, Member, Nodes, open_nodes
from tests.actors.test_prober import Engine, utc

BEGIN_S = START_S // 300 * 300
GOOD = Observation(ok=True, probe=True, ms=20)
BAD = Observation(ok=False, probe=True, ms=5)
SERVED = Observation(ok=True, probe=False, ms=900)
LOST = Observation(ok=False, probe=False, ms=40)
FOR_EVER = float("inf")


def evidence(route: str = "ai/a", reason: str | None = None, *, expires: float = FOR_EVER) -> Evidence:
    if reason:
        return Evidence(route, State.UNAVAILABLE, reason=reason)
    return Evidence(route, State.AVAILABLE, "q_1", None, expires=expires)


@attrs.define(eq=False)
class Wall:
    """A wall clock that begins at a border of five minutes and can be put on and back."""

    shift_ms: int = 0

    def __call__(self) -> int:
        return BEGIN_S * 1000 + round(trio.current_time() * 1000) + self.shift_ms


@attrs.frozen(eq=False)
class Book:
    """A node's history over a store that a test can take away."""

    history: ProbeHistory
    store: Member
    nodes: Nodes
    runtime: Runtime
    wall: Wall

    async def spells(self) -> list[Spell]:
        sql = f"SELECT {', '.join(COLUMNS)} FROM probe_history ORDER BY began_at, route"
        return [spell_of(row) for row in await self.nodes.real.fetch(sql)]


@asynccontextmanager
async def book(directory: Path) -> AsyncIterator[Book]:
    async with open_nodes(directory) as nodes, open_runtime() as runtime:
        store, wall = await nodes.join("node-1"), Wall()
        history = ProbeHistory(store, node="node-1", clock_ms=wall)
        await runtime.start("probe-history", history.watch)
        yield Book(history, store, nodes, runtime, wall)


def minutes(spell: Spell) -> tuple[float, float]:
    return (spell.began_at / 60_000 - BEGIN_S / 60, spell.ended_at / 60_000 - BEGIN_S / 60)


async def test_what_is_noted_is_written_within_fifteen_seconds_in_one_step(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with book(tmp_path) as here:
        for _ in range(3):
            here.history.note(evidence(), GOOD)
            here.history.note(evidence(), SERVED)
            here.history.note(evidence("ai/b", "status_500"), BAD)
        here.history.note(evidence(), LOST)
        before = here.store.writes
        assert await here.spells() == []
        await trio.sleep(15.1)
        assert here.store.writes == before + 1
        open_, closed = await here.spells()
        assert (open_.route, open_.state, open_.reason, open_.node) == ("ai/a", "available", None, "node-1")
        assert (open_.probes, open_.failed_probes, open_.calls, open_.failed_calls) == (3, 0, 4, 1)
        assert (open_.p50_ms, open_.qualification_id, open_.lasted_ms) == (900, "q_1", 15_000)
        assert (closed.state, closed.reason, closed.failed_probes) == ("unavailable", "status_500", 3)
        assert (closed.p50_ms, closed.qualification_id) == (None, None)


async def test_a_spell_ends_where_state_or_reason_change_and_the_next_begins_there(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with book(tmp_path) as here:
        for second, reason in ((0, None), (60, "status_500"), (120, "unreachable"), (180, None)):
            await trio.sleep(second - trio.current_time())
            here.history.note(evidence(reason=reason), GOOD)
        await trio.sleep(60.1)
        assert [(each.reason, minutes(each)) for each in await here.spells()] == [
            (None, (0, 1)),
            ("status_500", (1, 2)),
            ("unreachable", (2, 3)),
            (None, (3, 4)),
        ]


async def test_a_spell_is_cut_every_five_minutes_without_a_gap(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with book(tmp_path) as here:
        here.wall.shift_ms = 7_000  # so that no batch is written at a border
        await trio.sleep(123)
        here.history.note(evidence(), GOOD)
        await trio.sleep(16 * 60)
        spells = await here.spells()
        borders = [minutes(each) for each in spells]
        assert [began for began, _ in borders] == pytest.approx([130 / 60, 5, 10, 15])
        assert [ended for _, ended in borders[:-1]] == [5, 10, 15]
        assert [each.probes for each in spells] == [1, 0, 0, 0]
        assert {each.width for each in spells} == {FINE_MS}
        assert {each.qualification_id for each in spells} == {"q_1"}


async def test_a_proof_that_nobody_renews_ends_its_spell_when_it_expires(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with book(tmp_path) as here:
        here.history.note(evidence(expires=45.0), GOOD)
        await trio.sleep(100)
        first, second = await here.spells()
        assert (first.state, minutes(first)) == ("available", (0, 0.75))
        assert (second.state, second.reason, second.qualification_id) == ("unproven", "proof_expired", None)


async def test_two_changes_in_one_millisecond_are_two_spells(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with book(tmp_path) as here:
        for reason in (None, "a", "b", None):
            here.history.note(evidence(reason=reason), LOST)
        await trio.sleep(16)
        assert [each.reason for each in await here.spells()] == [None, "a", "b", None]


async def test_a_clock_that_is_put_back_overwrites_nothing(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with book(tmp_path) as here:
        here.history.note(evidence(), GOOD)
        await trio.sleep(100)
        here.wall.shift_ms = -3_600_000
        here.history.note(evidence(reason="late"), BAD)
        await trio.sleep(100)
        first, second = await here.spells()
        assert (first.reason, first.probes) == (None, 1)
        assert second.began_at == first.began_at + 1
        assert first.lasted_ms >= 90_000


async def test_of_a_time_in_which_the_process_was_stopped_nothing_is_said(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with book(tmp_path) as here:
        here.history.note(evidence(), GOOD)
        await trio.sleep(30)
        here.wall.shift_ms = 7 * 3_600_000
        await trio.sleep(30)
        first, second = await here.spells()
        assert minutes(first)[1] <= 0.51
        assert minutes(second)[0] >= 7 * 60 + 0.5


async def test_what_a_store_that_is_away_does_not_take_waits_and_is_written_when_it_is_back(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with book(tmp_path) as here:
        with here.store.unreachable():
            for number in range(600):
                here.history.note(evidence(reason=str(number % 2)), BAD)
                await trio.sleep(1)
        assert await here.spells() == []
        await trio.sleep(16)
        spells = await here.spells()
        assert sum(each.failed_probes for each in spells) == 600
        assert sum(each.lasted_ms for each in spells) == pytest.approx(616_000, abs=15_000)


async def test_a_store_that_hangs_stalls_neither_notes_nor_the_batch_after_it(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with book(tmp_path) as here:
        with here.store.hanging():
            here.history.note(evidence(), GOOD)
            await trio.sleep(60)
            before = trio.current_time()
            here.history.note(evidence(), GOOD)
            assert trio.current_time() == before
        await trio.sleep(26)
        assert sum(each.probes for each in await here.spells()) == 2


async def test_a_batch_whose_answer_is_lost_counts_once(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with book(tmp_path) as here:
        here.store.answers_lost = 2
        here.history.note(evidence(), GOOD)
        here.history.note(evidence(reason="x"), BAD)
        await trio.sleep(60)
        assert here.store.answers_lost == 0
        assert [(each.probes, each.failed_probes) for each in await here.spells()] == [(1, 0), (1, 1)]


async def test_no_more_than_so_many_spells_wait_and_the_latest_are_kept(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with book(tmp_path) as here:
        with here.store.unreachable():
            for number in range(MOST_WAITING + 101):
                here.history.note(evidence(reason=str(number)), BAD)
        await trio.sleep(16)
        spells = await here.spells()
        assert len(spells) == MOST_WAITING + 1
        assert {int(each.reason or 0) for each in spells} == set(range(100, MOST_WAITING + 101))


async def test_spells_that_end_while_a_batch_is_written_are_written_too(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_history, "AT_ONCE", 2)
    async with book(tmp_path) as here:
        commit, batches = Member.commit, itertools.count()

        async def busy(store: Member, *statements: Statement) -> list[list[Row]]:
            here.history.note(evidence(reason=f"later {next(batches)}"), BAD)
            return await commit(store, *statements)

        for number in range(9):
            here.history.note(evidence(reason=f"first {number}"), BAD)
        with monkeypatch.context() as patch:
            patch.setattr(Member, "commit", busy)
            await trio.sleep(15.1)
        await trio.sleep(30)
        spells = await here.spells()
        assert len({each.reason for each in spells}) == len(spells) == 9 + next(batches) > 13


async def test_what_was_noted_last_is_written_when_the_node_stops(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with open_nodes(tmp_path) as nodes:
        async with open_runtime() as runtime:
            history = ProbeHistory(await nodes.join("node-1"), node="node-1", clock_ms=lambda: BEGIN_S * 1000)
            await runtime.start("probe-history", history.watch)
            history.note(evidence(), GOOD)
        assert await nodes.real.fetch("SELECT route, probes FROM probe_history") == [("ai/a", 1)]


async def test_the_prober_s_own_notes_make_the_history_of_a_route(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with book(tmp_path) as here:
        engine = Engine()
        body = partial(
            prober,
            routes=[Route("ai/a", engine.probe, rules=Rules(failures_to_close=1))],
            proofs=Proofs(trio.current_time),
            utc=utc,
            noted=here.history.note,
        )
        report = reporter(await here.runtime.start("prober", body))
        await trio.sleep(60)
        engine.finding = Finding(ok=False, reason="unreachable")
        report(Outcome("ai/a", ok=False, reason="status_500", ms=10))
        await trio.sleep(60)
        engine.finding = Finding(ok=True)
        await trio.sleep(61)
        told = [(each.state, each.reason) for each in await here.spells()]
        assert told == [
            ("available", None),
            ("unavailable", "status_500"),
            ("unavailable", "unreachable"),
            ("available", None),
        ]
        first, second, third, _ = await here.spells()
        assert (first.probes, first.failed_probes, second.failed_calls) == (4, 0, 1)
        assert third.probes == third.failed_probes > 3


async def test_a_batch_is_written_on_postgresql_as_well(postgresql_url: str) -> None:
    async with (
        open_runtime() as runtime,
        open_postgresql(runtime, PostgresqlSettings(postgresql_url), node="one") as store,
    ):
        await written_twice(store)


async def written_twice(store: Store) -> None:
    spells = [
        Spell("ai/a", "one", 5, 9, FINE_MS, 4, "available", None, "q_1", 3, 1, 2, 0, 17),
        Spell("ai/a", "two", 5, 5, FINE_MS, 0, "unavailable", "status_500"),
    ]
    later = [attrs.evolve(spells[0], ended_at=11, probes=4), attrs.evolve(spells[1], p50_ms=3)]
    for batch in (spells, later):
        await store.commit(*map(written, batch))
    sql = f"SELECT {', '.join(COLUMNS)} FROM probe_history ORDER BY node"
    assert [spell_of(row) for row in await store.fetch(sql)] == later
