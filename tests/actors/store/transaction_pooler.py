"""A pooler before PostgreSQL that gives each transaction to its one session, as PgBouncer does in transaction mode.

It answers a client's start itself, under a process id of its own making, and takes what is asked of the session for
itself: `options` are read and forgotten (`ignore_startup_parameters`).
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import attrs
import trio

MADE_UP_PID = 7
IN_CLEAR = (80877103, 80877104)
"""What clients ask before they start: TLS, Kerberos."""
PROTOCOL = 196608


@attrs.define(eq=False)
class Messages:
    """A stream cut into messages; the first one of a client has no type."""

    stream: trio.SocketStream
    _buffer: bytes = b""

    async def next(self, *, typed: bool = True) -> bytes:
        """Return a whole message, b"" at the end."""
        start = 1 if typed else 0
        while len(self._buffer) < start + 4 or len(self._buffer) < start + self._length(start):
            received = await self.stream.receive_some(65536)
            if not received:
                return b""
            self._buffer += received
        size = start + self._length(start)
        message, self._buffer = self._buffer[:size], self._buffer[size:]
        return message

    def _length(self, start: int) -> int:
        (length,) = struct.unpack_from("!i", self._buffer, start)
        return int(length)


@attrs.define(eq=False)
class Pooler:
    """One session, which clients have in turn for a transaction each."""

    server: trio.SocketStream
    greeting: bytes
    turn: trio.Lock = attrs.field(factory=trio.Lock)

    async def serve(self, client: trio.SocketStream) -> None:
        async with client:
            asked = Messages(client)
            first = await asked.next(typed=False)
            while first and struct.unpack_from("!i", first, 4)[0] in IN_CLEAR:
                await client.send_all(b"N")
                first = await asked.next(typed=False)
            await client.send_all(self.greeting)
            while (message := await asked.next()) and not message.startswith(b"X"):
                async with self.turn:
                    await self._transaction(client, asked, message)

    async def _transaction(self, client: trio.SocketStream, asked: Messages, message: bytes) -> None:
        answers = Messages(self.server)
        while True:
            await self.server.send_all(message)
            if message[:1] in b"SQ":
                while not (answer := await answers.next()).startswith(b"Z"):
                    await client.send_all(answer)
                await client.send_all(answer)
                if answer.endswith(b"I"):
                    return
            message = await asked.next()


@asynccontextmanager
async def pooled(url: str) -> AsyncIterator[str]:
    """Pool the one session of a database, whose superuser needs no password; yield the pooler's address."""
    parts = urlsplit(url)
    database = parts.path.removeprefix("/")
    async with trio.open_nursery() as nursery:
        server = await trio.open_tcp_stream(str(parts.hostname), parts.port or 5432)
        members = b"".join(each.encode() + b"\0" for each in ("user", str(parts.username), "database", database))
        start = struct.pack("!i", PROTOCOL) + members + b"\0"
        await server.send_all(struct.pack("!i", len(start) + 4) + start)
        answers, greeting = Messages(server), b""
        while not (answer := await answers.next()).startswith(b"Z"):
            if answer.startswith(b"K"):
                answer = b"K" + struct.pack("!iii", 12, MADE_UP_PID, 0)
            greeting += answer
        pooler = Pooler(server, greeting + answer)
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, pooler.serve, [listener])
        port = listener.socket.getsockname()[1]
        yield f"postgresql://{parts.username}@127.0.0.1:{port}/{database}?sslmode=disable"
        nursery.cancel_scope.cancel()
        await trio.aclose_forcefully(server)
