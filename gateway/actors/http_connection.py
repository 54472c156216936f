"""One HTTP/1.1 connection to a back end: how it is made, an exchange over it, and whether it can carry another.

h11 speaks the protocol over trio's sockets, and there is no pool between that a cancelled request could wedge (as
httpcore's does, encode/httpcore#1093): who leaves in the middle of an exchange closes its socket, at once and without
waiting for anything.
"""

from __future__ import annotations

import os
import select
import ssl
import zlib
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import attrs
import h11
import httpcore
import trio

from gateway.registry.http_call import AnswerTooLarge, UpstreamBroken, UpstreamFailed

READ_BYTES = 64 * 1024
LONGEST_HEAD = 100 * 1024
MOST_MEMBERS = 1024
"""Parts of one compressed body that are read: making ready for each costs more than its bytes."""
ALONG_WITH_ITS_HEAD = 64 * 1024
"""Bodies up to this size leave together with their head."""

Trust = Callable[[], ssl.SSLContext]


@cache
def authorities() -> ssl.SSLContext:
    """Return the authorities that back ends are held against; reading them takes long, so it happens once."""
    context = httpcore.default_ssl_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


@attrs.frozen
class Origin:
    """Where connections lead."""

    tls: bool
    host: str
    port: int


@attrs.frozen
class Head:
    """The head of a request, and as what it goes over the wire."""

    request: h11.Request = attrs.field(repr=False)
    wire: bytes = attrs.field(repr=False)

    @classmethod
    def of(cls, request: h11.Request) -> Head:
        """Write a head as h11 does, on whichever connection."""
        return cls(request, h11.Connection(h11.CLIENT).send(request) or b"")


async def connect(origin: Origin, trust: Trust) -> Connection:
    """Return a connection whose handshake is done.

    Raises OSError or `trio.BrokenResourceError`; in either case nothing of a request has left.
    """
    transport = await trio.open_tcp_stream(origin.host, origin.port)
    if not origin.tls:
        return Connection(transport, transport)
    try:
        stream = trio.SSLStream(transport, trust(), server_hostname=origin.host, https_compatible=True)
        await stream.do_handshake()
    except BaseException:
        transport.socket.close()
        raise
    return Connection(stream, transport)


