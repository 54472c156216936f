"""HTTP/1.1 on one connection: hypercorn's protocol and stream, with what they leave open to strangers closed.

Differences from hypercorn's own: the application starts when the body is complete, so no answer overtakes its request;
every refusal is a problem document; head and body leave in one write; HTTP/2 upgrades and WebSockets are not offered.
"""

from __future__ import annotations

import http
import ipaddress
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from enum import Enum, auto
from typing import Protocol

import h11
from hypercorn.config import Config
from hypercorn.events import Event, RawData
from hypercorn.protocol.events import Body, EndBody, Request, Response, StreamClosed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import ASGIHTTPState, HTTPStream
from hypercorn.typing import AppWrapper, ConnectionState, TaskGroup, WorkerContext

from gateway import errors
from gateway.errors import GatewayError
from gateway.http.problems import Answer
from gateway.http.server.app import REFUSAL
from gateway.http.server.framing import StrictConnection, is_trailer
from gateway.http.server.limits import BodyMemory, ServerLimits

Address = tuple[str, int] | None
Headers = Sequence[tuple[bytes, bytes]]

_HOST = re.compile(  # RFC 9110 section 7.2
    rb"((?:[\w-]{1,63}\.)*[\w-]{1,63}\.?|\[([0-9A-Fa-f:.]{2,45})\])?(?::([0-9]{0,5}))?"
)
_URL = re.compile(rb"(?i:https?)://([^/?#]*)(.*)")
_METHODS_HERE = "GET, HEAD, OPTIONS, POST"
_READS = {b"GET", b"HEAD"}
_REASONS = {status.value: status.phrase.encode() for status in http.HTTPStatus}
_JOINED = 64 * 1024  # a body up to so many bytes is copied behind its head, to leave in one write
_FREE_CHUNKS = 1024  # chunks a body may have, whatever their size
_CHUNK_BYTES = 32  # further ones must be so large on average


class Phase(Enum):
    """What a connection waits for."""

    IDLE = auto()  # the first byte of a request
    HEAD = auto()  # the rest of its header section
    BODY = auto()  # the rest of its body
    BUSY = auto()  # the application
    CLOSED = auto()  # nothing: the last answer is given


class Floor(Protocol):
    """What the protocol needs of the application."""

    body_cap: Callable[[str], int]

    @property
    def vital_paths(self) -> Collection[str]:
        """Paths that are answered even where there is no place for any other request."""
        ...

    def render(self, error: GatewayError, instance: str) -> Answer:
        """Render the answer to a failure."""
        ...


class Exchange(HTTPStream):
    """One request and its answer; the application starts when `dispatch` is called, with the whole body in hand.

    Args:
        protocol: the connection's protocol.
        request: head of the request.
        cap: bytes that its body may have.
    """

    def __init__(self, protocol: Http11, request: Request, cap: int) -> None:
        super().__init__(
            protocol.app,
            protocol.config,
            protocol.context,
            protocol.task_group,
            protocol.ssl,
            protocol.client,
            protocol.server,
            protocol.stream_send,
            STREAM_ID,
        )
        self.request = request
        self.cap = cap
        self.size = 0
        self._refuse = protocol.refuse
        self._body = bytearray()
        self._chunks = 0

    def collect(self, data: bytes, *, chunk: int) -> GatewayError | None:
        """Take a piece of the body; an error if the body may not go on.

        `chunk` is the size of the chunk that the piece begins, 0 if it begins none.
        """
        announced = self.size + chunk
        self._body += data
        self.size += len(data)
        self._chunks += chunk > 0
        if self.size > self.cap or announced > self.cap:
            return _over(self.cap)
        if self._chunks > _FREE_CHUNKS + self.size // _CHUNK_BYTES:
            return errors.BadRequest("The body comes in too many small chunks.")
        return None

    async def dispatch(self, refusal: GatewayError | None = None) -> None:
        """Start the application: with the whole body, or with the reason why there will be none."""
        await super().handle(self.request)
        body = bytes(self._body) if refusal is None else b""
        self._body.clear()
        if refusal is not None:
            self.scope["extensions"][REFUSAL] = {"error": refusal}
        await self.app_put({"type": "http.request", "body": body, "more_body": False})

    async def handle(self, event: StreamEvent) -> None:
        """Take the end of the stream; the application is told by what `receive` gives once it has answered."""
        if isinstance(event, StreamClosed) and not self.closed:
            self.closed = True
            await self.app_put({"type": "http.disconnect"})

    async def _send_error_response(self, status_code: int) -> None:  # noqa: ARG002
        """Answer for an application that ended without one."""
        self.state = ASGIHTTPState.CLOSED
        await self._refuse(errors.InternalError())


