from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from gateway.actors.runtime import open_runtime
from gateway.actors.store import Committed, Conflict, Reason, Statement, StoreHealth, StoreUnavailable, open_sqlite
from gateway.actors.store.errors import Failure
from gateway.actors.store.sqlite_at_once import (
    ALONE,
    FOR_THE_THREAD,
    IN_A_ROW,
    LARGEST,
    MOST_TOGETHER,
    REST_S,
    SLOW_S,
    AtOnce,
)
from gateway.actors.store.sqlite_file import SqliteFile
from gateway.actors.store.sqlite_writer import Result, Step, Writer


@attrs.define
class Clock:
    """A clock that `Writer.run_at_once` may let pass."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def writer(tmp_path: Path, migrations: Path) -> Iterator[Writer]:
    file = SqliteFile(tmp_path / "gateway.db", "node-1", lambda: 0)
    made = Writer(file, file.open(migrations))
    yield made
    made.close()
    file.release()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def at_once(writer: Writer, clock: Clock) -> AtOnce:
    return AtOnce(writer, trio.CapacityLimiter(1), clock, open=True)


def count(name: str, n: int = 1) -> Statement:
    return Statement("INSERT INTO counters VALUES (:name, :n)", {"name": name, "n": n})


def queued(at_once: AtOnce, step: Step) -> list[Result] | None:
    """Store a step past the queue or, where it is not, through it; None where it is for the thread."""
    result = at_once.store(step)
    return at_once.store_together([step]) if result is None else [result]


def many(names: str, at_once: AtOnce) -> list[list[Result] | None]:
    return [queued(at_once, [count(f"{names} {number}")]) for number in range(IN_A_ROW + FOR_THE_THREAD)]


def test_a_step_is_stored(at_once: AtOnce, writer: Writer) -> None:
    assert at_once.store([count("a")]) == [[]]
    assert writer.connection is not None
    assert writer.connection.execute("SELECT name FROM counters").fetchall() == [("a",)]


def test_a_step_that_conflicts_is_told_so(at_once: AtOnce) -> None:
    nothing = Statement("UPDATE counters SET n = 2 WHERE name = 'nobody'", rows=1)
    assert isinstance(at_once.store([nothing]), Conflict)
    assert at_once.store([count("a")]) == [[]]


async def test_nothing_is_stored_while_another_uses_the_writer(at_once: AtOnce) -> None:
    async with at_once.writing:
        assert at_once.store([count("a")]) is None
    assert at_once.store([count("a")]) == [[]]


def test_nothing_is_stored_while_the_actor_takes_no_steps(at_once: AtOnce) -> None:
    at_once.open = False
    assert at_once.store([count("a")]) is None


def test_a_connection_is_not_opened_again(at_once: AtOnce, writer: Writer) -> None:
    writer.close()
    assert at_once.store([count("a")]) is None


def test_a_large_value_is_for_the_thread(at_once: AtOnce) -> None:
    def blob(number: int, size: int) -> Statement:
        return Statement("INSERT INTO kept (id, bytes) VALUES (:id, :bytes)", {"id": number, "bytes": b"x" * size})

    assert at_once.store([blob(1, LARGEST)]) == [[]]
    assert at_once.store([blob(2, LARGEST), blob(3, 1)]) is None


def test_the_thread_gets_some_of_many(at_once: AtOnce) -> None:
    stored = many("first", at_once) + many("second", at_once)
    assert stored.count(None) == 2 * FOR_THE_THREAD
    apart = [number for number, result in enumerate(stored) if result is None]
    assert apart[1] == apart[0] + 1


def test_what_finds_the_queue_closed_to_the_loop_leaves_it_so(at_once: AtOnce) -> None:
    assert None not in [at_once.store([count(f"some {number}")]) for number in range(IN_A_ROW)]
    assert [at_once.store([count("a")]) for _ in range(IN_A_ROW)] == [None] * IN_A_ROW
    assert [at_once.store_together([[count("a")]]) for _ in range(FOR_THE_THREAD)] == [None] * FOR_THE_THREAD
    assert at_once.store([count("a")]) == [[]]


def test_the_log_is_left_for_the_thread_to_checkpoint(
    at_once: AtOnce, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Path(f"{writer._file.path}-wal")
    before = log.stat().st_size
    many("some", at_once)
    assert log.stat().st_size > before
    assert writer.connection is not None
    (pages,) = writer.connection.execute("PRAGMA wal_autocheckpoint").fetchone()
    assert pages == 0
    assert writer.run([[count("in the thread")]], relaxed=True) == [[[]]]
    (pages,) = writer.connection.execute("PRAGMA wal_autocheckpoint").fetchone()
    assert pages > 0


def test_another_programs_lock_is_not_waited_for(at_once: AtOnce, writer: Writer) -> None:
    with closing(sqlite3.connect(writer._file.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert at_once.store([count("a")]) is None
        assert at_once.store_together([[count("a")]]) is None  # it is not tried: the thread is to wait for the lock
        other.execute("ROLLBACK")
    assert at_once.store([count("a")]) == [[]]


def test_a_file_that_was_slow_is_for_the_thread_a_while(
    at_once: AtOnce, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Writer.run_at_once

    def slow(writer: Writer, steps: Sequence[Step]) -> list[Result]:
        clock.now += SLOW_S * 1.01
        return run(writer, steps)

    with monkeypatch.context() as slowly:
        slowly.setattr(Writer, "run_at_once", slow)
        assert at_once.store([count("slow")]) == [[]]
    clock.now += REST_S * 0.99
    assert at_once.store([count("a")]) is None
    clock.now += REST_S * 0.02
    assert at_once.store([count("a")]) == [[]]


def test_a_file_that_failed_is_for_the_thread_a_while(
    at_once: AtOnce, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Failure(Reason.DISK_FULL)
    with monkeypatch.context() as failing:
        failing.setattr(Writer, "run_at_once", lambda *_: [[[]], full])
        assert at_once.store_together([[count("a")], [count("b")]]) == [[[]], full]
    clock.now += REST_S * 0.99
    assert at_once.store([count("a")]) is None
    clock.now += REST_S * 0.02
    assert at_once.store([count("a")]) == [[]]


def test_steps_that_come_together_are_for_the_queue(at_once: AtOnce) -> None:
    at_once.came(2)
    for _ in range(ALONE):
        assert at_once.store([count("a")]) is None
        at_once.came(1)
    assert at_once.store([count("a")]) == [[]]


def test_what_queued_together_is_stored_in_one_transaction(
    at_once: AtOnce, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[int] = []
    transaction = Writer._transaction

    def noted(writer: Writer, steps: Sequence[Step], *more: object) -> list[Result]:
        groups.append(len(steps))
        return transaction(writer, steps, *more)  # type: ignore[arg-type]  # as it came

    monkeypatch.setattr(Writer, "_transaction", noted)
    at_once.came(2)
    nothing = Statement("UPDATE counters SET n = 2 WHERE name = 'nobody'", rows=1)
    results = at_once.store_together([[count("a")], [nothing], [count("b")]])
    assert [type(each) for each in results or ()] == [list, Conflict, list]
    assert groups == [3]


def test_no_more_than_some_are_stored_together(at_once: AtOnce) -> None:
    steps = [[count(f"a {number}")] for number in range(MOST_TOGETHER + 1)]
    assert at_once.store_together(steps) is None
    assert at_once.store_together(steps[1:]) == [[[]]] * MOST_TOGETHER


def test_the_thread_gets_some_groups_of_many(at_once: AtOnce) -> None:
    def stored(number: int) -> bool:
        return at_once.store_together([[count(f"{number} {each}")] for each in range(4)]) is not None

    rounds = IN_A_ROW // 4
    assert [stored(number) for number in range(rounds + FOR_THE_THREAD + 1)] == [
        *[True] * rounds,
        *[False] * FOR_THE_THREAD,
        True,
    ]


def test_a_group_of_which_some_are_stored_is_not_stored_again(at_once: AtOnce, monkeypatch: pytest.MonkeyPatch) -> None:
    locked = Failure(Reason.LOCKED)
    monkeypatch.setattr(Writer, "run_at_once", lambda *_: [[[]], locked])
    assert at_once.store_together([[count("a")], [count("b")]]) == [[[]], locked]
    monkeypatch.setattr(Writer, "run_at_once", lambda *_: [locked, locked])
    assert at_once.store_together([[count("a")], [count("b")]]) is None


def test_after_a_defect_nobody_knows_whether_the_step_was_stored(
    at_once: AtOnce, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: Writer, __: Sequence[Step]) -> list[Result]:
        raise RuntimeError("told to break")

    monkeypatch.setattr(Writer, "run_at_once", broken)
    assert at_once.store([count("a")]) == Failure(Reason.CRASHED, uncertain=True)
    assert "told to break" in caplog.text


class TestInAStore:
    """What a store does with relaxed steps."""

    @pytest.fixture
    def threads(self, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
        """Of each transaction, whether it ran in the loop's thread."""
        seen: list[bool] = []
        transaction, loop = Writer._transaction, threading.get_ident()

        def noted(writer: Writer, steps: Sequence[Step], *more: object) -> list[Result]:
            seen.append(threading.get_ident() == loop)
            return transaction(writer, steps, *more)  # type: ignore[arg-type]  # as it came

        monkeypatch.setattr(Writer, "_transaction", noted)
        return seen

    async def test_only_a_relaxed_step_is_stored_in_the_loop(
        self, tmp_path: Path, migrations: Path, threads: list[bool]
    ) -> None:
        events: list[Committed | StoreHealth] = []
        path = tmp_path / "gateway.db"
        opening = partial(open_sqlite, migrations=migrations, observe=events.append)
        async with open_runtime() as runtime, opening(runtime, path) as store:
            assert await store.commit(count("relaxed"), relaxed=True) == [[]]
            assert await store.commit(count("durable")) == [[]]
            assert await store.fetch("SELECT name FROM counters ORDER BY name") == [("durable",), ("relaxed",)]
        assert threads == [True, False]
        assert [(each.steps, each.undone) for each in events if isinstance(each, Committed)] == [(1, 0), (1, 0)]

    async def test_relaxed_steps_that_come_together_are_stored_in_the_loop_in_few_transactions(
        self, tmp_path: Path, migrations: Path, threads: list[bool]
    ) -> None:
        path = tmp_path / "gateway.db"
        async with open_runtime() as runtime, open_sqlite(runtime, path, migrations=migrations) as store:
            store._actor.at_once.came(2)
            async with trio.open_nursery() as nursery:
                for number in range(MOST_TOGETHER):
                    nursery.start_soon(partial(store.commit, count(f"a {number}"), relaxed=True))
            assert await store.fetch("SELECT count(*) FROM counters") == [(MOST_TOGETHER,)]
        assert threads == [True]

    async def test_the_thread_gets_as_many_lone_steps_as_it_is_to_have(
        self, tmp_path: Path, migrations: Path, threads: list[bool]
    ) -> None:
        path = tmp_path / "gateway.db"
        async with open_runtime() as runtime, open_sqlite(runtime, path, migrations=migrations) as store:
            for number in range(IN_A_ROW + FOR_THE_THREAD + 1):
                await store.commit(count(f"a {number}"), relaxed=True)
        assert threads == [*[True] * IN_A_ROW, *[False] * FOR_THE_THREAD, True]

    async def test_steps_that_come_at_the_same_time_leave_the_thread_its_turn(
        self, tmp_path: Path, migrations: Path, threads: list[bool]
    ) -> None:
        path = tmp_path / "gateway.db"
        async with open_runtime() as runtime, open_sqlite(runtime, path, migrations=migrations) as store:
            for number in range(IN_A_ROW):
                await store.commit(count(f"a {number}"), relaxed=True)
            async with trio.open_nursery() as nursery:
                for number in range(FOR_THE_THREAD + 1):
                    nursery.start_soon(partial(store.commit, count(f"b {number}"), relaxed=True))
        assert threads == [*[True] * IN_A_ROW, False]

    async def test_a_conflict_is_raised_in_the_asker(self, tmp_path: Path, migrations: Path) -> None:
        path = tmp_path / "gateway.db"
        async with open_runtime() as runtime, open_sqlite(runtime, path, migrations=migrations) as store:
            with pytest.raises(Conflict):
                await store.commit(Statement("DELETE FROM counters", rows=1), relaxed=True)
            assert store.health.writable

    async def test_a_step_waits_in_the_thread_for_another_programs_lock(
        self, tmp_path: Path, migrations: Path, threads: list[bool]
    ) -> None:
        path = tmp_path / "gateway.db"
        async with open_runtime() as runtime, open_sqlite(runtime, path, migrations=migrations) as store:
            with closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(partial(store.commit, count("a"), relaxed=True))
                    await trio.sleep(0.05)  # the loop goes on meanwhile
                    other.execute("ROLLBACK")
            assert await store.fetch("SELECT name FROM counters") == [("a",)]
            assert store.health.writable
        assert threads == [True, False]

    async def test_a_full_disk_is_told_and_felt(
        self, tmp_path: Path, migrations: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "gateway.db"
        async with open_runtime() as runtime, open_sqlite(runtime, path, migrations=migrations) as store:
            with monkeypatch.context() as full:
                full.setattr(Writer, "run_at_once", lambda *_: [Failure(Reason.DISK_FULL)])
                with pytest.raises(StoreUnavailable, match="full"):
                    await store.commit(count("a"), relaxed=True)
                assert store.health.reason is Reason.DISK_FULL
            await store.commit(count("a"), relaxed=True)
            assert store.health.writable

    async def test_after_the_runtime_stopped_nothing_is_taken(self, tmp_path: Path, migrations: Path) -> None:
        path = tmp_path / "gateway.db"
        async with open_runtime() as runtime, open_sqlite(runtime, path, migrations=migrations) as store:
            pass
        with pytest.raises(StoreUnavailable) as caught:
            await store.commit(count("a"), relaxed=True)
        assert caught.value.extra == {"reason": "stopped"}
