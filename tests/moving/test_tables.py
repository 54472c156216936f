from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gateway.actors.store import moves, schema
from gateway.actors.store.protocol import Row
from gateway.actors.store.sqlite_file import SqliteFile
from gateway.moving.tables import Table, decoded, encoded, tables_of


@pytest.fixture
def store(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    file = SqliteFile(tmp_path / "gateway.db", "node-1", lambda: 0)
    with closing(file.open(schema.shipped())) as connection:
        yield connection
    file.release()


def test_every_table_of_the_schema_is_moved_but_the_engines_own(store: sqlite3.Connection) -> None:
    there = {name for (name,) in store.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert {table.name for table in tables_of(store)} == there - {
        "nodes",
        "schema_migrations",
        "schema_compatibility",
    }


def test_a_table_that_a_later_migration_adds_is_moved_with_its_columns_and_its_key(store: sqlite3.Connection) -> None:
    before = tables_of(store)
    store.execute("CREATE TABLE later (b TEXT NOT NULL, x BLOB, a BIGINT NOT NULL, PRIMARY KEY (a, b))")
    (later,) = set(tables_of(store)) - set(before)
    assert later == Table("later", ("b", "x", "a"), ("a", "b"))
    assert later.key_of(("b", b"x", 1)) == (1, "b")


def test_a_table_without_a_key_cannot_be_forgotten_either(store: sqlite3.Connection) -> None:
    store.execute("CREATE TABLE later (a BIGINT)")
    with pytest.raises(ValueError, match="table later has no primary key"):
        tables_of(store)


def test_no_table_is_sorted_in_memory(store: sqlite3.Connection) -> None:
    for table in tables_of(store):
        for sql in (table.select, table.select_after("NULL")):
            plan = " ".join(row[3] for row in store.execute(f"EXPLAIN QUERY PLAN {sql}"))
            assert "TEMP B-TREE" not in plan, (table.name, plan)


def test_what_stands_behind_a_key_is_found_by_an_index(store: sqlite3.Connection) -> None:
    for table in tables_of(store):
        plan = " ".join(row[3] for row in store.execute(f"EXPLAIN QUERY PLAN {table.select_after('NULL')}"))
        assert "SEARCH" in plan, (table.name, plan)


def test_rows_come_in_the_order_of_their_bytes_and_those_behind_a_key_alone(store: sqlite3.Connection) -> None:
    (callers,) = (table for table in tables_of(store) if table.name == "idempotency_callers")
    keys = [("a", "b"), ("B", "a"), ("ä", ""), ("a", "a"), ("_", "z"), ("", "")]
    store.executemany("INSERT INTO idempotency_callers VALUES (?, ?, 'op')", keys)
    ordered = sorted(keys, key=lambda key: [part.encode() for part in key])
    assert [row[:2] for row in store.execute(callers.select)] == ordered
    for place, key in enumerate(ordered):
        assert [row[:2] for row in store.execute(callers.select_after("?"), key)] == ordered[place + 1 :]


def test_what_a_move_says_of_itself_is_not_moved(store: sqlite3.Connection) -> None:
    (facts,) = (table for table in tables_of(store) if table.name == "node_facts")
    names = ["a", "z", moves.STORE_ID, *moves.OF_THE_MOVE]
    store.executemany("INSERT INTO node_facts VALUES (?, 'x')", [[name] for name in names])
    assert [row[0] for row in store.execute(facts.select)] == ["a", moves.STORE_ID, "z"]
    assert [row[0] for row in store.execute(facts.select_after("?"), ["a"])] == [moves.STORE_ID, "z"]
    assert store.execute(facts.count).fetchone() == (3,)
    assert store.execute(facts.any).fetchone() == (1,)
    store.execute("DELETE FROM node_facts WHERE name IN ('a', 'z', ?)", [moves.STORE_ID])
    assert store.execute(facts.any).fetchone() is None


@pytest.mark.parametrize("row", [(), (None, 0, -(2**63), 2**63 - 1), ("", "ä😀\\\x01", b"", b"\0\xff"), ("['00']",)])
def test_the_canonical_form_of_a_row_tells_the_row(row: Row) -> None:
    assert decoded(encoded(row)) == row


def test_rows_that_differ_have_forms_that_differ() -> None:
    rows: list[Row] = [
        ("a", "b"),
        ("ab", ""),
        ("61", None),
        (b"a", None),
        ("a", None),
        (1, None),
        ("1", None),
        ('["61"]', None),
    ]
    assert len({encoded(row) for row in rows}) == len(rows)


def test_what_no_column_holds_has_no_form() -> None:
    with pytest.raises(TypeError):
        encoded((object(),))  # type: ignore[arg-type]
