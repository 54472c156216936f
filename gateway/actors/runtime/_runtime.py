"""The house that actors live in: it starts them in order and stops them in the reverse of it."""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, final

import trio

from gateway.actors.runtime._actor import Actor, Body
from gateway.actors.runtime._letter import Letter
from gateway.actors.runtime._life import Event, Health, Restart
from gateway.actors.runtime._ref import Ref

M = TypeVar("M")

_RESTART = Restart()


@final
class Runtime:
    """All actors of a node.  Make one with `open_runtime`."""

    def __init__(self, nursery: trio.Nursery, observe: Callable[[Event], object], rng: random.Random) -> None:
        self._nursery = nursery
        self._observe = observe
        self._rng = rng
        self._ranks = itertools.count()
        self._actors: list[Actor[Any]] = []
        self._stopping = False

    async def start(self, name: str, body: Body[M], *, capacity: int = 64, restart: Restart = _RESTART) -> Ref[M]:
        """Start an actor and return once it is ready; its body may ask the actors started before it.

        `capacity` is how many letters may queue before askers are held back.  A body that fails, or returns, before it
        is ready raises here and leaves no actor behind.  After `stop` has begun, RuntimeError.
        """
        if self._stopping:
            raise RuntimeError(f"actor {name} is started while the runtime stops")
        send, receive = trio.open_memory_channel[Letter[M]](capacity)
        actor = Actor(name, body, self, next(self._ranks), restart, self._observe, self._rng, send, receive)
        self._actors.append(actor)
        try:
            await self._nursery.start(actor.live, name=f"actor {name}")
        except BaseException:
            self._actors.remove(actor)
            raise
        actor.scope.shield = True  # from now on only `stop` ends it
        return Ref(actor)

    def health(self) -> tuple[Health, ...]:
        """What is to be seen of every actor, in order of start."""
        return tuple(actor.health() for actor in self._actors)

    async def stop(self, grace: float) -> None:
        """End every actor, last started first: close its mail, let it drain for `grace` seconds, then cancel it.

        Asks that it never took fail with `ActorDown`, those it leaves unanswered with `ActorCrashed`.
        """
        self._stopping = True
        for actor in reversed(tuple(self._actors)):
            actor.close()
            with trio.move_on_after(grace, shield=True):
                await actor.finished.wait()
            actor.scope.cancel()
            with trio.CancelScope(shield=True):
                await actor.finished.wait()


@asynccontextmanager
async def open_runtime(
    *,
    observe: Callable[[Event], object] = lambda _event: None,
    grace: float = 5.0,
    rng: random.Random | None = None,
) -> AsyncIterator[Runtime]:
    """Run actors for the length of a block; stop them in order at its end, each with `grace` seconds to drain.

    That holds for every end of the block: a return, an exception, a cancellation around it, a crash that is `fatal` to
    its actor (`Restart`; it then leaves the block in an ExceptionGroup).  `observe` is called with every phase an actor
    enters; when it raises, that is logged and the actors go on.  `rng` is what restart delays draw their jitter from.
    """
    async with trio.open_nursery() as nursery:
        runtime = Runtime(nursery, observe, random.Random() if rng is None else rng)  # noqa: S311 - jitter is no secret
        try:
            yield runtime
        finally:
            await runtime.stop(grace)
