"""Opening the configured store: an SQLite file, or a database on a PostgreSQL server."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.actors.store import Engine, open_sqlite
from gateway.actors.store.postgresql_settings import PostgresqlSettings
from gateway.config import Configuration, ConfigurationError
from gateway.errors import Violation

if TYPE_CHECKING:
    from gateway.actors.runtime import Runtime
    from gateway.actors.store.pulse import Observe

POINTER = "/store/password_file"
LONGEST_PASSWORD = 4096


@asynccontextmanager
async def open_engine(
    runtime: Runtime, configuration: Configuration, *, observe: Observe = lambda _event: None
) -> AsyncIterator[Engine]:
    """Open the store of a configuration and start its actors; the directory of an SQLite file exists already.

    `observe` hears of every group of steps and of every change of health.  Raises `StoreRefused` where the store must
    not be served from, `ConfigurationError` where its password cannot be read.
    """
    name = configuration.node.name
    if not configuration.shared_store:
        async with open_sqlite(runtime, configuration.store_path, node=name, observe=observe) as file:
            yield file
        return
    from gateway.actors.store import open_postgresql

    async with open_postgresql(runtime, settings_of(configuration), node=name, observe=observe) as store:
        yield store


def settings_of(configuration: Configuration) -> PostgresqlSettings:
    """Return how the node reaches its PostgreSQL server, its password read from `[store] password_file`.

    Raises `ConfigurationError`; ValueError where the store is an SQLite file.
    """
    store = configuration.store
    try:
        password = _password(Path(store.password_file).expanduser()) if store.password_file else None
    except PasswordRefused as refused:
        raise ConfigurationError(configuration.source, [Violation(POINTER, str(refused))]) from None
    return PostgresqlSettings(
        url=store.url,
        password=password,
        readers=store.readers,
        lease_ms=store.lease_ms,
        connect_timeout_s=store.connect_timeout_s,
        statement_timeout_s=store.statement_timeout_s,
    )


class PasswordRefused(Exception):
    """The password file cannot be used: says why and what to do."""


def _password(path: Path) -> str:
    """Return the one line of the file."""
    try:
        with path.open("rb") as file:
            mode, content = os.fstat(file.fileno()).st_mode, file.read(LONGEST_PASSWORD + 1)
        text = content.decode()
    except OSError as error:
        raise PasswordRefused(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise PasswordRefused(f"{path} is not UTF-8; it holds one line, the password") from None
    if mode & 0o077:
        raise PasswordRefused(f"others can read {path}; run chmod 600 {path}")
    password = text.removesuffix("\n").removesuffix("\r")
    if not password or len(content) > LONGEST_PASSWORD or any(each in password for each in "\r\n\0"):
        raise PasswordRefused(f"{path} must hold one line, the password, and nothing else")
    return password
