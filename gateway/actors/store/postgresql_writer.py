"""Group commit on PostgreSQL: many steps, one transaction, two round trips, and each step stands or falls alone.

A group is tried together.  Where one of its steps fails, that is undone and the steps run one after the other, each in
a savepoint; where that transaction is lost to another node's, each runs alone.

The last thing before a COMMIT is the fence: this node's row in `nodes` must stand as the node knows it, its lease not
over.  Being last, it holds the row for one round trip only, so a group that waits for another node's locks does not
keep the lease from being renewed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import attrs
import trio

from gateway.actors.store.errors import Conflict, Failure, Reason, StatementFailed
from gateway.actors.store.postgresql_batches import Again, Planner
from gateway.actors.store.postgresql_connection import Command, Connection, Outcome
from gateway.actors.store.postgresql_failures import RETRIED, Disconnected, Rejection
from gateway.actors.store.postgresql_link import Link, NotNow
from gateway.actors.store.postgresql_membership import BEGIN, COMMIT, ROLLBACK
from gateway.actors.store.postgresql_sql import Misused, command, spoken
from gateway.actors.store.postgresql_values import Unreadable, rows_of
from gateway.actors.store.protocol import Row, Statement

Step = Sequence[Statement]
Result = list[list[Row]] | Conflict | StatementFailed | Failure
"""What became of one step: the rows that its statements returned, or why it was not stored."""

_SAVEPOINT, _KEEP, _UNDO = Command("SAVEPOINT step"), Command("RELEASE step"), Command("ROLLBACK TO step")
_TRIES_ALONE = 8
_LONG_S = 20.0
_MOST_TOGETHER = 32 * 1024 * 1024


@attrs.frozen
class Asked:
    """A step and the tenure in which it was asked."""

    step: Step
    tenure: int


@attrs.frozen
class Ready:
    """A step that can be sent, and its place among the results."""

    place: int
    step: Step

    @property
    def commands(self) -> list[Command]:
        """Its statements, one by one."""
        return [command(statement.sql, statement.parameters) for statement in self.step]


class _Refused(Exception):
    """No step of the group can be stored now."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.reason.story)


@final
class Writer:
    """Stores groups of steps over one link; `within` bounds a round trip in seconds."""

    def __init__(self, link: Link, *, within: float) -> None:
        self._link = link
        self._within = within
        self._planner = Planner()

    async def run(self, asked: Sequence[Asked], *, patience: float) -> list[Result]:
        """Store the steps, all in one transaction if that can be; what is returned as rows is durable.

        A group that does not have its turn within `patience` seconds is not stored.
        """
        results: dict[int, Result] = {}
        ready = []
        for place, one in enumerate(asked):
            try:
                require_sendable(one.step)
                ready.append(Ready(place, one.step))
            except StatementFailed as failed:
                results[place] = failed
        left = Failure(Reason.STALLED)
        try:
            async with self._link.turn(patience):
                tenure = self._link.member.tenure
                stale = [step for step in ready if asked[step.place].tenure != tenure]
                results |= {step.place: Failure(Reason.LEASE_LOST) for step in stale}
                await _Group(self._link, self._planner, self._within, tenure, results).store(ready)
        except NotNow as not_now:
            left = not_now.failure
        return [results.get(place, left) for place in range(len(asked))]


