"""The SQLite engine: one writer actor with group commit, readers in threads beside it.

WAL with `synchronous=FULL`: what was acknowledged survives power loss.  All askers that wait share one transaction
and one fsync.  A step that nothing is ahead of is stored by its asker's own task, and relaxed steps, which wait for no
disk, in the loop's own thread.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Protocol, TypeVar, final

import attrs
import trio

from gateway.actors.runtime import Ask, Inbox, Letter, Ref, Restart, Runtime
from gateway.actors.store import schema
from gateway.actors.store.asking import answered
from gateway.actors.store.errors import Conflict, Failure, Reason, StatementFailed, StoreRefused
from gateway.actors.store.protocol import Membership, Row, Statement, StoreHealth, Value, checked
from gateway.actors.store.pulse import FRESH_S, Committed, Observe, Pulse
from gateway.actors.store.sqlite_at_once import AtOnce
from gateway.actors.store.sqlite_file import FileUnusable, SqliteFile
from gateway.actors.store.sqlite_readers import Readers
from gateway.actors.store.sqlite_writer import Result, Writer
from gateway.actors.store.topics import Topics
from gateway.errors import StoreUnavailable

_GROUP = 256
_MAILBOX = 1024
_IN_LOOP_BYTES = 64 * 1024 * 1024
_PATIENCE_S = 30.0
_PROBE_PATIENCE_S = 5.0
_TOLD_BEFORE_S = 0.1
_RESTART = Restart(fatal=(StoreRefused,))
"""A file that another process took while the writer was down is not served from again."""
_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table'"
_OF_THE_WRITER = frozenset({Reason.STALLED, Reason.OVERLOADED, Reason.CRASHED})
"""What the writer does not tell of itself."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Run(Protocol):
    """Runs blocking work, no more at once than the limiter has tokens, to its end even when the caller is cancelled."""

    async def __call__(self, work: Callable[[], T], limiter: trio.CapacityLimiter, *, within: float = math.inf) -> T:
        """The value of `work()`.

        A caller that is cancelled waits for it.  With `within`, no caller waits for longer than that many seconds, nor
        when it is cancelled: the work is left to come to its end, and `trio.TooSlowError` is raised.
        """
        ...


async def in_thread(work: Callable[[], T], limiter: trio.CapacityLimiter, *, within: float = math.inf) -> T:
    """Run the work in a worker thread: what a node does."""
    with trio.fail_after(within):
        return await trio.to_thread.run_sync(work, limiter=limiter, abandon_on_cancel=within < math.inf)


async def inline(work: Callable[[], T], limiter: trio.CapacityLimiter, *, within: float = math.inf) -> T:  # noqa: ARG001 - it is done at once
    """Run the work in the loop's own thread: for simulations and tests on a mock clock, which waits for no thread."""
    async with limiter:
        return work()


@asynccontextmanager
async def open_sqlite(
    runtime: Runtime,
    path: Path | str,
    *,
    node: str = "node-1",
    migrations: Traversable | None = None,
    readers: int = 4,
    observe: Observe = lambda _event: None,
    run: Run = in_thread,
    now: Callable[[], float] = time.time,
) -> AsyncIterator[SqliteStore]:
    """Open the database file, creating and migrating it, and start its writer as the actor "store".

    `path` is the file, whose directory exists; `node` is this node's name; `migrations` are those of this release
    unless given; `observe` hears of every group and of every change of health.  The file stays open
    after the block, until the runtime has stopped the actor: actors that drain still commit.  Raises StoreRefused.
    """
    file = SqliteFile(Path(path), node, lambda: int(now() * 1000))
    writing = trio.CapacityLimiter(1)
    directory = schema.shipped() if migrations is None else migrations
    opening = partial(file.open, directory)
    writer = Writer(file, await run(opening, writing))
    actor = _WriterActor(file, writer, Readers(file), writing, run, Pulse(observe, now), AtOnce(writer, writing))
    try:
        ref = await runtime.start("store", actor.live, capacity=_MAILBOX, restart=_RESTART)
    except BaseException:
        actor.leave()
        raise
    tables = schema.tables(schema.load(directory, "sqlite"))
    yield SqliteStore(ref, actor, trio.CapacityLimiter(readers), run, file.membership, tables)


