"""The PostgreSQL engine: one store for several nodes, with one group writer and a few readers each.

It needs of the server transactions, row locks and ON CONFLICT; LISTEN and NOTIFY only shorten waits.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from importlib.resources.abc import Traversable
from typing import final

import attrs
import trio

from gateway import __version__
from gateway.actors.runtime import Ask, Inbox, Letter, Ref, Runtime
from gateway.actors.store import releases, schema
from gateway.actors.store.asking import answered
from gateway.actors.store.errors import Failure, Reason, StatementFailed, StoreRefused
from gateway.actors.store.postgresql_connecting import BY_INDEX, Road
from gateway.actors.store.postgresql_connection import Connection
from gateway.actors.store.postgresql_courier import Courier
from gateway.actors.store.postgresql_failures import Disconnected, remedy
from gateway.actors.store.postgresql_link import Link
from gateway.actors.store.postgresql_lookups import LookUps
from gateway.actors.store.postgresql_membership import Member, Rejected
from gateway.actors.store.postgresql_migrations import migrated, require_usable
from gateway.actors.store.postgresql_pool import Pool, Unavailable
from gateway.actors.store.postgresql_pooling import require_session
from gateway.actors.store.postgresql_settings import PostgresqlSettings
from gateway.actors.store.postgresql_writer import Asked, Result, Writer
from gateway.actors.store.protocol import Membership, Row, Statement, StoreHealth, Value, checked
from gateway.actors.store.pulse import FRESH_S, Committed, Observe, Pulse
from gateway.actors.store.topics import Topics
from gateway.errors import StoreUnavailable

_GROUP = 256
_MAILBOX = 1024
_PATIENCE_S = 30.0
_PROBE_PATIENCE_S = 2.0
_BESIDE_S = 3.0

# What every table needs: rows of some are never changed, and a role may have been denied that on purpose.
_ACCESS = """
    SELECT name, CASE WHEN to_regclass(name) IS NULL THEN 'missing' ELSE 'not permitted' END
    FROM (VALUES {tables}) AS wanted(name)
    WHERE CASE WHEN to_regclass(name) IS NULL THEN TRUE
        ELSE NOT (has_table_privilege(name, 'SELECT') AND has_table_privilege(name, 'INSERT')) END
