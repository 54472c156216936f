"""A message on its way: the question, and the envelope its answer comes back in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, final

import attrs
import outcome
import trio

if TYPE_CHECKING:
    from gateway.actors.runtime._ref import Ref

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
M_co = TypeVar("M_co", covariant=True)
Ref_contra = TypeVar("Ref_contra", contravariant=True)


class Ask(Generic[R]):
    """Base of messages that want an `R` back; a subclass is a frozen attrs class."""

    __slots__ = ()

    if TYPE_CHECKING:

        def _asked_of(self, ref: Ref[Self], /) -> R: ...


class Question(Protocol[Ref_contra, R_co]):
    """An `Ask` that the given `Ref` takes.

    Python has no intersection types: that an `Ask[R]` is also one of the messages of a `Ref[M]` is told by a method
    that exists for type checkers only.
    """

    def _asked_of(self, ref: Ref_contra, /) -> R_co: ...


@final
@attrs.define(eq=False, repr=False)
class Letter(Generic[M_co]):
    """A message with its return envelope.

    An actor reads `message` and `deadline` and calls `answer` or `refuse`, once, at any time, letters in any order.
    That the asker went away meanwhile makes no difference.  The rest is the runtime's side.

    Attributes:
        message: what was asked or told.
        posted: when, on trio's clock, in seconds.
        deadline: when the asker's patience ends, on trio's clock; infinite for a told message.
        taken: when the actor took it, or None while it queues.
        withdrawn: the asker went away before the actor took it.
        result: how it was settled.
        bell: wakes the asker; a told message has none.
        hand: the letters in its actor's hand, itself among them.
    """

    message: M_co
    posted: float
    deadline: float
    taken: float | None = None
    withdrawn: bool = False
    result: outcome.Outcome[Any] | None = None
    bell: trio.Event | None = None
    hand: dict[Letter[Any], None] | None = None

    def answer(self, question: Ask[R], value: R) -> None:
        """Reply `value`.

        Naming the question, which is this letter's message, lets the type checker check the reply.  A second answer or
        another letter's question raises RuntimeError.
        """
        if question is not self.message:
            raise RuntimeError("that is not this letter's question")
        self.settle(outcome.Value(value))

    def refuse(self, error: Exception) -> None:
        """Raise `error` in the asker; the actor itself carries on.  Give each letter an error of its own."""
        self.settle(outcome.Error(error))

    @property
    def settled(self) -> bool:
        """Whether it was answered or refused, by the actor or by the runtime in its place."""
        return self.result is not None

    def settle(self, result: outcome.Outcome[Any]) -> None:
        """End the letter, lay it out of the actor's hand and wake its asker."""
        if self.result is not None:
            raise RuntimeError("a letter is answered once")
        self.result = result
        if self.hand is not None:
            del self.hand[self]
            self.hand = None
        if self.bell is not None:
            self.bell.set()

    def take(self, now: float, hand: dict[Letter[Any], None]) -> None:
        """Pass it into the actor's hand, where it stays until settled.

        A told message that is no `Ask` wants no answer, and is not kept.
        """
        self.taken = now
        if isinstance(self.message, Ask):
            hand[self] = None
            self.hand = hand

    def put_back(self) -> None:
        """Undo `take`."""
        self.taken = None
        if self.hand is not None:
            del self.hand[self]
            self.hand = None
