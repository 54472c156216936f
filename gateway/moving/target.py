"""The PostgreSQL store that a move fills: found empty, marked, filled in batches, declared whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import final

import attrs
import orjson
import psycopg

from gateway.actors.store import moves
from gateway.actors.store.postgresql_blocking import Connection, connected, words
from gateway.actors.store.postgresql_migrations import TABLES
from gateway.actors.store.postgresql_settings import PostgresqlSettings
from gateway.actors.store.postgresql_sql import CLOCK
from gateway.actors.store.protocol import Row, Value
from gateway.moving.books import HEAD
from gateway.moving.mark import Mark
from gateway.moving.refusal import MoveRefused
from gateway.moving.tables import ENGINES_OWN, FACTS, Table

FETCHED_AT_ONCE = 2000
_COLUMNS = f"""
    SELECT table_name, column_name FROM information_schema.columns
    WHERE table_schema = current_schema() AND is_generated = 'NEVER' AND table_name IN ({TABLES})
    ORDER BY table_name, ordinal_position
"""  # noqa: S608 - a constant
_LIVE = f"SELECT node FROM nodes WHERE lease_until >= {CLOCK} ORDER BY node"  # noqa: S608 - a constant
_EPOCH = """
    INSERT INTO nodes (node, epoch, lease_until, step, joined_at, release) VALUES (%s, %s, 0, 0, 0, '')
    ON CONFLICT (node) DO UPDATE SET epoch = GREATEST(nodes.epoch, excluded.epoch)
