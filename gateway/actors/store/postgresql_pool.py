"""The connections that read: a bounded number, lent one query list at a time."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import final

import trio

from gateway.actors.store.errors import Failure, Reason, StatementFailed
from gateway.actors.store.postgresql_connecting import Road
from gateway.actors.store.postgresql_connection import Command, Connection, Outcome
from gateway.actors.store.postgresql_failures import RETRIED, Disconnected, Rejection
from gateway.actors.store.postgresql_sql import Misused, command
from gateway.actors.store.postgresql_values import Unreadable, rows_of
from gateway.actors.store.protocol import Row, Value

Query = tuple[str, Mapping[str, Value]]

SNAPSHOT, END, UNDO = Command("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"), Command("COMMIT"), Command("ROLLBACK")

_OLDEST_S = 1800.0
_TRIES = 3


class Unavailable(Exception):
    """The server cannot be read from now."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.reason.story)


@final
class Pool:
    """Up to `size` connections, made on demand.

    One that is older than half an hour, or that the server hung up on meanwhile, is replaced when it is next needed.
    """

    def __init__(self, road: Road, size: int, rng: random.Random, *, within: float) -> None:
        self._road = road
        self._places = trio.CapacityLimiter(size)
        self._idle: list[Connection] = []
        self._rng = rng
        self._within = within
        self._closed = True

    def open(self) -> None:
        """Lend connections from now on."""
        self._closed = False

    def close(self) -> None:
        """Lend no more; a connection that is lent is closed when it comes back."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    async def read(self, queries: Sequence[Query], *, patience: float) -> list[list[Row]]:
        """The rows of each query, all from one snapshot.

        Raises StatementFailed, or Unavailable also when no connection is free for `patience` seconds.
        """
        commands = commands_of(queries)
        if not commands:
            return []
        for tries_left in (1, 0):
            try:
                async with self._lent(patience) as connection:
                    return results_of(await snapshot(connection, commands, self._within))
            except Disconnected as error:
                # It may have been idle while the server was restarted; a read does no harm twice.
                if not tries_left or self._road.wait > 0:
                    raise Unavailable(error.failure) from error
        raise Unavailable(Failure(Reason.OVERLOADED))

    @asynccontextmanager
    async def _lent(self, patience: float) -> AsyncIterator[Connection]:
        here = object()
        with trio.move_on_after(patience) as waiting:
            await self._places.acquire_on_behalf_of(here)
        if waiting.cancelled_caught:
            raise Unavailable(Failure(Reason.OVERLOADED))
        try:
            if self._closed:
                raise Unavailable(Failure(Reason.STOPPED))
            connection = self._reused() or await self._road.connect()
            try:
                yield connection
            except BaseException:
                await self._give_back(connection, failed=True)
                raise
            await self._give_back(connection, failed=False)
        finally:
            self._places.release_on_behalf_of(here)

    def _reused(self) -> Connection | None:
        """An idle connection that is alive, as far as can be told without asking the server."""
        while self._idle:
            connection = self._idle.pop()
            if trio.current_time() - connection.since < _OLDEST_S * self._rng.uniform(0.8, 1.0):
                try:
                    connection.look()
                except Disconnected:
                    continue
                if not connection.closed:
                    return connection
            connection.close()
        return None

    async def _give_back(self, connection: Connection, *, failed: bool) -> None:
        """Keep the connection, outside a transaction, or close it."""
        if not connection.closed and (failed or connection.in_transaction):
            with trio.CancelScope(shield=True):
                try:
                    await connection.exchange(UNDO, within=2.0)
                except Disconnected:
                    return
        if connection.closed or connection.in_transaction or self._closed:
            connection.close()
        else:
            self._idle.append(connection)


def commands_of(queries: Sequence[Query]) -> list[Command]:
    """The queries as commands.  Raises StatementFailed where one cannot be sent."""
    commands = []
    for index, query in enumerate(queries):
        try:
            commands.append(command(*query))
        except Misused as misused:
            raise StatementFailed(index, str(misused)) from misused
    return commands


async def snapshot(connection: Connection, commands: Sequence[Command], within: float) -> list[Outcome]:
    """What became of each of the queries, in one transaction and one round trip; the connection is idle then."""
    alone = len(commands) == 1
    outcomes: list[Outcome] = []
    for _ in range(_TRIES):
        outcomes = await connection.exchange(*(commands if alone else (SNAPSHOT, *commands, END)), within=within)
        if connection.in_transaction:
            await connection.exchange(UNDO, within=within)
        if not any(isinstance(one, Rejection) and one.sqlstate in RETRIED for one in outcomes):
            break
    if alone:
        return outcomes
    first, *rest, _ = outcomes
    return [first] if isinstance(first, Rejection) else rest


def results_of(outcomes: Sequence[Outcome]) -> list[list[Row]]:
    """The rows of each query.  Raises StatementFailed or Unavailable where one was rejected."""
    results: list[list[Row]] = []
    for index, outcome in enumerate(outcomes):
        if isinstance(outcome, Rejection):
            reason = outcome.reason
            if reason is None or reason is Reason.READ_ONLY:
                raise outcome.failed(index)
            raise Unavailable(Failure(reason))
        if outcome is None:
            raise Unavailable(Failure(Reason.STALLED))
        try:
            results.append(rows_of(outcome))
        except Unreadable as error:
            raise StatementFailed(index, str(error)) from error
    return results