@attrs.define(eq=False)
class _Group:
    """The steps of one turn; `results` is filled in as they become known."""

    link: Link
    planner: Planner
    within: float
    tenure: int
    results: dict[int, Result]

    async def store(self, steps: Sequence[Ready]) -> None:
        """Raises NotNow for the steps that have no result."""
        for tries_left in (1, 0):
            try:
                await self._store([step for step in steps if step.place not in self.results])
            except _Refused as refused:
                raise NotNow(refused.failure) from refused
            except Disconnected as lost:
                self.link.lost(lost.failure)
                if not tries_left:
                    raise NotNow(lost.failure) from lost
            else:
                return

    async def _store(self, steps: Sequence[Ready]) -> None:
        if len(steps) > 1 and (await self._together(steps) or await self._beside(steps)):
            return
        for step in steps:
            self.results[step.place] = await self._alone(step)

    async def _together(self, steps: Sequence[Ready]) -> bool:
        """One transaction, in the hope that all goes well; False where it did not, and nothing is stored."""
        connection = await self._connection()
        asked = [(step.place, step.step) for step in steps]
        batches, rest = await self.planner.batches(connection, asked, self.within)
        single = [Ready(place, step) for place, step in rest]
        commands = [command for batch in batches for command in batch.commands]
        commands += [command for step in single for command in step.commands]
        if sum(map(len_of, commands)) > _MOST_TOGETHER:
            return False
        *said, fenced = await self._run(connection, BEGIN, *commands, self.link.member.fence())
        outcomes = iter(said[1:])
        found: dict[int, Result] = {}
        try:
            for batch in batches:
                found |= batch.results([next(outcomes) for _ in batch.commands])
            for step in single:
                found[step.place] = verdict(step, [next(outcomes) for _ in step.step])
        except Again:
            found.clear()
        if len(found) < len(steps) or not all(isinstance(result, list) for result in found.values()):
            await self._run(connection, ROLLBACK)
            return False
        await self._require_fenced(connection, fenced)
        return await self._commit(connection, found)

    async def _beside(self, steps: Sequence[Ready]) -> bool:
        """One transaction, each step in a savepoint; False where it was lost as a whole, and nothing is stored."""
        connection = await self._connection()
        began = trio.current_time()
        found: dict[int, Result] = {}
        closing: list[Command] = []
        outcomes = (await self._run(connection, BEGIN, _SAVEPOINT, *steps[0].commands))[2:]
        for number, step in enumerate(steps, 1):
            try:
                result = found[step.place] = verdict(step, outcomes)
            except Again:
                await self._run(connection, ROLLBACK)
                return False
            closing = [_KEEP] if isinstance(result, list) else [_UNDO, _KEEP]
            if number == len(steps) or trio.current_time() > began + _LONG_S:
                break
            outcomes = await self._run(connection, *closing, _SAVEPOINT, *steps[number].commands)
            outcomes = outcomes[len(closing) + 1 :]
        *_, fenced = await self._run(connection, *closing, self.link.member.fence())
        await self._require_fenced(connection, fenced)
        return await self._commit(connection, {step.place: Failure(Reason.SLOW) for step in steps} | found)

    async def _alone(self, step: Ready) -> Result:
        """A transaction of its own, tried again where it is lost to another one."""
        for _ in range(_TRIES_ALONE):
            connection = await self._connection()
            *said, fenced = await self._run(connection, BEGIN, *step.commands, self.link.member.fence())
            try:
                result = verdict(step, said[1:])
            except Again:
                await self._run(connection, ROLLBACK)
                continue
            if not isinstance(result, list):
                await self._run(connection, ROLLBACK)
                return result
            await self._require_fenced(connection, fenced)
            rejection = await self._committed(connection)
            match rejection:
                case None:
                    return result
                case Failure():
                    return rejection
                case Rejection(sqlstate=code) if code in RETRIED:
                    continue
                case _:
                    return Failure(rejection.reason) if rejection.reason else rejection.failed(None)
        return Failure(Reason.SLOW)

    async def _connection(self) -> Connection:
        connection = await self.link.connection()
        if self.link.member.tenure != self.tenure:
            raise _Refused(Failure(Reason.LEASE_LOST))
        return connection

    async def _run(self, connection: Connection, *commands: Command) -> list[Outcome]:
        return await connection.exchange(*commands, within=self.within)

    async def _require_fenced(self, connection: Connection, fenced: Outcome) -> None:
        """Go on only if the fence found this node's row as it must be; nothing is stored otherwise."""
        if fenced is not None and not isinstance(fenced, Rejection) and fenced.command_tuples:
            return
        await self._run(connection, ROLLBACK)
        if isinstance(fenced, Rejection):
            raise _Refused(fenced.failure)
        await self.link.expired()
        raise _Refused(Failure(Reason.LEASE_LOST))

    async def _commit(self, connection: Connection, found: dict[int, Result], *closing: Command) -> bool:
        """Commit, and take what was found as results; False where the server would not."""
        match await self._committed(connection, *closing):
            case None:
                self.results |= found
            case Failure() as uncertain:
                self.results |= dict.fromkeys(found, uncertain)
            case _:
                return False
        return True

    async def _committed(self, connection: Connection, *closing: Command) -> Failure | Rejection | None:
        """Commit: None where that is done, a Failure where it stays unknown.

        Raises `Disconnected` where the connection was lost and nothing is stored.
        """
        number = self.link.member.step
        try:
            outcome = (await connection.exchange(*closing, COMMIT, within=self.within))[-1]
        except Disconnected as lost:
            self.link.lost(lost.failure)
            stored = await self.link.settle(number)
            if stored is None:
                return Failure(lost.reason, uncertain=True)
            if not stored:
                raise
            return None
        if isinstance(outcome, Rejection):
            return outcome
        if outcome is None or outcome.command_status != b"COMMIT":
            await self._run(connection, ROLLBACK)
            return Rejection("40000", "the transaction was rolled back")
        self.link.member.felt()
        return None


def len_of(sent: Command) -> int:
    """Bytes of the values of a command."""
    return sum(len(value) for value in sent.values if value is not None)


def require_sendable(step: Step) -> None:
    """Raise StatementFailed where a statement cannot be sent."""
    for index, statement in enumerate(step):
        try:
            spoken(statement.sql).require_sendable(statement.parameters)
        except Misused as misused:
            raise StatementFailed(index, str(misused)) from misused


def verdict(step: Ready, outcomes: Sequence[Outcome]) -> Result:
    """What the outcomes mean for a step.  Raises Again where another try may fare better."""
    rows: list[list[Row]] = []
    for index, (statement, outcome) in enumerate(zip(step.step, outcomes, strict=True)):
        if outcome is None:
            raise Again
        if isinstance(outcome, Rejection):
            if outcome.sqlstate in RETRIED:
                raise Again
            return Failure(outcome.reason) if outcome.reason else outcome.failed(index)
        found = outcome.ntuples if outcome.nfields else outcome.command_tuples or 0
        if statement.rows is not None and found != statement.rows:
            return Conflict(index, found, statement.rows)
        try:
            rows.append(rows_of(outcome))
        except Unreadable as error:
            return StatementFailed(index, str(error))
    return rows
