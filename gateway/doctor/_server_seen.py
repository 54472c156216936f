"""What can be seen of a store's PostgreSQL server over one connection."""

from __future__ import annotations

import ipaddress
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
import psycopg

from gateway.actors.store.postgresql_pooling import LOOK, RESET, SERVED_BY, TRIES, set_to
from gateway.actors.store.postgresql_settings import PostgresqlSettings
from gateway.actors.store.postgresql_sql import CLOCK_NOW
from gateway.reading_server import connection_to
from gateway.shared_keys import SELECT_KNOWN

if TYPE_CHECKING:
    from gateway.actors.store.postgresql_blocking import Connection
    from gateway.actors.store.protocol import Row

PATIENCE = "SET statement_timeout = '5s'"
LONGEST_NAME = 63
"""PostgreSQL cuts application names."""

SETTINGS = """
    SELECT name, setting FROM pg_settings WHERE name IN ('server_encoding', 'fsync', 'full_page_writes',
        'synchronous_commit', 'max_connections', 'superuser_reserved_connections', 'reserved_connections')
"""
CLIENTS = """
    SELECT COUNT(*), COUNT(*) FILTER (WHERE usename = current_user),
        COUNT(*) FILTER (WHERE datname = current_database())
    FROM pg_stat_activity
    WHERE usename IS NOT NULL AND datname IS NOT NULL AND pid <> pg_backend_pid() AND application_name <> %s
"""
LIMITS = """
    SELECT (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user),
        (SELECT datconnlimit FROM pg_database WHERE datname = current_database())
"""


@attrs.frozen
class Seen:
    """What was seen of a server; `ahead_ms` is its clock before this machine's, `clients` are those of others.

    `limits` and `clients` are each for the whole server, the role and the database; a limit of -1 is none.
    """

    place: str
    version: int
    host: str = ""
    sslmode: str = "prefer"
    encrypted: bool = False
    settings: Mapping[str, str] = attrs.field(factory=dict)
    recovering: bool = False
    read_only: bool = False
    limits: tuple[int, int, int] = (-1, -1, -1)
    clients: tuple[int, int, int] = (0, 0, 0)
    ahead_ms: int = 0
    facts: Sequence[Row] = ()
    pooled: bool = False

    @property
    def local(self) -> bool:
        """Whether what is said to it stays on this machine."""
        if not self.host or self.host.startswith(("/", "@")) or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def look(settings: PostgresqlSettings, node: str) -> Seen:
    """Look at a server once; raises `StoreRefused` where it cannot be reached."""
    with connection_to(settings) as connection:
        connection.execute(PATIENCE)
        found = {str(name): str(setting) for name, setting in _ask(connection, SETTINGS)}
        clients = _numbers(_ask(connection, CLIENTS, f"gateway/{node}"[:LONGEST_NAME]))
        of_role, of_database = _numbers(_ask(connection, LIMITS)) or (-1, -1)
        before = time.time_ns()
        now = _numbers(_ask(connection, f"SELECT {CLOCK_NOW}"))
        here_ms = (before + time.time_ns()) // 2 // 1_000_000
        return Seen(
            place=settings.place,
            version=connection.info.server_version,
            host=connection.info.hostaddr or connection.info.host,
            sslmode=str(connection.info.get_parameters().get("sslmode", "prefer")),
            encrypted=bool(connection.pgconn.ssl_in_use),
            settings=found,
            recovering=_ask(connection, "SELECT pg_is_in_recovery()") == [(True,)],
            read_only=_ask(connection, "SHOW transaction_read_only") == [("on",)],
            limits=(_places(found), of_role, of_database),
            clients=clients if len(clients) == 3 else (0, 0, 0),
            ahead_ms=now[0] - here_ms if now else 0,
            facts=_ask(connection, SELECT_KNOWN),
            pooled=_pooled(connection, settings),
        )


def _pooled(connection: Connection, settings: PostgresqlSettings) -> bool:
    """Return True if another connection has this one's session (`gateway.actors.store.postgresql_pooling`)."""
    if _numbers(_ask(connection, SERVED_BY)) in {(), (connection.info.backend_pid,)}:
        return False
    for _ in range(TRIES):
        token = secrets.token_hex(8)
        _ask(connection, set_to(token))
        with connection_to(settings) as other:
            if _ask(other, LOOK) == [(token,)]:
                _ask(other, RESET)
                return True
    return False


def _ask(connection: Connection, sql: str, *parameters: str) -> list[Row]:
    """Return the rows of a query; none where this engine does not know what is asked."""
    try:
        return connection.execute(sql.encode(), parameters or None).fetchall()
    except psycopg.Error:
        if connection.broken:
            raise
        return []


def _numbers(found: Sequence[Row]) -> tuple[int, ...]:
    return tuple(int(each) if each is not None else -1 for each in found[0]) if found else ()


def _places(settings: Mapping[str, str]) -> int:
    """Return how many connections those may have who are no superuser."""
    if "max_connections" not in settings:
        return -1
    kept = ("superuser_reserved_connections", "reserved_connections")
    return int(settings["max_connections"]) - sum(int(settings.get(name, 0)) for name in kept)
