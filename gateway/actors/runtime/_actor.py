"""An actor from the inside: its mailbox, the letters in its hand, and its supervision."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, TypeVar, final

import attrs
import outcome
import trio

from gateway.actors.runtime._errors import ActorCrashed, ActorDown, ActorError
from gateway.actors.runtime._letter import Letter
from gateway.actors.runtime._life import Event, Health, Phase, Restart

M = TypeVar("M")
M_co = TypeVar("M_co", covariant=True)

Body = Callable[["Inbox[M]"], Awaitable[None]]
"""What an actor is: a function that calls `inbox.ready()`, reads letters until there are no more, and returns."""

here: contextvars.ContextVar[Actor[Any] | None] = contextvars.ContextVar("here", default=None)
"""The actor whose body this task belongs to; tasks that a body spawns inherit it."""

logger = logging.getLogger(__name__)


@final
class Inbox(Generic[M_co]):
    """An actor's end of its mailbox.

    `async for letter in inbox` ends when the actor is to stop and its queue is drained.  A body that hands letters to
    tasks of its own nursery drains by leaving the loop and letting that nursery finish.
    """

    def __init__(self, actor: Actor[M_co]) -> None:
        self._actor = actor
        self._open = False

    def ready(self, at_once: Callable[[Letter[M_co]], bool | None] | None = None) -> None:
        """Declare the actor fit for work; `Runtime.start` waits for this, and no letter can be taken before.

        `at_once` takes one letter as the body's own loop does, and waits for nothing.  A letter that finds the queue
        empty is then given to it in the task that it comes from, in the actor's context: nobody waits for the body to
        have its turn.  It returns False for one that is to queue all the same.  When it fails, the body does, where it
        would read its next letter.
        """
        if not self._open:
            self._open = True
            self._actor.at_once = at_once
            self._actor.enter(Phase.READY)

    def __aiter__(self) -> Inbox[M_co]:
        return self

    async def __anext__(self) -> Letter[M_co]:
        actor = self._actor
        if not self._open:
            raise RuntimeError(f"actor {actor.name} reads its inbox before it is ready")
        while True:
            actor.own_up()
            try:
                letter = await actor.receive.receive()
            except trio.EndOfChannel:
                raise StopAsyncIteration from None
            if actor.take_off(letter):
                return letter

    async def batch(self, limit: int) -> list[Letter[M_co]]:
        """One letter or more: everything queued, up to `limit`.

        Raises StopAsyncIteration where iteration would end.  A body may let that go: it counts as a return.  One that
        keeps tasks in a nursery of its own reads `batches` instead, for an exception would cancel them.
        """
        letters = [await self.__anext__()]
        while len(letters) < limit:
            try:
                letter = self._actor.receive.receive_nowait()
            except (trio.WouldBlock, trio.EndOfChannel):
                break
            if self._actor.take_off(letter):
                letters.append(letter)
        return letters

    def batches(self, limit: int) -> AsyncIterator[list[Letter[M_co]]]:
        """Batches of up to `limit` letters until there are no more."""
        return _Batches(self, limit)


@final
@attrs.frozen(eq=False)
class _Batches(Generic[M_co]):
    """An async generator would need closing; this needs none."""

    _inbox: Inbox[M_co]
    _limit: int

    def __aiter__(self) -> _Batches[M_co]:
        return self

    async def __anext__(self) -> list[Letter[M_co]]:
        return await self._inbox.batch(self._limit)


@final
@attrs.define(eq=False, repr=False)
class Actor(Generic[M]):
    """One supervised body with its mailbox.

    `hand` keeps the letters in the order they were taken, so that taking and settling cost the same however many there
    are and the oldest is the first.  `queued` counts those that were posted and not read yet.  `at_once` is the body's
    (`Inbox.ready`), `serving` while it runs, and `defect` what it last failed with, for the body to raise.
    """

    name: str
    body: Body[M]
    runtime: object
    rank: int
    restart: Restart
    observe: Callable[[Event], object]
    rng: random.Random
    send: trio.MemorySendChannel[Letter[M]]
    receive: trio.MemoryReceiveChannel[Letter[M]]
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    closing: trio.Event = attrs.field(factory=trio.Event)
    finished: trio.Event = attrs.field(factory=trio.Event)
    phase: Phase = Phase.STARTING
    since: float = 0.0
    hand: dict[Letter[Any], None] = attrs.field(factory=dict)
    queued: int = 0
    at_once: Callable[[Letter[Any]], bool | None] | None = None
    serving: bool = False
    defect: Exception | None = None
    context: contextvars.Context = attrs.field(factory=contextvars.copy_context)
    in_a_row: int = 0  # crashes since it was last steady
    handled: int = 0
    withdrawn: int = 0
    overloaded: int = 0
    unanswered: int = 0
    waited: float = 0.0
    crashes: int = 0
    last_error: str | None = None
    ruin: Exception | None = None  # the crash that ends the runtime
    starting: trio.TaskStatus[None] | None = None

    async def live(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Run the body, again and again, until it returns; a crash is followed by another life."""
        self.starting = task_status
        here.set(self)
        self.context = contextvars.copy_context()
        try:
            with self.scope:
                while await self._live_once():
                    pass
            if self._unready:
                raise RuntimeError(f"actor {self.name} ended before it was ready")
        except Exception as error:
            if self._unready or self.ruin is not None:
                raise  # `Runtime.start` reports it, or it ends the runtime
            self._crash(error)  # while it was cancelled, which ends it anyway
        finally:
            self._fail(tuple(self.hand), ActorCrashed, None)
            self._turn_away()
            self.enter(Phase.STOPPED)
            self.finished.set()

    async def _live_once(self) -> bool:
        """One life of the body; whether there is to be another."""
        self.enter(Phase.STARTING)
        try:
            await self.body(Inbox(self))
        except Exception as error:
            if isinstance(error, StopAsyncIteration) and self.closing.is_set():
                return False  # `Inbox.batch` at the end of the mail
            self._crash(error)
            if self._unready:
                raise
            if _among(error, self.restart.fatal):
                self.ruin = error
                raise
            delay = self.restart.delay(self.in_a_row, self.rng)
            self.enter(Phase.WAITING, cause=error, delay=delay)
        else:
            return False
        finally:
            self.at_once = None
        with trio.move_on_after(delay):
            await self.closing.wait()
        # One that is to stop comes back at once, and only for the mail it still has.
        return not self.closing.is_set() or self.receive.statistics().current_buffer_used > 0

    def _crash(self, error: Exception) -> None:
        steady = self.phase is Phase.READY and trio.current_time() >= self.since + self.restart.steady
        self.in_a_row = 1 if steady else self.in_a_row + 1
        self.crashes += 1
        self.last_error = repr(_only(error))
        self._fail(tuple(self.hand), ActorCrashed, error)

    @property
    def _unready(self) -> bool:
        """Whether `Runtime.start` still waits for it."""
        return self.starting is not None

    def enter(self, phase: Phase, *, cause: Exception | None = None, delay: float | None = None) -> None:
        """Begin a phase and tell the observer, whose own failures are logged and otherwise ignored."""
        self.phase, self.since = phase, trio.current_time()
        if phase is Phase.READY and self.starting is not None:
            self.starting.started()
            self.starting = None
        try:
            self.observe(Event(self.name, phase, self.since, cause, delay))
        except Exception:
            logger.exception("the observer failed when actor %s was %s", self.name, phase.value)

    def take(self, letter: Letter[M]) -> bool:
        """Take a letter; False when nobody waits for it any more."""
        now = trio.current_time()
        if letter.withdrawn or letter.deadline <= now:
            self.withdrawn += 1
            return False
        letter.take(now, self.hand)
        self.handled += 1
        self.waited = max(self.waited, now - letter.posted)
        return True

    def take_off(self, letter: Letter[M]) -> bool:
        """Take a letter off the queue, see `take`; raises what `at_once` failed with, where the letter tells of it."""
        self.queued -= 1
        self.own_up()
        return self.take(letter)

    def own_up(self) -> None:
        """Raise what `at_once` failed with, once."""
        if self.defect is not None:
            error, self.defect = self.defect, None
            raise error

    def post(self, letter: Letter[M]) -> None:
        """Queue a letter; raises `trio.WouldBlock` where the mailbox is full."""
        self.send.send_nowait(letter)
        self.queued += 1

    def serve(self, letter: Letter[M]) -> bool:
        """Serve a letter at once, in the task that it comes from; False where it is to queue.

        It is to where others queue, and where a body may be in the midst of a step: for a letter to oneself, and for
        one that somebody's `at_once` gives rise to.
        """
        at_once = self.at_once
        if at_once is None or self.queued or self.serving or letter.deadline <= letter.posted:
            return False
        asker = here.get()
        if asker is not None and (asker is self or asker.serving):
            return False
        self.take(letter)
        self.serving, taken = True, True
        try:
            taken = self.context.run(at_once, letter) is not False
        except Exception as error:  # noqa: BLE001 - it is the body's to crash with
            self.at_once, self.defect = None, error
            with contextlib.suppress(trio.WouldBlock):  # the body does not wait for mail, and looks before it does
                self.post(Letter(None, self.since, -math.inf))  # type: ignore[arg-type]  # nobody's: it wakes the body
        finally:
            self.serving = False
        if not taken:
            letter.put_back()
            self.handled -= 1
        return taken

    def close(self) -> None:
        """Take no more mail; the body sees the end of it once it has read what queues."""
        self.at_once = None
        self.send.close()
        self.closing.set()

    def _turn_away(self) -> None:
        """Fail all mail, queued and to come."""
        self.close()
        while True:
            try:
                letter = self.receive.receive_nowait()
            except (trio.WouldBlock, trio.EndOfChannel):
                break
            self._fail((letter,), ActorDown, self.ruin)
        self.receive.close()

    def _fail(self, letters: tuple[Letter[Any], ...], kind: type[ActorError], cause: Exception | None) -> None:
        for letter in letters:
            failure = kind(self.name)
            failure.__cause__ = cause
            letter.settle(outcome.Error(failure))

    @property
    def closed(self) -> str | None:
        """Why it takes no letter now: its phase, or `overloaded`; None where it does."""
        if self.phase is not Phase.READY:
            return "restarting" if self.phase is Phase.WAITING else self.phase.value
        full = self.queued > 0 and self.queued >= self.send.statistics().max_buffer_size
        return "overloaded" if full else None

    def health(self) -> Health:
        """What is to be seen of it now."""
        now = trio.current_time()
        oldest = next(iter(self.hand), None)
        queue = self.receive.statistics()
        return Health(
            actor=self.name,
            phase=self.phase,
            since=self.since,
            depth=queue.current_buffer_used,
            capacity=int(queue.max_buffer_size),
            held=len(self.hand),
            oldest=now - oldest.taken if oldest is not None and oldest.taken is not None else 0.0,
            handled=self.handled,
            withdrawn=self.withdrawn,
            overloaded=self.overloaded,
            unanswered=self.unanswered,
            waited=self.waited,
            crashes=self.crashes,
            last_error=self.last_error,
        )


def _among(error: Exception, kinds: tuple[type[Exception], ...]) -> bool:
    """Return True if an error is of these kinds, or a group that holds one."""
    if isinstance(error, ExceptionGroup):
        return error.subgroup(kinds) is not None if kinds else False
    return isinstance(error, kinds)


def _only(error: BaseException) -> BaseException:
    """Return the one error of a group that holds no other: what a nursery made of it."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
