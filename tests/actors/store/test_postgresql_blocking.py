from __future__ import annotations

import psycopg
import pytest

from gateway.actors.store import PostgresqlSettings, StoreRefused
from gateway.actors.store.postgresql_blocking import connected


def test_statements_commit_by_themselves_and_take_their_time(postgresql_url: str) -> None:
    with connected(PostgresqlSettings(postgresql_url)) as connection:
        connection.execute("CREATE TABLE t (a BIGINT)")
        for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
            assert connection.execute(f"SHOW {name}".encode()).fetchall() == [("0",)]
    with connected(PostgresqlSettings(postgresql_url)) as connection:
        assert connection.execute("SELECT COUNT(*) FROM t").fetchone() == (0,)


def test_a_server_that_does_not_answer_is_told_with_what_to_do() -> None:
    settings = PostgresqlSettings("postgresql://gateway@127.0.0.1:1/gateway")
    with pytest.raises(StoreRefused, match=r"cannot be reached.*Start PostgreSQL there"), connected(settings):
        pass


def test_a_server_that_does_not_let_in_is_told_with_what_to_do(postgresql_url: str) -> None:
    settings = PostgresqlSettings(postgresql_url.replace("/test_", "/nothing_"))
    told = r'has no such database \(.*database "nothing_.*" does not exist\)\. Correct the database'
    with pytest.raises(StoreRefused, match=told), connected(settings):
        pass


def test_a_connection_that_is_lost_is_told_as_such(postgresql_url: str) -> None:
    def lose() -> None:
        with connected(PostgresqlSettings(postgresql_url)) as connection:
            with psycopg.connect(postgresql_url) as other:
                other.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])
            connection.execute("SELECT 1")

    with pytest.raises(StoreRefused, match="is shutting down"):
        lose()


@pytest.mark.parametrize(
    ("before", "told"),
    [("SET default_transaction_read_only = on", "read-only"), ("SET ROLE pg_monitor", "permission denied")],
)
def test_a_server_that_does_not_take_what_is_asked_is_told_as_such(postgresql_url: str, before: str, told: str) -> None:
    def ask() -> None:
        with connected(PostgresqlSettings(postgresql_url)) as connection:
            connection.execute("CREATE TABLE t (a BIGINT)")
            connection.execute(before.encode())
            connection.execute("INSERT INTO t VALUES (1)")

    with pytest.raises(StoreRefused, match=told):
        ask()


def test_a_statement_that_is_wrong_is_a_defect(postgresql_url: str) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable), connected(PostgresqlSettings(postgresql_url)) as connection:
        connection.execute("SELECT * FROM nothing")
