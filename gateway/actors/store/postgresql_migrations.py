"""The schema of a PostgreSQL store: made at the first opening, checked at every other.

Nothing but rows locks: the transaction of a migration begins with its row in `schema_migrations`, so of two nodes that
open an empty database one migrates it and the other waits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from psycopg.pq.abc import PGresult

from gateway.actors.store import schema
from gateway.actors.store.errors import StoreRefused
from gateway.actors.store.postgresql_connection import Command, Connection
from gateway.actors.store.postgresql_failures import Rejection
from gateway.actors.store.postgresql_membership import BEGIN, COMMIT, ROLLBACK, Rejected, accepted
from gateway.actors.store.postgresql_sql import command
from gateway.actors.store.postgresql_values import rows_of
from gateway.actors.store.sqlite_file import statements_of

_DUPLICATES = frozenset({"23505", "42P07", "42710"})
_TRIES = 50
_PATIENCE_S = 600.0

TABLES = """
    SELECT t.table_name FROM information_schema.tables t
    WHERE t.table_schema = current_schema() AND t.table_type = 'BASE TABLE' AND NOT EXISTS (
        SELECT 1 FROM pg_depend d JOIN pg_class c ON c.oid = d.objid JOIN pg_namespace s ON s.oid = c.relnamespace
        WHERE d.deptype = 'e' AND d.classid = 'pg_class'::regclass
            AND c.relname = t.table_name AND s.nspname = t.table_schema)
"""
"""The tables of a database, by which it is known whose it is; what an extension brought tells nothing of that."""
_UNBOUNDED = (Command("SET LOCAL statement_timeout = 0"), Command("SET LOCAL lock_timeout = 0"))


async def require_usable(connection: Connection, where: str) -> None:
    """Raise StoreRefused unless the database keeps text in UTF-8 and is written here.  Raises `Rejected` too."""
    encoding = connection.parameter("server_encoding")
    if encoding not in (None, "UTF8"):
        raise StoreRefused(
            where, f"its encoding is {encoding}", "Make the database with ENCODING 'UTF8' TEMPLATE template0"
        )
    (answer,) = await accepted(connection, Command("SHOW transaction_read_only", once=True), within=_PATIENCE_S)
    if rows_of(answer) == [("on",)]:
        raise StoreRefused(
            where, "it is read-only", "Name the primary in [store] url; a read-only replica cannot keep a store"
        )


async def migrated(
    connection: Connection, migrations: Sequence[schema.Migration], where: str, *, migrate: bool
) -> Sequence[schema.Migration]:
    """Bring the database to the schema of this release, and return the migrations that were applied here.

    An empty database is always migrated, another one only when `migrate` says so.  Raises StoreRefused, `Rejected` and
    `Disconnected`.
    """
    await _bootstrap(connection, where)
    done: list[schema.Migration] = []
    for _ in range(_TRIES):
        applied = [schema.Applied(*row) for row in await _rows(connection, schema.SELECT_APPLIED)]  # type: ignore[arg-type]
        serves = {int(str(version)): int(str(one)) for version, one in await _rows(connection, schema.SELECT_SERVES)}
        left = schema.pending(migrations, applied, where, serves)
        if not left:
            return done
        if applied and not migrate:
            raise StoreRefused(
                where,
                f"its schema is version {len(applied)} and this release needs {len(migrations)}",
                "Run `gateway migrate`; nodes of the release before may go on meanwhile where that release allows it",
            )
        # An empty database becomes whole at once, so that nobody sees half of it.
        together = left if not applied else left[:1]
        if await _applied(connection, together, where):
            done += together
    raise StoreRefused(where, "others migrate it without end", "Start one node alone first")


async def _bootstrap(connection: Connection, where: str) -> None:
    """Make the engine's own tables where they are missing."""
    for tries_left in reversed(range(_TRIES)):
        tables = {str(name) for (name,) in await _rows(connection, TABLES)}
        if tables and "schema_migrations" not in tables:
            raise StoreRefused(
                where, "it is another program's database", "Name an empty database of the node's own in [store] url"
            )
        if {"schema_migrations", "schema_compatibility", "nodes"} <= tables:
            return
        statements = [Command(schema.translated(sql, "postgresql"), once=True) for sql in schema.BOOTSTRAP]
        try:
            await accepted(connection, BEGIN, *_UNBOUNDED, *statements, COMMIT, within=_PATIENCE_S)
        except Rejected as rejected:
            # CREATE TABLE IF NOT EXISTS looks before it makes: another node's may come between.
            if rejected.rejection.sqlstate not in _DUPLICATES or not tries_left:
                raise _refused(where, "its tables cannot be made", rejected.rejection) from rejected


async def _applied(connection: Connection, migrations: Sequence[schema.Migration], where: str) -> bool:
    """Apply migrations in one transaction; False where another node was first."""
    await accepted(connection, BEGIN, *_UNBOUNDED, within=_PATIENCE_S)
    for migration in migrations:
        claim, *records = migration.records(int(time.time() * 1000))
        try:
            await accepted(connection, command(*claim), within=_PATIENCE_S)
        except Rejected as rejected:
            if rejected.rejection.sqlstate in _DUPLICATES:
                return False
            raise _refused(where, "its schema history cannot be written", rejected.rejection) from rejected
        try:
            for statement in statements_of(migration.sql):
                await accepted(connection, Command(statement, once=True), within=_PATIENCE_S)
            await accepted(connection, *(command(*record) for record in records), within=_PATIENCE_S)
        except Rejected as rejected:
            what = f"migration {migration.version} ({migration.name}) failed and was undone"
            raise _refused(where, what, rejected.rejection) from rejected
    results = await accepted(connection, COMMIT, within=_PATIENCE_S)
    if _tag(results) != b"COMMIT":
        await connection.exchange(ROLLBACK, within=_PATIENCE_S)
        raise StoreRefused(where, "its migration was not committed", "Look at the server's log")
    return True


async def _rows(connection: Connection, sql: str) -> list[tuple[object, ...]]:
    (result,) = await accepted(connection, Command(sql, once=True), within=_PATIENCE_S)
    return [tuple(row) for row in rows_of(result)]


def _tag(results: Sequence[PGresult]) -> bytes:
    return (results[-1].command_status or b"") if results else b""


def _refused(where: str, what: str, rejection: Rejection) -> StoreRefused:
    remedy = (
        "Grant the node's role CREATE on the schema"
        if rejection.sqlstate in {"42501", "3F000"}
        else "Report this to the makers of this release"
    )
    return StoreRefused(where, f"{what} ({rejection.words})", remedy)
