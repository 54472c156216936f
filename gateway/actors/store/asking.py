"""Asking the actor that writes: what its silence, its absence or its crash means for a step."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from gateway.actors.runtime import ActorCrashed, ActorDown, Overloaded, Unanswered
from gateway.actors.store.errors import Failure, Reason

T = TypeVar("T")


async def answered(asked: Awaitable[T]) -> T:
    """Return what the writer answers.

    Raises `StoreUnavailable` where it never saw the step, `StoreUncertain` where it did and its outcome is unknown, and
    what it refuses with.
    """
    try:
        return await asked
    except Overloaded as error:
        raise Failure(Reason.OVERLOADED).error() from error
    except ActorDown as error:
        raise Failure(Reason.STOPPED).error() from error
    except Unanswered as error:
        raise Failure(Reason.STALLED, uncertain=True).error() from error
    except ActorCrashed as error:
        raise Failure(Reason.CRASHED, uncertain=True).error() from error
