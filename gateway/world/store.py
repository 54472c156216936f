"""The database that the nodes of a world share: on a server that the world starts and torments, or one it was given."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import attrs
import psycopg
import trio

from gateway.actors.store.postgresql_migrations import TABLES
from gateway.config import shown_url
from gateway.config_rules import POSTGRESQL
from gateway.world import faults
from gateway.world.child import ChildFailed
from gateway.world.npm import ToolUnavailable
from gateway.world.postgresql import PostgresqlServer, make_server

OWN = "postgresql"
"""Asks for a server of the world's own."""
DATABASE = "gateway"
CONNECT_S = 5
LAUNCHES = 500
"""How often a killed server is launched anew while what remains of it has not ended; each takes some 20 ms or more."""


class StoreUnusable(Exception):
    """The world cannot have the store that was asked for: says why, and what to do."""


@attrs.define(eq=False)
class StoreServer:
    """A PostgreSQL server that obeys the fault control; `url` is that of its database."""

    server: PostgresqlServer
    url: str = ""
    _turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    @property
    def pid(self) -> int | None:
        """The process id of the server; None while it is killed."""
        return self.server.pid

    async def put(self, mode: str) -> None:
        """Put it into a mode of `faults.STORE_MODES`, and return when it is in it; raises `ChildFailed`."""
        async with self._turn:
            if mode == "kill":
                await trio.to_thread.run_sync(self.server.kill)
                return
            await trio.to_thread.run_sync(self.server.resume)
            await self._serve()
            if mode == "pause":
                await trio.to_thread.run_sync(self.server.pause)

    async def resume(self) -> None:
        """Let a paused server go on, whatever else happens now: those who end can then end in order."""
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self.server.resume)

    async def _serve(self) -> None:
        for _ in range(LAUNCHES):
            # On this thread and not on a worker's: the kernel ends the server with the thread that launched it.
            self.server.launch()
            if await trio.to_thread.run_sync(self.server.await_ready):
                return
        raise ChildFailed(f"PostgreSQL was launched {LAUNCHES} times and what remains of a killed one is in its way")


@attrs.frozen
class Store:
    """The database that the nodes share; `server` is None where somebody else runs it."""

    url: str
    server: StoreServer | None = None

    @property
    def shown(self) -> str:
        """Its URL as it may be shown: without passwords."""
        return shown_url(self.url)

    @property
    def pid(self) -> int | None:
        """The process id of the world's own server."""
        return self.server.pid if self.server else None


def is_shared(asked: str) -> bool:
    """Return whether `--store` asks for a store that several nodes can share."""
    return asked == OWN or asked.startswith(POSTGRESQL)


@asynccontextmanager
async def open_store(asked: str) -> AsyncIterator[Store | None]:
    """Yield the store that `--store` asks for, None for one file a node; a server of the world ends with the block.

    Raises `StoreUnusable` or `ChildFailed`.
    """
    if not asked:
        yield None
    elif asked != OWN:
        await trio.to_thread.run_sync(_examine, asked)
        yield Store(asked)
    else:
        async with _open_own() as server:
            yield Store(server.url, server)


@asynccontextmanager
async def _open_own() -> AsyncIterator[StoreServer]:
    making = make_server()
    try:
        server = StoreServer(await trio.to_thread.run_sync(making.__enter__))
    except ToolUnavailable as unavailable:
        raise StoreUnusable(str(unavailable)) from unavailable
    try:
        await server.put(faults.OK)
        server.url = await trio.to_thread.run_sync(server.server.create_database, DATABASE)
        yield server
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(partial(making.__exit__, None, None, None))


def _examine(url: str) -> None:
    """Connect once; raises `StoreUnusable` where that fails, or where the database is already somebody's."""
    try:
        with psycopg.connect(url, connect_timeout=CONNECT_S) as connection:
            found = connection.execute(TABLES.encode()).fetchone()
    except psycopg.Error as error:
        raise StoreUnusable(f"{shown_url(url)} cannot be used: {' '.join(str(error).split())}") from None
    if found is not None:
        raise StoreUnusable(
            f"{shown_url(url)} is not empty; the world makes money up, so it takes an empty database only"
        )
