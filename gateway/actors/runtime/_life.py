"""An actor's life as values: its phases, how it comes back from a crash, what is told of it."""

from __future__ import annotations

import enum
import random

import attrs
from attrs import validators


class Phase(enum.Enum):
    """Where an actor is in its life."""

    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"  # between a crash and the next start
    STOPPED = "stopped"


@attrs.frozen
class Restart:
    """How fast to come back after a crash.  It never gives up: what an actor lacks may come back at any time.

    Attributes:
        first: seconds before the first restart; each further crash doubles it.
        ceiling: the longest delay, in seconds, before jitter.
        jitter: the share by which a delay varies up and down, 0 to 1.
        steady: seconds of being ready after which earlier crashes are forgotten.
        fatal: crashes that no restart mends: the first one ends the runtime.
    """

    first: float = attrs.field(default=0.1, validator=validators.ge(0))
    ceiling: float = attrs.field(default=5.0, validator=validators.ge(0))
    jitter: float = attrs.field(default=0.1, validator=[validators.ge(0), validators.le(1)])
    steady: float = attrs.field(default=60.0, validator=validators.gt(0))
    fatal: tuple[type[Exception], ...] = ()

    def delay(self, crashes: int, rng: random.Random) -> float:
        """Seconds to wait after the `crashes`-th crash in a row, counted from 1."""
        doublings = min(crashes - 1, 64)  # beyond any ceiling, and far from overflow
        return min(self.first * 2.0**doublings, self.ceiling) * (1 + rng.uniform(-self.jitter, self.jitter))


@attrs.frozen
class Event:
    """One step in an actor's life.

    Attributes:
        actor: its name.
        phase: the phase it entered.
        at: when, on trio's clock, in seconds.
        cause: the crash, where it was one.
        delay: seconds until the restart, where one follows.
    """

    actor: str
    phase: Phase
    at: float
    cause: Exception | None = None
    delay: float | None = None


@attrs.frozen
class Health:
    """What an operator sees of one actor; times are in seconds, counts since its first start.

    Attributes:
        actor: its name.
        phase: where it is in its life.
        since: when it entered that phase, on trio's clock.
        depth: letters that queue, of `capacity`.
        capacity: letters that may queue before askers are held back.
        held: letters it has taken and not settled.
        oldest: how long the oldest of those has been in its hands: it grows when the actor is stuck.
        handled: letters taken.
        withdrawn: letters whose asker went away, or whose deadline passed, before they were taken.
        overloaded: asks and tells that failed with `Overloaded`.
        unanswered: asks that failed with `Unanswered`.
        waited: the longest a letter has queued before it was taken.
        crashes: times it crashed.
        last_error: the last crash as text.
    """

    actor: str
    phase: Phase
    since: float
    depth: int
    capacity: int
    held: int
    oldest: float
    handled: int
    withdrawn: int
    overloaded: int
    unanswered: int
    waited: float
    crashes: int
    last_error: str | None