@attrs.define(eq=False)
class Connection:
    """A connection to a back end; it carries one exchange at a time.

    `idle` is False from the beginning of an exchange until it has ended well, and for good when it did not.
    """

    _stream: trio.abc.Stream
    _transport: trio.SocketStream
    _protocol: h11.Connection = attrs.field(
        factory=lambda: h11.Connection(h11.CLIENT, max_incomplete_event_size=LONGEST_HEAD), init=False
    )
    idle: bool = attrs.field(default=True, init=False)

    async def exchange(self, head: Head, content: bytes, body: Body) -> h11.Response:
        """Send a request and read its answer whole, its content into `body`.

        Raises h11.RemoteProtocolError, `trio.BrokenResourceError`, and what `body` fails with; a cancelled exchange
        leaves the connection to be closed.
        """
        self.idle = False
        whole = await self._send(head, content)
        answer = await self._receive(body)
        protocol = self._protocol
        unasked, _ = protocol.trailing_data
        if whole and protocol.our_state is h11.DONE and protocol.their_state is h11.DONE and not unasked:
            protocol.start_next_cycle()
            self.idle = True
        return answer

    async def _send(self, head: Head, content: bytes) -> bool:
        """Send a request, and return whether all of it was taken: who refuses one early may answer all the same.

        h11 is told once it has left, while the back end is at work.
        """
        whole = True
        try:
            if len(content) <= ALONG_WITH_ITS_HEAD:
                await self._send_all(head.wire + content)
            else:
                await self._stream.send_all(head.wire)
                await self._stream.send_all(content)
        except trio.BrokenResourceError:
            whole = False
        protocol = self._protocol
        protocol.send(head.request)
        if content:
            protocol.send(h11.Data(data=content))
        protocol.send(h11.EndOfMessage())
        return whole

    async def _send_all(self, data: bytes) -> None:
        """Send what a socket takes at once, as a rule, without asking trio's loop whether it would."""
        sent = 0
        if self._stream is self._transport:
            try:
                sent = os.write(self._transport.socket.fileno(), data)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                raise trio.BrokenResourceError from error
        if sent < len(data):
            await self._stream.send_all(data[sent:])

    async def _some(self) -> bytes:
        """Return what has come, b"" at its end.  Nothing has so soon after a request: it is waited for first."""
        if self._stream is not self._transport:
            return bytes(await self._stream.receive_some(READ_BYTES))
        while True:
            try:
                await trio.lowlevel.wait_readable(self._transport.socket)
                return os.read(self._transport.socket.fileno(), READ_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError from error

    async def _receive(self, body: Body) -> h11.Response:
        answer: h11.Response | None = None
        while True:
            event = self._protocol.next_event()
            if event is h11.NEED_DATA:
                self._protocol.receive_data(await self._some())
            elif isinstance(event, h11.Data):
                body.take(event.data)
            elif isinstance(event, h11.Response):
                answer = event
                body.decode(event.headers)
            elif isinstance(event, h11.EndOfMessage) and answer is not None:
                return answer
            elif not isinstance(event, h11.InformationalResponse):
                raise h11.RemoteProtocolError("the back end left HTTP/1.1")

    @property
    def usable(self) -> bool:
        """Whether another exchange can begin now: an idle back end says nothing, not even goodbye."""
        if not self.idle:
            return False
        poll = select.poll()
        poll.register(self._transport.socket.fileno(), select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """Close the socket; whoever still waits for it is told."""
        self.idle = False
        self._transport.socket.close()


@attrs.define
class Body:
    """What has come of a body, at most `max_bytes` of it, with the compression taken off."""

    target: str
    max_bytes: int
    _content: bytearray = attrs.field(factory=bytearray, init=False)
    _gzip: Any = attrs.field(default=None, init=False)
    _members: int = attrs.field(default=1, init=False)
    _begun: bool = attrs.field(default=False, init=False)
    _unreadable: UpstreamFailed | None = attrs.field(default=None, init=False)

    def decode(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Take the answer's content coding from its headers, whose names are lower-case."""
        coding = b",".join(value for name, value in headers if name == b"content-encoding").strip().lower()
        if coding in {b"gzip", b"x-gzip"}:
            self._gzip = zlib.decompressobj(wbits=31)
        elif coding not in {b"", b"identity"}:
            self._unreadable = UpstreamBroken(f"{self.target}: a content coding that was not asked for")

    def take(self, chunk: bytes | bytearray) -> None:
        """Add a chunk; raises `UpstreamFailed` once no more is wanted."""
        if self._unreadable is not None:
            raise self._unreadable
        self._begun = True
        room = self.max_bytes - len(self._content)
        try:
            self._content += chunk if self._gzip is None else self._unzipped(chunk, room + 1)
        except zlib.error as error:
            raise UpstreamBroken(f"{self.target}: not gzip") from error
        if len(self._content) > self.max_bytes:
            raise AnswerTooLarge(f"{self.target}: over {self.max_bytes} bytes")

    def _unzipped(self, chunk: bytes | bytearray, room: int) -> bytes:
        """Take the compression off; a gzip file may have several members, one after the other (RFC 1952, 2.2)."""
        content = b""
        while chunk and len(content) < room:
            if self._gzip.eof:
                if not chunk.strip(b"\0"):
                    break  # padding
                self._members += 1
                if self._members > MOST_MEMBERS:
                    raise UpstreamBroken(f"{self.target}: a compressed body in more than {MOST_MEMBERS} parts")
                self._gzip = zlib.decompressobj(wbits=31)
            content += self._gzip.decompress(chunk, room - len(content))
            chunk = self._gzip.unused_data
        return content

    def whole(self) -> bytes:
        """Return the body once it has ended; raises `UpstreamFailed`."""
        if self._unreadable is not None:
            raise self._unreadable
        if self._gzip is not None and self._begun and not self._gzip.eof:
            raise UpstreamBroken(f"{self.target}: the compressed body is not whole")
        return bytes(self._content)
