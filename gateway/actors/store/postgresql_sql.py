"""Portable SQL in PostgreSQL's words: `:name` becomes `$1`, `:store_ms` the server's clock."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

import attrs

from gateway.actors.store.postgresql_connection import Command
from gateway.actors.store.postgresql_values import BYTEA, encoded, type_of
from gateway.actors.store.protocol import STORE_CLOCK, Value

CLOCK = "(floor(extract(epoch FROM statement_timestamp()) * 1000))::bigint"
"""The store's clock in SQL: one instant a statement, so that an index can be searched by it."""

CLOCK_NOW = "(floor(extract(epoch FROM clock_timestamp()) * 1000))::bigint"
"""The same, at the instant at which it is evaluated: also after a wait for a lock."""

_TOKENS = re.compile(
    r"""
    (?P<space> \s+ | --[^\n]* | /\*.*?\*/ )
  | (?P<text> '(?:[^']|'')*' )
  | (?P<quoted> "(?:[^"]|"")*" )
  | (?P<cast> :: )
  | : (?P<parameter> [A-Za-z_][A-Za-z0-9_]* )
  | (?P<word> [^\W\d]\w* )
  | (?P<number> \d+(?:\.\d+)? )
  | (?P<mark> [<>!=|]{2} | . )
    """,
    re.VERBOSE | re.DOTALL,
)
_OF_TRANSACTIONS = frozenset(
    {
        "abort",
        "begin",
        "checkpoint",
        "commit",
        "copy",
        "deallocate",
        "discard",
        "end",
        "execute",
        "listen",
        "lock",
        "prepare",
        "release",
        "reset",
        "rollback",
        "savepoint",
        "set",
        "start",
        "unlisten",
        "vacuum",
    }
)


class Misused(Exception):
    """A statement that cannot be sent as it is: a parameter is missing, or it would end the transaction it is in."""


@attrs.frozen
class Token:
    """A piece of SQL: its `kind` (space, text, quoted, cast, parameter, word, number, mark) and its `text`.

    The text of a parameter is its name; words are as they were written.
    """

    kind: str
    text: str

    def means(self, *words: str) -> bool:
        """Whether it is one of these words or marks (in lower case)."""
        return self.kind in {"word", "mark"} and self.text.lower() in words

    @property
    def written(self) -> str:
        """As it stands in the SQL."""
        return f":{self.text}" if self.kind == "parameter" else self.text


def tokens(sql: str) -> Iterator[Token]:
    """The pieces of an SQL text; together they are the text."""
    for found in _TOKENS.finditer(sql):
        yield Token(str(found.lastgroup), found[str(found.lastgroup)])


def _names_of(statement: Spoken) -> frozenset[str]:
    return frozenset(statement.names)


@attrs.frozen
class Spoken:
    """A portable statement as PostgreSQL takes it, and the names of `$1`, `$2` and so on; `verb` is its first word."""

    sql: str
    names: tuple[str, ...]
    verb: str
    _needed: frozenset[str] = attrs.field(init=False, default=attrs.Factory(_names_of, takes_self=True))

    def require_sendable(self, parameters: Mapping[str, Value]) -> None:
        """Raise Misused unless it can be sent with these parameters."""
        if self.verb in _OF_TRANSACTIONS:
            raise Misused(f"{self.verb.upper()} is no part of a step")
        if not parameters.keys() >= self._needed:
            raise Misused(f"no value is given for :{next(name for name in self.names if name not in parameters)}")

    def command(self, parameters: Mapping[str, Value]) -> Command:
        """The command for these parameters.  Raises Misused."""
        self.require_sendable(parameters)
        values = [parameters[name] for name in self.names]
        types = tuple(map(type_of, values))
        return Command(self.sql, list(map(encoded, values)), types, [int(oid == BYTEA) for oid in types])


@lru_cache(maxsize=1024)
def spoken(sql: str) -> Spoken:
    """Portable SQL in PostgreSQL's words."""
    names: dict[str, int] = {}
    pieces = []
    verb = ""
    for token in tokens(sql):
        if token.kind == "parameter" and token.text == STORE_CLOCK:
            pieces.append(CLOCK)
        elif token.kind == "parameter":
            pieces.append(f"${names.setdefault(token.text, len(names) + 1)}")
        else:
            pieces.append(token.text)
            verb = verb or (token.text.lower() if token.kind == "word" else "")
    return Spoken("".join(pieces), tuple(names), verb)


def command(sql: str, parameters: Mapping[str, Value]) -> Command:
    """The command of a portable statement.  Raises Misused."""
    return spoken(sql).command(parameters)
