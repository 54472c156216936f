"""Reading a node's store from another process, while the node runs or not."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import final

from gateway.actors.store import schema
from gateway.actors.store.errors import Failure, Reason, StatementFailed, StoreRefused
from gateway.actors.store.protocol import Row, Statement, Value

_BUSY_TIMEOUT_S = 5.0


@contextmanager
def open_store(path: Path) -> Iterator[StoreInReading]:
    """Open the database file for reading only; the node that writes it is not disturbed.

    Raises `StoreRefused` where there is none, or one of another release.
    """
    with closing(connect(path)) as connection:
        require_schema(connection, path)
        yield StoreInReading(connection)


def connect(path: Path) -> sqlite3.Connection:
    """Connect to a database file for reading only; raises `StoreRefused`."""
    if not path.exists():
        raise StoreRefused(path, "there is no store", "Name the node's configuration with --config, or start it once")
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_TIMEOUT_S, isolation_level=None
        )
        connection.execute("PRAGMA query_only = ON")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        raise StoreRefused(
            path, f"it cannot be read ({error})", "Run this as the node's user; a damaged file needs its backup"
        ) from error
    return connection


def require_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Raise `StoreRefused` unless the database is of this release."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'schema_migrations'").fetchone():
        raise StoreRefused(path, "it is no node's store", "Name the node's own configuration with --config")
    applied = [schema.Applied(*row) for row in connection.execute(schema.SELECT_APPLIED)]
    waiting = schema.pending(schema.load(schema.shipped(), "sqlite"), applied, path)
    if waiting:
        raise StoreRefused(
            path, f"its schema is version {len(applied)}, older than this release", "Start the node once, it migrates"
        )


@final
class StoreInReading:
    """The reading half of a `Store`, on one connection; `commit` refuses."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def commit(self, *_: Statement) -> list[list[Row]]:
        """Refuse with `StoreUnavailable`: another process writes this store."""
        raise Failure(Reason.READ_ONLY).error()

    async def fetch(self, sql: str, parameters: Mapping[str, Value] = {}) -> list[Row]:
        """See `Store.fetch`."""
        (rows,) = self.read([(sql, parameters)])
        return rows

    async def fetch_many(self, queries: Sequence[tuple[str, Mapping[str, Value]]]) -> list[list[Row]]:
        """See `Store.fetch_many`."""
        return self.read(queries)

    async def look_up(self, queries: Sequence[tuple[str, Mapping[str, Value]]]) -> list[list[Row]]:
        """See `Store.look_up`."""
        return self.read(queries)

    def read(self, queries: Sequence[tuple[str, Mapping[str, Value]]]) -> list[list[Row]]:
        """Return the rows of each query, all from one snapshot; raises `StatementFailed`."""
        results: list[list[Row]] = []
        self._connection.execute("BEGIN")
        try:
            for sql, parameters in queries:
                results.append(self._connection.execute(sql, parameters).fetchall())
        except sqlite3.Error as error:
            raise StatementFailed(len(results), str(error)) from error
        finally:
            self._connection.execute("ROLLBACK")
        return results
