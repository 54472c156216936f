from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from functools import partial
from pathlib import Path

import psycopg
import pytest
import trio

from gateway.actors.runtime import open_runtime
from gateway.actors.store import PostgresqlSettings, StoreRefused, open_postgresql, open_sqlite, schema
from gateway.actors.store.releases import LiveNode
from gateway.migrating import (
    SchemaRefused,
    Standing,
    migrate_file,
    migrate_server,
    standing_of_file,
    standing_of_server,
)
from tests.postgresql import EXTENDED

FIRST = "CREATE TABLE node_facts (name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL);"
SECOND = "ALTER TABLE node_facts ADD COLUMN second TEXT;"
FOR_ALL = "-- serves 1\nALTER TABLE node_facts ADD COLUMN third TEXT;"


def release(directory: Path, *scripts: str) -> Path:
    """The migrations of a release."""
    directory.mkdir()
    for number, script in enumerate(scripts, 1):
        (directory / f"{number:04d}_m{number}.sql").write_text(script)
    return directory


def versions(standing: Standing) -> list[int]:
    return [each.version for each in standing.pending]


@pytest.fixture
def older(tmp_path: Path) -> Path:
    return release(tmp_path / "older", FIRST)


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    return release(tmp_path / "newer", FIRST, SECOND, FOR_ALL)


class TestAFile:
    def test_what_is_pending_is_told_and_nothing_is_changed(self, tmp_path: Path, older: Path, newer: Path) -> None:
        path = tmp_path / "gateway.db"
        assert (standing_of_file(path, newer).applied, versions(standing_of_file(path, newer))) == (0, [1, 2, 3])
        assert not path.exists()
        migrate_file(path, older)
        for _ in range(2):
            assert (standing_of_file(path, newer).applied, versions(standing_of_file(path, newer))) == (1, [2, 3])
        migrate_file(path, newer)
        assert standing_of_file(path, newer) == Standing(3, ())

    def test_a_newer_schema_is_refused(self, tmp_path: Path, older: Path, newer: Path) -> None:
        migrate_file(tmp_path / "gateway.db", newer)
        with pytest.raises(SchemaRefused, match="its schema is version 3 and this release knows 1"):
            standing_of_file(tmp_path / "gateway.db", older)

    async def test_a_node_that_runs_on_it_must_be_stopped_first(self, tmp_path: Path, older: Path, newer: Path) -> None:
        path = tmp_path / "gateway.db"
        async with open_runtime() as runtime, open_sqlite(runtime, path, migrations=older):
            assert versions(standing_of_file(path, newer)) == [2, 3]
            with pytest.raises(StoreRefused, match="Stop that node"):
                migrate_file(path, newer)

    def test_another_programs_file_is_refused(self, tmp_path: Path, newer: Path) -> None:
        with closing(sqlite3.connect(tmp_path / "gateway.db")) as connection:
            connection.execute("CREATE TABLE guests (name TEXT)")
        with pytest.raises(StoreRefused, match="another program's database"):
            standing_of_file(tmp_path / "gateway.db", newer)

    def test_a_store_that_was_moved_away_is_refused(self, tmp_path: Path, older: Path, newer: Path) -> None:
        migrate_file(tmp_path / "gateway.db", older)
        with closing(sqlite3.connect(tmp_path / "gateway.db")) as connection, connection:
            connection.execute(
                """INSERT INTO node_facts VALUES ('moved-to', '{"url": "postgresql://db", "at": "now"}')"""
            )
        with pytest.raises(StoreRefused, match="moved to postgresql://db"):
            standing_of_file(tmp_path / "gateway.db", newer)


