"""A TCP proxy before PostgreSQL that knows a COMMIT when it sees one, and cuts the connection there."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal
from urllib.parse import urlsplit

import attrs
import trio

Cut = Literal["before", "after", "late", "held"]
"""At the next COMMIT: the server never sees it; it does and its answer is lost; it sees it a while after the client is
cut off; it never sees it and does not learn that the client is gone."""

LATE_S = 0.4


@attrs.define(eq=False)
class Proxy:
    """Where it listens, what it does at the next COMMIT, and whether it takes connections."""

    server: tuple[str, int]
    nursery: trio.Nursery
    port: int = 0
    cut: Cut | None = None
    taking: bool = True
    cuts: int = 0
    _streams: set[trio.SocketStream] = attrs.field(factory=set)

    async def serve(self, client: trio.SocketStream) -> None:
        if not self.taking:
            await trio.aclose_forcefully(client)
            return
        server = await trio.open_tcp_stream(*self.server)
        self._streams |= {client, server}
        silent = trio.Event()
        try:
            await self._carry(client, server, silent)
        except* (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
            pass
        finally:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(client)
                await trio.aclose_forcefully(server)

    async def _carry(self, client: trio.SocketStream, server: trio.SocketStream, silent: trio.Event) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._answers, server, client, silent, nursery.cancel_scope)
            await self._commands(client, server, silent)
            nursery.cancel_scope.cancel()

    async def refuse(self) -> None:
        """Take no more connections, and end those that there are."""
        self.taking = False
        for stream in self._streams:
            await trio.aclose_forcefully(stream)
        self._streams.clear()

    async def _commands(self, client: trio.SocketStream, server: trio.SocketStream, silent: trio.Event) -> None:
        buffer, begun = b"", False
        commits: set[bytes] = set()
        while data := await client.receive_some(65536):
            buffer += data
            while True:
                head = 1 if begun else 0
                if len(buffer) < head + 4 or len(buffer) < (length := head + struct.unpack_from("!i", buffer, head)[0]):
                    break
                message, buffer = buffer[:length], buffer[length:]
                if begun and message[:1] == b"P":
                    name, sql, *_ = message[5:].split(b"\0")
                    commits |= {name} if sql == b"COMMIT" else set()
                if begun and self.cut and message[:1] == b"B" and message[5:].split(b"\0")[1] in commits:
                    cut, self.cut = self.cut, None
                    self.cuts += 1
                    await self._cut(cut, message + buffer, client, server, silent)
                    return
                begun = True
                await server.send_all(message)

    async def _cut(
        self, cut: Cut, rest: bytes, client: trio.SocketStream, server: trio.SocketStream, silent: trio.Event
    ) -> None:
        silent.set()
        match cut:
            case "after":
                await server.send_all(rest)
                await trio.sleep(LATE_S / 2)
            case "late":
                await trio.aclose_forcefully(client)
                await trio.sleep(LATE_S)
                await server.send_all(rest)
                await trio.sleep(LATE_S)
            case "held":
                await trio.aclose_forcefully(client)
                await trio.sleep_forever()
            case _:
                pass

    async def _answers(
        self, server: trio.SocketStream, client: trio.SocketStream, silent: trio.Event, scope: trio.CancelScope
    ) -> None:
        while data := await server.receive_some(65536):
            if not silent.is_set():
                await client.send_all(data)
        if not silent.is_set():
            scope.cancel()


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy before the server of a URL, and the URL through it."""
    parts = urlsplit(url)
    async with trio.open_nursery() as nursery:
        proxy = Proxy((parts.hostname or "127.0.0.1", parts.port or 5432), nursery)
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        proxy.port = listener.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, proxy.serve, [listener])
        yield proxy, parts._replace(netloc=f"{parts.username}@127.0.0.1:{proxy.port}", query="sslmode=disable").geturl()
        nursery.cancel_scope.cancel()
