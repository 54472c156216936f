from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from gateway.actors.store import Statement, StatementFailed, StoreRefused, StoreUnavailable, schema
from gateway.actors.store.postgresql_settings import PostgresqlSettings
from gateway.config import Configuration
from gateway.http import operator_view
from gateway.reading import NoStoreYet, StoreInReading, open_store
from gateway.reading_server import PAGE, open_server
from gateway.world.postgresql import open_server as open_server_of_the_world
from tests.store_of_a_node import FREE, SETTLED, StoreOfANode, make_store

KNOWN = len(schema.load(schema.shipped(), "postgresql"))
COUNT = "SELECT COUNT(*) FROM operations"


@pytest.fixture
def made(tmp_path: Path, postgresql_url: str) -> StoreOfANode:
    return make_store(tmp_path / "data", postgresql_url)


@pytest.fixture
def store(made: StoreOfANode) -> Iterator[StoreInReading]:
    with open_store(made.configuration) as opened:
        yield opened


@pytest.fixture
def do(postgresql_url: str) -> Callable[[str], None]:
    def run(sql: str) -> None:
        with psycopg.connect(postgresql_url, autocommit=True) as connection:
            connection.execute(sql.encode())

    return run


def refused(url: str) -> StoreRefused:
    with pytest.raises(StoreRefused) as caught, open_server(PostgresqlSettings(url=url)):
        pass
    return caught.value


async def test_values_are_those_that_the_engine_gives(store: StoreInReading) -> None:
    sql = """
        SELECT amount, sealed_request, payer, quote_id, SUM(amount) OVER (), amount > 0, :text || '!', :number + 1
        FROM operations WHERE operation_id = :id
    """
    (row,) = await store.fetch(sql, {"id": SETTLED, "text": "a:b", "number": 2**40})
    assert row == (6000, b"sealed", "0x" + "a" * 40, None, 6000, 1, "a:b!", 2**40 + 1)


async def test_the_clock_of_the_store_is_bound(store: StoreInReading) -> None:
    ((now,),) = await store.fetch("SELECT :store_ms")
    assert isinstance(now, int)
    assert abs(now - time.time() * 1000) < 60_000
    ((name, alive),) = await store.fetch("SELECT node, CASE WHEN lease_until >= :store_ms THEN 1 ELSE 0 END FROM nodes")
    assert (name, alive) == ("node-1", 0)


def test_all_queries_see_one_snapshot(store: StoreInReading, do: Callable[[str], None]) -> None:
    facts = "SELECT COUNT(*) FROM node_facts"
    with store.snapshot() as read:
        before = list(read(facts, {}))
        do("INSERT INTO node_facts VALUES ('later', 'x')")
        assert list(read(facts, {})) == before
    ((count,),) = before
    assert store.read([(facts, {}), (facts, {})]) == [[(int(count or 0) + 1,)]] * 2


def test_more_rows_than_a_page_are_read_whole_and_in_order(store: StoreInReading, do: Callable[[str], None]) -> None:
    count = 2 * PAGE + 1
    do(f"INSERT INTO node_facts SELECT 'many-' || lpad(n::text, 6, '0'), n::text FROM generate_series(1, {count}) n")
    many = "SELECT value FROM node_facts WHERE name LIKE 'many-%' ORDER BY name"
    assert store.read([(many, {})]) == [[(str(number),) for number in range(1, count + 1)]]


def test_two_queries_are_read_side_by_side(store: StoreInReading, do: Callable[[str], None]) -> None:
    do(f"INSERT INTO node_facts SELECT 'many-' || n, n::text FROM generate_series(1, {PAGE + 1}) n")
    many = "SELECT name FROM node_facts WHERE name LIKE 'many-%' ORDER BY name"
    with store.snapshot() as read:
        assert all(one == other for one, other in zip(read(many, {}), read(many, {}), strict=True))


def test_a_query_that_is_left_early_does_not_disturb_the_next(store: StoreInReading) -> None:
    with store.snapshot() as read:
        assert next(read("SELECT operation_id FROM operations ORDER BY operation_id", {})) == (FREE,)
        assert list(read(COUNT, {})) == [(4,)]
    assert store.read([(COUNT, {})]) == [[(4,)]]


