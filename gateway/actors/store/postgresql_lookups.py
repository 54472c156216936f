"""The road of every request: look-ups that wait share one round trip, those with the same SQL one statement."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import final

import attrs
import outcome
import trio

from gateway.actors.store.errors import Failure, Reason, StatementFailed
from gateway.actors.store.postgresql_arrays import Inference
from gateway.actors.store.postgresql_connecting import Road
from gateway.actors.store.postgresql_connection import Command, Connection
from gateway.actors.store.postgresql_failures import Disconnected, Rejection
from gateway.actors.store.postgresql_pool import Query, Unavailable, commands_of, results_of, snapshot
from gateway.actors.store.postgresql_sql import CLOCK, spoken, tokens
from gateway.actors.store.protocol import STORE_CLOCK, Row, Value

_MOST = 256
_FEWEST = 2
_ROWS, _ORDINAL, _FOUND = "gateway_rows", "gateway_ordinal", "gateway_found"

Answers = list[list[Row]]


@attrs.define(eq=False)
class _Waiting:
    """One caller: what it asks, and what it is told."""

    queries: Sequence[Query]
    bell: trio.Event = attrs.field(factory=trio.Event)
    told: outcome.Outcome[Answers] | None = None
    gone: bool = False

    def tell(self, told: outcome.Outcome[Answers]) -> None:
        if self.told is None:
            self.told = told
            self.bell.set()


@attrs.frozen
class _Asked:
    """A command, and whose queries it answers (caller, number): one, or in order of its numbers several."""

    command: Command
    wanted: Sequence[tuple[int, int]]
    shared: bool


@final
class LookUps:
    """Answers look-ups over a connection of its own, all that wait in one snapshot."""

    def __init__(self, road: Road, *, within: float) -> None:
        self._road = road
        self._within = within
        self._queue: list[_Waiting] = []
        self._bell = trio.Event()
        self._serving = False
        self._inference = Inference()
        self._lateral: dict[tuple[str, tuple[int, ...]], bool] = {}

    async def ask(self, queries: Sequence[Query], *, patience: float) -> Answers:
        """The rows of each query, all from one snapshot.  Raises StatementFailed or Unavailable."""
        if not self._serving:
            raise Unavailable(Failure(Reason.STOPPED))
        waiting = _Waiting(queries)
        self._queue.append(waiting)
        self._bell.set()
        try:
            with trio.move_on_after(patience):
                await waiting.bell.wait()
        finally:
            waiting.gone = True
        if waiting.told is None:
            raise Unavailable(Failure(Reason.OVERLOADED))
        return waiting.told.unwrap()

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer until cancelled; who waits then is refused."""
        connection: Connection | None = None
        taken: Sequence[_Waiting] = ()
        self._serving = True
        task_status.started()
        try:
            while True:
                await self._bell.wait()
                taken = [waiting for waiting in self._queue[:_MOST] if not waiting.gone]
                del self._queue[:_MOST]
                if not self._queue:
                    self._bell = trio.Event()
                if taken:
                    connection = await self._answer(connection, taken)
        finally:
            self._serving = False
            for waiting in [*taken, *self._queue]:
                waiting.tell(outcome.Error(Unavailable(Failure(Reason.STOPPED))))
            self._queue.clear()
            if connection is not None:
                connection.close()

    async def _answer(self, connection: Connection | None, taken: Sequence[_Waiting]) -> Connection | None:
        """Tell all of them; return the connection for the next, or None."""
        for fresh in (connection is None, True):
            try:
                if connection is None or connection.closed:
                    connection = await self._road.connect()
                    self._inference.forget()
                    self._lateral.clear()
                await self._round(connection, taken)
            except Disconnected as lost:
                if connection is not None:
                    connection.close()
                connection = None
                if fresh:
                    for waiting in taken:
                        waiting.tell(outcome.Error(Unavailable(lost.failure)))
                    return None
            else:
                return connection
        return connection

    async def _round(self, connection: Connection, taken: Sequence[_Waiting]) -> None:
        if len(taken) >= _FEWEST:
            found = await self._together(connection, taken)
            if found is not None:
                for waiting, answers in zip(taken, found, strict=True):
                    waiting.tell(outcome.Value(answers))
                return
        for waiting in taken:
            if waiting.told is None:
                told = await self._one(connection, waiting.queries)
                waiting.tell(told)

    async def _one(self, connection: Connection, queries: Sequence[Query]) -> outcome.Outcome[Answers]:
        """One caller by itself."""
        try:
            return outcome.Value(results_of(await snapshot(connection, commands_of(queries), self._within)))
        except (StatementFailed, Unavailable) as error:
            return outcome.Error(error)

    async def _together(self, connection: Connection, taken: Sequence[_Waiting]) -> list[Answers] | None:
        """All callers in one round trip; None where one of their queries is at fault, whichever it is."""
        try:
            asked = [one async for one in self._asked(connection, taken)]
        except StatementFailed:
            return None
        outcomes = await snapshot(connection, [one.command for one in asked], self._within)
        answers: list[Answers] = [[[] for _ in waiting.queries] for waiting in taken]
        for one, found in zip(asked, outcomes, strict=True):
            try:
                (rows,) = results_of([found])
            except (StatementFailed, Unavailable):
                return None
            for row in rows:
                caller, index = one.wanted[int(row[0] or 1) - 1 if one.shared else 0]
                answers[caller][index].append(row[1:] if one.shared else row)
        return answers

    async def _asked(self, connection: Connection, taken: Sequence[_Waiting]) -> AsyncIterator[_Asked]:
        """The commands for all queries.  Raises StatementFailed where one cannot be sent."""
        places: dict[str, list[tuple[int, int]]] = {}
        for caller, waiting in enumerate(taken):
            for index, (sql, _parameters) in enumerate(waiting.queries):
                places.setdefault(sql, []).append((caller, index))
        for sql, wanted in places.items():
            rows = [taken[caller].queries[index][1] for caller, index in wanted]
            shared = await self._shared(connection, sql, rows)
            if shared is not None:
                yield _Asked(shared, wanted, shared=True)
            else:
                for place, one in zip(wanted, commands_of([(sql, row) for row in rows]), strict=True):
                    yield _Asked(one, [place], shared=False)

    async def _shared(self, connection: Connection, sql: str, rows: Sequence[Mapping[str, Value]]) -> Command | None:
        """One command for all these parameters of a query; None where each needs its own."""
        names = spoken(sql).names
        if len(rows) < _FEWEST or not names or not all(row.keys() >= set(names) for row in rows):
            return None
        columns = await self._inference.columns(connection, sql, names, rows, self._within)
        if columns is None:
            return None
        command = columns.command(lateral(sql, names, columns.types))
        key = (sql, columns.oids)
        if key not in self._lateral:
            described = attrs.evolve(command, values=(), formats=(), describe=True)
            (tried,) = await connection.exchange(described, within=self._within)
            self._lateral[key] = tried is not None and not isinstance(tried, Rejection)
        return command if self._lateral[key] else None


def lateral(sql: str, names: Sequence[str], types: Sequence[str]) -> str:
    """The query for many rows of parameters: each of its rows behind the number (from 1) of the parameters it is for.

    The rows of one number come in the query's own order: a LATERAL is a nested loop.
    """
    arrays = ", ".join(f"${place}::{name}[]" for place, name in enumerate(types, 1))
    columns = ", ".join(f"gw_{name}" for name in names)
    inner = "".join(
        token.text if token.kind != "parameter" else CLOCK if token.text == STORE_CLOCK else f"{_ROWS}.gw_{token.text}"
        for token in tokens(sql)
    )
    source = f"unnest({arrays}) WITH ORDINALITY AS {_ROWS}({columns}, {_ORDINAL})"
    return f"SELECT {_ROWS}.{_ORDINAL}, {_FOUND}.* FROM {source} CROSS JOIN LATERAL (\n{inner}\n) AS {_FOUND}"  # noqa: S608 - pieces of the query itself
