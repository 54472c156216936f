"""The parts of the PostgreSQL engine, put together without the engine, for tests that look inside."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from gateway.actors.store import PostgresqlSettings
from gateway.actors.store.postgresql_connecting import BY_INDEX, Road
from gateway.actors.store.postgresql_connection import Command, Connection
from gateway.actors.store.postgresql_link import Link
from gateway.actors.store.postgresql_membership import Member, accepted
from gateway.actors.store.postgresql_migrations import migrated
from gateway.actors.store.postgresql_values import rows_of
from gateway.actors.store.postgresql_writer import Writer
from gateway.actors.store.protocol import Row
from gateway.actors.store.schema import Migration, translated

WITHIN_S = 10.0


def road(url: str, *, server: Mapping[str, str | int] = {}, wishes: tuple[str, ...] = (), connect_s: int = 5) -> Road:
    settings = PostgresqlSettings(url, connect_timeout_s=connect_s)
    return Road(settings, random.Random(7), name="test", server=server, wishes=wishes)


@asynccontextmanager
async def connected(url: str, **server: str | int) -> AsyncIterator[Connection]:
    connection = await road(url, server=server).connect()
    try:
        yield connection
    finally:
        connection.close()


async def run(connection: Connection, *statements: str) -> list[list[Row]]:
    """The rows of statements that are to be accepted."""
    results = await accepted(connection, *(Command(sql, once=True) for sql in statements), within=WITHIN_S)
    return [rows_of(result) for result in results]


async def run_at(url: str, *statements: str) -> list[list[Row]]:
    async with connected(url) as connection:
        return await run(connection, *statements)


async def somebody_waits(url: str) -> bool:
    """Whether a transaction waits for a lock of another."""
    return bool((await run_at(url, "SELECT 1 FROM pg_locks WHERE NOT granted"))[0])


def schema_of(*scripts: str) -> list[Migration]:
    """Migrations that make these tables."""
    return [
        Migration(version, f"number_{version}", f"checksum {version}", translated(script, "postgresql"))
        for version, script in enumerate(scripts, 1)
    ]


@asynccontextmanager
async def joined(
    url: str, migrations: Sequence[Migration], *, node: str = "node-1", lease_ms: int = 60_000
) -> AsyncIterator[tuple[Link, Writer]]:
    """A link that nobody keeps up, and a writer on it."""
    writing = road(url, server={"synchronous_commit": "off"}, wishes=BY_INDEX)
    connection = await writing.connect()
    await migrated(connection, migrations, url, migrate=True)
    member = Member(node, lease_ms, within=WITHIN_S)
    await member.join(connection, url)
    link = Link(writing, member, connection, lambda _failure: None, beside=writing)
    try:
        yield link, Writer(link, within=WITHIN_S)
    finally:
        await link.leave()