"""
_ADVANCE = "UPDATE node_facts SET value = %s WHERE name = %s AND value = %s"


@final
@attrs.frozen(eq=False)
class Target:
    """A database on PostgreSQL, over a connection of its own."""

    connection: Connection
    shown: str

    # -- before anything is copied -------------------------------------------------------------------------------------

    def require_ours(self, store_id: str, tables: Sequence[Table]) -> Mapping[str, str]:
        """Return what it says of a move; raise `MoveRefused` unless it is empty or filled from the store `store_id`."""
        there = {str(name) for (name,) in self._all(TABLES)}
        if there and "schema_migrations" not in there:
            raise self._refused("it holds another program's tables", "Name an empty database")
        found = self._all(moves.SELECT_OF_THE_MOVE) if FACTS in there else []
        facts = {str(name): str(value) for name, value in found}
        for name in (moves.MOVING_FROM, moves.MOVED_FROM):
            if name in facts:
                if orjson.loads(facts[name])["store"] != store_id:
                    raise self._refused("it is filled from another store", "Name an empty database")
                return facts
        self._require_empty([table for table in tables if table.name in there])
        return facts

    def require_tables(self, tables: Sequence[Table]) -> None:
        """Raise `MoveRefused` unless it has the same tables with the same columns."""
        found: dict[str, tuple[str, ...]] = {}
        for name, column in self._all(_COLUMNS):
            if name not in ENGINES_OWN:
                found[str(name)] = (*found.get(str(name), ()), str(column))
        wanted = {table.name: table.columns for table in tables}
        differing = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
        if differing:
            raise self._refused(f"its tables differ from the file's ({', '.join(differing)})", "Name an empty database")

    def require_no_node(self) -> None:
        """Raise `MoveRefused` while a node is joined to it."""
        live = [str(node) for (node,) in self._all(_LIVE)]
        if live:
            raise self._refused(f"node {', '.join(live)} runs on it", "Stop it, and name a database that no node uses")

    # -- copying -------------------------------------------------------------------------------------------------------

    def begin(self, mark: Mark, tables: Sequence[Table], epochs: Sequence[tuple[str, int]]) -> Mark:
        """Mark it as being filled, or find out how far an earlier run came; from now on every node refuses it.

        A store that a node has used since the earlier run is copied anew.  Raises `MoveRefused`.
        """
        made = self._change(
            "INSERT INTO node_facts (name, value) VALUES (%s, %s) ON CONFLICT DO NOTHING", moves.MOVING_FROM, mark.text
        )
        if made:
            try:
                self.require_no_node()
                self._require_empty(tables)
            except MoveRefused:
                self._change("DELETE FROM node_facts WHERE name = %s", moves.MOVING_FROM)
                raise
        with self.connection.transaction():
            found = self._one("SELECT value FROM node_facts WHERE name = %s FOR UPDATE", moves.MOVING_FROM)
            text = str(found[0]) if found else mark.text  # FOR UPDATE waits for what a killed run still has under way
            so_far = Mark.of(text)
            if so_far.store != mark.store:
                raise self._refused("another move is filling it", "Name an empty database")
            if so_far.state != mark.state:
                self._empty(tables)
                so_far = mark
                self._change(_ADVANCE, so_far.text, moves.MOVING_FROM, text)
            for node, epoch in epochs:
                self._change(_EPOCH, node, epoch)
        return so_far

    def add(self, table: Table, rows: Sequence[Row], before: Mark) -> Mark:
        """Add a batch of rows, all or none, and return the mark that stands behind them.  Raises `MoveRefused`."""
        after = before.moved_on(table.name, table.key_of(rows[-1]), len(rows))
        try:
            with self.connection.transaction(), self.connection.cursor() as cursor:
                if not self._change(_ADVANCE, after.text, moves.MOVING_FROM, before.text):
                    raise self._refused("another move is filling it too", "Let that one end, or stop it")
                with cursor.copy(table.copy.encode()) as copy:
                    for row in rows:
                        copy.write_row(row)
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            raise self._refused(
                f"it does not take the rows of {table.name} up to {table.key_of(rows[-1])} ({words(error)})",
                "Empty the database and run the command again; if it stays so, report it to the makers",
            ) from error
        return after

    # -- what it holds -------------------------------------------------------------------------------------------------

    def rows(self, table: Table) -> Iterator[Row]:
        """The rows of a table in the order of its key, a few at a time."""
        with self.connection.transaction(), self.connection.cursor("rows", binary=True) as cursor:
            cursor.itersize = FETCHED_AT_ONCE
            yield from cursor.execute(table.select.encode())

    def head(self) -> str | None:
        """The hash of the ledger's last block."""
        found = self._one(HEAD)
        return str(found[0]) if found else None

    # -- the end -------------------------------------------------------------------------------------------------------

    def gather_statistics(self, tables: Sequence[Table]) -> None:
        """Let the planner know what was copied: without it the first queries would read whole tables."""
        for table in tables:
            self._change(f"ANALYZE {table.name}")

    def declare_whole(self, store_id: str, at: str) -> None:
        """Let nodes in."""
        with self.connection.transaction():
            self._change("DELETE FROM node_facts WHERE name = %s", moves.MOVING_FROM)
            self._change(
                "INSERT INTO node_facts (name, value) VALUES (%s, %s) ON CONFLICT DO NOTHING",
                moves.MOVED_FROM,
                orjson.dumps({"store": store_id, "at": at}).decode(),
            )

    def _require_empty(self, tables: Sequence[Table]) -> None:
        for table in tables:
            if self._one(table.any):
                raise self._refused(f"its table {table.name} holds rows of another store", "Name an empty database")

    def _empty(self, tables: Sequence[Table]) -> None:
        for table in tables:
            if table.name != FACTS:
                self._change(f"TRUNCATE TABLE {table.name}")
        self._change("DELETE FROM node_facts WHERE name <> %s", moves.MOVING_FROM)

    def _all(self, sql: str, *values: Value) -> list[Row]:
        return self.connection.execute(sql.encode(), values).fetchall()

    def _one(self, sql: str, *values: Value) -> Row | None:
        return self.connection.execute(sql.encode(), values).fetchone()

    def _change(self, sql: str, *values: Value) -> int:
        return self.connection.execute(sql.encode(), values).rowcount

    def _refused(self, what: str, remedy: str) -> MoveRefused:
        return MoveRefused(f"{self.shown}: {what}. {remedy}")


@contextmanager
def open_target(settings: PostgresqlSettings) -> Iterator[Target]:
    """Hold a connection to the database for the length of a block; raises `StoreRefused` as `connected` does."""
    with connected(settings) as connection:
        yield Target(connection, settings.shown)
