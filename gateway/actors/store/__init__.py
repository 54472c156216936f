"""The durable store: atomic steps and snapshots behind one protocol, on SQLite or PostgreSQL.

A step that `commit` answered for is on the disk.  `StoreUnavailable` means that it never happened, `StoreUncertain`
that a later look must tell.
"""

from gateway.actors.store.errors import (
    SILENCES,
    UNAVAILABLE,
    Conflict,
    Reason,
    StatementFailed,
    StoreRefused,
    StoreUncertain,
)
from gateway.actors.store.postgresql import PostgresqlStore, open_postgresql
from gateway.actors.store.postgresql_settings import PostgresqlSettings
from gateway.actors.store.protocol import (
    Engine,
    InLoop,
    Membership,
    NodeStore,
    Row,
    Statement,
    Store,
    StoreHealth,
    Value,
)
from gateway.actors.store.pulse import Committed
from gateway.actors.store.sqlite import open_sqlite
from gateway.errors import StoreUnavailable

__all__ = [
    "SILENCES",
    "UNAVAILABLE",
    "Committed",
    "Conflict",
    "Engine",
    "InLoop",
    "Membership",
    "NodeStore",
    "PostgresqlSettings",
    "PostgresqlStore",
    "Reason",
    "Row",
    "Statement",
    "StatementFailed",
    "Store",
    "StoreHealth",
    "StoreRefused",
    "StoreUnavailable",
    "StoreUncertain",
    "Value",
    "open_postgresql",
    "open_sqlite",
]
