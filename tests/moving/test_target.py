from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import trio

from gateway.actors.runtime import open_runtime
from gateway.actors.store import PostgresqlSettings, StoreRefused, open_postgresql, schema
from gateway.migrating import migrate_server
from gateway.moving import MoveRefused
from gateway.moving.mark import Mark
from gateway.moving.source import Source, open_source
from gateway.moving.target import Target, open_target
from tests.moving.filled import fill
from tests.postgresql import EXTENDED

MARK = Mark("ours", "4/1")


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    fill(tmp_path / "gateway.db", 30, seed=1)
    with open_source(tmp_path / "gateway.db", lambda: 0) as opened:
        yield opened


@pytest.fixture
def target(postgresql_url: str) -> Iterator[Target]:
    migrate_server(PostgresqlSettings(postgresql_url), schema.shipped())
    with open_target(PostgresqlSettings(postgresql_url)) as opened:
        yield opened


def rows_in(target: Target, table: str) -> int:
    (count,) = target.connection.execute(f"SELECT COUNT(*) FROM {table}".encode()).fetchone() or (None,)
    assert isinstance(count, int)
    return count


class TestWhatItMayHold:
    def test_nothing_at_all_or_an_empty_schema(self, postgresql_url: str, source: Source) -> None:
        settings = PostgresqlSettings(postgresql_url)
        with open_target(settings) as target:
            assert target.require_ours("ours", source.tables) == {}
            migrate_server(settings, schema.shipped())
            assert target.require_ours("ours", source.tables) == {}

    def test_what_an_extension_brought(self, postgresql_url: str, source: Source) -> None:
        settings = PostgresqlSettings(postgresql_url)
        with open_target(settings) as target:
            for made in EXTENDED:
                target.connection.execute(made.encode())
            assert target.require_ours("ours", source.tables) == {}
            migrate_server(settings, schema.shipped())
            assert target.require_ours("ours", source.tables) == {}
            target.require_tables(source.tables)

    def test_no_table_of_another_program(self, postgresql_url: str, source: Source) -> None:
        with open_target(PostgresqlSettings(postgresql_url)) as target:
            target.connection.execute("CREATE TABLE guests (name TEXT)")
            with pytest.raises(MoveRefused, match=r"another program's tables\. Name an empty database"):
                target.require_ours("ours", source.tables)

    def test_no_row_of_another_store_in_any_table(self, target: Target, source: Source) -> None:
        for table in source.tables:
            row = next(iter(source.rows(table)))
            with target.connection.transaction(force_rollback=True):
                with target.connection.cursor() as cursor, cursor.copy(table.copy.encode()) as copy:
                    copy.write_row(row)
                with pytest.raises(MoveRefused, match=f"table {table.name} holds rows of another store"):
                    target.require_ours("ours", source.tables)

    def test_a_move_of_the_same_store_and_of_no_other(self, target: Target, source: Source) -> None:
        target.begin(MARK, source.tables, [])
        assert Mark.of(target.require_ours("ours", source.tables)["moving-from"]) == MARK
        with pytest.raises(MoveRefused, match="filled from another store"):
            target.require_ours("theirs", source.tables)
        target.declare_whole("ours", "now")
        assert target.require_ours("ours", source.tables).keys() == {"moved-from"}
        with pytest.raises(MoveRefused, match="filled from another store"):
            target.require_ours("theirs", source.tables)

    def test_the_same_tables_with_the_same_columns(self, target: Target, source: Source) -> None:
        target.require_tables(source.tables)
        with pytest.raises(MoveRefused, match=r"differ from the file's \(leases\)"):
            target.require_tables([table for table in source.tables if table.name != "leases"])
        target.connection.execute("ALTER TABLE findings ADD COLUMN more TEXT")
        with pytest.raises(MoveRefused, match=r"\(findings\)"):
            target.require_tables(source.tables)


