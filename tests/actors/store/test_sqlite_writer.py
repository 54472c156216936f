from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gateway.actors.store import Conflict, Reason, Statement, StatementFailed
from gateway.actors.store.errors import Failure
from gateway.actors.store.sqlite_file import SqliteFile
from gateway.actors.store.sqlite_writer import Result, Writer


class Faulty(sqlite3.Connection):
    """A connection whose disk fails where it is told to: `faults` maps how a statement begins to a result code."""

    faults: dict[str, int]

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        for beginning, code in getattr(self, "faults", {}).items():
            if sql.startswith(beginning):
                if sql == "COMMIT" and code != sqlite3.SQLITE_FULL:
                    super().execute("ROLLBACK")  # as SQLite does by itself
                error = sqlite3.OperationalError("told to fail")
                error.sqlite_errorcode = code
                raise error
        return super().execute(sql, *arguments)


@pytest.fixture
def file(tmp_path: Path, migrations: Path) -> Iterator[SqliteFile]:
    opened = SqliteFile(tmp_path / "gateway.db", "node-1", lambda: 0)
    opened.open(migrations).close()
    yield opened
    opened.release()


@pytest.fixture
def writer(file: SqliteFile) -> Iterator[Writer]:
    made = Writer(file, file.writer())
    yield made
    made.close()


@pytest.fixture
def faulty(file: SqliteFile) -> Iterator[tuple[Writer, Faulty]]:
    beside = file.writer()  # keeps the log in its place
    connection = sqlite3.connect(file.path, isolation_level=None, factory=Faulty)
    made = Writer(file, connection)
    yield made, connection
    made.close()
    connection.close()
    beside.close()


def count(name: str, n: int = 1) -> Statement:
    return Statement("INSERT INTO counters VALUES (:name, :n)", {"name": name, "n": n})


def kept(file: SqliteFile) -> set[str]:
    reader = file.reader()
    names = {name for (name,) in reader.execute("SELECT name FROM counters")}
    reader.close()
    return names


def blob(number: int, size: int) -> Statement:
    return Statement("INSERT INTO kept (id, bytes) VALUES (:id, :bytes)", {"id": number, "bytes": b"x" * size})


def stored(results: list[Result]) -> list[bool]:
    return [isinstance(result, list) for result in results]


class TestGroup:
    def test_steps_share_one_transaction(self, writer: Writer, file: SqliteFile) -> None:
        assert writer.connection is not None
        commits: list[str] = []
        writer.connection.set_trace_callback(lambda sql: commits.append(sql) if sql == "COMMIT" else None)
        assert stored(writer.run([[count(f"{number}")] for number in range(100)])) == [True] * 100
        assert commits == ["COMMIT"]
        assert len(kept(file)) == 100

    def test_each_step_stands_or_falls_alone(self, writer: Writer, file: SqliteFile) -> None:
        results = writer.run(
            [[count("a")], [count("b"), count("a")], [count("c"), Statement("DELETE FROM kept", rows=1)]]
        )
        first, second, third = results
        assert first == [[]]
        assert isinstance(second, StatementFailed)
        assert isinstance(third, Conflict)
        assert kept(file) == {"a"}

    def test_a_step_sees_the_steps_before_it_and_not_the_undone_ones(self, writer: Writer) -> None:
        look = Statement("SELECT count(*) FROM counters")
        results = writer.run([[count("a"), look], [count("b"), count("a")], [look]])
        assert (results[0], results[2]) == ([[], [(1,)]], [[(1,)]])

    def test_two_statements_in_one_are_rejected(self, writer: Writer) -> None:
        (result,) = writer.run([[Statement("DELETE FROM kept; DELETE FROM counters")]])
        assert isinstance(result, StatementFailed)

    def test_a_defect_leaves_no_transaction_open(self, writer: Writer, file: SqliteFile) -> None:
        broken: Any = object()
        with pytest.raises(AttributeError):
            writer.run([[count("a")], [broken]])
        assert stored(writer.run([[count("b")]])) == [True]
        assert kept(file) == {"b"}