@final
class SqliteStore:
    """The `Engine` on one SQLite file; made by `open_sqlite`."""

    def __init__(
        self,
        writer: Ref[_Commit],
        actor: _WriterActor,
        reading: trio.CapacityLimiter,
        run: Run,
        membership: Membership,
        tables: Sequence[str],
    ) -> None:
        self._writer = writer
        self._actor = actor
        self._readers = actor.readers
        self._pulse = actor.pulse
        self._reading = reading
        self._run = run
        self._membership = membership
        self._topics = Topics()
        self._tables = tables
        self._looked = -math.inf

    async def commit(self, *statements: Statement, relaxed: bool = False) -> list[list[Row]]:
        """See `Store.commit`; waits up to 30 seconds.  A group of relaxed steps is not flushed to the disk."""
        await trio.lowlevel.checkpoint_if_cancelled()  # a caller that is already cancelled stores nothing
        if not statements:
            return []
        result = self._actor.store_at_once(statements) if relaxed else await self._actor.store_alone(statements)
        if result is None:
            return await self._ask(statements, _PATIENCE_S, relaxed=relaxed)
        if isinstance(result, list):
            return result
        raise _error(result)

    async def fetch(self, sql: str, parameters: Mapping[str, Value] = {}) -> list[Row]:
        """See `Store.fetch`; waits up to 30 seconds for a free reader."""
        (rows,) = await self.fetch_many([(sql, parameters)])
        return rows

    async def fetch_many(self, queries: Sequence[tuple[str, Mapping[str, Value]]]) -> list[list[Row]]:
        """See `Store.fetch_many`; waits up to 30 seconds for a free reader."""
        asked = [(sql, checked(parameters)) for sql, parameters in queries]
        try:
            with trio.move_on_after(_PATIENCE_S):
                return await self._run(partial(self._readers.read, asked), self._reading)
        except FileUnusable as unusable:
            self._pulse.read_failed(unusable.failure)
            raise unusable.failure.error() from unusable
        except StatementFailed as failed:
            self._pulse.refused(failed)
            raise
        raise Failure(Reason.OVERLOADED).error()

    async def look_up(self, queries: Sequence[tuple[str, Mapping[str, Value]]]) -> list[list[Row]]:
        """See `Store.look_up`; a file that fits in memory is read at once, which costs less than changing threads."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._readers.size > _IN_LOOP_BYTES:
            return await self.fetch_many(queries)
        return self.look_up_at_once(queries)

    @property
    def at_hand(self) -> bool:
        """See `InLoop.at_hand`: while few ask, and the file is small."""
        return not self._actor.at_once.crowded and self._readers.size <= _IN_LOOP_BYTES

    def look_up_at_once(self, queries: Sequence[tuple[str, Mapping[str, Value]]]) -> list[list[Row]]:
        """See `InLoop.look_up_at_once`."""
        try:
            return self._readers.read([(sql, checked(parameters)) for sql, parameters in queries])
        except FileUnusable as unusable:
            self._pulse.read_failed(unusable.failure)
            raise unusable.failure.error() from unusable
        except StatementFailed as failed:
            self._pulse.refused(failed)
            raise

    def tell(self, *topics: str) -> None:
        """See `NodeStore.tell`; there is no other node."""
        self._topics.wake(topics)

    def hear(self, topic: str) -> AbstractContextManager[trio.Event]:
        """See `NodeStore.hear`."""
        return self._topics.hear(topic)

    @property
    def shared(self) -> bool:
        """A file has one node."""
        return False

    @property
    def membership(self) -> Membership:
        """As what this node is joined."""
        return self._membership

    @property
    def health(self) -> StoreHealth:
        """What the last write told."""
        return self._pulse.health

    async def probe(self) -> StoreHealth:
        """See `Engine.probe`; waits up to 5 seconds."""
        if not self._pulse.fresh:
            try:
                await self._ask((Statement(f"PRAGMA user_version = {self._pulse.count}"),), _PROBE_PATIENCE_S)
            except StoreUnavailable as unavailable:
                if not self.health.writable:
                    return self.health
                return attrs.evolve(self.health, writable=False, reason=Reason.of(unavailable.extra["reason"]))
        if trio.current_time() > self._looked + FRESH_S:
            await self._look_at_tables()
        return self.health

    async def _look_at_tables(self) -> None:
        """Find tables that are missing before a caller needs them."""
        try:
            (rows,) = await self._run(partial(self._readers.read, [(_TABLES, {})]), self._reading)
        except (FileUnusable, StatementFailed) as error:
            _log.debug("the tables cannot be looked at: %s", error)
        else:
            there = {name for (name,) in rows}
            for name in self._tables:
                if name not in there:
                    self._pulse.refused(StatementFailed(None, f"table {name} is missing", Reason.SCHEMA_MISSING))
        self._looked = trio.current_time()

    async def _ask(self, step: tuple[Statement, ...], within: float, *, relaxed: bool = False) -> list[list[Row]]:
        try:
            return await answered(self._writer.ask(_Commit(step, relaxed), within=within))
        except StoreUnavailable as unavailable:
            reason = Reason.of(unavailable.extra["reason"])
            if reason in _OF_THE_WRITER:
                self._pulse.feel(Failure(reason))
            raise


@attrs.frozen
class _Commit(Ask[list[list[Row]]]):
    """Store one step; see `Store.commit` for what `relaxed` means."""

    step: tuple[Statement, ...]
    relaxed: bool = False


@attrs.define(eq=False)
class _WriterActor:
    """The owner of the file: while it does not live, nothing is open.

    A step past the queue has the token of `writing` until it is over, also where its asker waits no longer; `untold` is
    what it came to, and when it began, until somebody in the loop has told it.
    """

    file: SqliteFile
    writer: Writer
    readers: Readers
    writing: trio.CapacityLimiter
    run: Run
    pulse: Pulse
    at_once: AtOnce
    untold: tuple[Result, float] | None = None

    async def live(self, inbox: Inbox[_Commit]) -> None:
        try:
            await self.run(self.enter, self.writing)
            inbox.ready()
            self.at_once.open = True
            async for letters in inbox.batches(_GROUP):
                with trio.CancelScope(shield=True):  # what was taken is finished
                    await self._store(letters)
        finally:
            self.at_once.open = False
            with trio.CancelScope(shield=True):
                await self.run(self.leave, self.writing)

    def enter(self) -> None:
        self.file.claim()
        self.readers.open()

    def leave(self) -> None:
        self.readers.close()
        self.writer.close()
        self.file.release()

    async def _store(self, letters: Sequence[Letter[_Commit]]) -> None:
        results: Sequence[Result]
        began = time.perf_counter()
        if not self.pulse.damaged:
            letters = await self._in_turn(letters)
        if self.pulse.damaged:
            results = [Failure(Reason.CORRUPT)] * len(letters)
        elif letters:
            steps = [letter.message.step for letter in letters]
            relaxed = all(letter.message.relaxed for letter in letters)
            self.at_once.came(len(steps))
            at_once = self.at_once.store_together(steps) if relaxed else None
            if at_once is not None:
                results = at_once
            else:
                results = await self.run(partial(self.writer.run, steps, relaxed=relaxed), self.writing)
            self._feel(results)
        else:
            return
        for letter, result in zip(letters, results, strict=True):
            if isinstance(result, list):
                letter.answer(letter.message, result)
            else:
                letter.refuse(_error(result))
        self._tell(results, began)

    def store_at_once(self, step: tuple[Statement, ...]) -> Result | None:
        """Store a relaxed step in the task of its asker; None where it is for the actor."""
        self._tell_of_the_last()
        if self.pulse.damaged:
            return None
        began = time.perf_counter()
        result = self.at_once.store(step)
        if result is not None:
            self._feel([result])
            self._tell([result], began)
        return result

    async def store_alone(self, step: tuple[Statement, ...]) -> Result | None:
        """Store a step past the queue, in the task of its asker; None where it is for the actor."""
        self._tell_of_the_last()
        if self.pulse.damaged or self.at_once.crowded or not self.at_once.idle:
            return None
        self.at_once.came(1)
        try:
            return await self.run(partial(self._alone, step), self.writing, within=_PATIENCE_S)
        except trio.TooSlowError:
            failure = Failure(Reason.STALLED, uncertain=True)
        except Exception:  # noqa: BLE001 - a defect of the writer is its actor's death, and no more here
            _log.exception("a step could not be stored alone")
            failure = Failure(Reason.CRASHED, uncertain=True)
        finally:
            self._tell_of_the_last()
        self._feel([failure])
        return failure

    def _alone(self, step: tuple[Statement, ...]) -> Result:
        began = time.perf_counter()
        (result,) = self.writer.run([step])
        self.untold = result, began
        return result

    def _tell_of_the_last(self) -> None:
        """Tell of a step past the queue that is over: its asker may have gone, or not have had his turn yet."""
        if self.untold is not None:
            (result, began), self.untold = self.untold, None
            self._feel([result])
            self._tell([result], began)

    async def _in_turn(self, letters: Sequence[Letter[_Commit]]) -> Sequence[Letter[_Commit]]:
        """Wait until nobody uses the writer past the queue; return those whose askers wait for that long.

        None of them is begun before, so that the others are refused for certain.
        """
        if not self.writing.available_tokens:
            self.at_once.came(2)
        while letters and not self.writing.available_tokens:
            ends = min(letter.deadline for letter in letters)
            with trio.move_on_at(ends - _TOLD_BEFORE_S):
                async with self.writing:
                    break
            for letter in letters:
                if letter.deadline <= ends:
                    letter.refuse(Failure(Reason.OVERLOADED).error())
            letters = [letter for letter in letters if letter.deadline > ends]
        self._tell_of_the_last()
        return letters

    def _feel(self, results: Sequence[Result]) -> None:
        failures = [result for result in results if isinstance(result, Failure)]
        for result in results:
            if isinstance(result, StatementFailed):
                self.pulse.refused(result)
        if any(isinstance(result, list) for result in results):
            self.pulse.feel(None)
        elif failures:
            self.pulse.feel(failures[0])

    def _tell(self, results: Sequence[Result], began: float) -> None:
        undone = sum(not isinstance(result, list) for result in results)
        self.pulse.tell(Committed(len(results), undone, time.perf_counter() - began))


def _error(result: Conflict | StatementFailed | Failure) -> Exception:
    return result.error() if isinstance(result, Failure) else result
