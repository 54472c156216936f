from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.actors.leases import ALONE, Held, Leases
from gateway.actors.probe_history import COLUMNS, ProbeHistory, written
from gateway.actors.probe_thinning import DAY_MS, KEPT_MS, keep_thinning, spell_of, thin
from gateway.actors.runtime import open_runtime
from gateway.actors.store import Conflict, Row, Statement, Store, Value
from gateway.actors.store_time import FACT, SET_MARK
from gateway.registry.spells import COARSE_MS, FINE_MS, Spell
from tests.actors.nodes import LEASE_MS, Member, open_nodes

NOW = 20_000 * DAY_MS + 17 * 60_000


def spell(began_at: int, route: str = "ai/a", node: str = "node-1", width: int = FINE_MS) -> Spell:
    return Spell(route, node, began_at, began_at + width, width, width, "available", None, None, probes=20)


async def put(store: Store, spells: Sequence[Spell]) -> None:
    for first in range(0, len(spells), 500):
        await store.commit(*map(written, spells[first : first + 500]))


async def reach(store: Store, ms: int) -> None:
    """Say how far time has come for the store, as the sweeper does."""
    await store.commit(Statement(SET_MARK, {"name": FACT, "value": str(ms)}))


async def kept(store: Store) -> list[Spell]:
    sql = f"SELECT {', '.join(COLUMNS)} FROM probe_history ORDER BY began_at, route, node"
    return [spell_of(row) for row in await store.fetch(sql)]


async def test_spells_become_hours_after_a_day_and_are_dropped_after_ninety(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with open_nodes(tmp_path) as nodes:
        days = [92, 91, 90, 89, 40, 2, 1, 0]
        began = [NOW - day * DAY_MS + 5 * 60_000 * n for day in days for n in range(24)]
        aligned = [each // FINE_MS * FINE_MS for each in began if each < NOW]
        await put(nodes.real, [spell(each, route) for each in aligned for route in ("ai/a", "search/b")])
        await thin(nodes.real, NOW, ALONE)
        left = await kept(nodes.real)
        assert all(each.began_at >= NOW - KEPT_MS for each in left)
        assert {each.width for each in left if each.began_at < (NOW - DAY_MS) // COARSE_MS * COARSE_MS} == {COARSE_MS}
        assert {each.width for each in left if each.began_at >= NOW - DAY_MS + COARSE_MS} == {FINE_MS}
        sums = {route: sum(each.probes for each in left if each.route == route) for route in ("ai/a", "search/b")}
        assert sums["ai/a"] == sums["search/b"] == 20 * sum(each >= NOW - KEPT_MS for each in aligned)
        await thin(nodes.real, NOW, ALONE)
        assert await kept(nodes.real) == left


async def test_what_a_node_writes_late_is_taken_into_its_hour(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with open_nodes(tmp_path) as nodes:
        hour = (NOW - 3 * DAY_MS) // COARSE_MS * COARSE_MS
        for node in ("node-1", "node-2", "node-1"):
            first = 0 if await kept(nodes.real) == [] else 6
            await put(nodes.real, [spell(hour + FINE_MS * n, node=node) for n in range(first, first + 6)])
            await thin(nodes.real, NOW, ALONE)
        assert [(each.node, each.probes, each.lasted_ms) for each in await kept(nodes.real)] == [
            ("node-1", 240, COARSE_MS),
            ("node-2", 120, COARSE_MS // 2),
        ]


async def test_a_spell_that_is_written_while_its_hour_is_thinned_is_not_lost(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    hour = (NOW - 3 * DAY_MS) // COARSE_MS * COARSE_MS

    @attrs.define(eq=False)
    class Racing:
        real: Store
        reads: int = 0

        async def fetch(self, sql: str, parameters: dict[str, Value]) -> list[Row]:
            found = await self.real.fetch(sql, parameters)
            self.reads += "border" in parameters
            if self.reads == 1 and "border" in parameters:
                await put(self.real, [spell(hour + FINE_MS)])
            return found

        async def commit(self, *statements: Statement, relaxed: bool = False) -> list[list[Row]]:
            return await self.real.commit(*statements, relaxed=relaxed)

    async with open_nodes(tmp_path) as nodes:
        await put(nodes.real, [spell(hour)])
        racing = Racing(nodes.real)
        with pytest.raises(Conflict):
            await thin(racing, NOW, ALONE)  # type: ignore[arg-type]  # all of a store that it needs
        await thin(racing, NOW, ALONE)  # type: ignore[arg-type]
        assert [each.probes for each in await kept(nodes.real)] == [40]


async def test_who_no_longer_holds_the_lease_thins_nothing(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with open_nodes(tmp_path) as nodes:
        old = [spell((NOW - 3 * DAY_MS) // FINE_MS * FINE_MS)]
        await put(nodes.real, old)
        with pytest.raises(Conflict):
            await thin(await nodes.join("one"), NOW, Held("probe-history", "one", 1, 1))
        assert await kept(nodes.real) == old


async def test_a_store_that_was_away_is_thinned_later(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with open_nodes(tmp_path) as nodes, trio.open_nursery() as nursery:
        store = await nodes.join("one")
        await reach(nodes.real, NOW)
        await put(nodes.real, [spell(NOW - 100 * DAY_MS)])
        with store.unreachable():
            nursery.start_soon(keep_thinning, store, ALONE)
            await trio.sleep(300)
            assert len(await kept(nodes.real)) == 1
        await trio.sleep(301)
        assert await kept(nodes.real) == []
        nursery.cancel_scope.cancel()


async def test_nothing_is_thinned_by_a_clock_alone(autojump_clock: MockClock, tmp_path: Path) -> None:
    """The store's clock is long past the spell; how far time has come nobody has found out yet."""
    async with open_nodes(tmp_path) as nodes, trio.open_nursery() as nursery:
        await put(nodes.real, [spell(NOW - 100 * DAY_MS)])
        nursery.start_soon(keep_thinning, nodes.real, ALONE)
        await trio.sleep(1)
        assert len(await kept(nodes.real)) == 1
        await reach(nodes.real, NOW)
        await trio.sleep(600)
        assert await kept(nodes.real) == []
        nursery.cancel_scope.cancel()


async def test_of_two_nodes_one_thins_and_the_other_goes_on_when_it_has_died(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async def live(member: Member, scope: trio.CancelScope) -> None:
        with scope:
            async with open_runtime() as runtime:
                leases = Leases(member, lease_ms=LEASE_MS)
                await runtime.start("leases", leases.watch)
                history = ProbeHistory(member, node=member.node, clock_ms=lambda: NOW, hold=leases.hold)
                await runtime.start("probe-history", history.watch)
                await trio.sleep_forever()

    async with open_nodes(tmp_path) as nodes, trio.open_nursery() as nursery:
        one, two = await nodes.join("one"), await nodes.join("two")
        await reach(nodes.real, NOW)
        scopes = trio.CancelScope(), trio.CancelScope()
        for member, scope in zip((one, two), scopes, strict=True):
            nursery.start_soon(live, member, scope)
            await trio.sleep(2)
        writes = two.writes
        for member, scope in ((one, scopes[0]), (two, scopes[1])):
            await put(nodes.real, [spell(NOW - 100 * DAY_MS)])
            await trio.sleep(601)
            assert await kept(nodes.real) == []
            if member is one:
                assert two.writes == writes
                one.away = True
            scope.cancel()
            await trio.sleep(LEASE_MS / 1000 + 1)
        nursery.cancel_scope.cancel()
