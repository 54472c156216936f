from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import trio

from gateway.actors.runtime import open_runtime
from gateway.actors.store import PostgresqlSettings, StoreRefused, open_postgresql
from gateway.actors.store.postgresql_connection import Connection
from gateway.actors.store.postgresql_membership import Rejected
from gateway.actors.store.postgresql_migrations import migrated, require_usable
from gateway.actors.store.schema import Migration, load, shipped
from tests.actors.store.postgresql_parts import connected, run, run_at, schema_of

ONE, TWO = schema_of(
    "CREATE TABLE a (x TEXT); -- a comment; with a semicolon\nINSERT INTO a VALUES ('one; two')",
    "CREATE TABLE b (x BIGINT)",
)
APPLIED = "SELECT version FROM schema_migrations ORDER BY version"


async def migrate(url: str, *migrations: Migration, migrate: bool = False) -> list[int]:
    """The versions that were applied here."""
    async with connected(url) as connection:
        return [one.version for one in await migrated(connection, migrations, url, migrate=migrate)]


async def test_an_empty_database_is_migrated_and_then_left_alone(postgresql_url: str) -> None:
    assert await migrate(postgresql_url, ONE, TWO) == [1, 2]
    assert await migrate(postgresql_url, ONE, TWO) == []
    assert await run_at(postgresql_url, "SELECT x FROM a", APPLIED) == [[("one; two",)], [(1,), (2,)]]


async def test_what_this_release_ships_makes_its_tables(postgresql_url: str) -> None:
    shipped_here = load(shipped(), "postgresql")
    assert await migrate(postgresql_url, *shipped_here) == [one.version for one in shipped_here]
    (collations,) = await run_at(
        postgresql_url,
        "SELECT DISTINCT collation_name::text FROM information_schema.columns "
        "WHERE table_schema = current_schema() AND data_type = 'text'",
    )
    assert collations == [("C",)]


@pytest.mark.parametrize("round_", range(4))
async def test_of_many_that_open_an_empty_database_at_once_one_migrates_it(postgresql_url: str, round_: int) -> None:
    done: list[list[int]] = []

    async def open_at_once() -> None:
        done.append(await migrate(postgresql_url, ONE, TWO))

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(open_at_once)
    assert sorted(done) == [[]] * 5 + [[1, 2]]
    assert await run_at(postgresql_url, "SELECT count(*) FROM a") == [[(1,)]]


async def test_a_second_one_waits_for_the_first_to_finish(postgresql_url: str) -> None:
    (slow,) = schema_of("SELECT pg_sleep(0.5)::text; CREATE TABLE slow (x BIGINT)")
    done: list[list[int]] = []

    async def open_at_once() -> None:
        done.append(await migrate(postgresql_url, slow))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(open_at_once)
    assert sorted(done) == [[], [], [1]]


async def test_a_database_with_an_older_schema_is_migrated_only_on_demand(postgresql_url: str) -> None:
    await migrate(postgresql_url, ONE)
    with pytest.raises(StoreRefused, match=r"schema is version 1 and this release needs 2.*gateway migrate"):
        await migrate(postgresql_url, ONE, TWO)
    assert await migrate(postgresql_url, ONE, TWO, migrate=True) == [2]


async def test_a_newer_schema_is_refused_unless_it_serves_this_release(postgresql_url: str) -> None:
    await migrate(postgresql_url, ONE, TWO)
    with pytest.raises(StoreRefused, match="schema is version 2 and this release knows 1"):
        await migrate(postgresql_url, ONE)
    await migrate(postgresql_url, ONE, TWO, attrs.evolve(TWO, version=3, serves=2, sql="SELECT 1"), migrate=True)
    assert await migrate(postgresql_url, ONE, TWO) == []


async def test_a_migration_that_was_edited_is_refused(postgresql_url: str) -> None:
    await migrate(postgresql_url, ONE)
    with pytest.raises(StoreRefused, match="applied with other contents"):
        await migrate(postgresql_url, attrs.evolve(ONE, checksum="another"))


