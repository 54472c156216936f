"""The connection that writes, and this node's membership on it: kept up, renewed, and taken up again after a loss."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import final

import trio

from gateway.actors.store.errors import Failure, Reason
from gateway.actors.store.postgresql_connecting import Road
from gateway.actors.store.postgresql_connection import Connection
from gateway.actors.store.postgresql_failures import Disconnected
from gateway.actors.store.postgresql_membership import Member, Rejected

_GIVE_UP_S = 2.0
_SETTLE_S = 10.0
_LOOK_S = 0.2

_log = logging.getLogger(__name__)


class NotNow(Exception):
    """No transaction can be begun now."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.reason.story)


@final
class Link:
    """One connection and the lock that its transactions take in turn.

    `felt` hears of every renewal (None) and of every failure.
    """

    def __init__(
        self,
        road: Road,
        member: Member,
        connection: Connection | None,
        felt: Callable[[Failure | None], object],
        *,
        beside: Road,
    ) -> None:
        self.member = member
        self._road = road
        self._beside = beside
        self._connection = connection
        self._felt = felt
        self._turn = trio.Lock()
        self._down: Failure | None = None
        self._down_since = 0.0

    @asynccontextmanager
    async def turn(self, patience: float) -> AsyncIterator[None]:
        """Have the connection for a while.  Raises NotNow after `patience` seconds, sooner while it is down."""
        deadline = trio.current_time() + patience
        while True:
            with trio.move_on_after(_LOOK_S):
                await self._turn.acquire()
                break
            now = trio.current_time()
            if self._down is not None and now > self._down_since + _GIVE_UP_S:
                raise NotNow(self._down)
            if now > deadline:
                raise NotNow(Failure(Reason.OVERLOADED))
        try:
            yield
        finally:
            self._turn.release()

    async def connection(self) -> Connection:
        """The connection, joined; made anew where it was lost.  Whoever has the turn calls this.  Raises NotNow."""
        try:
            if self._connection is not None and self._connection.closed:
                self.drop(Failure(Reason.UNREACHABLE))
            if self._connection is None:
                self._connection = await self._road.connect()
                if not await self.member.rejoin(self._connection):
                    self.drop(Failure(Reason.LEASE_LOST))
                    raise NotNow(Failure(Reason.LEASE_LOST))
                _log.info("the store is reached again as %s", self.member.membership)
        except (Disconnected, Rejected) as error:
            raise NotNow(self._failed(error)) from error
        self._down = None
        return self._connection

    async def settle(self, step: int) -> bool | None:
        """Whether the transaction of that number was stored, learnt over a new connection; None where it stays unknown.

        Whoever has the turn calls this, after the connection was lost around the COMMIT; it takes 10 seconds at most.
        """
        deadline = trio.current_time() + _SETTLE_S
        while trio.current_time() < deadline:
            with trio.move_on_at(deadline):
                try:
                    connection = await self._road.connect()
                except Disconnected as error:
                    self._failed(error)
                    await trio.sleep(self._road.wait + 0.01)
                    continue
                self._connection = connection
                try:
                    stored = await self.member.settle(connection, step)
                except (Disconnected, Rejected) as error:
                    self._failed(error)
                    await trio.sleep(0.05)
                    continue
                self._down = None
                return stored
        self.drop(self._down or Failure(Reason.UNREACHABLE))
        return None

    async def expired(self) -> None:
        """The lease has run out: join anew.  Whoever has the turn calls this."""
        _log.warning("the lease of %s has run out", self.member.membership)
        self._felt(Failure(Reason.LEASE_LOST))
        try:
            if self._connection is None or not await self.member.rejoin(self._connection):
                self.drop(Failure(Reason.LEASE_LOST))
        except (Disconnected, Rejected) as error:
            self._failed(error)

    def lost(self, failure: Failure) -> None:
        """Give the connection up if it was lost."""
        if self._connection is not None and self._connection.closed:
            self.drop(failure)

    def drop(self, failure: Failure) -> None:
        """Give the connection up."""
        if self._down is None:
            self._down_since = trio.current_time()
            _log.warning("the store is lost: %s", failure.reason.story)
        self._down = failure
        self._felt(failure)
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def keep(self, lease_ms: int) -> None:
        """Renew the lease at a quarter of it, where no transaction did, and reconnect; until cancelled.

        Renewals have a connection of their own: a transaction that takes long must not cost the node its lease.
        """
        pause = lease_ms / 4000
        beside: Connection | None = None
        try:
            while True:
                await trio.sleep(max(self.member.renewed + pause - trio.current_time(), pause / 4))
                if self._connection is None:
                    with suppress(NotNow):
                        async with self.turn(pause):
                            await self.connection()
                            self._felt(None)
                if trio.current_time() >= self.member.renewed + pause:
                    beside = await self._renewed(beside, pause)
        finally:
            if beside is not None:
                beside.close()

    async def _renewed(self, beside: Connection | None, pause: float) -> Connection | None:
        """Renew the lease; return the connection for the next time."""
        try:
            beside = beside or await self._beside.connect()
            if await self.member.renew(beside):
                return beside
        except (Disconnected, Rejected) as error:
            _log.debug("the lease is not renewed beside: %s", error)
            if beside is not None:
                beside.close()
            beside = None
        with suppress(NotNow):
            async with self.turn(pause):
                if trio.current_time() >= self.member.renewed + pause:
                    await self._renew_here(await self.connection())
        return beside

    async def _renew_here(self, connection: Connection) -> None:
        try:
            if not await self.member.renew(connection):
                await self.expired()
        except (Disconnected, Rejected) as error:
            self._failed(error)

    async def leave(self) -> None:
        """End the lease and hang up."""
        if self._connection is not None and not self._connection.closed:
            with trio.move_on_after(_GIVE_UP_S), suppress(Disconnected, Rejected):
                await self.member.leave(self._connection)
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _failed(self, error: Disconnected | Rejected) -> Failure:
        match error:
            case Disconnected():
                failure = error.failure
            case _:
                failure = error.rejection.failure
        self.drop(failure)
        return failure
