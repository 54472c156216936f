from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import trio

from gateway.actors.runtime import open_runtime
from gateway.actors.store import Statement, StatementFailed, StoreRefused, StoreUnavailable, open_sqlite, schema
from gateway.reading import NoStoreYet, open_file, open_store
from tests.store_of_a_node import make_store

KNOWN = len(schema.load(schema.shipped(), "sqlite"))
COUNT = "SELECT COUNT(*) FROM operations"


def test_a_store_is_read_after_its_node_has_ended(tmp_path: Path) -> None:
    made = make_store(tmp_path)
    with open_store(made.configuration) as store:
        assert store.read([(COUNT, {})]) == [[(4,)]]


async def test_a_store_is_read_while_its_node_writes_and_all_queries_see_one_snapshot(tmp_path: Path) -> None:
    fact = Statement("INSERT INTO node_facts VALUES (:name, 'x')", {"name": "later"})
    count = "SELECT COUNT(*) FROM node_facts"
    async with open_runtime() as runtime, open_sqlite(runtime, tmp_path / "gateway.db") as writer:
        with open_file(tmp_path / "gateway.db") as store:
            before = await store.fetch_many([(count, {}), (count, {})])
            await writer.commit(fact)
            assert await store.fetch(count) == [(1,)]
        assert before == [[(0,)], [(0,)]]


async def test_nothing_is_ever_written(tmp_path: Path) -> None:
    async with open_runtime() as runtime, open_sqlite(runtime, tmp_path / "gateway.db"):
        with open_file(tmp_path / "gateway.db") as store:
            with pytest.raises(StoreUnavailable):
                await store.commit(Statement("DELETE FROM node_facts"))
            with pytest.raises(StatementFailed):
                await store.fetch("DELETE FROM node_facts")


def test_a_missing_store_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match=r"there is no store.*--config"), open_file(tmp_path / "gateway.db"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (f"INSERT INTO schema_migrations VALUES ({KNOWN + 1}, 'later', 'x', 0)", "this release knows"),
        ("UPDATE schema_migrations SET checksum = 'x'", "other contents"),
        ("DELETE FROM schema_migrations", "older than this release"),
        ("DROP TABLE schema_migrations", "no node's store"),
    ],
)
def test_a_store_of_another_release_is_refused(tmp_path: Path, change: str, told: str) -> None:
    path = make_store(tmp_path).path
    with sqlite3.connect(path) as store:
        store.execute(change)
    store.close()
    with pytest.raises(StoreRefused, match=told), open_file(path):
        pass


def test_a_newer_schema_that_serves_this_release_is_read(tmp_path: Path) -> None:
    made = make_store(tmp_path)
    made.change(f"INSERT INTO schema_migrations VALUES ({KNOWN + 1}, 'later', 'x', 0)")
    with sqlite3.connect(made.path) as store:
        store.execute(f"INSERT INTO schema_compatibility VALUES ({KNOWN + 1}, {KNOWN})")
    store.close()
    with open_store(made.configuration) as reading:
        assert reading.read([(COUNT, {})]) == [[(4,)]]


def test_a_store_that_is_not_there_is_no_store_yet(tmp_path: Path) -> None:
    with pytest.raises(NoStoreYet), open_file(tmp_path / "gateway.db"):
        pass


async def test_the_clock_of_the_store_is_bound(tmp_path: Path) -> None:
    async with open_runtime() as runtime, open_sqlite(runtime, tmp_path / "gateway.db"):
        with open_file(tmp_path / "gateway.db") as store:
            alive = "SELECT node, CASE WHEN lease_until >= :store_ms THEN 1 ELSE 0 END FROM nodes"
            assert await store.fetch(alive) == [("node-1", 1)]


def test_rows_stream_by_from_one_snapshot(tmp_path: Path) -> None:
    made = make_store(tmp_path)
    with open_store(made.configuration) as store, store.snapshot() as read:
        first = read("SELECT operation_id FROM operations ORDER BY operation_id", {})
        assert next(first) == ("op_" + "0" * 25 + "1",)
        assert list(read(COUNT, {})) == [(4,)]
        assert len(list(first)) == 3


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gateway.db").write_bytes(b"no database" * 100)
    with pytest.raises(StoreRefused, match="cannot be read"), open_file(tmp_path / "gateway.db"):
        pass


def test_reading_does_not_keep_a_node_from_starting(tmp_path: Path) -> None:
    made = make_store(tmp_path)

    async def start() -> None:
        async with open_runtime() as runtime, open_sqlite(runtime, made.path) as store:
            assert await store.fetch(COUNT) == [(4,)]

    with open_file(made.path):
        trio.run(start)
