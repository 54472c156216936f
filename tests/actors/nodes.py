"""Several nodes over one store on a mock clock: members of one SQLite file that behave as PostgreSQL's do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path

import attrs
import trio

from gateway.actors.runtime import open_runtime
from gateway.actors.store import Conflict, Membership, Row, Statement, StoreUncertain, Value, open_sqlite
from gateway.actors.store.sqlite import SqliteStore, inline
from gateway.actors.store.topics import Topics
from gateway.errors import StoreUnavailable

START_S = 1_795_816_156
LEASE_MS = 1200

JOIN = """
    INSERT INTO nodes (node, epoch, lease_until, step, joined_at, release)
    VALUES (:node, 1, :store_ms + :lease, 0, :store_ms, 'test')
    ON CONFLICT (node) DO UPDATE SET epoch = nodes.epoch + 1, lease_until = excluded.lease_until
    RETURNING epoch
"""
RENEW = """
    UPDATE nodes SET lease_until = :store_ms + :lease
    WHERE node = :node AND epoch = :epoch AND lease_until >= :store_ms
"""


@attrs.define(eq=False)
class Member:
    """One node's store: every step renews its lease or is refused.

    `away`: it cannot be reached.  `deaf` members hear nothing, so that all must work by polling.  `answers_lost` steps
    are stored and their answers lost.
    """

    real: SqliteStore
    node: str
    topics: Topics
    away: bool = False
    deaf: bool = False
    answers_lost: int = 0
    writes: int = 0
    reads: int = 0
    shared: bool = True
    membership: Membership = attrs.field(default=attrs.Factory(lambda self: Membership(self.node, 0), takes_self=True))
    _going: trio.Event = attrs.field(factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        self._going.set()

    async def join(self) -> None:
        """Join, again with another epoch."""
        ((row,),) = await self.real.commit(Statement(JOIN, {"node": self.node, "lease": LEASE_MS}))
        self.membership = Membership(self.node, int(row[0] or 0))

    async def live(self) -> None:
        """Renew the lease for ever; join again when it has run out."""
        while True:
            await trio.sleep(LEASE_MS / 4000)
            await self._going.wait()
            if not self.away:
                try:
                    await self.real.commit(self._renewal)
                except Conflict:
                    await self.join()

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """The store does not answer meanwhile."""
        self._going = trio.Event()
        yield
        self._going.set()

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        """The store is `away` meanwhile."""
        self.away = True
        yield
        self.away = False

    @property
    def _renewal(self) -> Statement:
        member = self.membership
        return Statement(RENEW, {"node": member.node, "epoch": member.epoch, "lease": LEASE_MS}, rows=1)

    async def commit(self, *statements: Statement, relaxed: bool = False) -> list[list[Row]]:
        await self._reached()
        self.writes += 1
        try:
            done = await self.real.commit(self._renewal, *statements, relaxed=relaxed)
        except Conflict as conflict:
            if conflict.index == 0:
                raise StoreUnavailable("The lease has run out; nothing was stored.") from conflict
            raise Conflict(conflict.index - 1, conflict.found, conflict.wanted) from conflict
        if self.answers_lost:
            self.answers_lost -= 1
            raise StoreUncertain("its outcome is unknown")
        return done[1:]

    async def fetch(self, sql: str, parameters: Mapping[str, Value] = {}) -> list[Row]:
        (rows,) = await self.fetch_many([(sql, parameters)])
        return rows

    async def fetch_many(self, queries: Sequence[tuple[str, Mapping[str, Value]]]) -> list[list[Row]]:
        await self._reached()
        self.reads += 1
        return await self.real.fetch_many(queries)

    async def look_up(self, queries: Sequence[tuple[str, Mapping[str, Value]]]) -> list[list[Row]]:
        return await self.fetch_many(queries)

    def tell(self, *topics: str) -> None:
        self.topics.wake(topics)

    def hear(self, topic: str) -> AbstractContextManager[trio.Event]:
        return Topics().hear(topic) if self.deaf else self.topics.hear(topic)

    async def _reached(self) -> None:
        await trio.lowlevel.checkpoint()
        await self._going.wait()
        if self.away:
            raise StoreUnavailable("The store cannot be reached.")


@attrs.frozen(eq=False)
class Nodes:
    """A store and what makes its members."""

    real: SqliteStore
    nursery: trio.Nursery
    topics: Topics = attrs.field(factory=Topics)

    async def join(self, node: str, *, deaf: bool = False) -> Member:
        """A member that has joined and lives until the end of the test."""
        member = Member(self.real, node, self.topics, deaf=deaf)
        await member.join()
        self.nursery.start_soon(member.live)
        return member


@asynccontextmanager
async def open_nodes(directory: Path) -> AsyncIterator[Nodes]:
    """A store whose clock is trio's, so that an autojumping clock moves leases too."""
    path = directory / "shared.db"
    async with (
        open_runtime() as runtime,
        open_sqlite(runtime, path, node="file", run=inline, now=lambda: START_S + trio.current_time()) as real,
        trio.open_nursery() as nursery,
    ):
        yield Nodes(real, nursery)
        nursery.cancel_scope.cancel()
