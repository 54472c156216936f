"""A PostgreSQL server for the tests: one a session, a fresh database a test."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import attrs
import psycopg
import pytest

from gateway.world.postgresql import PostgresqlServer, ServerFailed, open_server

GIVEN = "GATEWAY_TEST_PG"
"""The address of a server to use instead, with the right to make databases: postgresql://user@host:port/postgres."""


@attrs.frozen
class GivenServer:
    """A server that somebody else runs."""

    address: str

    def create_database(self, name: str) -> str:
        self._run(f'CREATE DATABASE "{name}"')
        base, _, _ = self.address.rpartition("/")
        return f"{base}/{name}"

    def drop_database(self, name: str) -> None:
        self._run(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def _run(self, sql: str) -> None:
        with psycopg.connect(self.address, autocommit=True) as connection:
            connection.execute(sql.encode())


@pytest.fixture(scope="session")
def own_postgresql_server() -> Iterator[PostgresqlServer]:
    """A server that tests share; one that kills or stops a server starts its own (`open_server`)."""
    try:
        with open_server() as server:
            yield server
    except ServerFailed as failed:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no PostgreSQL: {failed}")


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
