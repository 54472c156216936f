"""A connection to PostgreSQL that blocks, for commands: they have no loop that must go on meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from gateway.actors.store.errors import Reason, StoreRefused
from gateway.actors.store.postgresql_failures import code_of_refused_connection, reason_of, refusal_of, remedy
from gateway.actors.store.postgresql_settings import PostgresqlSettings
from gateway.actors.store.protocol import Row

APPLICATION = "gateway migrate"
_UNBOUNDED: dict[str, str | int] = {
    "statement_timeout": 0,
    "lock_timeout": 0,
    "idle_in_transaction_session_timeout": 0,
}

Connection = psycopg.Connection[Row]


@contextmanager
def connected(settings: PostgresqlSettings) -> Iterator[Connection]:
    """Hold a connection, in autocommit mode and without bounds on time, for the length of a block.

    Raises `StoreRefused` where the server cannot be reached, or fails as a whole within the block.
    """
    members = settings.members(
        server=_UNBOUNDED, application_name=APPLICATION, connect_timeout=settings.connect_timeout_s
    )
    try:
        with psycopg.connect(**members, autocommit=True) as connection:  # type: ignore[arg-type]  # libpq's own members
            yield connection
    except psycopg.Error as error:
        reason = _reason(error)
        if reason is None:
            raise
        raise StoreRefused(settings.shown, f"{reason.story} ({words(error)})", remedy(reason)) from error


def words(error: psycopg.Error) -> str:
    """What the server said, in one line."""
    return error.diag.message_primary or " ".join(str(error).split())


def _reason(error: psycopg.Error) -> Reason | None:
    """Why the server as a whole failed; None where a statement is at fault."""
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return Reason.PERMISSION_DENIED
    if error.sqlstate is not None:
        return reason_of(error.sqlstate)
    if not isinstance(error, psycopg.OperationalError):
        return None
    return refusal_of(code_of_refused_connection(str(error))).reason