class Http11(H11Protocol):
    """The protocol of one connection: bytes in by `handle` and `end_of_input`, bytes out by `send`, phases by `turn`.

    `ending` says whether the connection is to be closed after the answer in hand, `free_memory` takes memory from a
    body that stalls and says whether it found one, and on a `spare` connection only vital paths are answered.

    The reader of the connection calls it, and the task of the request in hand; never both at one time, since bytes are
    only kept while the application runs (`Phase.BUSY`).
    """

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        task_group: TaskGroup,
        addresses: tuple[Address, Address],
        send: Callable[[Event], Awaitable[None]],
        *,
        floor: Floor,
        limits: ServerLimits,
        memory: BodyMemory,
        turn: Callable[[Phase], None],
        ending: Callable[[], bool],
        free_memory: Callable[[], bool] = lambda: False,
        spare: bool = False,
    ) -> None:
        client, server = addresses
        super().__init__(app, config, context, task_group, ConnectionState({}), False, client, server, send)  # noqa: FBT003
        self.wire = self.connection = StrictConnection(limits.header_bytes)
        self.exchange: Exchange | None = None
        self.phase = Phase.IDLE
        self.unread = False
        self._floor = floor
        self._limits = limits
        self._memory = memory
        self.held = 0  # bytes taken from that memory
        self._turn = turn
        self._ending = ending
        self._free_memory = free_memory
        self._spare = spare
        self._head = b""  # of an answer, until its first body bytes

    @property
    def answering(self) -> bool:
        """Whether bytes of an answer may be under way."""
        return bool(self._head) or self.wire.our_state is not h11.SEND_RESPONSE

    @property
    def kept(self) -> int:
        """Bytes received and not yet understood."""
        return len(self.wire.received)

    async def handle(self, event: Event) -> None:
        """Take bytes from the client."""
        if isinstance(event, RawData):
            self.wire.receive_data(event.data)
            if self.phase is Phase.IDLE:
                if not self.wire.received.skip_empty_lines():
                    return
                self._go(Phase.HEAD)
            await self.advance()

    async def end_of_input(self) -> None:
        """Take the end of what the client sends."""
        self.wire.receive_data(b"")
        await self.advance()

    async def advance(self) -> None:
        """Understand what was received, as far as it goes."""
        while self.phase not in (Phase.BUSY, Phase.CLOSED):
            try:
                event = self.wire.next_event()
            except h11.RemoteProtocolError as error:
                await self.refuse(_malformed(error, self._limits))
                return
            if isinstance(event, h11.Request):
                await self._begin(event)
            elif isinstance(event, h11.Data):
                await self._collect(event)
            elif isinstance(event, h11.EndOfMessage):
                if not is_trailer(event.headers):
                    await self.refuse(errors.BadRequest("The trailer section holds a field that only a head may hold."))
                    return
                await self._dispatch()
            elif isinstance(event, h11.ConnectionClosed):
                self._go(Phase.CLOSED)
            else:
                return

    async def refuse(self, error: GatewayError) -> None:
        """Answer with a problem document and close."""
        answer = self.refusal(error)
        if answer:
            await self.send(RawData(answer))
        self._go(Phase.CLOSED)

    def refusal(self, error: GatewayError) -> bytes:
        """Give the request in hand up; returns the answer to it, empty if another one is under way."""
        instance = "" if self.exchange is None else self.exchange.request.raw_path.partition(b"?")[0].decode("ascii")
        status, headers, body = self._floor.render(error, instance)
        head = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        head.append((b"content-length", str(len(body)).encode()))
        self.unread = True
        answer = b""
        if self.wire.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            answer = self.wire.send(self._response(status, head, last=True))
            if self.exchange is None or self.exchange.request.method != "HEAD":
                answer += self.wire.send(h11.Data(data=body))
            answer += self.wire.send(h11.EndOfMessage())
        self.exchange = None
        self.release()
        return answer

    async def stream_send(self, event: StreamEvent) -> None:
        """Send what the application answers; the head waits for the first bytes of the body."""
        if isinstance(event, Response):
            self._head = self.wire.send(self._response(event.status_code, event.headers, last=self._is_last()))
        elif isinstance(event, Body):
            await self._write(self.wire.send(h11.Data(data=event.data)))
        elif isinstance(event, EndBody):
            await self._write(self.wire.send(h11.EndOfMessage()))
        elif isinstance(event, StreamClosed):
            await self._maybe_recycle()

    async def _write(self, data: bytes) -> None:
        head, self._head = self._head, b""
        if head and len(data) > _JOINED:
            await self.send(RawData(head))
            await self.send(RawData(data))
        elif head or data:
            await self.send(RawData(head + data))

    async def _maybe_recycle(self) -> None:
        """Turn to the next request, or close."""
        self.release()
        if self.exchange is not None:
            await self.exchange.handle(StreamClosed(STREAM_ID))
            self.exchange = None
        both = {self.wire.our_state, self.wire.their_state}
        if both == {h11.DONE} and not self._is_last():
            self.wire.start_next_cycle()
            self._go(Phase.HEAD if self.wire.received.skip_empty_lines() else Phase.IDLE)
        else:
            self.unread = self.unread or self.wire.their_state is h11.SEND_BODY
            self._go(Phase.CLOSED)

    async def _begin(self, request: h11.Request) -> None:
        target, headers = _effective(request)
        error = next(_objections(request, target, headers, self._limits), None)
        head = Request(
            stream_id=STREAM_ID,
            headers=headers,
            http_version=request.http_version.decode(),
            method=request.method.decode("ascii"),
            raw_path=target,
            state=self.connection_state,
        )
        path = target.partition(b"?")[0].decode("ascii")
        cap = self._floor.body_cap(path) if error is None else 0
        self.exchange = Exchange(self, head, cap)
        self.keep_alive_requests += 1
        self._go(Phase.BODY)
        if error is None and self._spare and not (path in self._floor.vital_paths and request.method in _READS):
            error = errors.CapacityExhausted("The node has too many connections at the moment.", retry_after=1)
        if error is not None:
            await self.refuse(error)
        elif _declared(headers) > cap:
            await self._dispatch(_over(cap))
        elif self.wire.they_are_waiting_for_100_continue:
            await self.send(RawData(self.wire.send(h11.InformationalResponse(status_code=100, headers=[]))))

    async def _collect(self, data: h11.Data) -> None:
        if self.exchange is None:
            return
        error = self.exchange.collect(bytes(data.data), chunk=self.wire.received.take_chunk())
        if error is None and not self._reserve(self.exchange.size):
            error = errors.CapacityExhausted("The node holds too many request bodies at the moment.", retry_after=1)
        if error is not None:
            await self._dispatch(error)

    async def _dispatch(self, refusal: GatewayError | None = None) -> None:
        if self.exchange is None:
            return
        self.unread = refusal is not None
        self._go(Phase.BUSY)
        await self.exchange.dispatch(refusal)

    def _reserve(self, size: int) -> bool:
        """Take memory for what has come of a body; a small body needs none of what all bodies share."""
        more = size - self._limits.small_body_bytes - self.held
        if more > 0:
            while not self._memory.take(more):
                if not self._free_memory():
                    return False
            self.held += more
        return True

    def release(self) -> None:
        """Give back the memory of a body that is no longer held."""
        self._memory.give_back(self.held)
        self.held = 0

    def _is_last(self) -> bool:
        return (
            self.unread
            or self._spare
            or self._ending()
            or self.keep_alive_requests >= self._limits.requests_per_connection
        )

    def _response(self, status: int, headers: Headers, *, last: bool) -> h11.Response:
        full = [*headers, *self.config.response_headers("h11")]
        if last:
            full = [(name, value) for name, value in full if name.lower() != b"connection"]
            full.append((b"connection", b"close"))
        return h11.Response(status_code=status, headers=full, reason=_REASONS.get(status, b""))

    def _go(self, phase: Phase) -> None:
        self.phase = phase
        self._turn(phase)