async def test_nothing_is_ever_written(store: StoreInReading) -> None:
    with pytest.raises(StoreUnavailable):
        await store.commit(Statement("DELETE FROM node_facts"))
    for sql in ("DELETE FROM operations", "DELETE FROM operations RETURNING operation_id", "COMMIT"):
        with pytest.raises(StatementFailed):
            await store.fetch(sql)
    assert await store.fetch(COUNT) == [(4,)]


@pytest.mark.parametrize("sql", ["SELECT nothing FROM operations", "SELECT :missing", "SELECT 1.5"])
def test_a_query_that_fails_is_named_and_the_next_one_works(store: StoreInReading, sql: str) -> None:
    with pytest.raises(StatementFailed) as caught:
        store.read([(COUNT, {}), (sql, {})])
    assert caught.value.index == 1
    assert store.read([(COUNT, {})]) == [[(4,)]]


def test_every_query_of_the_operator_works(store: StoreInReading) -> None:
    for only in (None, *operator_view.FILTERS):
        store.read(operator_view.listing(only, 5))
    shown = operator_view.detailed(store.read(operator_view.details(SETTLED)))
    assert shown is not None
    assert sum(int(each["amountAtomic"]) for each in shown["ledger"]) == 0
    (node,) = operator_view.nodes(store.read(operator_view.NODES))
    assert (node["node"], node["openOperations"]) == ("node-1", 1)


def test_an_empty_database_is_no_store_yet(postgresql_url: str) -> None:
    error = refused(postgresql_url)
    assert isinstance(error, NoStoreYet)
    assert "Start a node" in error.remedy


def test_another_programs_database_is_refused(postgresql_url: str, do: Callable[[str], None]) -> None:
    do("CREATE TABLE guests (name TEXT)")
    error = refused(postgresql_url)
    assert not isinstance(error, NoStoreYet)
    assert "no node's store" in error.what


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (f"INSERT INTO schema_migrations VALUES ({KNOWN + 1}, 'later', 'x', 0)", "this release knows"),
        ("UPDATE schema_migrations SET checksum = 'x'", "other contents"),
        (f"DELETE FROM schema_migrations WHERE version = {KNOWN}", "gateway migrate"),
    ],
)
def test_a_store_of_another_release_is_refused(
    made: StoreOfANode, do: Callable[[str], None], change: str, told: str
) -> None:
    do(change)
    assert told in str(refused(made.configuration.store.url))


def test_a_newer_schema_that_serves_this_release_is_read(made: StoreOfANode, do: Callable[[str], None]) -> None:
    do(f"INSERT INTO schema_migrations VALUES ({KNOWN + 1}, 'later', 'x', 0)")
    do(f"INSERT INTO schema_compatibility VALUES ({KNOWN + 1}, {KNOWN})")
    with open_store(made.configuration) as store:
        assert store.read([(COUNT, {})]) == [[(4,)]]


def test_a_server_that_is_not_there_is_named_by_host_and_port_and_without_its_password() -> None:
    told = str(refused("postgresql://gateway:s3cret@127.0.0.1:1/gateway"))
    assert "127.0.0.1:1 cannot be used" in told
    assert "Start PostgreSQL there" in told
    assert "s3cret" not in told


def test_a_database_that_is_not_there_is_named(postgresql_url: str) -> None:
    told = str(refused(f"{postgresql_url}_gone"))
    assert "does not exist" in told
    assert "Correct the database" in told


def cut_while_reading(configuration: Configuration, cut: Callable[[], None]) -> None:
    with open_store(configuration) as store, store.snapshot() as read:
        cut()
        for _ in range(50):  # until the server has taken notice
            list(read(COUNT, {}))


def test_a_connection_that_is_cut_meanwhile_is_a_refusal(made: StoreOfANode, do: Callable[[str], None]) -> None:
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'gateway reading'"
    with pytest.raises(StoreRefused):
        cut_while_reading(made.configuration, lambda: do(cut))


def test_a_server_that_is_killed_meanwhile_is_a_refusal(tmp_path: Path) -> None:
    with open_server_of_the_world() as server:
        made = make_store(tmp_path / "data", server.create_database("node"))
        with pytest.raises(StoreRefused, match="Start PostgreSQL"):
            cut_while_reading(made.configuration, server.kill)
