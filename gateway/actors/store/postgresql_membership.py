"""A node's row in `nodes`: joining, the fence of every transaction, and what became of a COMMIT.

The row is locked by every transaction of the node from its fence to its end, and no COMMIT is sent before the fence was
answered.  So whoever has locked it knows that no earlier transaction of this node can still be committed, and its
`step` tells the last one that was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import attrs
import trio
from psycopg.pq.abc import PGresult

from gateway import __version__
from gateway.actors.store.errors import StoreRefused
from gateway.actors.store.postgresql_connection import Command, Connection
from gateway.actors.store.postgresql_failures import Rejection
from gateway.actors.store.postgresql_sql import CLOCK_NOW, command
from gateway.actors.store.postgresql_values import rows_of
from gateway.actors.store.protocol import Membership, Value

_FENCE = f"""
    UPDATE nodes SET step = :step, lease_until = {CLOCK_NOW} + :lease
    WHERE node = :node AND epoch = :epoch AND lease_until >= {CLOCK_NOW}
"""  # noqa: S608 - a constant
_RENEW = f"""
    UPDATE nodes SET lease_until = {CLOCK_NOW} + :lease
    WHERE node = :node AND epoch = :epoch AND lease_until >= {CLOCK_NOW}
"""  # noqa: S608 - a constant
_ENTER = f"""
    INSERT INTO nodes (node, epoch, lease_until, step, joined_at, release)
    VALUES (:node, 0, 0, 0, {CLOCK_NOW}, :release) ON CONFLICT DO NOTHING
"""  # noqa: S608 - a constant
_LOCK = f"SELECT epoch, step, lease_until - {CLOCK_NOW} FROM nodes WHERE node = :node FOR UPDATE"  # noqa: S608 - a constant
_JOIN = f"""
    UPDATE nodes SET epoch = :epoch, lease_until = {CLOCK_NOW} + :lease, step = 0, joined_at = {CLOCK_NOW},
        release = :release
    WHERE node = :node
"""  # noqa: S608 - a constant
_LEAVE = "UPDATE nodes SET lease_until = 0 WHERE node = :node AND epoch = :epoch"

BEGIN, COMMIT, ROLLBACK = Command("BEGIN"), Command("COMMIT"), Command("ROLLBACK")


class Rejected(Exception):
    """A command of the engine's own was rejected."""

    def __init__(self, rejection: Rejection) -> None:
        self.rejection = rejection
        super().__init__(f"{rejection.words} ({rejection.sqlstate})")


@attrs.frozen
class _Found:
    """This node's row, locked: its epoch, its last step, and how many milliseconds its lease still runs."""

    epoch: int
    step: int
    left_ms: int


