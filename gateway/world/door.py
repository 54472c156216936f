"""A small HTTP/1.1 server whose faults reach down to the socket: it may stay silent, and it may not be there at all.

What serves the node (hypercorn, Quart) hides the socket; the world's upstreams need it, so this speaks h11 over trio
itself.  Every limit here bounds what one peer can hold: size of a body, time of silence, number of connections.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import attrs
import h11
import orjson
import trio

MAX_BODY = 2**20
MAX_CONNECTIONS = 1024
IDLE_S = 120.0
SILENCE_S = 120.0


@attrs.frozen
class Call:
    """One request, read whole; `path` is as sent (still percent-encoded), `query` decoded."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


@attrs.frozen
class Reply:
    """What a peer is answered."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def json(cls, value: Any, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Reply:
        """Return a reply whose body is `value` as JSON."""
        return cls(status, orjson.dumps(value), headers=headers)


def _unheard() -> None:
    pass


@attrs.frozen
class Silence:
    """Nothing is sent; the connection ends when the peer leaves, which is told to `left`, or after `SILENCE_S`."""

    left: Callable[[], None] = _unheard


@attrs.frozen
class Late:
    """A reply that is sent after `after_s` seconds, unless the peer leaves before, which is told to `left`."""

    reply: Reply
    after_s: float
    left: Callable[[], None] = _unheard


Answerer = Callable[[Call], Awaitable[Reply | Silence | Late]]


def url_of(port: int, path: str = "") -> str:
    """Return the address of a local port."""
    return f"http://127.0.0.1:{port}{path}"


class Door:
    """One local address; shut, connecting to it is refused, and it opens again on the same port."""

    def __init__(self, nursery: trio.Nursery, answer: Answerer, port: int = 0) -> None:
        self._nursery = nursery
        self._answer = answer
        self._connections = 0
        self._listening: trio.socket.SocketType | None = None
        self._scope = trio.CancelScope()
        # Bound and never listening: keeps the port ours while the door is shut.
        self._holder = _bound(port)
        self.port: int = self._holder.getsockname()[1]

    @property
    def is_open(self) -> bool:
        """True while peers can connect."""
        return self._listening is not None

    def open(self) -> None:
        """Listen; nothing happens when the door is open."""
        if self._listening is None:
            listening = _bound(self.port)
            listening.listen(512)
            self._listening = trio.socket.from_stdlib_socket(listening)
            self._scope = trio.CancelScope()
            self._nursery.start_soon(self._serve, self._listening, self._scope)

    def shut(self) -> None:
        """Stop listening and drop every connection; nothing happens when the door is shut."""
        if self._listening is not None:
            self._scope.cancel()
            self._listening.close()
            self._listening = None

    def release(self) -> None:
        """Shut the door and give the port back."""
        self.shut()
        self._holder.close()

    async def _serve(self, listening: trio.socket.SocketType, scope: trio.CancelScope) -> None:
        with scope:
            async with trio.open_nursery() as peers:
                while True:
                    try:
                        peer, _ = await listening.accept()
                    except OSError as error:
                        if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ECONNABORTED):
                            raise
                        await trio.sleep(0.1)
                    else:
                        peers.start_soon(self._admit, peer)

    async def _admit(self, peer: trio.socket.SocketType) -> None:
        with peer:
            if self._connections < MAX_CONNECTIONS:
                await self._converse(trio.SocketStream(peer))

    async def _converse(self, stream: trio.SocketStream) -> None:
        self._connections += 1
        try:
            async with stream:
                peer = h11.Connection(h11.SERVER)
                while (call := await _read(peer, stream)) is not None:
                    answer = call if isinstance(call, Reply) else await self._answer(call)
                    if isinstance(answer, Silence | Late):
                        wait = SILENCE_S if isinstance(answer, Silence) else answer.after_s
                        if await _leaves(peer, stream, wait):
                            answer.left()
                            return
                    if isinstance(answer, Silence):
                        return
                    await _write(peer, stream, answer.reply if isinstance(answer, Late) else answer)
                    if peer.our_state is not h11.DONE or peer.their_state is not h11.DONE:
                        return
                    peer.start_next_cycle()
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.ProtocolError):
            return
        finally:
            self._connections -= 1


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    bound.setblocking(False)  # noqa: FBT003 - the standard library's signature
    return bound


async def _read(peer: h11.Connection, stream: trio.SocketStream) -> Call | Reply | None:
    """Return the next call, the refusal of one that is too large, or None at the end of the connection."""
    head: h11.Request | None = None
    body = bytearray()
    with trio.move_on_after(IDLE_S):
        while True:
            event = peer.next_event()
            if event is h11.NEED_DATA:
                if peer.they_are_waiting_for_100_continue:
                    await stream.send_all(
                        peer.send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")) or b""
                    )
                peer.receive_data(await stream.receive_some(65536))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > MAX_BODY:
                    return Reply.json({"error": f"a body may have {MAX_BODY} bytes"}, 413)
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                target = urlsplit(head.target.decode("ascii", "replace"))
                headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}
                query = dict(parse_qsl(target.query, keep_blank_values=True))
                return Call(head.method.decode(), target.path, query, headers, bytes(body))
            else:
                return None
    return None


async def _write(peer: h11.Connection, stream: trio.SocketStream, reply: Reply) -> None:
    headers = [("content-type", reply.content_type), ("content-length", str(len(reply.body))), *reply.headers]
    parts = (h11.Response(status_code=reply.status, headers=headers), h11.Data(data=reply.body), h11.EndOfMessage())
    await stream.send_all(b"".join(peer.send(part) or b"" for part in parts))


async def _leaves(peer: h11.Connection, stream: trio.SocketStream, within_s: float) -> bool:
    """Wait for the peer to leave; what it sends meanwhile is kept for its next call."""
    kept = 0
    with trio.move_on_after(within_s):
        try:
            while kept <= MAX_BODY:
                if not (early := await stream.receive_some(65536)):
                    return True
                kept += len(early)
                peer.receive_data(early)
        except trio.BrokenResourceError:
            return True
        await trio.sleep_forever()
    return False
