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
    LOGIN_REFUSED = "store_login_refused"
    TLS_FAILED = "tls_failed"
    POOLED = "store_pooled"
    DATABASE_MISSING = "store_database_missing"
    PERMISSION_DENIED = "store_permission_denied"
    SCHEMA_MISSING = "store_schema_missing"
    REFUSED = "store_refused"
    LEASE_LOST = "lease_lost"

    @property
    def story(self) -> str:
        """What this means, in half a sentence."""
        return _STORIES[self]

    @classmethod
    def of(cls, word: str) -> Reason:
        """Return the reason that a word names which may have a code of the server's at its end."""
        return cls.REFUSED if word.startswith(cls.REFUSED.value) else cls(word)


SILENCES = frozenset({Reason.STALLED, Reason.SLOW, Reason.OVERLOADED, Reason.LEASE_LOST, Reason.CRASHED})
"""The reasons that one silence of a store has, as the parts of a node meet it."""
UNAVAILABLE = "store_unavailable"
"""The one word for all of them, outside the node."""

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
    Reason.LOGIN_REFUSED: "the server of the store does not let this node in",
    Reason.TLS_FAILED: "the store's server does not prove who it is as sslmode and sslrootcert ask",
    Reason.POOLED: "the connection pooler before the store's server (PgBouncer?) does not keep sessions",
    Reason.DATABASE_MISSING: "the server of the store has no such database",
    Reason.PERMISSION_DENIED: "the store does not permit this node what it does",
    Reason.SCHEMA_MISSING: "tables of the store are missing, or are not those of this release",
    Reason.REFUSED: "the store refuses what this node asks",
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


_OF_STATEMENTS = ("22", "23", "42", "SQLITE")
"""Beginnings of the codes that tell of a statement's values or of its SQL."""


class StatementFailed(StoreUnavailable):
    """The database rejected a statement (a permission, a table, a constraint, its syntax); nothing was stored.

    Attributes:
        index: which statement of the step or which query, from 0; None where only the end of the step could tell
            (a deferred constraint).
        cause: the database's own words, for operators; `detail` does not hold them.
        reason: what it means; `extra["reason"]` names it, with the database's `code` where it has no name of its own.
    """

    def __init__(self, index: int | None, cause: str, reason: Reason = Reason.REFUSED, code: str = "") -> None:
        self.index = index
        self.cause = cause
        self.reason = reason
        self.code_of_store = code
        named = Failure(reason, code=code).name
        super().__init__(f"{_sentence(reason)}; nothing was stored.", extra={"reason": named}, retry_after=2)
        self.args = (index, cause, reason, code)

    def __str__(self) -> str:
        return f"{'the step' if self.index is None else f'statement {self.index}'} was rejected: {self.cause}"

    @property
    def failure(self) -> Failure:
        """The same as what befell the store."""
        return Failure(self.reason, code=self.code_of_store)

    @property
    def of_store(self) -> bool:
        """Whether the store is at fault: others of its kind will fail too.  Else this statement or its values are."""
        return self.reason is not Reason.REFUSED or not self.code_of_store.startswith(_OF_STATEMENTS)


@attrs.frozen
class Failure:
    """What befell a transaction as a whole: the `reason`, and whether it may have been stored all the same.

    `code` is the database's own, which names what has no reason of its own.
    """

    reason: Reason
    uncertain: bool = False
    code: str = ""

    @property
    def name(self) -> str:
        """The word for machines."""
        return f"{self.reason}_{self.code.lower()}" if self.code and self.reason is Reason.REFUSED else str(self.reason)

    def error(self) -> StoreUnavailable:
        """A fresh exception to raise in one asker; `extra["reason"]` names the reason."""
        kind, outcome = (
            (StoreUncertain, "its outcome is unknown") if self.uncertain else (StoreUnavailable, "nothing was stored")
        )
        return kind(f"{_sentence(self.reason)}; {outcome}.", extra={"reason": self.name}, retry_after=2)


def _sentence(reason: Reason) -> str:
    return f"{reason.story[0].upper()}{reason.story[1:]}"
