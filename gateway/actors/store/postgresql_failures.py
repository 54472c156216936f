"""What PostgreSQL's errors mean to a node: whose fault they are, and by which reason operators know them.

Codes: the appendix "PostgreSQL Error Codes" of its manual.
"""

from __future__ import annotations

import re
from typing import final

import attrs

from gateway.actors.store.errors import Failure, Reason, StatementFailed

STALE = "STALE"
"""No code of the server's: a statement was prepared before its tables were changed, and is to be prepared anew."""

RETRIED = frozenset({"40001", "40P01", STALE})
"""The transaction does well to try again: serialization failure, deadlock, a stale statement."""

OF_STALE_PLANS = frozenset({"0A000", "26000"})
"""What the server says of a statement that was prepared earlier: it may be stale."""

DISCONNECTED = "08006"
POOLER = "POOL"
"""No code of the server's either: a pooler before it takes no settings of a session."""
UNTRUSTED = "TLS"
"""No code of the server's: the client's end does not trust it."""

_REASONS = {
    "25006": Reason.READ_ONLY,
    "25P03": Reason.STALLED,
    "3D000": Reason.DATABASE_MISSING,
    "53100": Reason.DISK_FULL,
    "53200": Reason.OUT_OF_MEMORY,
    "53300": Reason.TOO_MANY_CONNECTIONS,
    "55P03": Reason.SLOW,
    "57014": Reason.SLOW,
    "57P01": Reason.SHUTTING_DOWN,
    "57P02": Reason.SHUTTING_DOWN,
    "57P03": Reason.STARTING,
    "57P04": Reason.DATABASE_MISSING,
    "57P05": Reason.STALLED,
    UNTRUSTED: Reason.TLS_FAILED,
    POOLER: Reason.POOLED,
    "XX001": Reason.CORRUPT,
    "XX002": Reason.CORRUPT,
}
_REASONS_OF_CLASSES = {
    "08": Reason.UNREACHABLE,
    "28": Reason.LOGIN_REFUSED,
    "53": Reason.OVERLOADED,
    "58": Reason.IO_ERROR,
}
_REASONS_OF_STATEMENTS = {
    "3F000": Reason.SCHEMA_MISSING,
    "42501": Reason.PERMISSION_DENIED,
    "42703": Reason.SCHEMA_MISSING,
    "42P01": Reason.SCHEMA_MISSING,
}

# A refused connection has no code in libpq, only the server's words.
_WORDS = (
    (
        re.compile(r"too many (?:clients|connections)|remaining connection slots|connection limit", re.IGNORECASE),
        "53300",
    ),
    (re.compile(r"unsupported startup parameter", re.IGNORECASE), POOLER),
    (re.compile(r"starting up|in recovery mode|not (?:yet )?accepting connections", re.IGNORECASE), "57P03"),
    (re.compile(r"shutting down|administrator command", re.IGNORECASE), "57P01"),
    (re.compile(r"database .* does not exist", re.IGNORECASE), "3D000"),
    (
        re.compile(
            r"certificate verify failed|(?:server|root) certificate|SSL error: (?!SYSCALL)|does not support SSL"
            r"|SSL was required|sslrootcert|tlsv1",
            re.IGNORECASE,
        ),
        UNTRUSTED,
    ),
    (
        re.compile(r"password|authentication|pg_hba|role .* does not exist|not permitted to log in", re.IGNORECASE),
        "28000",
    ),
    (re.compile(r"permission denied", re.IGNORECASE), "42501"),
    (re.compile(r"read-only", re.IGNORECASE), "25006"),
    (re.compile(r"FATAL:|certificate", re.IGNORECASE), "28000"),
)

_REMEDIES = {
    Reason.STALLED: "Look at the server, which does not answer, and at the way to it: a firewall may stand between",
    Reason.UNREACHABLE: "Start PostgreSQL there, or correct [store] url; a firewall may stand between",
    Reason.TOO_MANY_CONNECTIONS: "Raise max_connections (or the role's limit), or lower [store] readers",
    Reason.STARTING: "Wait until the server has started, and start the node again",
    Reason.SHUTTING_DOWN: "Start PostgreSQL again, then the node",
    Reason.LOGIN_REFUSED: "Correct the user and the password of [store], or the server's pg_hba.conf",
    Reason.TLS_FAILED: "In [store] url, let sslrootcert name the certificate of the server's authority, "
    "and the host be one that the server's certificate names (sslmode=verify-full)",
    Reason.POOLED: "Name the server itself in [store] url, or in pgbouncer.ini set pool_mode = session and "
    "ignore_startup_parameters = options",
    Reason.DATABASE_MISSING: "Correct the database in [store] url, or restore it from its backup",
    Reason.PERMISSION_DENIED: "Give the node's role back what it may do (GRANT): it owns its tables",
    Reason.SCHEMA_MISSING: "Restore the database from its backup, or run `gateway migrate` on an empty one",
    Reason.READ_ONLY: "Name the primary in [store] url; a read-only replica cannot keep a store",
    Reason.DISK_FULL: "Free some space on the server's disk",
    Reason.OUT_OF_MEMORY: "Give the server more memory",
    Reason.SLOW: "Look for long transactions on the server (pg_stat_activity), or raise statement_timeout_s",
    Reason.CORRUPT: "Keep the server's files and restore a backup",
    Reason.IO_ERROR: "Check the server's disk and log",
}


def reason_of(sqlstate: str) -> Reason | None:
    """Why the server as a whole failed; None where the statement is at fault."""
    return _REASONS.get(sqlstate) or _REASONS_OF_CLASSES.get(sqlstate[:2])


def refusal_of(sqlstate: str) -> Failure:
    """What a rejected command means for the store, whoever is at fault; it always has a name."""
    reason = reason_of(sqlstate) or _REASONS_OF_STATEMENTS.get(sqlstate, Reason.REFUSED)
    return Failure(reason, code=sqlstate if reason is Reason.REFUSED else "")


def code_of_refused_connection(words: str) -> str:
    """Return the SQLSTATE that belongs to the words by which a connection was refused."""
    return next((code for pattern, code in _WORDS if pattern.search(words)), DISCONNECTED)


def remedy(reason: Reason) -> str:
    """What an operator does about it."""
    return _REMEDIES.get(reason, "Look at the server's log")


@final
@attrs.frozen
class Rejection:
    """One command that the server rejected: its code and its words."""

    sqlstate: str
    words: str

    @property
    def reason(self) -> Reason | None:
        """Why the server as a whole failed; None where the statement is at fault."""
        return reason_of(self.sqlstate)

    @property
    def failure(self) -> Failure:
        """What it means for the store."""
        return refusal_of(self.sqlstate)

    def failed(self, index: int | None) -> StatementFailed:
        """The same for the asker whose statement it was."""
        failure = self.failure
        return StatementFailed(index, self.words, failure.reason, failure.code)


class Disconnected(Exception):
    """There is no connection, or it was lost; what was under way on it was not answered.

    Attributes:
        reason: why, as operators know it.
        words: the server's or the system's own.
    """

    def __init__(self, reason: Reason, words: str) -> None:
        self.reason = reason
        self.words = words
        super().__init__(f"{reason.value}: {words}")

    @property
    def failure(self) -> Failure:
        """The same for askers."""
        return Failure(self.reason)
