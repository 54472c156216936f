"""Whether a connection is a session of its own: a pooler may give each transaction to another one.

PgBouncer in transaction mode does.  What a node sets, prepares and listens for would then be another client's, and the
locks of a fence would not last.  A pooler answers for the server when a client connects, under a process id that it
made up; and what one client sets is there for the next.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from gateway.actors.store.errors import Reason, StoreRefused
from gateway.actors.store.postgresql_connecting import Road
from gateway.actors.store.postgresql_connection import Command, Connection
from gateway.actors.store.postgresql_failures import remedy
from gateway.actors.store.postgresql_membership import Rejected, accepted
from gateway.actors.store.postgresql_values import rows_of
from gateway.actors.store.protocol import Row

SERVED_BY = "SELECT pg_backend_pid()"
SETTING = "gateway.session"
LOOK = f"SELECT current_setting('{SETTING}', true)"
RESET = f"RESET {SETTING}"
TRIES = 3
"""Another client may be given the session in between."""


def set_to(token: str) -> str:
    """Return the statement that leaves a token in the session of a connection."""
    return f"SET {SETTING} = '{token}'"


async def require_session(connection: Connection, road: Road, where: str, *, within: float) -> None:
    """Raise `StoreRefused` where a pooler gives transactions to other sessions; `road` makes another connection.

    Raises `Disconnected` too.  An engine that does not know what is asked has no such pooler.
    """
    try:
        ((served_by,),) = await _asked(connection, SERVED_BY, within=within)
        if served_by == connection.pid:
            return
        for _ in range(TRIES):
            token = secrets.token_hex(8)
            await _asked(connection, set_to(token), within=within)
            if await _seen(road, within=within) == token:
                raise StoreRefused(where, Reason.POOLED.story, remedy(Reason.POOLED))
        await _asked(connection, RESET, within=within)
    except Rejected:
        return


async def _seen(road: Road, *, within: float) -> object:
    """Return what another connection sees of what was set."""
    other = await road.connect()
    try:
        ((seen,),) = await _asked(other, LOOK, within=within)
        await _asked(other, RESET, within=within)
        return seen
    finally:
        other.close()


async def _asked(connection: Connection, sql: str, *, within: float) -> Sequence[Row]:
    (answer,) = await accepted(connection, Command(sql, once=True), within=within)
    return rows_of(answer)
