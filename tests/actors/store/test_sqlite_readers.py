from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.actors.store import Reason, StatementFailed
from gateway.actors.store.sqlite_file import FileUnusable, SqliteFile
from gateway.actors.store.sqlite_readers import Readers


@pytest.fixture
def file(tmp_path: Path, migrations: Path) -> Iterator[SqliteFile]:
    opened = SqliteFile(tmp_path / "gateway.db", "node-1", lambda: 0)
    connection = opened.open(migrations)
    yield opened
    connection.close()
    opened.release()


@pytest.fixture
def readers(file: SqliteFile) -> Iterator[Readers]:
    made = Readers(file)
    yield made
    made.close()


def test_a_connection_is_used_again(readers: Readers) -> None:
    for _ in range(5):
        assert readers.read([("SELECT 1", {}), ("SELECT :n", {"n": 2})]) == [[(1,)], [(2,)]]
    assert len(readers._idle) == 1


def test_a_failed_query_costs_its_connection_only(readers: Readers) -> None:
    with pytest.raises(StatementFailed):
        readers.read([("SELECT 1", {}), ("SELECT nothing", {})])
    assert readers._idle == []
    assert readers.read([("SELECT 1", {})]) == [[(1,)]]


def test_closed_readers_read_no_more_until_they_are_opened(readers: Readers) -> None:
    readers.read([("SELECT 1", {})])
    readers.close()
    with pytest.raises(FileUnusable) as caught:
        readers.read([("SELECT 1", {})])
    assert caught.value.failure.reason is Reason.STOPPED
    readers.open()
    assert readers.read([("SELECT 1", {})]) == [[(1,)]]


def test_a_replaced_file_is_not_read(readers: Readers, file: SqliteFile) -> None:
    file.path.rename(file.path.with_name("aside.db"))
    file.path.write_bytes(b"")
    with pytest.raises(FileUnusable) as caught:
        readers.read([("SELECT 1", {})])
    assert caught.value.failure.reason is Reason.FILE_REPLACED
