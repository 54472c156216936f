"""An actor from the outside."""

from __future__ import annotations

from typing import Any, Generic, Self, TypeVar, final

import attrs
import trio

from gateway.actors.runtime._actor import Actor, here
from gateway.actors.runtime._errors import ActorDown, Overloaded, Unanswered, UpwardAsk
from gateway.actors.runtime._letter import Letter, Question
from gateway.actors.runtime._life import Health

R = TypeVar("R")
M_contra = TypeVar("M_contra", contravariant=True)


@final
@attrs.frozen(eq=False)
class Ref(Generic[M_contra]):
    """The outside of an actor; it outlives restarts, and works after the actor ended (as `ActorDown`)."""

    _actor: Actor[M_contra]

    async def ask(self, message: Question[Self, R], *, within: float = 5.0) -> R:
        """Send a message and wait for its answer, `within` seconds at most.

        Raises whatever the actor refuses with, and `Overloaded`, `ActorDown` (never seen, safe to repeat),
        `Unanswered`, `ActorCrashed` (seen, outcome unknown), `UpwardAsk`.  A caller that is cancelled withdraws the
        message while it queues; once the actor took it, it is done without the caller.
        """
        actor = self._actor
        asker = here.get()
        if asker is not None and asker.runtime is actor.runtime and actor.rank >= asker.rank:
            raise UpwardAsk(asker.name, actor.name)
        await trio.lowlevel.checkpoint_if_cancelled()
        now = trio.current_time()
        letter: Letter[Any] = Letter(message, now, now + within)
        try:
            if not actor.serve(letter) or not letter.settled:
                await self._wait(letter)
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            raise ActorDown(actor.name) from actor.ruin
        finally:
            letter.withdrawn = letter.taken is None
        if letter.result is None:
            if letter.withdrawn:
                actor.overloaded += 1
                raise Overloaded(actor.name)
            actor.unanswered += 1
            raise Unanswered(actor.name)
        try:
            answer: R = letter.result.unwrap()
        finally:
            del letter  # a refusal's traceback holds this frame: no cycle
        return answer

    async def _wait(self, letter: Letter[Any]) -> None:
        """Wait until a letter is settled, as long as its asker has patience; one that was not taken yet is posted."""
        actor = self._actor
        bell = letter.bell = trio.Event()
        with trio.move_on_at(letter.deadline):
            if letter.taken is None:
                try:
                    actor.post(letter)
                except trio.WouldBlock:
                    await actor.send.send(letter)
                    actor.queued += 1
            await bell.wait()

    def tell(self, message: M_contra) -> None:
        """Post a message and forget it, upward too: it never waits.

        Raises `Overloaded` when the mailbox is full, `ActorDown` when it is closed.  Nobody learns whether it was done.
        """
        actor = self._actor
        letter = Letter(message, trio.current_time(), float("inf"))
        try:
            if not actor.serve(letter):
                actor.post(letter)
        except trio.WouldBlock:
            actor.overloaded += 1
            raise Overloaded(actor.name) from None
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            raise ActorDown(actor.name) from actor.ruin

    @property
    def closed(self) -> str | None:
        """None while the actor is up and has room for a letter; else the machine word for why not."""
        return self._actor.closed

    def health(self) -> Health:
        """What is to be seen of the actor now."""
        return self._actor.health()
