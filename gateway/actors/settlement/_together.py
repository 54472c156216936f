"""Questions that need not wait for each other's answers: one round trip to an end point for all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import attrs
import outcome
import trio

from gateway.actors.settlement._rpc import ChainUnavailable

T = TypeVar("T")


@attrs.define(eq=False)
class Reply(Generic[T]):
    """What became of one question, there once the block that it was asked in has ended."""

    _came: outcome.Maybe[T] | None = None

    async def wait(self, question: Callable[[], Awaitable[T]]) -> None:
        """Ask, and take what comes of it."""
        try:
            self._came = outcome.Value(await question())
        except ChainUnavailable as failure:
            self._came = outcome.Error(failure)

    @property
    def answer(self) -> T:
        """The answer, which may be had once; raises `ChainUnavailable` where there is none."""
        if self._came is None:
            raise RuntimeError("the question is still open")
        return self._came.unwrap()


@attrs.frozen(eq=False)
class Together:
    """Asks questions beside each other."""

    _nursery: trio.Nursery

    def ask(self, question: Callable[[], Awaitable[T]]) -> Reply[T]:
        """Ask a question."""
        reply: Reply[T] = Reply()
        self._nursery.start_soon(reply.wait, question)
        return reply


@asynccontextmanager
async def together() -> AsyncIterator[Together]:
    """Ask questions within a block, which ends when all are answered or have failed."""
    async with trio.open_nursery() as nursery:
        yield Together(nursery)
