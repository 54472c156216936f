"""The tables that a store consists of, as its own schema names them, and their rows in one canonical form.

Nothing here lists tables: one that a later migration adds is moved like the others.
"""

from __future__ import annotations

import re
import sqlite3

import attrs
import orjson

from gateway.actors.store.moves import OF_THE_MOVE
from gateway.actors.store.protocol import Row, Value
from gateway.actors.store.schema import BOOTSTRAP

FACTS = "node_facts"
ENGINES_OWN = frozenset(re.findall(r"CREATE TABLE IF NOT EXISTS (\w+)", "".join(BOOTSTRAP)))
"""What each engine keeps for itself: the history of the schema, and the nodes that are joined."""


@attrs.frozen
class Table:
    """One table: its columns in order, and those of its primary key."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]

    @property
    def select(self) -> str:
        """All rows that are moved, in the order of the key; SQL for both engines."""
        return self._select("")

    def select_after(self, placeholder: str) -> str:
        """The same of the rows behind a key, which is given in place of the placeholders."""
        return self._select(f"({_list(self.key)}) > ({', '.join([placeholder] * len(self.key))})")

    @property
    def count(self) -> str:
        """How many rows are moved; SQL for both engines."""
        return f"SELECT COUNT(*) FROM {_quoted(self.name)}{self._where('')}"  # noqa: S608 - names of the schema

    @property
    def any(self) -> str:
        """Whether there are any; SQL for both engines."""
        return f"SELECT 1 FROM {_quoted(self.name)}{self._where('')} LIMIT 1"  # noqa: S608 - as above

    @property
    def copy(self) -> str:
        """PostgreSQL's COPY of rows into it."""
        return f"COPY {_quoted(self.name)} ({_list(self.columns)}) FROM STDIN"

    def key_of(self, row: Row) -> Row:
        """The key of a row."""
        return tuple(row[self.columns.index(name)] for name in self.key)

    def _select(self, condition: str) -> str:
        columns, key = _list(self.columns), _list(self.key)
        name = _quoted(self.name)
        return f"SELECT {columns} FROM {name}{self._where(condition)} ORDER BY {key}"  # noqa: S608 - as above

    def _where(self, condition: str) -> str:
        of_the_move = ", ".join(f"'{name}'" for name in OF_THE_MOVE)
        wanted = [f"name NOT IN ({of_the_move})"] if self.name == FACTS else []
        wanted += [condition] if condition else []
        return f" WHERE {' AND '.join(wanted)}" if wanted else ""


def tables_of(connection: sqlite3.Connection) -> tuple[Table, ...]:
    """The tables of a SQLite store that are moved, by name.

    Raises ValueError for one without a primary key: its rows have no order to go on in.
    """
    names = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name"
    ).fetchall()
    return tuple(_table(connection, name) for (name,) in names if name not in ENGINES_OWN)


def _table(connection: sqlite3.Connection, name: str) -> Table:
    columns = connection.execute("SELECT name, pk FROM pragma_table_info(?) ORDER BY cid", [name]).fetchall()
    key = [column for place, column in sorted((place, column) for column, place in columns if place)]
    if not key:
        raise ValueError(f"table {name} has no primary key")
    return Table(name, tuple(column for column, _ in columns), tuple(key))


def encoded(row: Row) -> bytes:
    """The canonical form of a row: a JSON array of its columns, bytes as an array of their hexadecimal digits."""
    return orjson.dumps(row, default=_bytes_in_json)


def decoded(form: bytes | str) -> Row:
    """The row of a canonical form."""
    return tuple(_plain(value) for value in orjson.loads(form))


def _bytes_in_json(value: Value) -> list[str]:
    if not isinstance(value, bytes):
        raise TypeError(f"{type(value).__name__} is in no column")
    return [value.hex()]


def _plain(value: str | int | list[str] | None) -> Value:
    return bytes.fromhex(value[0]) if isinstance(value, list) else value


def _quoted(name: str) -> str:
    return f'"{name}"'


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(map(_quoted, names))