class TestNodes:
    def test_while_a_node_runs_on_it_nothing_is_begun_and_no_mark_stays(
        self, postgresql_url: str, target: Target, source: Source
    ) -> None:
        async def live() -> None:
            settings = PostgresqlSettings(postgresql_url)
            async with open_runtime() as runtime, open_postgresql(runtime, settings, node="node-9"):
                with pytest.raises(MoveRefused, match=r"node node-9 runs on it\. Stop it"):
                    target.begin(MARK, source.tables, [])

        trio.run(live)
        assert rows_in(target, "node_facts") == 0
        target.begin(MARK, source.tables, [])

    def test_epochs_of_the_file_go_on_in_the_store(self, target: Target, source: Source) -> None:
        target.connection.execute("INSERT INTO nodes VALUES ('node-2', 9, 0, 0, 0, '')")
        target.begin(MARK, source.tables, [("node-1", 5), ("node-2", 7)])
        found = target.connection.execute("SELECT node, epoch, lease_until FROM nodes ORDER BY node").fetchall()
        assert found == [("node-1", 5, 0), ("node-2", 9, 0)]


class TestCopying:
    def test_a_batch_and_its_mark_are_stored_together(self, target: Target, source: Source) -> None:
        table = source.tables[0]
        rows = list(source.rows(table))
        mark = target.begin(MARK, source.tables, [])
        mark = target.add(table, rows[:7], mark)
        assert (
            target.begin(MARK, source.tables, []) == mark == Mark("ours", "4/1", table.name, table.key_of(rows[6]), 7)
        )
        assert list(target.rows(table)) == rows[:7]

    def test_a_run_that_another_has_overtaken_adds_nothing(self, target: Target, source: Source) -> None:
        table = source.tables[0]
        rows = list(source.rows(table))
        mark = target.begin(MARK, source.tables, [])
        target.add(table, rows[:3], mark)
        with pytest.raises(MoveRefused, match="another move is filling it too"):
            target.add(table, rows[3:5], mark)
        assert rows_in(target, table.name) == 3

    def test_what_the_database_does_not_take_leaves_nothing_behind(self, target: Target, source: Source) -> None:
        (facts,) = (table for table in source.tables if table.name == "node_facts")
        mark = target.begin(MARK, source.tables, [])
        with pytest.raises(MoveRefused, match=r"rows of node_facts up to \('b',\).*NUL"):
            target.add(facts, [("a", "fine"), ("b", "a\0b")], mark)
        assert target.begin(MARK, source.tables, []) == mark
        assert list(target.rows(facts)) == []

    def test_a_file_that_a_node_has_used_meanwhile_is_copied_anew(self, target: Target, source: Source) -> None:
        mark = target.begin(MARK, source.tables, [])
        for table in source.tables:
            mark = target.add(table, list(source.rows(table)), mark)
        later = Mark("ours", "4/2")
        assert target.begin(later, source.tables, []) == later
        assert {table.name: rows_in(target, table.name) for table in source.tables} == {
            table.name: int(table.name == "node_facts") for table in source.tables
        }

    def test_another_moves_mark_is_not_taken_over(self, target: Target, source: Source) -> None:
        target.begin(MARK, source.tables, [])
        with pytest.raises(MoveRefused, match="another move is filling it"):
            target.begin(Mark("theirs", "4/1"), source.tables, [])

    def test_a_mark_waits_for_a_batch_that_is_still_under_way(
        self, postgresql_url: str, target: Target, source: Source
    ) -> None:
        """A killed run's last transaction may be committed after the next run has begun."""
        mark = target.begin(MARK, source.tables, [])
        with psycopg.connect(postgresql_url) as ghost:
            ghost.execute(
                "UPDATE node_facts SET value = %s WHERE name = 'moving-from'", [mark.moved_on("x", (1,), 1).text]
            )
            target.connection.execute("SET lock_timeout = '50ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                target.begin(MARK, source.tables, [])
        assert target.begin(MARK, source.tables, []) == mark.moved_on("x", (1,), 1)


def test_a_server_that_cannot_be_reached_is_told_without_the_password() -> None:
    settings = PostgresqlSettings("postgresql://gateway:hush@127.0.0.1:1/gateway")
    with pytest.raises(StoreRefused, match="cannot be reached") as refused, open_target(settings):
        pass
    assert "hush" not in str(refused.value)


def test_statistics_are_gathered_for_every_table(target: Target, source: Source) -> None:
    mark = target.begin(MARK, source.tables, [])
    for table in source.tables:
        mark = target.add(table, list(source.rows(table)), mark)
    target.gather_statistics(source.tables)
    found = target.connection.execute("SELECT relname FROM pg_class WHERE reltuples > 0 AND relkind = 'r'").fetchall()
    assert {table.name for table in source.tables} <= {str(name) for (name,) in found}
