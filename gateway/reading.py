"""Reading a node's store from another process, while nodes run or not."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, final

from gateway.actors.store import schema
from gateway.actors.store.errors import Failure, Reason, StatementFailed, StoreRefused
from gateway.actors.store.protocol import STORE_CLOCK, Row, Statement, Value

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gateway.config import Configuration

_BUSY_TIMEOUT_S = 5.0

Query = tuple[str, Mapping[str, Value]]


class NoStoreYet(StoreRefused):
    """There is no store: no node was ever started with this configuration."""


@contextmanager
def open_store(configuration: Configuration) -> Iterator[StoreInReading]:
    """Open the configured store for reading only; the nodes that write it are not disturbed.

    Raises `StoreRefused` where it cannot be reached, is of another release, or (`NoStoreYet`) is not there;
    `ConfigurationError` where its password cannot be read.
    """
    if not configuration.shared_store:
        with open_file(configuration.store_path) as file:
            yield file
        return
    from gateway.opening import settings_of
    from gateway.reading_server import open_server

    with open_server(settings_of(configuration)) as connection:
        yield StoreInReading(connection)


@contextmanager
def open_file(path: Path) -> Iterator[StoreInReading]:
    """The same of an SQLite file."""
    with closing(connect(path)) as connection:
        require_schema(connection, path)
        yield StoreInReading(FileInReading(connection))


def connect(path: Path) -> sqlite3.Connection:
    """Connect to a database file for reading only; raises `StoreRefused`."""
    if not path.exists():
        raise NoStoreYet(path, "there is no store", "Name the node's configuration with --config, or start it once")
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
    """Raise `StoreRefused` unless this release can read the database."""
    tables = {str(name) for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    remedy = "Run `gateway migrate`, or start the node once, it migrates"
    require_release(tables, lambda sql: connection.execute(sql).fetchall(), "sqlite", path, remedy)


def require_release(
    tables: set[str], read: Callable[[str], list[Row]], dialect: str, where: object, remedy: str
) -> None:
    """Raise `StoreRefused` unless this release can read a database with these tables; `remedy` is for an older one."""
    if "schema_migrations" not in tables:
        raise StoreRefused(where, "it is no node's store", "Name the node's own configuration with --config")
    applied = [schema.Applied(*row) for row in read(schema.SELECT_APPLIED)]  # type: ignore[arg-type]  # the schema's types
    served = read(schema.SELECT_SERVES) if "schema_compatibility" in tables else []
    serves = {int(version): int(oldest) for version, oldest in served}  # type: ignore[arg-type]
    waiting = schema.pending(schema.load(schema.shipped(), dialect), applied, where, serves)
    if waiting:
        raise StoreRefused(where, f"its schema is version {len(applied)}, older than this release", remedy)


class Snapshots(Protocol):
    """One connection to a store that is only read."""

    def snapshot(self) -> AbstractContextManager[None]:
        """Read from one snapshot for the length of a block."""
        ...

    def rows(self, sql: str, parameters: Mapping[str, Value]) -> Iterator[Row]:
        """Return the rows of a query within a snapshot, a page of them in memory at a time.

        Raises `StatementFailed`.
        """
        ...


@final
class FileInReading:
    """`Snapshots` of an SQLite file."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """See `Snapshots.snapshot`."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")

    def rows(self, sql: str, parameters: Mapping[str, Value]) -> Iterator[Row]:
        """See `Snapshots.rows`."""
        now = {STORE_CLOCK: time.time_ns() // 1_000_000} if f":{STORE_CLOCK}" in sql else {}
        try:
            with closing(self._connection.execute(sql, {**parameters, **now})) as cursor:
                yield from cursor
        except sqlite3.Error as error:
            raise StatementFailed(None, str(error)) from error


@final
class StoreInReading:
    """The reading half of a `Store`, on one connection; `commit` refuses."""

    def __init__(self, source: Snapshots) -> None:
        self._source = source

    async def commit(self, *_: Statement, relaxed: bool = False) -> list[list[Row]]:
        """Refuse with `StoreUnavailable`: another process writes this store."""
        del relaxed
        raise Failure(Reason.READ_ONLY).error()

    async def fetch(self, sql: str, parameters: Mapping[str, Value] = {}) -> list[Row]:
        """See `Store.fetch`."""
        (rows,) = self.read([(sql, parameters)])
        return rows

    async def fetch_many(self, queries: Sequence[Query]) -> list[list[Row]]:
        """See `Store.fetch_many`."""
        return self.read(queries)

    async def look_up(self, queries: Sequence[Query]) -> list[list[Row]]:
        """See `Store.look_up`."""
        return self.read(queries)

    def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        """Return the rows of each query, all from one snapshot; raises `StatementFailed`."""
        results: list[list[Row]] = []
        with self._source.snapshot():
            for sql, parameters in queries:
                try:
                    results.append(list(self._source.rows(sql, parameters)))
                except StatementFailed as failed:
                    raise StatementFailed(len(results), failed.cause) from failed
        return results

    @contextmanager
    def snapshot(self) -> Iterator[Callable[[str, Mapping[str, Value]], Iterator[Row]]]:
        """Hold one snapshot for the length of a block; what it gives reads the rows of a query, a page at a time.

        So a table is read that would not fit in memory.  Iterating raises `StatementFailed`.
        """
        with self._source.snapshot():
            yield self._source.rows
