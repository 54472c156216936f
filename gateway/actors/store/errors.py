"""How a step, a read or the opening of a store can fail."""

from __future__ import annotations

import enum

import attrs

from gateway.errors import StoreUnavailable


class Reason(enum.StrEnum):
    """Why a store cannot be used now; the word that operators, `/readyz` and problem documents see."""

    DISK_FULL = "disk_full"
    READ_ONLY = "read_only"
    IO_ERROR = "io_error"
    CORRUPT = "corrupt"
    LOCKED = "locked"
    OUT_OF_MEMORY = "out_of_memory"
    FILE_REPLACED = "file_replaced"
    OVERLOADED = "overloaded"
    STALLED = "stalled"
    CRASHED = "crashed"
    STOPPED = "stopped"
    UNREACHABLE = "unreachable"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    SLOW = "slow"
    STARTING = "starting"
    SHUTTING_DOWN = "shutting_down"
    REFUSED = "refused"
    LEASE_LOST = "lease_lost"

    @property
    def story(self) -> str:
        """What this means, in half a sentence."""
        return _STORIES[self]


_STORIES = {
    Reason.DISK_FULL: "the disk of the store is full",
    Reason.READ_ONLY: "the store cannot be written",
    Reason.IO_ERROR: "the disk of the store reports errors",
    Reason.CORRUPT: "the store is damaged",
    Reason.LOCKED: "another program holds the store",
    Reason.OUT_OF_MEMORY: "the store has no memory to work with",
    Reason.FILE_REPLACED: "the file of the store was moved or replaced under the running node",
    Reason.OVERLOADED: "the store has more work than it can take",
    Reason.STALLED: "the store did not answer in time",
    Reason.CRASHED: "the store's writer crashed and is being restarted",
    Reason.STOPPED: "the store has stopped",
    Reason.UNREACHABLE: "the server of the store cannot be reached",
    Reason.TOO_MANY_CONNECTIONS: "the server of the store takes no more connections",
    Reason.SLOW: "the server of the store took longer than it may",
    Reason.STARTING: "the server of the store is starting",
    Reason.SHUTTING_DOWN: "the server of the store is shutting down",
    Reason.REFUSED: "the server of the store does not let this node in",
    Reason.LEASE_LOST: "this node was silent for longer than its lease and has to join anew",
}


class StoreUncertain(StoreUnavailable):
    """The outcome of a step is unknown: it may have been stored, and only a later read can tell."""


class StoreRefused(Exception):
    """A store that must not be served from: says where, what is wrong and what to do about it."""

    def __init__(self, where: object, what: str, remedy: str) -> None:
        self.where = str(where)
        self.what = what
        self.remedy = remedy
        super().__init__(f"{self.where}: {what}. {remedy}")


class Conflict(Exception):
    """A statement found another number of rows than the step demands; nothing of the step was stored.

    Attributes:
        index: which statement of the step, from 0.
        found: how many rows it changed (or returned).
        wanted: how many it should have.
    """

    def __init__(self, index: int, found: int, wanted: int) -> None:
        self.index = index
        self.found = found
        self.wanted = wanted
        super().__init__(f"statement {index} found {found} rows, not {wanted}")


class StatementFailed(Exception):
    """The database rejected a statement (syntax, a constraint, a missing parameter); nothing of the step was stored.

    Attributes:
        index: which statement of the step or which query, from 0; None where only the end of the step could tell
            (a deferred constraint).
        cause: the database's own words.
    """

    def __init__(self, index: int | None, cause: str) -> None:
        self.index = index
        self.cause = cause
        super().__init__(f"{'the step' if index is None else f'statement {index}'} was rejected: {cause}")


@attrs.frozen
class Failure:
    """What befell a transaction as a whole: the `reason`, and whether it may have been stored all the same."""

    reason: Reason
    uncertain: bool = False

    def error(self) -> StoreUnavailable:
        """A fresh exception to raise in one asker; `extra["reason"]` names the reason."""
        kind, outcome = (
            (StoreUncertain, "its outcome is unknown") if self.uncertain else (StoreUnavailable, "nothing was stored")
        )
        story = self.reason.story
        return kind(f"{story[0].upper()}{story[1:]}; {outcome}.", extra={"reason": self.reason.value}, retry_after=2)
