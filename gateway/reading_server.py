"""Reading a store on a PostgreSQL server from another process, blocking: commands have no loop that must go on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, final

import psycopg
from psycopg.pq import ExecStatus

from gateway.actors.store.errors import StatementFailed, StoreRefused
from gateway.actors.store.postgresql_blocking import Connection, connected, words
from gateway.actors.store.postgresql_connection import Command
from gateway.actors.store.postgresql_failures import Rejection, reason_of
from gateway.actors.store.postgresql_migrations import TABLES
from gateway.actors.store.postgresql_settings import PostgresqlSettings
from gateway.actors.store.postgresql_sql import Misused, command
from gateway.actors.store.postgresql_values import Unreadable, rows_of
from gateway.actors.store.protocol import Row, Value
from gateway.reading import NoStoreYet, require_release

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

PAGE = 2000
MIGRATE = "Run `gateway migrate`; nodes of the release before may go on meanwhile where that release allows it"

_BINARY = 1
_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_WISHES = (
    "SET application_name = 'gateway reading'",
    "SET cursor_tuple_fraction = 1",  # a cursor is read to its end: the plan is for all rows, not for the first
)


@contextmanager
def open_server(settings: PostgresqlSettings) -> Iterator[ServerInReading]:
    """Connect to a store for reading only, for the length of a block.

    Raises `StoreRefused` where the server cannot be reached or the store is of another release, `NoStoreYet` where its
    database is empty.
    """
    with connection_to(settings) as connection:
        source = ServerInReading(connection)
        with source.snapshot():
            tables = {str(name) for (name,) in source.rows(TABLES, {})}
            if not tables:
                raise NoStoreYet(settings.shown, "there is no store", "Start a node on this database once")
            require_release(tables, lambda sql: list(source.rows(sql, {})), "postgresql", settings.shown, MIGRATE)
        yield source


@contextmanager
def connection_to(settings: PostgresqlSettings) -> Iterator[Connection]:
    """Connect to a server to read only; raises `StoreRefused` that names its host and port."""
    inside = False
    try:
        with connected(settings) as connection:
            for wish in _WISHES:
                with suppress(psycopg.DatabaseError):  # an engine that lacks it does without
                    connection.execute(wish.encode())
            inside = True
            yield connection
    except StoreRefused as refused:
        if inside:
            raise
        what = f"{settings.place} cannot be used: {refused.what}"
        raise StoreRefused(settings.shown, what, refused.remedy) from refused.__cause__


@final
class ServerInReading:
    """`Snapshots` of a store on PostgreSQL."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._names = (f"reading_{number}" for number in count(1))

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """See `Snapshots.snapshot`."""
        self._connection.execute(_BEGIN)
        try:
            yield
        finally:
            if not self._connection.broken:
                self._connection.execute("ROLLBACK")

    def rows(self, sql: str, parameters: Mapping[str, Value]) -> Iterator[Row]:
        """See `Snapshots.rows`.  A server that goes away raises psycopg's own error."""
        try:
            asked = command(sql, parameters)
        except Misused as error:
            raise StatementFailed(None, str(error)) from error
        name = next(self._names)
        self._run(asked, before=f"DECLARE {name} NO SCROLL CURSOR FOR ")
        fetch = Command(f"FETCH FORWARD {PAGE} FROM {name}")
        while page := self._page(fetch):
            yield from page
        self._run(Command(f"CLOSE {name}"))

    def _page(self, fetch: Command) -> list[Row]:
        try:
            return rows_of(self._run(fetch))
        except Unreadable as error:
            raise StatementFailed(None, str(error)) from error

    def _run(self, asked: Command, before: str = "") -> PGresult:
        """Run a command; psycopg's own placeholders are not ours, so it is handed to libpq as it is."""
        result = self._connection.pgconn.exec_params(
            (before + asked.sql).encode(), asked.values, asked.types, asked.formats, _BINARY
        )
        if result.status in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
            return result
        error = psycopg.errors.error_from_result(result)
        if error.sqlstate is None:  # libpq's own: the connection is gone
            raise psycopg.OperationalError(words(error))
        if reason_of(error.sqlstate):
            raise error
        raise Rejection(error.sqlstate, words(error)).failed(None)