class TestFullDisk:
    def fill(self, writer: Writer) -> None:
        assert writer.connection is not None
        (pages,) = writer.connection.execute("PRAGMA page_count").fetchone()
        writer.connection.execute(f"PRAGMA max_page_count = {pages + 4}")

    def test_a_step_that_does_not_fit_does_not_take_the_others_with_it(self, writer: Writer, file: SqliteFile) -> None:
        self.fill(writer)
        results = writer.run([[count("a")], [count("b"), blob(1, 1_000_000)], [count("c")]])
        assert results == [[[]], Failure(Reason.DISK_FULL), [[]]]
        assert kept(file) == {"a", "c"}

    def test_there_is_room_again_when_there_is_room_again(self, writer: Writer) -> None:
        self.fill(writer)
        assert writer.run([[blob(1, 1_000_000)]]) == [Failure(Reason.DISK_FULL)]
        assert writer.connection is not None
        writer.connection.execute("PRAGMA max_page_count = 100000")
        assert stored(writer.run([[blob(1, 1_000_000)]])) == [True]

    def test_a_full_disk_at_the_commit_stores_nothing_of_the_group(
        self, faulty: tuple[Writer, Faulty], file: SqliteFile
    ) -> None:
        writer, connection = faulty
        connection.faults = {"COMMIT": sqlite3.SQLITE_FULL}
        assert writer.run([[count("a")], [count("b")]]) == [Failure(Reason.DISK_FULL)] * 2
        assert not connection.in_transaction
        connection.faults = {}
        assert stored(writer.run([[count("c")]])) == [True]
        assert kept(file) == {"c"}


class TestFailedCommit:
    def test_is_certain_once_another_commit_took_its_place(
        self, faulty: tuple[Writer, Faulty], file: SqliteFile
    ) -> None:
        writer, connection = faulty
        connection.faults = {"COMMIT": sqlite3.SQLITE_IOERR_FSYNC}
        assert writer.run([[count("a")], [count("b")]]) == [Failure(Reason.IO_ERROR)] * 2
        assert kept(file) == set()

    def test_is_uncertain_while_none_did(self, faulty: tuple[Writer, Faulty]) -> None:
        writer, connection = faulty
        connection.faults = {"COMMIT": sqlite3.SQLITE_IOERR_FSYNC, "PRAGMA": sqlite3.SQLITE_IOERR_WRITE}
        assert writer.run([[count("a")], [count("b")]]) == [Failure(Reason.IO_ERROR, uncertain=True)] * 2

    def test_the_next_group_gets_a_fresh_connection(self, faulty: tuple[Writer, Faulty], file: SqliteFile) -> None:
        writer, connection = faulty
        connection.faults = {"COMMIT": sqlite3.SQLITE_IOERR_FSYNC, "PRAGMA": sqlite3.SQLITE_IOERR_WRITE}
        writer.run([[count("a")]])
        assert stored(writer.run([[count("b")]])) == [True]
        assert writer.connection is not connection
        assert kept(file) == {"b"}

    @pytest.mark.parametrize(
        ("code", "reason"),
        [
            (sqlite3.SQLITE_IOERR_WRITE, Reason.IO_ERROR),
            (sqlite3.SQLITE_READONLY_DBMOVED, Reason.READ_ONLY),
            (sqlite3.SQLITE_CORRUPT, Reason.CORRUPT),
            (sqlite3.SQLITE_BUSY, Reason.LOCKED),
            (sqlite3.SQLITE_NOMEM, Reason.OUT_OF_MEMORY),
        ],
    )
    @pytest.mark.parametrize("statement", ["BEGIN", "SAVEPOINT", "INSERT", "RELEASE"])
    @pytest.mark.parametrize("undoing_fails", [False, True])
    def test_an_error_before_the_commit_is_never_uncertain(
        self,
        faulty: tuple[Writer, Faulty],
        file: SqliteFile,
        code: int,
        reason: Reason,
        statement: str,
        undoing_fails: bool,
    ) -> None:
        writer, connection = faulty
        connection.faults = {statement: code} | ({"ROLLBACK": code} if undoing_fails else {})
        assert writer.run([[count("a")], [count("b")]]) == [Failure(reason)] * 2
        connection.faults = {}
        assert stored(writer.run([[count("c")]])) == [True]
        assert kept(file) == {"c"}