@final
class Member:
    """This node as a member of the store.

    Attributes:
        membership: as what it is joined.
        tenure: counts how often its lease ran out; a step that was asked in an earlier tenure is not stored any more.
        step: the number of the last transaction that was begun.
    """

    def __init__(self, node: str, lease_ms: int, *, within: float, release: str = __version__) -> None:
        self.membership = Membership(node, 0)
        self.tenure = 0
        self.step = 0
        self._release = release
        self._lease_ms = lease_ms
        self._within = within
        self._renewed = -1.0

    @property
    def renewed(self) -> float:
        """When the lease was last renewed, on trio's clock."""
        return self._renewed

    async def join(self, connection: Connection, where: str) -> None:
        """Join, after waiting for the end of the lease that a crashed process of this name left.

        Raises StoreRefused when a node of this name lives, `Disconnected` and `Rejected`.
        """
        await self._run(connection, self._command(_ENTER, release=self._release))
        first: int | None = None
        deadline = trio.current_time() + self._lease_ms / 1000 + 1.0
        while True:
            found = await self._locked(connection)
            if found.left_ms < 0:
                break
            ends = found.left_ms + round(trio.current_time() * 1000)
            await self._run(connection, ROLLBACK)
            first = ends if first is None else first
            if ends > first + self._lease_ms // 8 or trio.current_time() > deadline:
                raise StoreRefused(
                    where,
                    f"a node named {self.membership.node} is alive",
                    "Give each node a name of its own in [node] name, or stop the other one",
                )
            await trio.sleep(min(found.left_ms, self._lease_ms / 8) / 1000 + 0.005)
        await self._take(connection, found.epoch)

    async def rejoin(self, connection: Connection) -> bool:
        """Go on after a new connection: under the same epoch while the lease runs, else by joining anew.

        False when another process of this name has joined and lives.  Raises `Disconnected` and `Rejected`.
        """
        found = await self._locked(connection)
        ours = found.epoch == self.membership.epoch
        if ours and found.left_ms >= 0:
            await self._run(connection, self._renewal(), COMMIT)
            self.felt()
            return True
        if not ours and found.left_ms >= 0:
            await self._run(connection, ROLLBACK)
            return False
        await self._take(connection, found.epoch)
        self.tenure += 1
        return True

    async def settle(self, connection: Connection, step: int) -> bool | None:
        """Whether the transaction of that number was committed; None where that cannot be known any more.

        It waits for a transaction of the lost connection and joins under the next epoch, so that what was not committed
        never will be.  Raises `Disconnected` and `Rejected`.
        """
        found = await self._locked(connection)
        if found.epoch != self.membership.epoch:
            await self._run(connection, ROLLBACK)
            return None
        await self._take(connection, found.epoch)
        if found.left_ms < 0:
            self.tenure += 1
        return found.step == step

    async def renew(self, connection: Connection) -> bool:
        """Renew the lease; False when it has run out.  Raises `Disconnected` and `Rejected`."""
        (outcome,) = await self._run(connection, self._renewal())
        if not outcome.command_tuples:
            return False
        self.felt()
        return True

    async def leave(self, connection: Connection) -> None:
        """End the lease, for a clean stop.  Raises `Disconnected` and `Rejected`."""
        await self._run(connection, self._command(_LEAVE, epoch=self.membership.epoch))

    def fence(self) -> Command:
        """The command that must change one row before the next transaction of the node is committed."""
        self.step += 1
        return self._command(_FENCE, step=self.step, lease=self._lease_ms, epoch=self.membership.epoch)

    def felt(self) -> None:
        """Remember that the lease was renewed just now."""
        self._renewed = trio.current_time()

    def _renewal(self) -> Command:
        return self._command(_RENEW, lease=self._lease_ms, epoch=self.membership.epoch)

    async def _locked(self, connection: Connection) -> _Found:
        _, outcome = await self._run(connection, BEGIN, self._command(_LOCK))
        rows = rows_of(outcome)
        if not rows:
            await self._run(connection, ROLLBACK)
            await self._run(connection, self._command(_ENTER, release=self._release))
            return await self._locked(connection)
        epoch, step, left_ms = rows[0]
        return _Found(_int(epoch), _int(step), _int(left_ms))

    async def _take(self, connection: Connection, epoch: int) -> None:
        epoch = max(epoch, self.membership.epoch) + 1  # an operator may have emptied the table
        await self._run(
            connection, self._command(_JOIN, epoch=epoch, lease=self._lease_ms, release=self._release), COMMIT
        )
        self.membership = Membership(self.membership.node, epoch)
        self.felt()

    def _command(self, sql: str, **parameters: Value) -> Command:
        names = {name: value for name, value in parameters.items() if f":{name}" in sql}
        return command(sql, {"node": self.membership.node, **names})

    async def _run(self, connection: Connection, *commands: Command) -> Sequence[PGresult]:
        return await accepted(connection, *commands, within=self._within)


async def accepted(connection: Connection, *commands: Command, within: float) -> Sequence[PGresult]:
    """The results of commands that are to be accepted.  Raises `Rejected`, after rolling back, and `Disconnected`."""
    outcomes = await connection.exchange(*commands, within=within)
    results: list[PGresult] = []
    for outcome in outcomes:
        if isinstance(outcome, Rejection):
            if connection.in_transaction:
                await connection.exchange(ROLLBACK, within=within)
            raise Rejected(outcome)
        if outcome is not None:
            results.append(outcome)
    return results


def _int(value: Value) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is no number")
    return value
