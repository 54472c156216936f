"""A PostgreSQL server for the tests: one a session, a fresh database a test."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit, urlunsplit

import attrs
import psycopg
import pytest
from psycopg import sql

from gateway.world.npm import ToolUnavailable
from gateway.world.postgresql import PostgresqlServer, open_server

GIVEN = "GATEWAY_TEST_PG"
"""The address of a server to use instead, with the right to make databases: postgresql://user@host:port/postgres."""


EXTENDED = (
    "CREATE VIEW statistics_of_an_extension AS SELECT 1 AS calls",
    "ALTER EXTENSION plpgsql ADD VIEW statistics_of_an_extension",
    "CREATE TABLE reference_of_an_extension (id BIGINT)",
    "ALTER EXTENSION plpgsql ADD TABLE reference_of_an_extension",
)
"""Makes a view and a table that belong to an extension, as pg_stat_statements and PostGIS do, on any server."""


@attrs.frozen
class GivenServer:
    """A server that somebody else runs."""

    address: str

    def create_database(self, name: str) -> str:
        self._run(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return urlunsplit(urlsplit(self.address)._replace(path=f"/{name}"))

    def drop_database(self, name: str) -> None:
        self._run(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def _run(self, command: sql.Composed) -> None:
        with psycopg.connect(self.address, autocommit=True) as connection:
            connection.execute(command)


@pytest.fixture(scope="session")
def own_postgresql_server() -> Iterator[PostgresqlServer]:
    """A server that tests share; one that kills or stops a server takes `killable_postgresql`."""
    with _or_skipped() as server:
        yield server


@pytest.fixture
def killable_postgresql() -> Iterator[PostgresqlServer]:
    """A server of this test's own, to do with as it likes."""
    with _or_skipped() as server:
        yield server


@pytest.fixture(scope="session")
def postgresql_server(request: pytest.FixtureRequest) -> PostgresqlServer | GivenServer:
    given = os.environ.get(GIVEN)
    if given:
        return GivenServer(given)
    server: PostgresqlServer = request.getfixturevalue("own_postgresql_server")
    return server


@pytest.fixture
def postgresql_url(postgresql_server: PostgresqlServer | GivenServer) -> Iterator[str]:
    """The address of an empty database of this test's own."""
    name = f"test_{secrets.token_hex(6)}"
    yield postgresql_server.create_database(name)
    postgresql_server.drop_database(name)


@contextmanager
def _or_skipped() -> Iterator[PostgresqlServer]:
    """Run a server; where there is none to be had the test is skipped, but never in continuous integration."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(open_server())
        except ToolUnavailable as unavailable:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"NOTHING OF POSTGRESQL IS TESTED: {unavailable}")
        yield server
