from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.actors.leases import ALONE, Held
from gateway.actors.retention import keep_sweeping
from gateway.actors.runtime import open_runtime
from gateway.actors.store import Conflict, Engine, Statement, open_sqlite
from gateway.actors.store.sqlite import inline
from gateway.actors.store_time import DAY_MS, Reached, StoreTime, advanced, reached
from tests.actors.nodes import open_nodes

BEGIN_MS = 1_795_816_156_000
TEN_MINUTES = 600_000
HOUR_MS = 3_600_000


# -- the decision ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("jumped", "goes"), [(0, 0), (HOUR_MS, HOUR_MS), (DAY_MS, DAY_MS), (DAY_MS + 1, 0), (401 * DAY_MS, 0)]
)
def test_without_a_chain_a_clock_is_followed_for_a_day_past_what_has_passed(jumped: int, goes: int) -> None:
    now = BEGIN_MS + TEN_MINUTES + jumped
    mark = BEGIN_MS + TEN_MINUTES + goes
    assert advanced(BEGIN_MS, now, TEN_MINUTES, None) == Reached(mark, mark, confirmed=False)


@pytest.mark.parametrize("away", [DAY_MS, 30 * DAY_MS, 401 * DAY_MS])
def test_the_chain_confirms_a_jump(away: int) -> None:
    """The node was off for long, or its machine was resumed."""
    now = BEGIN_MS + away
    assert advanced(BEGIN_MS, now, 0, now - 2000) == Reached(now, now, confirmed=True)


@pytest.mark.parametrize("jumped", [2 * DAY_MS, 401 * DAY_MS])
def test_a_jump_that_the_chain_denies_moves_the_mark_by_what_has_passed(jumped: int) -> None:
    chain = BEGIN_MS + TEN_MINUTES
    found = advanced(BEGIN_MS, chain + jumped, TEN_MINUTES, chain)
    assert found == Reached(BEGIN_MS + TEN_MINUTES, BEGIN_MS + TEN_MINUTES, confirmed=False)


def test_a_clock_that_creeps_ahead_of_the_chain_is_not_followed() -> None:
    """Half a day a look: none of the jumps is implausible by itself."""
    mark, now = BEGIN_MS, BEGIN_MS
    for look in range(1, 100):
        now += DAY_MS // 2
        mark = advanced(mark, now, TEN_MINUTES, BEGIN_MS + look * TEN_MINUTES).mark
    assert mark <= BEGIN_MS + 100 * TEN_MINUTES + DAY_MS


def test_a_mark_that_was_too_far_drops_nothing_and_is_corrected_by_the_chain() -> None:
    """The store was made while the clock was a year ahead."""
    ahead = BEGIN_MS + 401 * DAY_MS
    assert advanced(ahead, BEGIN_MS, TEN_MINUTES, None).ms == BEGIN_MS + DAY_MS
    assert advanced(ahead, BEGIN_MS, TEN_MINUTES, BEGIN_MS) == Reached(BEGIN_MS, BEGIN_MS, confirmed=True)
    assert advanced(ahead, ahead, TEN_MINUTES, BEGIN_MS).ms == BEGIN_MS + DAY_MS


def test_a_clock_that_is_behind_takes_the_mark_nowhere() -> None:
    behind = BEGIN_MS - 401 * DAY_MS
    assert advanced(BEGIN_MS, behind, TEN_MINUTES, None) == Reached(behind + DAY_MS, BEGIN_MS, confirmed=False)


# -- the mark ----------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Clock:
    """The store's clock, which a test puts ahead or back."""

    ahead_ms: int = 0

    def __call__(self) -> float:
        return (BEGIN_MS + self.ahead_ms) / 1000 + trio.current_time()


@attrs.define(eq=False)
class Chain:
    """The time of the latest block; None while none was seen."""

    clock: Clock = attrs.field(factory=Clock)
    seen: bool = True

    def __call__(self) -> int | None:
        return int(self.clock() * 1000) if self.seen else None


Running = Callable[[Engine, Callable[[], int | None], float], object]


async def sweeps(store: Engine, chain_ms: Callable[[], int | None], seconds: float) -> None:
    """Sweep for a while, as a process that runs for so long."""
    with trio.move_on_after(seconds):
        await keep_sweeping(store, chain_ms, ALONE)


def nothing() -> None:
    return


async def bought(store: Engine, operation_id: str, at_ms: int, *, valid_before: int | None = None) -> None:
    """Put down an operation that ended then, with its output and the key that names it."""
    await store.commit(
        Statement(
            """
            INSERT INTO operations (operation_id, operation, state, epoch, attempt, node, funding, request_hash,
                sealed_request, sealed_output, amount, settlement, valid_before, claimed_at, ended_at,
                output_until, tombstone_until)
            VALUES (:id, 'search.paid', 'receipted', 1, 1, 'node-1', 'paid', 'h', :blob, :blob, 6000, 'settled',
                :valid_before, :at, :at, :at + :week, :at + :long)
            """,
            {
                "id": operation_id,
                "blob": b"x",
                "at": at_ms,
                "valid_before": valid_before or at_ms // 1000 + 300,
                "week": 7 * DAY_MS,
                "long": 400 * DAY_MS,
            },
        ),
        Statement("INSERT INTO idempotency_keys VALUES (:id, 'h', :id, 1, :blob)", {"id": operation_id, "blob": b"x"}),
    )


async def kept(store: Engine) -> list[tuple[str, bool]]:
    """Return what is kept: the operations by id, and whether each still has its output."""
    found = await store.fetch("SELECT operation_id, sealed_output IS NOT NULL FROM operations ORDER BY operation_id")
    return [(str(operation_id), bool(output)) for operation_id, output in found]