def _over(cap: int) -> GatewayError:
    return errors.ContentTooLarge(f"This resource takes request bodies of at most {cap} bytes.")


def _malformed(error: h11.RemoteProtocolError, limits: ServerLimits) -> GatewayError:
    if error.error_status_hint == 431:
        return errors.HeaderFieldsTooLarge(f"Request line and headers are limited to {limits.header_bytes} bytes.")
    if error.error_status_hint == 501:
        return errors.LengthRequired("The only transfer coding that this node reads is chunked.")
    return errors.BadRequest("What was received is not a well-formed HTTP/1.1 request.")


def _effective(request: h11.Request) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """Return path and query of a request, and its headers: the host of an absolute target replaces the Host header.

    A host that is not the node's own is no fault: behind a proxy the node does not know all of its names.
    """
    headers = list(request.headers)
    url = None if request.target.startswith(b"/") else _URL.fullmatch(request.target)
    if url is None:
        return request.target, headers
    authority, rest = url[1], url[2]
    headers = [(name, value) for name, value in headers if name != b"host"]  # RFC 9112 section 3.2.2
    return rest if rest.startswith(b"/") else b"/" + rest, [(b"host", authority), *headers]


def _objections(request: h11.Request, target: bytes, headers: Headers, limits: ServerLimits) -> Iterator[GatewayError]:
    """Yield why a well-formed head cannot be served; `target` and `headers` are the effective ones."""
    names = [name for name, _ in headers]
    if request.http_version not in {b"1.0", b"1.1"}:
        yield errors.BadRequest("This node speaks HTTP/1.1.")
    if len(request.target) > limits.target_bytes:
        yield errors.UriTooLong(f"Request targets are limited to {limits.target_bytes} bytes.")
    named = target is request.target  # otherwise its URL must name the host
    if not all(_is_host(value) and (named or value[:1] not in b":") for name, value in headers if name == b"host"):
        yield errors.BadRequest("The Host header or the URL of the request names no host.")
    if b"transfer-encoding" in names and (b"content-length" in names or request.http_version == b"1.0"):
        yield errors.BadRequest("The request declares the length of its body in two ways.")
    if not request.method.isalpha() or not request.method.isupper() or request.method == b"CONNECT":
        yield errors.MethodNotAllowed(f"This node answers {_METHODS_HERE}.", headers={"Allow": _METHODS_HERE})
    if (not target.startswith(b"/") or b"#" in target) and (target, request.method) != (b"*", b"OPTIONS"):
        yield errors.BadRequest("The request target is neither a path nor a URL.")
    expectations = [value.lower() for name, value in headers if name == b"expect"]
    if expectations and expectations != [b"100-continue"]:
        yield errors.ExpectationFailed("The only expectation that this node meets is 100-continue.")


def _is_host(value: bytes) -> bool:
    found = _HOST.fullmatch(value)
    if found is None or len(value) > 255 or int(found[3] or 0) > 65535:
        return False
    if found[2] is not None:
        try:
            ipaddress.IPv6Address(found[2].decode("ascii"))
        except ValueError:
            return False
    return True


def _declared(headers: Headers) -> int:
    return next((int(value) for name, value in headers if name == b"content-length"), 0)
