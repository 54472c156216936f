from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.actors.runtime import open_runtime
from gateway.actors.store import (
    Committed,
    Conflict,
    InLoop,
    Reason,
    Statement,
    StatementFailed,
    StoreHealth,
    StoreRefused,
    StoreUnavailable,
    StoreUncertain,
    open_sqlite,
)
from gateway.actors.store.sqlite import Run, in_thread, inline
from gateway.actors.store.sqlite_at_once import ALONE
from gateway.actors.store.sqlite_file import SqliteFile
from gateway.actors.store.sqlite_writer import Manner, Result, Step, Writer

T = TypeVar("T")
HERE = Path(__file__).parent


def count(name: str) -> Statement:
    return Statement("INSERT INTO counters VALUES (:name, 1)", {"name": name})


class Gate:
    """A `Run` that works inline, or waits until it is opened, or breaks; callers hear of it once they are `told`."""

    def __init__(self) -> None:
        self.opened = trio.Event()
        self.opened.set()
        self.told = trio.Event()
        self.told.set()
        self.broken = 0

    async def __call__(self, work: Callable[[], T], limiter: trio.CapacityLimiter, *, within: float = math.inf) -> T:
        if self.broken:
            self.broken -= 1
            raise RuntimeError("told to break")
        done: list[T] = []
        over = trio.Event()

        async def through() -> None:
            await self.opened.wait()
            done.append(work())
            limiter.release_on_behalf_of(over)
            await self.told.wait()
            over.set()

        await limiter.acquire_on_behalf_of(over)
        trio.lowlevel.spawn_system_task(through)  # it goes on alone, as a thread would
        with trio.fail_after(within), trio.CancelScope(shield=within == math.inf):
            await over.wait()
        return done[0]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.db"


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """The writers' connections, as they are opened."""
    opened: list[sqlite3.Connection] = []
    original = SqliteFile.writer

    def recording(self: SqliteFile) -> sqlite3.Connection:
        opened.append(original(self))
        return opened[-1]

    monkeypatch.setattr(SqliteFile, "writer", recording)
    return opened


def overwrite(path: Path) -> None:
    """Spoil every page but the first."""
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))


class TestOpening:
    async def test_the_shipped_schema_is_there_without_a_word(self, path: Path) -> None:
        async with open_runtime() as runtime, open_sqlite(runtime, path) as store:
            rows = await store.fetch("SELECT version, name FROM schema_migrations ORDER BY version")
        assert rows[0] == (1, "operations")

    async def test_a_second_store_on_one_file_is_refused(self, path: Path, migrations: Path) -> None:
        async with (
            open_runtime() as first,
            open_runtime() as second,
            open_sqlite(first, path, migrations=migrations) as store,
        ):
            with pytest.raises(StoreRefused, match="another node"):
                async with open_sqlite(second, path, migrations=migrations):
                    pass
            await store.commit(count("a"))

    async def test_a_clean_end_leaves_one_whole_file(self, path: Path, migrations: Path) -> None:
        async with open_runtime() as runtime, open_sqlite(runtime, path, migrations=migrations) as store:
            await store.commit(count("a"))
            await store.fetch("SELECT 1")
        assert {file.name for file in path.parent.iterdir()} == {"gateway.db", "gateway.db.lock"}

    async def test_an_actor_that_drains_still_commits_after_the_block(self, path: Path, migrations: Path) -> None:
        async with open_runtime() as runtime:
            async with open_sqlite(runtime, path, migrations=migrations) as store:
                pass
            await store.commit(count("late"))
            assert await store.fetch("SELECT name FROM counters") == [("late",)]

    async def test_after_the_runtime_stopped_nothing_is_taken(self, path: Path, migrations: Path) -> None:
        async with open_runtime() as runtime, open_sqlite(runtime, path, migrations=migrations) as store:
            pass
        for attempt in (store.commit(count("a")), store.fetch("SELECT 1")):
            with pytest.raises(StoreUnavailable) as caught:
                await attempt
            assert type(caught.value) is StoreUnavailable
            assert caught.value.extra == {"reason": "stopped"}