class TestHeldElsewhere:
    def test_a_database_that_another_program_writes_is_locked_until_it_ends(
        self, writer: Writer, file: SqliteFile
    ) -> None:
        assert writer.connection is not None
        writer.connection.execute("PRAGMA busy_timeout = 10")
        other = sqlite3.connect(file.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert writer.run([[count("a")]]) == [Failure(Reason.LOCKED)]
        other.execute("ROLLBACK")
        other.close()
        assert stored(writer.run([[count("a")]])) == [True]

    def test_a_replaced_file_is_never_written(self, writer: Writer, file: SqliteFile) -> None:
        writer.run([[count("a")]])
        aside = file.path.rename(file.path.with_name("aside.db"))
        file.path.write_bytes(b"")
        assert writer.run([[count("b")], [count("c")]]) == [Failure(Reason.FILE_REPLACED)] * 2
        file.path.unlink()
        aside.rename(file.path)
        assert stored(writer.run([[count("d")]])) == [True]
        assert kept(file) == {"a", "d"}


def flushes(writer: Writer) -> bool:
    assert writer.connection is not None
    (level,) = writer.connection.execute("PRAGMA synchronous").fetchone()
    assert level in {1, 2}
    return bool(level == 2)


def test_only_a_relaxed_group_is_not_flushed_to_the_disk(writer: Writer) -> None:
    assert writer.run([[count("a")]]) == [[[]]]
    assert flushes(writer)
    assert writer.run([[count("b")], [count("c")]], relaxed=True) == [[[]], [[]]]
    assert not flushes(writer)
    assert writer.run([[count("d")]]) == [[[]]]
    assert flushes(writer)


def test_a_connection_that_is_opened_anew_flushes_again(faulty: tuple[Writer, Faulty]) -> None:
    writer, connection = faulty
    assert writer.run([[count("a")]], relaxed=True) == [[[]]]
    connection.faults = {"COMMIT": sqlite3.SQLITE_IOERR}
    writer.run([[count("b")]], relaxed=True)
    assert writer.connection is None
    assert writer.run([[count("c")]]) == [[[]]]
    assert flushes(writer)


def test_a_relaxed_step_outlives_the_death_of_the_process(file: SqliteFile) -> None:
    dying = """
import os, signal, sys
from pathlib import Path
from gateway.actors.store import Statement
from gateway.actors.store.sqlite_file import SqliteFile
from gateway.actors.store.sqlite_writer import Writer
file = SqliteFile(Path(sys.argv[1]), "node-1", lambda: 0)
writer = Writer(file, file.writer())
writer.run([[Statement("INSERT INTO counters VALUES ('kept', 1)")]], relaxed=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-P", "-c", dying, str(file.path)], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with closing(sqlite3.connect(file.path)) as reader:
        assert reader.execute("SELECT name FROM counters").fetchall() == [("kept",)]


@pytest.mark.parametrize("beside", [[], [[count("beside")]]])
def test_a_step_that_commits_by_itself_is_a_failure(writer: Writer, beside: list[list[Statement]]) -> None:
    results = writer.run([[count("a"), Statement("COMMIT")], *beside])
    assert isinstance(results[0], StatementFailed)
    assert stored(writer.run([[count("after")]])) == [True]


def test_a_lone_step_that_fails_leaves_nothing(writer: Writer, file: SqliteFile) -> None:
    (conflict,) = writer.run([[count("a"), Statement("DELETE FROM counters WHERE name = 'nobody'", rows=1)]])
    assert isinstance(conflict, Conflict)
    (failed,) = writer.run([[count("b"), Statement("nonsense")]])
    assert isinstance(failed, StatementFailed)
    assert kept(file) == set()
    assert writer.connection is not None
    assert not writer.connection.in_transaction