"""

_log = logging.getLogger(__name__)


@asynccontextmanager
async def open_postgresql(
    runtime: Runtime,
    settings: PostgresqlSettings,
    *,
    node: str,
    migrations: Traversable | None = None,
    observe: Observe = lambda _event: None,
    migrate: bool = False,
    rng: random.Random | None = None,
) -> AsyncIterator[PostgresqlStore]:
    """Reach the database, migrating it where it is empty, join it as `node`, and start its writer as the actor "store".

    `migrations` are those of this release unless given; `observe` hears of every group and of every change of health.
    A database with an older schema is refused unless `migrate` is true.  The store works on after the
    block, until the runtime has stopped the actor: actors that drain still commit.  Raises StoreRefused.
    """
    rng = random.Random() if rng is None else rng  # noqa: S311 - jitter is no secret
    roads = _Roads.of(settings, node, rng)
    within = settings.statement_timeout_s + settings.connect_timeout_s
    ours = schema.load(migrations or schema.shipped(), "postgresql")
    member = Member(node, settings.lease_ms, within=within, release=releases.named(__version__, len(ours)))
    pulse = Pulse(observe)
    connection = await _opened(roads.writing, settings, member, ours, migrate=migrate)
    topics = Topics()
    link = Link(roads.writing, member, connection, pulse.feel, beside=roads.beside)
    actor = _WriterActor(
        link,
        Writer(link, within=within),
        Pool(roads.reading, max(1, settings.readers - 1), rng, within=within),
        LookUps(roads.looking_up, within=within) if settings.readers > 1 else None,
        Courier(roads.beside, topics),
        pulse,
        settings.lease_ms,
    )
    try:
        ref = await runtime.start("store", actor.live, capacity=_MAILBOX)
    except BaseException:
        with trio.CancelScope(shield=True):
            await link.leave()
        raise
    yield PostgresqlStore(ref, actor, topics, schema.tables(ours))


async def _opened(
    road: Road, settings: PostgresqlSettings, member: Member, ours: Sequence[schema.Migration], *, migrate: bool
) -> Connection:
    """A connection to a database that is fit to be served from, joined."""
    where = settings.shown
    connection: Connection | None = None
    try:
        connection = await road.connect()
        await require_session(connection, road, where, within=settings.connect_timeout_s)
        await require_usable(connection, where)
        await migrated(connection, ours, where, migrate=migrate)
        await member.join(connection, where)
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, Disconnected):
            what = f"{settings.place} cannot be used: {error.reason.story} ({error.words})"
            raise StoreRefused(where, what, remedy(error.reason)) from error
        if isinstance(error, Rejected):
            reason = error.rejection.failure.reason
            what = f"the server rejects what the node does first ({error.rejection.words})"
            raise StoreRefused(where, what, remedy(reason)) from error
        raise
    return connection


@final
class PostgresqlStore:
    """The `Engine` on a PostgreSQL database; made by `open_postgresql`."""

    def __init__(self, writer: Ref[_Commit], actor: _WriterActor, topics: Topics, tables: Sequence[str]) -> None:
        self._writer = writer
        self._actor = actor
        self._topics = topics
        self._access = _ACCESS.format(tables=", ".join(f"('{name}')" for name in tables))
        self._looked = -math.inf

    async def commit(self, *statements: Statement, relaxed: bool = False) -> list[list[Row]]:
        """See `Store.commit`; waits up to 30 seconds.  No step is relaxed here: other nodes build on what they read."""
        del relaxed
        await trio.lowlevel.checkpoint_if_cancelled()  # a caller that is already cancelled stores nothing
        return await self._ask(statements, _PATIENCE_S) if statements else []

    async def fetch(self, sql: str, parameters: Mapping[str, Value] = {}) -> list[Row]:
        """See `Store.fetch`; waits up to 30 seconds for a free reader."""
        (rows,) = await self.fetch_many([(sql, parameters)])
        return rows

    async def fetch_many(self, queries: Sequence[tuple[str, Mapping[str, Value]]]) -> list[list[Row]]:
        """See `Store.fetch_many`; waits up to 30 seconds for a free reader."""
        asked = [(sql, checked(parameters)) for sql, parameters in queries]
        try:
            return await self._actor.pool.read(asked, patience=_PATIENCE_S)
        except Unavailable as unavailable:
            raise unavailable.failure.error() from unavailable
        except StatementFailed as failed:
            self._actor.pulse.refused(failed)
            raise

    async def look_up(self, queries: Sequence[tuple[str, Mapping[str, Value]]]) -> list[list[Row]]:
        """See `Store.look_up`; all look-ups that wait share a round trip."""
        if self._actor.lookups is None:
            return await self.fetch_many(queries)
        asked = [(sql, checked(parameters)) for sql, parameters in queries]
        if not asked:
            return []
        try:
            return await self._actor.lookups.ask(asked, patience=_PATIENCE_S)
        except Unavailable as unavailable:
            raise unavailable.failure.error() from unavailable
        except StatementFailed as failed:
            self._actor.pulse.refused(failed)
            raise

    def tell(self, *topics: str) -> None:
        """See `NodeStore.tell`."""
        self._actor.courier.tell(topics)

    def hear(self, topic: str) -> AbstractContextManager[trio.Event]:
        """See `NodeStore.hear`."""
        return self._topics.hear(topic)

    @property
    def shared(self) -> bool:
        """Other nodes may write to it too."""
        return True

    @property
    def membership(self) -> Membership:
        """As what this node is joined."""
        return self._actor.link.member.membership

    @property
    def health(self) -> StoreHealth:
        """What the last write told."""
        return self._actor.pulse.health

    async def probe(self) -> StoreHealth:
        """See `Engine.probe`; waits up to 2 seconds for a write, and as long for a look at the tables."""
        if not self._actor.pulse.fresh:
            try:
                await self._ask((), _PROBE_PATIENCE_S)
            except StoreUnavailable as unavailable:
                if not self.health.writable:
                    return self.health
                return attrs.evolve(self.health, writable=False, reason=Reason.of(unavailable.extra["reason"]))
        if trio.current_time() > self._looked + FRESH_S:
            with trio.move_on_after(_PROBE_PATIENCE_S):
                await self._look_at_tables()
        return self.health

    async def _look_at_tables(self) -> None:
        """Find tables that are missing or not permitted before a caller needs them."""
        try:
            found = await self._actor.pool.read([(self._access, {})], patience=_PROBE_PATIENCE_S)
        except (StatementFailed, Unavailable) as error:
            _log.debug("the tables cannot be looked at: %s", error)
        else:
            for name, lacks in (map(str, row) for row in found[0]):
                reason = Reason.SCHEMA_MISSING if lacks == "missing" else Reason.PERMISSION_DENIED
                self._actor.pulse.refused(StatementFailed(None, f"table {name!s} is {lacks!s}", reason))
        self._looked = trio.current_time()

    async def _ask(self, step: tuple[Statement, ...], within: float) -> list[list[Row]]:
        return await answered(self._writer.ask(_Commit(step, self._actor.link.member.tenure), within=within))


@attrs.frozen
class _Commit(Ask[list[list[Row]]]):
    """Store one step, in the tenure in which it was asked or never."""

    step: tuple[Statement, ...]
    tenure: int


@attrs.frozen
class _Roads:
    """How connections of each kind are made."""

    writing: Road
    reading: Road
    looking_up: Road
    beside: Road

    @classmethod
    def of(cls, settings: PostgresqlSettings, node: str, rng: random.Random) -> _Roads:
        name = f"gateway/{node}"
        bounds = {
            "statement_timeout": settings.statement_timeout_s * 1000,
            "lock_timeout": settings.statement_timeout_s * 700,
            # A transaction of a node that stalls has ended when others take over what it owned.
            "idle_in_transaction_session_timeout": settings.lease_ms,
        }
        reads = bounds | {"default_transaction_read_only": "on"}
        return cls(
            Road(settings, rng, name=name, server=bounds | {"synchronous_commit": "on"}, wishes=BY_INDEX),
            Road(settings, rng, name=name, server=reads),
            Road(settings, rng, name=name, server=reads, wishes=BY_INDEX),
            # What a crash of the server takes back of a renewal only shortens the lease.
            Road(settings, rng, name=name, server=bounds | {"synchronous_commit": "off"}),
        )


@attrs.frozen(eq=False)
class _WriterActor:
    """The owner of all connections: while it does not live, none is open."""

    link: Link
    writer: Writer
    pool: Pool
    lookups: LookUps | None
    courier: Courier
    pulse: Pulse
    lease_ms: int

    async def live(self, inbox: Inbox[_Commit]) -> None:
        self.pool.open()
        try:
            async with trio.open_nursery() as background:
                background.start_soon(self.link.keep, self.lease_ms)
                background.start_soon(self.courier.carry)
                if self.lookups is not None:
                    await background.start(self.lookups.serve)  # before anybody may look up
                inbox.ready()
                async with trio.open_nursery() as groups:
                    async for letters in inbox.batches(_GROUP):
                        await self._take(letters, groups)
                background.cancel_scope.cancel()
        finally:
            self.pool.close()
            with trio.CancelScope(shield=True):
                await self.link.leave()

    async def _take(self, letters: Sequence[Letter[_Commit]], groups: trio.Nursery) -> None:
        """Store the letters' steps; a group that takes long does not keep the next one from being refused."""
        stored = trio.Event()
        groups.start_soon(self._store, letters, stored)
        with trio.CancelScope(shield=True), trio.move_on_after(_BESIDE_S):
            await stored.wait()

    async def _store(self, letters: Sequence[Letter[_Commit]], stored: trio.Event) -> None:
        with trio.CancelScope(shield=True):  # what was taken is finished
            began = time.perf_counter()
            asked = [Asked(letter.message.step, letter.message.tenure) for letter in letters]
            results = await self.writer.run(asked, patience=_patience_of(letters))
            self._feel(results)
            for letter, result in zip(letters, results, strict=True):
                match result:
                    case list():
                        letter.answer(letter.message, result)
                    case Failure():
                        letter.refuse(result.error())
                    case _:
                        letter.refuse(result)
            undone = sum(not isinstance(result, list) for result in results)
            self.pulse.tell(Committed(len(letters), undone, time.perf_counter() - began))
            stored.set()

    def _feel(self, results: Sequence[Result]) -> None:
        failures = [result for result in results if isinstance(result, Failure)]
        for result in results:
            if isinstance(result, StatementFailed):
                self.pulse.refused(result)
        if any(isinstance(result, list) for result in results):
            self.pulse.feel(None)
        elif failures:
            self.pulse.feel(failures[0])


def _patience_of(letters: Sequence[Letter[_Commit]]) -> float:
    """How long a group may wait for its turn: its askers learn that it was not stored before they give up."""
    deadlines = [letter.deadline for letter in letters if letter.message.step]
    return max(0.0, min(deadlines, default=trio.current_time() + _PROBE_PATIENCE_S) - trio.current_time() - 1.0)