class TestGroupCommit:
    async def test_callers_that_wait_share_a_transaction(self, path: Path, migrations: Path) -> None:
        groups: list[Committed] = []

        def observe(event: Committed | StoreHealth) -> None:
            if isinstance(event, Committed):
                groups.append(event)

        async with (
            open_runtime() as runtime,
            open_sqlite(runtime, path, migrations=migrations, observe=observe) as store,
        ):

            async def commit(name: str) -> None:
                with suppress(StatementFailed):
                    await store.commit(count(name))

            async with trio.open_nursery() as nursery:
                for number in range(512):
                    nursery.start_soon(commit, f"{number // 2}")
        assert sum(group.steps for group in groups) == 512
        assert sum(group.undone for group in groups) == 256
        assert len(groups) <= 4

    async def test_a_group_is_flushed_unless_all_of_its_steps_are_relaxed(
        self, path: Path, migrations: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        groups: list[tuple[int, str]] = []
        transaction = Writer._transaction

        def noted(writer: Writer, steps: Sequence[Step], manner: Manner) -> list[Result]:
            groups.append((len(steps), manner.value[0]))
            return transaction(writer, steps, manner)

        monkeypatch.setattr(Writer, "_transaction", noted)
        gate = Gate()
        async with open_runtime() as runtime, open_sqlite(runtime, path, migrations=migrations, run=gate) as store:
            for names in ({"a": True}, {"b": True, "c": False}, {"d": True, "e": True}):
                gate.opened = trio.Event()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(store.commit, count("first of " + "".join(names)))
                    await wait_all_tasks_blocked()
                    for name, relaxed in names.items():
                        nursery.start_soon(partial(store.commit, count(name), relaxed=relaxed))
                    await wait_all_tasks_blocked()
                    gate.opened.set()
        assert [size for size, _ in groups] == [1, 1, 1, 2, 1, 2]
        assert [manner for _, manner in groups] == ["FULL", "NORMAL", "FULL", "FULL", "FULL", "NORMAL"]

    async def test_an_observer_that_fails_is_logged_and_nothing_else(
        self, path: Path, migrations: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        def observe(event: Committed | StoreHealth) -> None:
            raise RuntimeError("told to fail")

        async with (
            open_runtime() as runtime,
            open_sqlite(runtime, path, migrations=migrations, observe=observe) as store,
        ):
            await store.commit(count("a"))
            await store.commit(count("b"))
        assert len(caplog.records) == 2


class TestDistress:
    async def test_a_full_disk_answers_503_reads_on_and_recovers_by_itself(
        self, path: Path, migrations: Path, connections: list[sqlite3.Connection]
    ) -> None:
        told: list[StoreHealth] = []

        def observe(event: Committed | StoreHealth) -> None:
            if isinstance(event, StoreHealth):
                told.append(event)

        large = Statement("INSERT INTO kept (id, bytes) VALUES (1, :bytes)", {"bytes": bytes(1_000_000)})
        async with (
            open_runtime() as runtime,
            open_sqlite(runtime, path, migrations=migrations, observe=observe, now=lambda: 7.0) as store,
        ):
            await store.commit(count("before"))
            connections[-1].execute("PRAGMA max_page_count = 1")
            with pytest.raises(StoreUnavailable) as caught:
                await store.commit(large)
            assert type(caught.value) is StoreUnavailable
            assert (caught.value.status, caught.value.extra) == (503, {"reason": "disk_full"})
            assert store.health == StoreHealth(writable=False, reason=Reason.DISK_FULL, since=7.0)
            assert await store.fetch("SELECT name FROM counters") == [("before",)]
            connections[-1].execute("PRAGMA max_page_count = 100000")
            await store.commit(large)
            assert [health.reason for health in told] == [Reason.DISK_FULL, None]
            assert (await store.probe()).writable

    async def test_damage_closes_the_store_until_it_is_opened_again(
        self, path: Path, migrations: Path, connections: list[sqlite3.Connection]
    ) -> None:
        async with open_runtime() as runtime, open_sqlite(runtime, path, migrations=migrations) as store:
            for number in range(40):
                await store.commit(count(f"{number:0500}"))
            connections[-1].execute("PRAGMA wal_checkpoint(TRUNCATE)")
            overwrite(path)
            connections[-1].execute("PRAGMA shrink_memory")
            with pytest.raises(StoreUnavailable) as caught:
                await store.fetch("SELECT name FROM counters")
            assert caught.value.extra == {"reason": "corrupt"}
            with pytest.raises(StoreUnavailable) as caught:
                await store.commit(count("after"))
            assert caught.value.extra == {"reason": "corrupt"}
            assert (await store.probe()).reason is Reason.CORRUPT
        async with open_runtime() as runtime:
            with pytest.raises(StoreRefused, match="restore a backup"):
                async with open_sqlite(runtime, path, migrations=migrations):
                    pass

    async def test_a_disk_that_hangs_makes_one_caller_uncertain_and_the_next_one_certain(
        self, path: Path, migrations: Path, autojump_clock: MockClock
    ) -> None:
        gate = Gate()
        kinds: list[tuple[type[Exception], object]] = []
        async with (
            open_runtime(grace=0) as runtime,
            open_sqlite(runtime, path, migrations=migrations, run=gate) as store,
        ):

            async def commit(name: str) -> None:
                with pytest.raises(StoreUnavailable) as caught:
                    await store.commit(count(name))
                kinds.append((caught.type, caught.value.extra["reason"]))

            gate.opened = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(commit, "in hand")
                await wait_all_tasks_blocked()
                nursery.start_soon(commit, "queued")
            felt = store.health
            store._pulse._last_success -= 2
            health = await store.probe()
            gate.opened.set()
            assert set(kinds) == {(StoreUncertain, "stalled"), (StoreUnavailable, "overloaded")}
            assert not felt.writable
            assert (health.writable, health.reason) == (False, Reason.OVERLOADED)
            await store.commit(count("after"))
            assert store.health.writable
            assert await store.fetch("SELECT name FROM counters ORDER BY name") == [("after",), ("in hand",)]

    async def test_a_crash_of_the_writer_is_uncertain_and_it_comes_back(
        self, path: Path, migrations: Path, autojump_clock: MockClock
    ) -> None:
        gate = Gate()
        async with open_runtime() as runtime, open_sqlite(runtime, path, migrations=migrations, run=gate) as store:
            await store.commit(count("before"))
            gate.broken = 1
            with pytest.raises(StoreUncertain) as caught:
                await store.commit(count("lost"))
            assert caught.value.extra == {"reason": "crashed"}
            assert store.health.reason is Reason.CRASHED
            await store.commit(count("after"))
            assert store.health.writable
            assert await store.fetch("SELECT name FROM counters ORDER BY name") == [("after",), ("before",)]

    async def test_readers_that_are_all_busy_too_long_are_overload(
        self, path: Path, migrations: Path, autojump_clock: MockClock
    ) -> None:
        gate = Gate()
        async with open_runtime() as runtime, open_sqlite(runtime, path, run=gate, readers=1) as store:
            gate.opened = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store.fetch, "SELECT 1")
                await wait_all_tasks_blocked()
                with pytest.raises(StoreUnavailable) as caught:
                    await store.fetch("SELECT 1")
                gate.opened.set()
            assert caught.value.extra == {"reason": "overloaded"}

    async def test_a_look_up_changes_threads_only_where_the_file_is_large(
        self, path: Path, migrations: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        threads = 0

        async def counted(work: Callable[[], T], limiter: trio.CapacityLimiter, *, within: float = math.inf) -> T:
            nonlocal threads
            threads += 1
            return await in_thread(work, limiter, within=within)

        async with open_runtime() as runtime, open_sqlite(runtime, path, migrations=migrations, run=counted) as store:
            await store.commit(count("one"))
            before = threads
            assert await store.look_up([("SELECT name FROM counters", {})]) == [[("one",)]]
            assert threads == before
            monkeypatch.setattr("gateway.actors.store.sqlite._IN_LOOP_BYTES", 0)
            assert await store.look_up([("SELECT name FROM counters", {})]) == [[("one",)]]
            assert threads == before + 1

    async def test_look_ups_are_at_hand_while_few_ask_and_the_file_is_small(
        self, path: Path, migrations: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with open_runtime() as runtime, open_sqlite(runtime, path, migrations=migrations) as store:
            assert isinstance(store, InLoop)
            at_hand = [store.at_hand]
            async with trio.open_nursery() as nursery:
                for name in ("a", "b"):
                    nursery.start_soon(store.commit, count(name))
            at_hand.append(store.at_hand)
            for number in range(ALONE):
                await store.commit(count(f"alone {number}"))
            at_hand.append(store.at_hand)
            assert store.look_up_at_once([("SELECT count(*) FROM counters", {})]) == [[(2 + ALONE,)]]
            monkeypatch.setattr("gateway.actors.store.sqlite._IN_LOOP_BYTES", 0)
            at_hand.append(store.at_hand)
        assert at_hand == [True, False, True, False]

    async def test_a_probe_writes_unless_something_was_just_written(self, path: Path, migrations: Path) -> None:
        groups: list[Committed | StoreHealth] = []
        async with (
            open_runtime() as runtime,
            open_sqlite(runtime, path, migrations=migrations, observe=groups.append) as store,
        ):
            await store.commit(count("a"))
            for _ in range(20):
                assert (await store.probe()).writable
            assert len(groups) == 1
            store._pulse._last_success -= 2
            assert (await store.probe()).writable
            assert len(groups) == 2


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare(1) to mount a small disk")
def test_a_disk_that_is_really_full_loses_nothing_acknowledged(tmp_path: Path, migrations: Path) -> None:
    namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*namespace, "true"], capture_output=True, check=False, timeout=60).returncode:
        pytest.skip("this kernel lets nobody mount a small disk of his own")
    child = subprocess.run(
        [*namespace, sys.executable, HERE / "full_disk_child.py", tmp_path, migrations],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert child.returncode == 0, child.stderr
    told = json.loads(child.stdout)
    assert told["acknowledged"] > 10
    assert told["failures"] == ["StoreUnavailable disk_full"]
    assert told["while_full"] == [False, "disk_full"]
    assert told["failures_after_room"] == 0
    assert told["after_room"] == [True, None]
    assert (told["lost"], told["unacknowledged"]) == (0, 0)
    assert told["counted"] == told["found"] == told["acknowledged"]


def acknowledged_until_killed(path: Path, migrations: Path, steps: int) -> list[tuple[int, int]]:
    """Run the child until it has named `steps` steps, kill it, and return every step that it named."""
    child = subprocess.Popen(
        [sys.executable, HERE / "committing_child.py", path, migrations], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stderr is not None
    with child.stdout, child.stderr:
        lines = [child.stdout.readline() for _ in range(steps + 1)]
        os.kill(child.pid, signal.SIGKILL)
        lines += child.stdout.readlines()
        errors = child.stderr.read()
        child.wait(timeout=60)
    assert lines[0] == b"ready\n", errors.decode()
    complete = [line.split() for line in lines[1:] if line.endswith(b"\n")]
    return [(int(worker), int(number)) for worker, number in complete]


def survive_kills(path: Path, migrations: Path, kills: int) -> int:
    rng = random.Random(kills)
    acknowledged: set[tuple[int, int]] = set()
    for _ in range(kills):
        acknowledged.update(acknowledged_until_killed(path, migrations, rng.randrange(1, 400)))
        looking = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
        found = {(int(worker), number) for worker, number in looking.execute("SELECT text, whole FROM kept")}
        (halves,) = looking.execute(
            "SELECT count(*) FROM kept FULL JOIN parents USING (id) WHERE text IS NULL"
        ).fetchone()
        (verdict,) = looking.execute("PRAGMA integrity_check").fetchone()
        looking.close()
        assert acknowledged <= found, f"lost {sorted(acknowledged - found)}"
        assert len(found - acknowledged) <= 16 * kills  # at most the step in flight of each worker, each time
        assert (halves, verdict) == (0, "ok")
    return len(acknowledged)


def test_ten_kills_lose_no_acknowledged_step(path: Path, migrations: Path) -> None:
    assert survive_kills(path, migrations, 10) > 0


@pytest.mark.campaign
def test_a_hundred_kills_lose_no_acknowledged_step(path: Path, migrations: Path) -> None:
    print(f"100 kills, {survive_kills(path, migrations, 100)} acknowledged steps, 0 lost")


@pytest.mark.parametrize("run", [in_thread, inline])
async def test_work_is_finished_though_its_caller_is_cancelled(run: Run) -> None:
    done: list[str] = []
    with trio.CancelScope() as scope:

        def work() -> None:
            if run is in_thread:
                trio.from_thread.run_sync(scope.cancel)
            else:
                scope.cancel()
            done.append("to the end")

        await run(work, trio.CapacityLimiter(1))
    assert done == ["to the end"]


async def test_work_that_takes_too_long_is_left_to_come_to_its_end() -> None:
    limiter, opened, done = trio.CapacityLimiter(1), threading.Event(), threading.Event()

    def work() -> None:
        opened.wait()
        done.set()

    with pytest.raises(trio.TooSlowError):
        await in_thread(work, limiter, within=0.01)
    assert limiter.available_tokens == 0
    opened.set()
    with trio.fail_after(5):
        async with limiter:
            assert done.is_set()


def sizes(groups: list[int]) -> Callable[[Committed | StoreHealth], None]:
    """Return an observer that notes how many steps each group had."""

    def observe(event: Committed | StoreHealth) -> None:
        if isinstance(event, Committed):
            groups.append(event.steps)

    return observe


class TestAlone:
    """A step that nothing is ahead of, stored by its asker's own task."""

    async def test_it_passes_the_queue_and_what_comes_meanwhile_shares_the_next_transaction(
        self, path: Path, migrations: Path
    ) -> None:
        groups: list[int] = []
        gate = Gate()
        opening = partial(open_sqlite, migrations=migrations, run=gate, observe=sizes(groups))
        async with open_runtime() as runtime, opening(runtime, path) as store:
            gate.opened = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store.commit, count("alone"))
                await wait_all_tasks_blocked()
                for number in range(3):
                    nursery.start_soon(store.commit, count(f"{number}"))
                await wait_all_tasks_blocked()
                gate.opened.set()
        assert groups == [1, 3]

    async def test_one_that_is_given_up_is_stored_all_the_same_and_so_is_what_was_taken_behind_it(
        self, path: Path, migrations: Path
    ) -> None:
        gate = Gate()
        async with open_runtime() as runtime, open_sqlite(runtime, path, migrations=migrations, run=gate) as store:
            gate.opened = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store.commit, count("given up"))
                await wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store.commit, count("taken"))
                await wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store.commit, count("after"))
                await wait_all_tasks_blocked()
                gate.opened.set()
            assert await store.fetch("SELECT name FROM counters ORDER BY name") == [
                ("after",),
                ("given up",),
                ("taken",),
            ]

    async def test_who_waits_behind_one_that_takes_long_is_refused_when_his_own_patience_ends(
        self, path: Path, migrations: Path, autojump_clock: MockClock
    ) -> None:
        gate = Gate()
        health: list[StoreHealth] = []
        async with open_runtime() as runtime, open_sqlite(runtime, path, migrations=migrations, run=gate) as store:

            async def probe() -> None:
                store._pulse._last_success -= 2
                health.append(await store.probe())

            async def open_late() -> None:
                await trio.sleep(20)
                gate.opened.set()

            gate.opened = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store.commit, count("long"))
                await wait_all_tasks_blocked()
                trio.lowlevel.spawn_system_task(open_late)
                nursery.start_soon(probe)
                nursery.start_soon(store.commit, count("patient"))
            assert [each.reason for each in health] == [Reason.OVERLOADED]
            assert await store.fetch("SELECT name FROM counters ORDER BY name") == [("long",), ("patient",)]

    async def test_who_waits_behind_the_next_is_certain_too_though_the_first_hears_late_of_his_own(
        self, path: Path, migrations: Path, autojump_clock: MockClock
    ) -> None:
        gate = Gate()
        failures: list[type[StoreUnavailable]] = []
        async with (
            open_runtime(grace=0) as runtime,
            open_sqlite(runtime, path, migrations=migrations, run=gate) as store,
        ):

            async def commit(name: str) -> None:
                try:
                    await store.commit(count(name))
                except StoreUnavailable as failure:
                    failures.append(type(failure))

            async with trio.open_nursery() as nursery:
                gate.told = trio.Event()
                nursery.start_soon(commit, "first")
                await wait_all_tasks_blocked()
                gate.opened = trio.Event()
                nursery.start_soon(commit, "next")
                await wait_all_tasks_blocked()
                gate.told.set()
                await wait_all_tasks_blocked()
                nursery.start_soon(commit, "behind")
            gate.opened.set()
            assert sorted(failures, key=str) == sorted([StoreUncertain, StoreUnavailable], key=str)

    @pytest.mark.parametrize("given_up", [False, True])
    async def test_after_one_that_met_damage_nothing_is_stored(
        self, path: Path, migrations: Path, connections: list[sqlite3.Connection], *, given_up: bool
    ) -> None:
        gate = Gate()
        reasons: list[object] = []
        async with open_runtime() as runtime, open_sqlite(runtime, path, migrations=migrations, run=gate) as store:
            await store.commit(count("before"), Statement("INSERT INTO parents VALUES (1)"))
            ((page,),) = await store.fetch("SELECT rootpage FROM sqlite_master WHERE name = 'parents'")
            connections[-1].execute("PRAGMA wal_checkpoint(TRUNCATE)")
            with path.open("r+b") as file:
                file.seek((int(str(page)) - 1) * 4096)
                file.write(b"\xff" * 4096)
            connections[-1].execute("PRAGMA shrink_memory")

            async def commit(*statements: Statement) -> None:
                with pytest.raises(StoreUnavailable) as caught:
                    await store.commit(*statements)
                reasons.append(caught.value.extra["reason"])

            gate.opened = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(commit, Statement("INSERT INTO parents VALUES (2)"))
                await wait_all_tasks_blocked()
                if given_up:
                    nursery.cancel_scope.cancel()
                else:
                    nursery.start_soon(commit, count("behind"))
                    await wait_all_tasks_blocked()
                    gate.opened.set()
            gate.opened.set()
            await wait_all_tasks_blocked()
            await commit(count("after"))
            await commit(count("after that"))
            assert set(reasons) == {"corrupt"}
            assert await store.fetch("SELECT name FROM counters") == [("before",)]

    async def test_one_that_is_given_up_is_counted_all_the_same(self, path: Path, migrations: Path) -> None:
        steps: list[int] = []
        gate = Gate()
        opening = partial(open_sqlite, migrations=migrations, run=gate, observe=sizes(steps))
        async with open_runtime() as runtime, opening(runtime, path) as store:
            gate.opened = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store.commit, count("given up"))
                await wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            gate.opened.set()
            await wait_all_tasks_blocked()
            await store.commit(count("after"))
        assert steps == [1, 1]

    async def test_a_conflict_is_its_askers(self, path: Path, migrations: Path) -> None:
        async with open_runtime() as runtime, open_sqlite(runtime, path, migrations=migrations) as store:
            with pytest.raises(Conflict):
                await store.commit(Statement("DELETE FROM counters", rows=1))
            assert store.health.writable
