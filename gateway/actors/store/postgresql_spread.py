"""One statement over many rows of parameters: `... VALUES (:a, :b)` becomes `... SELECT a, b FROM unnest($1, $2)`.

Only statements whose meaning does not change by that are spread: they read no row but those that they write, call no
function of their own will, and every row that they touch is pinned, column by column, to the parameters of one row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import attrs

from gateway.actors.store.postgresql_sql import CLOCK, Token, tokens
from gateway.actors.store.protocol import STORE_CLOCK

_ROWS, _ORDINAL = "gateway_rows", "gateway_ordinal"
_FOREIGN = frozenset(
    {"select", "returning", "with", "union", "from", "using", "default", "only", "table", "overriding"}
    | {"current", "array", "row", ";", "[", "?", "$"}
)
_FUNCTIONS = frozenset({"abs", "cast", "coalesce", "in", "length", "lower", "nullif", "upper"})
_BEFORE_A_BRACKET = _FUNCTIONS | {"and", "case", "else", "not", "or", "set", "then", "values", "when", "where"}


@attrs.frozen
class Spread:
    """A statement that can be spread.

    `kind` is insert, update or delete; `pins` are the columns that are equal to a parameter in every row that it
    touches, with the parameter; `sets` the columns that it changes in rows that stand; `names` its parameters.
    """

    kind: str
    table: str
    pins: Mapping[str, str]
    sets: frozenset[str]
    names: tuple[str, ...]
    before: str
    after: str

    def sql(self, types: Sequence[str]) -> str:
        """The statement over arrays of these types, in the order of `names`.

        An update or a delete returns the ordinal number (from 1) of the parameters that each row was changed by.
        """
        arrays = ", ".join(f"${place}::{name}[]" for place, name in enumerate(types, 1))
        columns = ", ".join(map(_column, self.names))
        if self.kind == "insert":
            return f"{self.before} FROM unnest({arrays}) AS {_ROWS}({columns}) {self.after}"
        word = "FROM" if self.kind == "update" else "USING"
        return (
            f"{self.before} {word} unnest({arrays}) WITH ORDINALITY AS {_ROWS}({columns}, {_ORDINAL})"
            f" {self.after} RETURNING {_ROWS}.{_ORDINAL}"
        )


class _Unfit(Exception):
    """The statement means something else when it is spread, or may."""


@lru_cache(maxsize=1024)
def spread(sql: str) -> Spread | None:
    """The statement as one that can be spread; None where it must be run row by row."""
    pieces = [token for token in tokens(sql) if token.kind != "space"]
    try:
        _require_closed_world(pieces)
        reading = _Reading(pieces)
        match reading.word("insert", "update", "delete"):
            case "insert":
                return _insert(reading)
            case "update":
                return _update(reading)
            case _:
                return _delete(reading)
    except _Unfit:
        return None


def _require_closed_world(pieces: Sequence[Token]) -> None:
    for place, token in enumerate(pieces[2:], 2):  # the first two are the verb and INTO, FROM or the table
        if token.means(*_FOREIGN) or token.kind in {"quoted", "cast"}:
            raise _Unfit
        before_a_bracket = token.kind == "word" and place + 1 < len(pieces) and pieces[place + 1].text == "("
        names_columns = token.means("conflict") or pieces[place - 1].means("into")
        if before_a_bracket and not names_columns and token.text.lower() not in _BEFORE_A_BRACKET:
            raise _Unfit


@attrs.define(eq=False)
class _Reading:
    """Tokens, read from left to right."""

    pieces: Sequence[Token]
    place: int = 0

    def peek(self) -> Token | None:
        return self.pieces[self.place] if self.place < len(self.pieces) else None

    def next(self) -> Token:
        token = self.peek()
        if token is None:
            raise _Unfit
        self.place += 1
        return token

    def word(self, *words: str) -> str:
        token = self.next()
        if not token.means(*words):
            raise _Unfit
        return token.text.lower()

    def name(self) -> str:
        token = self.next()
        if token.kind != "word":
            raise _Unfit
        return token.text.lower()

    def bracket(self) -> list[Token]:
        """The tokens of a bracket, without the outermost pair."""
        self.word("(")
        found: list[Token] = []
        depth = 1
        while True:
            token = self.next()
            depth += token.means("(") - token.means(")")
            if not depth:
                return found
            found.append(token)

    def until(self, *words: str) -> list[Token]:
        """The tokens up to one of the words outside brackets, or to the end."""
        found: list[Token] = []
        depth = 0
        while (token := self.peek()) is not None and (depth or not token.means(*words)):
            depth += token.means("(") - token.means(")")
            found.append(self.next())
        return found


def _insert(reading: _Reading) -> Spread:
    reading.word("into")
    table = reading.name()
    following = reading.peek()
    columns = _names(reading.bracket()) if following is not None and following.means("(") else None
    reading.word("values")
    values = list(_split(reading.bracket(), ","))
    tail = reading.pieces[reading.place :]
    names = columns or [f"#{place}" for place in range(len(values))]
    if len(names) != len(values) or any(token.kind == "parameter" for token in tail):
        raise _Unfit
    pins = {
        column: value[0].text
        for column, value in zip(names, values, strict=True)
        if len(value) == 1 and _is_pin(value[0])
    }
    target, sets = _on_conflict(reading)
    if target is not None:
        pins = {column: pins[column] for column in target if column in pins}
    listed = f" ({', '.join(columns)})" if columns else ""
    expressions = ", ".join(_written(value) for value in values)
    return _spread(
        "insert",
        table,
        {column: name for column, name in pins.items() if column not in sets},
        sets,
        [token for value in values for token in value],
        f"INSERT INTO {table}{listed} SELECT {expressions}",
        _written(tail),
    )


def _on_conflict(reading: _Reading) -> tuple[list[str] | None, frozenset[str]]:
    """The columns by which a standing row is found, where it is then changed, and the columns that are changed."""
    if reading.peek() is None:
        return None, frozenset()
    reading.word("on")
    reading.word("conflict")
    following = reading.peek()
    target = _names(reading.bracket()) if following is not None and following.means("(") else None
    reading.word("do")
    if reading.word("nothing", "update") == "nothing":
        if reading.peek() is not None:
            raise _Unfit
        return None, frozenset()
    reading.word("set")
    sets = _assigned(reading.until("where"))
    if target is None:
        raise _Unfit
    return target, sets


def _update(reading: _Reading) -> Spread:
    table = reading.name()
    reading.word("set")
    assignments = reading.until("where")
    sets = _assigned(assignments)
    reading.word("where")
    condition = list(reading.pieces[reading.place :])
    return _spread(
        "update",
        table,
        {column: name for column, name in _pinned(condition) if column not in sets},
        sets,
        [*assignments, *condition],
        f"UPDATE {table} SET {_written(assignments)}",  # noqa: S608 - pieces of the statement itself
        f"WHERE {_written(condition)}",
    )


def _delete(reading: _Reading) -> Spread:
    reading.word("from")
    table = reading.name()
    reading.word("where")
    condition = list(reading.pieces[reading.place :])
    return _spread(
        "delete",
        table,
        dict(_pinned(condition)),
        frozenset(),
        condition,
        f"DELETE FROM {table}",  # noqa: S608 - a piece of the statement itself
        f"WHERE {_written(condition)}",
    )


def _spread(
    kind: str,
    table: str,
    pins: Mapping[str, str],
    sets: frozenset[str],
    used: Sequence[Token],
    before: str,
    after: str,
) -> Spread:
    names = tuple(dict.fromkeys(token.text for token in used if _is_pin(token)))
    if not pins:
        raise _Unfit
    return Spread(kind, table, pins, sets, names, before, after)


def _pinned(condition: Sequence[Token]) -> Iterator[tuple[str, str]]:
    """The columns that a condition demands to equal a parameter."""
    if any(token.means("or", "between", "case") for token in _outside_brackets(condition)):
        raise _Unfit
    for conjunct in _split(condition, "and"):
        match conjunct:
            case [Token(kind="word") as column, Token(text="="), parameter] if _is_pin(parameter):
                yield column.text.lower(), parameter.text


def _assigned(assignments: Sequence[Token]) -> frozenset[str]:
    found = []
    for assignment in _split(assignments, ","):
        match assignment:
            case [Token(kind="word") as column, Token(text="="), _, *_]:
                found.append(column.text.lower())
            case _:
                raise _Unfit
    return frozenset(found)


def _names(bracket: Sequence[Token]) -> list[str]:
    found = []
    for name in _split(bracket, ","):
        if len(name) != 1 or name[0].kind != "word":
            raise _Unfit
        found.append(name[0].text.lower())
    return found


def _split(pieces: Sequence[Token], separator: str) -> Iterator[list[Token]]:
    """The parts between separators outside brackets."""
    part: list[Token] = []
    depth = 0
    for token in pieces:
        depth += token.means("(") - token.means(")")
        if not depth and token.means(separator):
            yield part
            part = []
        else:
            part.append(token)
    yield part


def _outside_brackets(pieces: Sequence[Token]) -> Iterator[Token]:
    depth = 0
    for token in pieces:
        depth += token.means("(") - token.means(")")
        if not depth:
            yield token


def _is_pin(token: Token) -> bool:
    return token.kind == "parameter" and token.text != STORE_CLOCK


def _written(pieces: Sequence[Token]) -> str:
    return " ".join(map(_piece, pieces))


def _piece(token: Token) -> str:
    if token.kind != "parameter":
        return token.text
    return CLOCK if token.text == STORE_CLOCK else f"{_ROWS}.{_column(token.text)}"


def _column(name: str) -> str:
    return f"gw_{name}"
