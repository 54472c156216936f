from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from gateway.actors.findings import Findings, Look, wall_time
from gateway.actors.leases import ALONE, Held, alone
from gateway.actors.store import Statement
from gateway.registry.qualification import Finding
from tests.actors.nodes import START_S, Member, Nodes, open_nodes

NAME = "q_0123456789abcdef0123"
GOOD = Finding(ok=True, degraded=True, reason="slow")
HORIZON_S = 45.0


@asynccontextmanager
async def two(directory: Path) -> AsyncIterator[tuple[Nodes, Findings, Findings]]:
    async with open_nodes(directory) as nodes:
        one, other = await nodes.join("one"), await nodes.join("two")
        yield nodes, Findings(one, alone), Findings(other, alone)


def look(ended: float, finding: Finding = GOOD) -> Look:
    return Look(finding, ended, 120, NAME)


async def test_what_one_node_writes_another_reads(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with two(tmp_path) as (_, one, other):
        await one.write(ALONE, "search/a", "s1", look(0.0))
        await trio.sleep(7)
        (told,) = await other.read(HORIZON_S)
        assert (told.route_id, told.settings) == ("search/a", "s1")
        assert (told.look.finding, told.look.took_ms, told.look.name) == (GOOD, 120, NAME)


async def test_a_finding_is_as_old_as_its_probe_and_never_seems_younger(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with two(tmp_path) as (_, one, other):
        for pause in (0.0, 0.0001, 0.0019, 1.2345, 3.0):
            ended = trio.current_time()
            await trio.sleep(pause)
            await one.write(ALONE, "search/a", "s1", look(ended))
            await trio.sleep(pause)
            (told,) = await other.read(HORIZON_S)
            assert ended - 0.004 < told.look.ended < ended


async def test_a_finding_whose_proof_has_expired_is_not_read(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with two(tmp_path) as (_, one, other):
        await one.write(ALONE, "search/a", "s1", look(0.0))
        await trio.sleep(44.9)
        assert await other.read(HORIZON_S)
        await trio.sleep(0.2)
        assert not await other.read(HORIZON_S)


async def test_a_finding_of_the_future_is_not_read_and_can_be_replaced(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """The store's clock was put back."""
    async with two(tmp_path) as (nodes, one, other):
        await one.write(ALONE, "search/a", "s1", look(0.0))
        await nodes.real.commit(Statement("UPDATE findings SET probed_at = probed_at + 3600000"))
        assert not await other.read(HORIZON_S)
        await one.write(ALONE, "search/a", "s1", look(trio.current_time()))
        assert len(await other.read(HORIZON_S)) == 1


async def test_an_older_finding_does_not_replace_a_newer_one(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with two(tmp_path) as (_, one, other):
        await trio.sleep(10)
        await one.write(ALONE, "search/a", "s1", look(9.0))
        await one.write(ALONE, "search/a", "s1", look(8.0, Finding(ok=False)))
        (told,) = await other.read(HORIZON_S)
        assert told.look.finding == GOOD


async def test_a_finding_of_who_no_longer_leads_is_not_stored(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with two(tmp_path) as (_, one, other):
        await one.write(Held("probe/search/a/s1", "one", 1, 1), "search/a", "s1", look(0.0))
        assert not await other.read(HORIZON_S)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"ok": 1}',
        '{"ok":true,"reason":null,"basis":"probe","degraded":false}',
        '{"ok":"yes","reason":null,"basis":"probe","degraded":false,"qualification":""}',
        '{"ok":true,"reason":7,"basis":"probe","degraded":false,"qualification":""}',
    ],
)
async def test_a_finding_in_another_form_tells_nothing(autojump_clock: MockClock, tmp_path: Path, text: str) -> None:
    async with two(tmp_path) as (nodes, one, other):
        await one.write(ALONE, "search/b", "s1", look(0.0))
        insert = "INSERT INTO findings VALUES ('search/a', 's1', 'one', :store_ms, 1, :text)"
        await nodes.real.commit(Statement(insert, {"text": text}))
        assert [told.route_id for told in await other.read(HORIZON_S)] == ["search/b"]


async def test_a_store_that_is_away_or_hangs_is_waited_for_two_seconds_and_raises_nothing(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with two(tmp_path) as (nodes, one, _):
        member = one.store
        assert isinstance(member, Member)
        with member.unreachable():
            await one.write(ALONE, "search/a", "s1", look(0.0))
            assert not await one.read(HORIZON_S)
        assert trio.current_time() == 0.0
        with member.hanging():
            await one.write(ALONE, "search/a", "s1", look(0.0))
            assert not await one.read(HORIZON_S)
        assert trio.current_time() == 4.0
        assert await nodes.real.fetch("SELECT * FROM findings") == []


async def test_who_hears_is_woken_by_a_finding(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with two(tmp_path) as (_, one, other):
        with other.hear() as told:
            assert not told.is_set()
            await one.write(ALONE, "search/a", "s1", look(0.0))
            assert told.is_set()


def test_the_time_of_a_look_is_told_by_this_node_s_wall_clock() -> None:
    utc = datetime.fromtimestamp(START_S, UTC)
    assert wall_time(look(3.0), now=10.0, utc=utc) == utc - timedelta(seconds=7)
