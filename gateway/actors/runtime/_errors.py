"""How an ask ends when the actor itself did not end it."""

from __future__ import annotations

from typing import ClassVar


class ActorError(Exception):
    """An ask that got no answer from the actor itself; `actor` is its name."""

    what: ClassVar[str] = "no answer"

    def __init__(self, actor: str) -> None:
        super().__init__(actor)
        self.actor = actor

    def __str__(self) -> str:
        return f"actor {self.actor}: {self.what}"


class Overloaded(ActorError):
    """The mailbox stayed full, or the letter queued, past the asker's patience: the actor never saw it."""

    what = "too busy to take the message"


class ActorDown(ActorError):
    """The actor has stopped and never saw the message.  The crash that ends the runtime, if any, is `__cause__`."""

    what = "down"


class Unanswered(ActorError):
    """The actor took the letter and did not answer in time: the outcome is unknown."""

    what = "took the message and did not answer in time"


class ActorCrashed(ActorError):
    """The actor ended with the letter in its hands: the outcome is unknown.  A crash is `__cause__`."""

    what = "ended with the message in its hands"


class UpwardAsk(RuntimeError):
    """An actor asked itself or one that started after it: the road to a deadlock."""

    def __init__(self, asker: str, asked: str) -> None:
        super().__init__(asker, asked)
        self.asker = asker
        self.asked = asked

    def __str__(self) -> str:
        return f"actor {self.asker} asked {self.asked}, which did not start before it"
