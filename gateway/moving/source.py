"""The SQLite store that is moved, held for the length of the move so that no node writes it."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import final

import attrs
import orjson

from gateway.actors.store import StoreRefused, moves, schema
from gateway.actors.store.protocol import Row
from gateway.actors.store.sqlite_file import SqliteFile
from gateway.moving.tables import Table, tables_of


@final
@attrs.frozen(eq=False)
class Source:
    """A SQLite store in this process's hands."""

    path: Path
    connection: sqlite3.Connection
    tables: tuple[Table, ...]

    @property
    def store_id(self) -> str:
        """What the store is known by wherever it goes; made when it is first asked for."""
        self.connection.execute(
            "INSERT INTO node_facts (name, value) VALUES (?, ?) ON CONFLICT DO NOTHING",
            [moves.STORE_ID, secrets.token_hex(16)],
        )
        return self.fact(moves.STORE_ID) or ""

    @property
    def state(self) -> str:
        """What differs once a node has run on it again, or a newer release has migrated it."""
        (state,) = self.connection.execute(
            "SELECT (SELECT COUNT(*) FROM schema_migrations) || '/' || (SELECT COALESCE(SUM(epoch), 0) FROM nodes)"
        ).fetchone()
        return str(state)

    def fact(self, name: str) -> str | None:
        """One of its facts."""
        found = self.connection.execute("SELECT value FROM node_facts WHERE name = ?", [name]).fetchone()
        return str(found[0]) if found else None

    def epochs(self) -> list[tuple[str, int]]:
        """The nodes that ever ran on it, and under which epoch last."""
        return self.connection.execute("SELECT node, epoch FROM nodes ORDER BY node").fetchall()

    def count(self, table: Table) -> int:
        """How many rows of a table are moved."""
        return int(self.connection.execute(table.count).fetchone()[0])

    def count_after(self, table: Table, after: Row | None) -> int:
        """How many of them stand behind the key `after`."""
        if after is None:
            return self.count(table)
        counted = f"SELECT COUNT(*) FROM ({table.select_after('?')})"  # noqa: S608 - names of the schema
        return int(self.connection.execute(counted, after).fetchone()[0])

    def rows(self, table: Table, after: Row | None = None) -> Iterator[Row]:
        """The rows of a table in the order of its key, from behind the key `after` on."""
        with closing(self.connection.cursor()) as cursor:
            yield from cursor.execute(table.select_after("?"), after) if after else cursor.execute(table.select)

    def leave(self, url: str, at: str) -> str:
        """Mark it, durably, as moved to `url`, in which there is no password; return when it was so marked first."""
        self.connection.execute(
            "INSERT INTO node_facts (name, value) VALUES (?, ?) ON CONFLICT DO NOTHING",
            [moves.MOVED_TO, orjson.dumps({"url": url, "at": at}).decode()],
        )
        return str(orjson.loads(self.fact(moves.MOVED_TO) or "{}")["at"])


@contextmanager
def open_source(path: Path, now_ms: Callable[[], int]) -> Iterator[Source]:
    """Hold the store at `path` for the length of a block, migrated to this release's schema.

    Raises `StoreRefused`, above all where a node runs on it.
    """
    if not path.exists():
        raise StoreRefused(path, "there is no store", "Name the configuration of the node that is moved with --config")
    file = SqliteFile(path, "gateway-migrate", now_ms)
    connection = file.take(schema.shipped())
    try:
        yield Source(path, connection, tables_of(connection))
    finally:
        connection.close()
        file.release()