@attrs.frozen
class File:
    """A file that a node opens again and again."""

    path: Path
    clock: Clock = attrs.field(factory=Clock)

    async def run(self, chain_ms: Callable[[], int | None], seconds: float) -> list[tuple[str, bool]]:
        """Run a node for a while, and return what it keeps."""
        async with open_runtime() as runtime, open_sqlite(runtime, self.path, run=inline, now=self.clock) as store:
            await sweeps(store, chain_ms, seconds)
            return await kept(store)

    async def fill(self, *ids: str, valid_before: int | None = None) -> None:
        async with open_runtime() as runtime, open_sqlite(runtime, self.path, run=inline, now=self.clock) as store:
            for each in ids:
                await bought(store, each, int(self.clock() * 1000), valid_before=valid_before)


@pytest.mark.parametrize("chain", [None, Chain()], ids=["without a chain", "with a chain"])
@pytest.mark.parametrize("ahead_days", [8, 401])
async def test_a_clock_that_jumps_while_the_node_runs_drops_nothing(
    autojump_clock: MockClock, tmp_path: Path, chain: Chain | None, ahead_days: int
) -> None:
    file = File(tmp_path / "node.db")
    await file.fill("op_1", "op_2")
    chain_ms = nothing if chain is None else chain
    async with open_runtime() as runtime, open_sqlite(runtime, file.path, run=inline, now=file.clock) as store:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sweeps, store, chain_ms, 4 * 3600)
            await trio.sleep(1800)
            file.clock.ahead_ms = ahead_days * DAY_MS
        assert await kept(store) == [("op_1", True), ("op_2", True)]


@pytest.mark.parametrize("chain", [None, Chain(), Chain(seen=False)], ids=["none", "denies it", "not seen"])
async def test_a_clock_that_jumped_across_a_restart_drops_nothing(
    autojump_clock: MockClock, tmp_path: Path, chain: Chain | None
) -> None:
    file = File(tmp_path / "node.db")
    await file.fill("op_1")
    chain_ms = nothing if chain is None else chain
    assert await file.run(chain_ms, 1) == [("op_1", True)]
    file.clock.ahead_ms = 401 * DAY_MS
    for _ in range(5):
        assert await file.run(chain_ms, 1800) == [("op_1", True)]
    file.clock.ahead_ms = 0
    assert await file.run(chain_ms, 1800) == [("op_1", True)]


async def test_a_store_of_an_older_release_is_not_swept_by_a_wrong_clock_either(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """It has no mark: time begins with the newest that it has recorded."""
    file = File(tmp_path / "node.db")
    await file.fill("op_1")
    file.clock.ahead_ms = 401 * DAY_MS
    assert await file.run(nothing, 3600) == [("op_1", True)]


async def test_a_node_that_was_off_for_long_sweeps_once_the_chain_has_confirmed_the_time(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    file = File(tmp_path / "node.db")
    await file.fill("op_1")
    chain = Chain(file.clock, seen=False)
    await file.run(chain, 1)
    file.clock.ahead_ms = 10 * DAY_MS
    assert await file.run(chain, 1800) == [("op_1", True)]
    chain.seen = True
    assert await file.run(chain, 1) == [("op_1", False)]
    file.clock.ahead_ms = 402 * DAY_MS
    assert await file.run(chain, 1) == []


async def test_the_mark_follows_a_clock_that_is_right_and_survives_the_process(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    file = File(tmp_path / "node.db")
    await file.run(nothing, 6 * DAY_MS / 1000)
    await file.fill("op_1")
    async with open_runtime() as runtime, open_sqlite(runtime, file.path, run=inline, now=file.clock) as store:
        assert await reached(store) == BEGIN_MS + 6 * DAY_MS - TEN_MINUTES
    assert await file.run(nothing, 7 * DAY_MS / 1000 + 1200) == [("op_1", False)]


async def test_a_clock_that_was_behind_when_the_node_started_drops_nothing_when_it_is_set(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """A machine without a battery starts in 1970; what it sells then is not old when the network tells the time."""
    file = File(tmp_path / "node.db", Clock(-56 * 365 * DAY_MS))
    await file.fill("op_1")
    async with open_runtime() as runtime, open_sqlite(runtime, file.path, run=inline, now=file.clock) as store:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sweeps, store, nothing, 7200)
            await trio.sleep(600)
            file.clock.ahead_ms = 0
        assert await kept(store) == [("op_1", True)]


async def test_what_was_paid_under_a_clock_that_was_behind_is_kept_for_its_time(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Its times are long past, but its authorization was still valid a moment ago: the payer's clock was right."""
    file = File(tmp_path / "node.db", Clock(-401 * DAY_MS))
    await file.fill("op_1", valid_before=BEGIN_MS // 1000 + 300)
    file.clock.ahead_ms = 0
    chain = Chain(file.clock)
    assert await file.run(chain, 1800) == [("op_1", True)]
    file.clock.ahead_ms = 7 * DAY_MS - 2 * HOUR_MS
    assert await file.run(chain, 1) == [("op_1", True)]
    file.clock.ahead_ms = 8 * DAY_MS
    assert await file.run(chain, 1) == [("op_1", False)]
    file.clock.ahead_ms = 401 * DAY_MS
    assert await file.run(chain, 1) == []


async def test_only_the_holder_of_the_lease_moves_the_mark(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with open_nodes(tmp_path) as nodes:
        one = await nodes.join("one")
        with pytest.raises(Conflict):
            await StoreTime(one, nothing).advance(Held("retention", "one", 1, 1))
        assert await reached(one) is None
