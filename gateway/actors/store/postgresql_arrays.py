"""Many rows of parameters for one statement, as arrays: one a parameter, of the type that the server infers for it."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import final

import attrs

from gateway.actors.store.postgresql_connection import Command, Connection
from gateway.actors.store.postgresql_failures import Rejection
from gateway.actors.store.postgresql_sql import spoken
from gateway.actors.store.postgresql_values import ARRAY_TYPES, TEXT, array, array_type, type_of
from gateway.actors.store.protocol import Value


@attrs.frozen
class Columns:
    """The rows of parameters, turned over: the SQL names of their types, and what is sent."""

    types: Sequence[str]
    oids: tuple[int, ...]
    values: Sequence[bytes]

    def command(self, sql: str) -> Command:
        """The command that takes them."""
        return Command(sql, self.values, self.oids, (1,) * len(self.oids))


@final
class Inference:
    """What the server takes the parameters of statements to be; asked once a statement."""

    def __init__(self) -> None:
        self._types: dict[tuple[str, tuple[int, ...]], Mapping[str, int] | None] = {}

    def forget(self) -> None:
        """Ask anew."""
        self._types.clear()

    async def columns(
        self,
        connection: Connection,
        sql: str,
        names: Sequence[str],
        rows: Sequence[Mapping[str, Value]],
        within: float,
    ) -> Columns | None:
        """The parameters of these names in all rows; None where they do not go into arrays.

        Raises `Disconnected`.
        """
        kinds = {name: _kind([row[name] for row in rows]) for name in names}
        if None in kinds.values():
            return None
        types = await self._described(
            connection, sql, tuple(kinds.get(name) or 0 for name in spoken(sql).names), within
        )
        if types is None or not all(types[name] in ARRAY_TYPES for name in names):
            return None
        columns = {name: [row[name] for row in rows] for name in names}
        if any(types[name] != TEXT for name in names if any(isinstance(value, str) for value in columns[name])):
            return None
        try:
            values = [array(columns[name], types[name]) for name in names]
        except struct.error:  # an integer beyond the 32 bits that the server infers
            return None
        return Columns(
            [ARRAY_TYPES[types[name]] for name in names], tuple(array_type(types[name]) for name in names), values
        )

    async def _described(
        self, connection: Connection, sql: str, sent: tuple[int, ...], within: float
    ) -> Mapping[str, int] | None:
        key = (sql, sent)
        if key not in self._types:
            statement = spoken(sql)
            (outcome,) = await connection.exchange(Command(statement.sql, types=sent, describe=True), within=within)
            if outcome is None or isinstance(outcome, Rejection):
                self._types[key] = None
            else:
                types = [outcome.param_type(place) for place in range(outcome.nparams)]
                self._types[key] = dict(zip(statement.names, types, strict=True))
        return self._types[key]


def _kind(column: Sequence[Value]) -> int | None:
    """The type that each value of a column is sent as; None where they are of several."""
    kinds = {type(value) for value in column} - {type(None)}
    if len(kinds) > 1:
        return None
    return type_of(next((value for value in column if value is not None), None))