class TestAServer:
    def test_what_is_pending_is_told_and_nothing_is_changed(
        self, postgresql_url: str, older: Path, newer: Path
    ) -> None:
        settings = PostgresqlSettings(postgresql_url)
        for _ in range(2):
            assert (standing_of_server(settings, newer).applied, versions(standing_of_server(settings, newer))) == (
                0,
                [1, 2, 3],
            )
        assert [each.version for each in migrate_server(settings, older)] == [1]
        assert (standing_of_server(settings, newer).applied, versions(standing_of_server(settings, newer))) == (
            1,
            [2, 3],
        )
        assert [each.version for each in migrate_server(settings, newer)] == [2, 3]
        assert standing_of_server(settings, newer) == Standing(3, ())

    def test_a_newer_schema_is_refused(self, postgresql_url: str, older: Path, newer: Path) -> None:
        settings = PostgresqlSettings(postgresql_url)
        migrate_server(settings, newer)
        with pytest.raises(SchemaRefused, match="its schema is version 3 and this release knows 1"):
            standing_of_server(settings, older)

    def test_what_an_extension_brought_does_not_make_it_another_programs(
        self, postgresql_url: str, newer: Path
    ) -> None:
        with psycopg.connect(postgresql_url) as connection:
            for made in EXTENDED:
                connection.execute(made.encode())
        settings = PostgresqlSettings(postgresql_url)
        assert versions(standing_of_server(settings, newer)) == [1, 2, 3]
        assert len(migrate_server(settings, newer)) == 3
        assert standing_of_server(settings, newer) == Standing(3, ())

    def test_another_programs_database_is_refused(self, postgresql_url: str, newer: Path) -> None:
        with psycopg.connect(postgresql_url) as connection:
            connection.execute("CREATE TABLE guests (name TEXT)")
        for look in (standing_of_server, migrate_server):
            with pytest.raises(StoreRefused, match="another program's database"):
                look(PostgresqlSettings(postgresql_url), newer)

    def test_a_server_that_cannot_be_reached_is_told(self, newer: Path) -> None:
        for look in (standing_of_server, migrate_server):
            with pytest.raises(StoreRefused, match=r"cannot be reached.*Start PostgreSQL there"):
                look(PostgresqlSettings("postgresql://gateway@127.0.0.1:1/gateway"), newer)

    def test_a_migration_that_fails_is_told_and_undone(self, postgresql_url: str, tmp_path: Path) -> None:
        broken = release(tmp_path / "broken", FIRST, "CREATE TABLE node_facts (name TEXT);")
        settings = PostgresqlSettings(postgresql_url)
        migrate_server(settings, release(tmp_path / "first", FIRST))
        with pytest.raises(StoreRefused, match=r"migration 2 \(m2\) failed and was undone"):
            migrate_server(settings, broken)
        assert versions(standing_of_server(settings, broken)) == [2]

    def test_of_two_at_once_each_migration_is_applied_by_one(
        self, postgresql_url: str, tmp_path: Path, older: Path
    ) -> None:
        settings = PostgresqlSettings(postgresql_url)
        migrate_server(settings, older)
        later = [f"ALTER TABLE node_facts ADD COLUMN c{number} TEXT;" for number in range(8)]
        newest = release(tmp_path / "newest", FIRST, *later)
        applied: list[int] = []

        def migrate() -> None:
            applied.extend(each.version for each in migrate_server(settings, newest))

        threads = [threading.Thread(target=migrate) for _ in range(3)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
        assert sorted(applied) == [2, 3, 4, 5, 6, 7, 8, 9]

    async def test_nodes_that_run_are_told_and_whether_they_could_go_on(
        self, postgresql_url: str, tmp_path: Path, older: Path, newer: Path
    ) -> None:
        settings = PostgresqlSettings(postgresql_url)
        for_all = release(tmp_path / "for_all", FIRST, FOR_ALL)
        async with (
            open_runtime() as runtime,
            open_postgresql(runtime, settings, node="node-1", migrations=older) as store,
        ):

            async def nodes(migrations: Path) -> list[tuple[str, bool]]:
                standing = await trio.to_thread.run_sync(partial(standing_of_server, settings, migrations))
                return [(each.node, each.served) for each in standing.nodes]

            assert await nodes(newer) == [("node-1", False)]
            assert await nodes(for_all) == [("node-1", True)]
            await trio.to_thread.run_sync(partial(migrate_server, settings, for_all))
            assert await store.fetch("SELECT third FROM node_facts") == []
        assert standing_of_server(settings, for_all).nodes == ()

    def test_a_node_that_says_what_it_knows_is_believed(self, postgresql_url: str, tmp_path: Path, older: Path) -> None:
        settings = PostgresqlSettings(postgresql_url)
        migrate_server(settings, release(tmp_path / "two", FIRST, FOR_ALL))
        add = "-- serves 2\nALTER TABLE node_facts ADD COLUMN fourth TEXT;"
        three = release(tmp_path / "three", FIRST, FOR_ALL, add)
        with psycopg.connect(postgresql_url) as connection:
            for node, told in (("a", "1.0"), ("b", "1.1+schema.2"), ("c", "1.0+schema.1")):
                connection.execute("INSERT INTO nodes VALUES (%s, 1, 9000000000000000000, 0, 0, %s)", [node, told])
        assert standing_of_server(settings, three).nodes == (
            LiveNode("a", "1.0", served=False),
            LiveNode("b", "1.1+schema.2", served=True),
            LiveNode("c", "1.0+schema.1", served=False),
        )


def test_the_shipped_migrations_bring_both_engines_to_the_same_number(tmp_path: Path, postgresql_url: str) -> None:
    settings = PostgresqlSettings(postgresql_url)
    migrate_file(tmp_path / "gateway.db", schema.shipped())
    migrate_server(settings, schema.shipped())
    known = len(schema.load(schema.shipped(), "sqlite"))
    assert standing_of_file(tmp_path / "gateway.db", schema.shipped()) == Standing(known, ())
    assert standing_of_server(settings, schema.shipped()) == Standing(known, ())