async def test_a_migration_that_fails_is_undone_whole_and_named(postgresql_url: str) -> None:
    wrong = attrs.evolve(TWO, sql="CREATE TABLE b (x BIGINT); SELECT nothing FROM nowhere")
    with pytest.raises(StoreRefused, match=r"migration 2 \(number_2\) failed and was undone .*nowhere"):
        await migrate(postgresql_url, ONE, wrong)
    assert await run_at(postgresql_url, APPLIED, "SELECT to_regclass('a')::text, to_regclass('b')::text") == [
        [],
        [(None, None)],
    ]
    assert await migrate(postgresql_url, ONE, TWO) == [1, 2]


async def test_another_programs_database_is_refused_and_left_alone(postgresql_url: str) -> None:
    await run_at(postgresql_url, "CREATE TABLE theirs (x bigint)")
    with pytest.raises(StoreRefused, match=r"another program's database.*Name an empty database"):
        await migrate(postgresql_url, ONE)
    assert await run_at(postgresql_url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [[(1,)]]


async def test_a_role_that_may_not_make_tables_is_told_what_it_lacks(postgresql_url: str) -> None:
    role = f"poor_{postgresql_url.rpartition('/')[2]}"
    await run_at(postgresql_url, f"CREATE ROLE {role} LOGIN")
    try:
        with pytest.raises(StoreRefused, match=r"permission denied.*Grant the node's role CREATE"):
            await migrate(postgresql_url.replace("//postgres@", f"//{role}@"), ONE)
    finally:
        await run_at(postgresql_url, f"DROP ROLE {role}")


async def test_a_schema_of_its_own_is_used_where_the_url_names_one(postgresql_url: str) -> None:
    await run_at(postgresql_url, "CREATE SCHEMA mine", "CREATE TABLE theirs (x bigint)")
    assert await migrate(f"{postgresql_url}?options=-c%20search_path%3Dmine", ONE) == [1]
    assert await run_at(postgresql_url, "SELECT count(*) FROM mine.a") == [[(1,)]]


async def test_a_database_that_does_not_keep_utf_8_is_refused(postgresql_url: str) -> None:
    name = postgresql_url.rpartition("/")[2] + "_latin"
    await run_at(postgresql_url, f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        async with connected(postgresql_url.rpartition("/")[0] + "/" + name) as connection:
            with pytest.raises(StoreRefused, match=r"its encoding is LATIN1.*ENCODING 'UTF8'"):
                await require_usable(connection, "there")
    finally:
        await run_at(postgresql_url, f"DROP DATABASE {name} WITH (FORCE)")


async def test_a_read_only_session_is_refused(postgresql_url: str) -> None:
    async with connected(postgresql_url) as connection:
        await require_usable(connection, "there")
    async with connected(postgresql_url, default_transaction_read_only="on") as connection:
        with pytest.raises(StoreRefused, match=r"it is read-only.*Name the primary"):
            await require_usable(connection, "there")


async def test_the_engine_migrates_at_opening_only_on_demand(postgresql_url: str, tmp_path: Path) -> None:
    (tmp_path / "0001_a.sql").write_text("CREATE TABLE a (x TEXT);")
    settings = PostgresqlSettings(postgresql_url)

    async def open_with(*, migrate: bool) -> None:
        async with (
            open_runtime() as runtime,
            open_postgresql(runtime, settings, node="n", migrations=tmp_path, migrate=migrate) as store,
        ):
            assert await store.fetch("SELECT * FROM a") == []

    await open_with(migrate=False)
    (tmp_path / "0002_b.sql").write_text("CREATE TABLE b (x TEXT);")
    with pytest.RaisesGroup(StoreRefused, flatten_subgroups=True):
        await open_with(migrate=False)
    await open_with(migrate=True)


async def test_rejected_work_is_rolled_back(postgresql_url: str) -> None:
    async with connected(postgresql_url) as connection:
        with pytest.raises(Rejected):
            await run(connection, "BEGIN", "CREATE TABLE x (a bigint)", "SELECT nothing")
        assert not idle(connection)


def idle(connection: Connection) -> bool:
    return connection.in_transaction
