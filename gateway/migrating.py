"""The schema of a store beside this release's: what is pending, which nodes run over it, and bringing it up."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from importlib.resources.abc import Traversable
from pathlib import Path

import attrs
import trio

from gateway.actors.store import StoreRefused, moves, schema
from gateway.actors.store.postgresql_blocking import APPLICATION, connected
from gateway.actors.store.postgresql_connecting import Road
from gateway.actors.store.postgresql_failures import Disconnected, remedy
from gateway.actors.store.postgresql_membership import Rejected
from gateway.actors.store.postgresql_migrations import TABLES, migrated, require_usable
from gateway.actors.store.postgresql_settings import PostgresqlSettings
from gateway.actors.store.postgresql_sql import CLOCK
from gateway.actors.store.protocol import Row
from gateway.actors.store.releases import LiveNode, judge
from gateway.actors.store.sqlite_file import SqliteFile
from gateway.reading import connect

_LIVE = f"SELECT node, release FROM nodes WHERE lease_until >= {CLOCK} ORDER BY node"  # noqa: S608 - a constant

Reading = Callable[[str], list[Row]]
"""Reads the rows of a query."""


class SchemaRefused(StoreRefused):
    """The store has a schema that this release cannot bring up to its own."""


@attrs.frozen
class Standing:
    """Where a store's schema stands: how many migrations it has, which are pending, which nodes run over it."""

    applied: int
    pending: tuple[schema.Migration, ...]
    nodes: tuple[LiveNode, ...] = ()


def standing_of_file(path: Path, migrations: Traversable) -> Standing:
    """Where the SQLite store at `path` stands, which need not exist.  Raises `StoreRefused`."""
    ours = schema.load(migrations, "sqlite")
    if not path.exists():
        return Standing(0, ours)
    with closing(connect(path)) as connection:
        try:
            names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if "node_facts" in names:
                moves.require_here(dict(connection.execute(moves.SELECT_OF_THE_MOVE).fetchall()), path)
            return _standing(names, lambda sql: connection.execute(sql).fetchall(), ours, path)
        except sqlite3.Error as error:
            raise StoreRefused(path, f"it cannot be read ({error})", "A damaged file needs its backup") from error


def standing_of_server(settings: PostgresqlSettings, migrations: Traversable) -> Standing:
    """Where a PostgreSQL store stands, and which nodes run over it now.  Raises `StoreRefused`."""
    ours = schema.load(migrations, "postgresql")
    with connected(settings) as connection:

        def read(sql: str) -> list[Row]:
            return connection.execute(sql.encode()).fetchall()

        names = {str(name) for (name,) in read(TABLES)}
        found = _standing(names, read, ours, settings.shown)
        if "nodes" not in names:
            return found
        nodes = [(str(node), str(release)) for node, release in read(_LIVE)]
        return attrs.evolve(found, nodes=tuple(judge(nodes, found.applied, _serves(read), found.pending)))


def _standing(names: set[str], read: Reading, ours: Sequence[schema.Migration], where: object) -> Standing:
    if not names:
        return Standing(0, tuple(ours))
    if "schema_migrations" not in names:
        raise StoreRefused(where, "it is another program's database", "Name the node's own in [store] url")
    applied = [schema.Applied(*row) for row in read(schema.SELECT_APPLIED)]  # type: ignore[arg-type]  # its own types
    serves = _serves(read) if "schema_compatibility" in names else {}
    try:
        return Standing(len(applied), tuple(schema.pending(ours, applied, where, serves)))
    except StoreRefused as refused:
        raise SchemaRefused(refused.where, refused.what, refused.remedy) from refused


def _serves(read: Reading) -> dict[int, int]:
    return {int(version): int(oldest) for version, oldest in read(schema.SELECT_SERVES)}  # type: ignore[arg-type]


def migrate_file(path: Path, migrations: Traversable) -> None:
    """Bring the SQLite store at `path` up, making it where it is missing.

    Raises `StoreRefused`, above all while a node runs on it.
    """
    file = SqliteFile(path, APPLICATION, lambda: time.time_ns() // 1_000_000)
    file.take(migrations).close()
    file.release()


def migrate_server(settings: PostgresqlSettings, migrations: Traversable) -> tuple[schema.Migration, ...]:
    """Bring a PostgreSQL store up and return what was applied here; of two at once one does it.

    Raises `StoreRefused`.
    """
    return trio.run(partial(_migrate_server, settings, schema.load(migrations, "postgresql")))


async def _migrate_server(
    settings: PostgresqlSettings, migrations: Sequence[schema.Migration]
) -> tuple[schema.Migration, ...]:
    road = Road(settings, random.SystemRandom(), name=APPLICATION, server={})
    try:
        connection = await road.connect()
        try:
            await require_usable(connection, settings.shown)
            return tuple(await migrated(connection, migrations, settings.shown, migrate=True))
        finally:
            connection.close()
    except Disconnected as lost:
        raise StoreRefused(
            settings.shown, f"{lost.reason.story} ({' '.join(lost.words.split())})", remedy(lost.reason)
        ) from lost
    except Rejected as rejected:
        reason = rejected.rejection.failure.reason
        what = f"it cannot be migrated ({rejected.rejection.words})"
        raise StoreRefused(settings.shown, what, remedy(reason)) from rejected
