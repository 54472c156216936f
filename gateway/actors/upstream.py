"""Calls to back ends (facilitator, chain, engines): the only place where the node opens connections to them.

A call is made once, and is over `timeout_s` after it began whatever the other side does: `_Stream` holds one deadline
over every read and write, so neither a slow drip nor endless headers outlive it.  httpcore 1.0 wedges a pool for ever
when a request is cancelled before it connects (encode/httpcore#1093), so no cancellation of an asker reaches a call:
it runs in the actor's own nursery.  A pool that is wedged nevertheless is thrown away.  Redirects are not followed: a
back end that redirects is misconfigured.
"""

from __future__ import annotations

import ssl
import zlib
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import attrs
import httpcore
import structlog
import trio

from gateway.actors.runtime import ActorDown, ActorError, Ask, Inbox, Letter, Overloaded, Ref
from gateway.registry.http_call import (
    AnswerTooLarge,
    HttpAnswer,
    HttpCall,
    UpstreamBroken,
    UpstreamFailed,
    UpstreamTimeout,
    UpstreamUnreachable,
)

log = structlog.get_logger(__name__)

CONNECT_S = 3.0
CONCURRENCY = 256
IDLE_CONNECTIONS = 32
IDLE_S = 4.0
"""How long an idle connection is kept: less than the 5 s after which common servers close theirs, so that a call seldom
meets one that is being closed, which would leave its outcome unknown."""

Headers = list[tuple[bytes, bytes]]
FRAMING = {"content-length", "transfer-encoding", "connection"}
DEFAULT_HEADERS = {"accept": "*/*", "accept-encoding": "gzip", "user-agent": "gateway"}


@attrs.frozen
class Call(Ask[HttpAnswer]):
    """Make one call; refused with an `UpstreamFailed` when no complete answer came."""

    call: HttpCall


class _Stream(httpcore.AsyncNetworkStream):
    """A stream whose time limits are moments on trio's clock, not durations; once `cut`, nothing more is read.

    (httpcore's readers are generators in generators, and trio warns of one that is left before its end.)
    """

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self.cut = False

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - httpcore's word
        if self.cut:
            raise httpcore.ReadError("no more is wanted")
        return await self._stream.read(max_bytes, _left(timeout))

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        await self._stream.write(buffer, _left(timeout))

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore.AsyncNetworkStream:
        return _Stream(await self._stream.start_tls(ssl_context, server_hostname, _left(timeout)))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Backend(httpcore.AsyncNetworkBackend):
    """trio's sockets, their time limits moments on its clock."""

    def __init__(self) -> None:
        self._sockets: Any = httpcore.TrioBackend()  # pyright sees the stand-in for machines without trio

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return _Stream(await self._sockets.connect_tcp(host, port, _left(timeout), local_address, socket_options))


def _left(moment: float | None) -> float | None:
    return None if moment is None else max(0.0, moment - trio.current_time())


def open_pool(places: int, *, tls: bool) -> httpcore.AsyncConnectionPool:
    """Return a pool of `places` connections; proxies of the environment do not apply to back ends."""
    return httpcore.AsyncConnectionPool(
        ssl_context=_trust() if tls else None,
        max_connections=places,
        max_keepalive_connections=min(places, IDLE_CONNECTIONS),
        keepalive_expiry=IDLE_S,
        network_backend=_Backend(),
    )


@cache
def _trust() -> ssl.SSLContext:
    """The authorities that back ends are held against, read once: httpcore would read them for every connection."""
    return httpcore.default_ssl_context()


class Connect(Protocol):
    """How a pool is made."""

    def __call__(self, places: int, *, tls: bool) -> httpcore.AsyncConnectionPool:
        """Return a pool of `places` connections."""
        ...


@attrs.define(eq=False)
class _BackEnd:
    """The connections to one origin.

    It admits as many calls as it has connections; one that then finds none has met a wedged pool.
    """

    pool: httpcore.AsyncConnectionPool
    places: trio.Semaphore
    calls: int = 0
    retired: bool = False


@attrs.define(eq=False)
class Client:
    """Makes calls over kept connections, at most `places` at once to one origin; `open_client` makes one.

    A task that may be cancelled does not call it directly in a node, but asks the actor.
    """

    connect: Connect
    places: int
    back_ends: dict[str, _BackEnd] = attrs.field(factory=dict)

    async def exchange(self, call: HttpCall) -> HttpAnswer:
        """Make one call; raises `UpstreamFailed`."""
        ends = trio.current_time() + call.timeout_s
        url, headers = _head(call)
        origin, tls = str(url.origin), url.scheme == b"https"
        back_end = self.back_ends.get(origin)
        if back_end is None:
            back_end = self.back_ends[origin] = self.open(tls=tls)
        with trio.move_on_after(min(CONNECT_S, call.timeout_s)) as waiting:
            await back_end.places.acquire()
        if waiting.cancelled_caught:
            raise UpstreamUnreachable(f"{call.target}: {self.places} calls to it are under way")
        back_end.calls += 1
        try:
            return await _converse(back_end.pool, call, url, headers, ends=ends)
        except UpstreamUnreachable as failure:
            if isinstance(failure.__cause__, httpcore.PoolTimeout) and not back_end.retired:
                log.warning("pool_wedged", target=call.target, calls=back_end.calls)
                back_end.retired = True
                self.back_ends[origin] = self.open(tls=tls)
            raise
        finally:
            back_end.calls -= 1
            back_end.places.release()
            if back_end.retired and not back_end.calls:
                with trio.CancelScope(shield=True):
                    await back_end.pool.aclose()

    def open(self, *, tls: bool) -> _BackEnd:
        """Return fresh connections to a back end."""
        return _BackEnd(self.connect(self.places, tls=tls), trio.Semaphore(self.places, max_value=self.places))


@asynccontextmanager
async def open_client(*, connect: Connect = open_pool, places: int = CONCURRENCY) -> AsyncIterator[Client]:
    """Hold a client for the length of a block, then close its connections, whatever stands around the caller."""
    client = Client(connect, places)
    try:
        yield client
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
            for each in client.back_ends.values():
                await each.pool.aclose()


async def exchange(client: Client, call: HttpCall) -> HttpAnswer:
    """Make one call outside any actor (a command, a check); raises `UpstreamFailed`."""
    return await client.exchange(call)


async def upstream(inbox: Inbox[Call], *, connect: Connect = open_pool, places: int = CONCURRENCY) -> None:
    """Serve calls, each in a task of its own, until the mailbox closes; then let the running ones end.

    At most `places` calls to one origin are under way at once, so a back end that hangs starves no other.
    """
    async with open_client(connect=connect, places=places) as client, trio.open_nursery() as nursery:
        inbox.ready()
        async for letter in inbox:
            nursery.start_soon(_serve, client, letter)


async def _serve(client: Client, letter: Letter[Call]) -> None:
    """Make one call and answer its letter; a defect met on the way is that call's failure alone."""
    call = letter.message.call
    try:
        answer = await client.exchange(call)
    except UpstreamFailed as failure:
        letter.refuse(failure)
    except Exception as error:
        log.exception("call_failed", target=call.target, error=repr(error))
        letter.refuse(UpstreamBroken(f"{call.target}: {type(error).__name__}"))
    else:
        letter.answer(letter.message, answer)


async def _converse(
    pool: httpcore.AsyncConnectionPool, call: HttpCall, url: httpcore.URL, headers: Headers, *, ends: float
) -> HttpAnswer:
    """Send one call and read its whole answer before `ends` on trio's clock; raises `UpstreamFailed`."""
    began = trio.current_time()
    connected = min(ends, began + CONNECT_S)
    timeout = {"pool": max(0.0, connected - began), "connect": connected, "read": ends, "write": ends}
    body = _Body(call.target, call.max_bytes)
    content = _Content(call.content) if call.content else None
    try:
        async with pool.stream(
            call.method, url, headers=headers, content=content, extensions={"timeout": timeout}
        ) as response:
            stream = response.extensions["network_stream"]
            body.decode(response.headers)
            async for chunk in response.aiter_stream():
                stream.cut = not body.takes(chunk)
            stream.cut = False
    except SENT_NOTHING as error:
        raise UpstreamUnreachable(f"{call.target}: {type(error).__name__}") from error
    except httpcore.TimeoutException as error:
        raise UpstreamTimeout(f"{call.target}: {type(error).__name__}") from error
    except (httpcore.NetworkError, httpcore.ProtocolError) as error:
        raise body.failure or UpstreamBroken(f"{call.target}: {type(error).__name__}") from error
    plain = body.whole()
    return HttpAnswer(response.status, _names(response.headers), plain, int((trio.current_time() - began) * 1000))


class _Content:
    """A request's body in one piece.

    (What httpcore makes of bytes is a generator, left before its end when a write fails.)
    """

    def __init__(self, content: bytes) -> None:
        self._rest = [content]

    def __aiter__(self) -> _Content:
        return self

    async def __anext__(self) -> bytes:
        if not self._rest:
            raise StopAsyncIteration
        return self._rest.pop()


SENT_NOTHING = (
    httpcore.ConnectError,
    httpcore.ConnectTimeout,
    httpcore.PoolTimeout,
    httpcore.UnsupportedProtocol,
    httpcore.LocalProtocolError,
)
"""Ends of a call that come before its first byte leaves; a TLS handshake that fails is among them."""


@attrs.define
class _Body:
    """What has come of a body, at most `max_bytes` of it, with the compression taken off."""

    target: str
    max_bytes: int
    content: bytearray = attrs.field(factory=bytearray)
    gzip: Any = None
    begun: bool = False
    failure: UpstreamFailed | None = None

    def decode(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Take the answer's content coding from its headers."""
        coding = b",".join(value for name, value in headers if name.lower() == b"content-encoding").strip().lower()
        if coding in {b"gzip", b"x-gzip"}:
            self.gzip = zlib.decompressobj(wbits=31)
        elif coding not in {b"", b"identity"}:
            self.failure = UpstreamBroken(f"{self.target}: a content coding that was not asked for")

    def takes(self, chunk: bytes) -> bool:
        """Add a chunk; False once no more is wanted."""
        self.begun = True
        if self.failure is not None:
            return False
        room = self.max_bytes - len(self.content)
        try:
            self.content += chunk if self.gzip is None else self.gzip.decompress(chunk, room + 1)
        except zlib.error:
            self.failure = UpstreamBroken(f"{self.target}: not gzip")
        if len(self.content) > self.max_bytes:
            self.failure = AnswerTooLarge(f"{self.target}: over {self.max_bytes} bytes")
        return self.failure is None

    def whole(self) -> bytes:
        """Return the body once it has ended; raises `UpstreamFailed`."""
        if self.failure is None and self.gzip is not None and self.begun and not self.gzip.eof:
            self.failure = UpstreamBroken(f"{self.target}: the compressed body is not whole")
        if self.failure is not None:
            raise self.failure
        return bytes(self.content)


def _head(call: HttpCall) -> tuple[httpcore.URL, Headers]:
    """Return the address and headers of a call; a user name in the address becomes basic authorization."""
    given = {name.lower() for name, _ in call.headers}
    headers = [*call.headers, *((name, value) for name, value in DEFAULT_HEADERS.items() if name not in given)]
    try:
        parts, url = urlsplit(call.url), httpcore.URL(call.url)
        if parts.username is not None and "authorization" not in given:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers.append(("authorization", f"Basic {b64encode(user.encode()).decode()}"))
        if url.scheme not in {b"http", b"https"} or not url.host:
            raise ValueError("no http address")
        url.host.decode("ascii").encode("idna")
        if given & FRAMING:
            raise ValueError("a call is framed here")
        if call.content or call.method not in {"GET", "HEAD"}:
            headers.append(("content-length", str(len(call.content))))
        return url, [(name.encode("ascii"), value.encode("ascii")) for name, value in headers]
    except (ValueError, TypeError) as error:
        raise UpstreamUnreachable(f"{call.target}: cannot be called ({type(error).__name__})") from error


def _names(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    named: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        named[name] = f"{named[name]}, {value}" if name in named else value
    return named


@attrs.frozen
class Caller:
    """Asks the upstream actor on behalf of other actors, with its failures told in this module's terms."""

    ref: Ref[Call]

    async def __call__(self, call: HttpCall) -> HttpAnswer:
        """Make the call; raises `UpstreamFailed`."""
        try:
            return await self.ref.ask(Call(call), within=call.timeout_s + CONNECT_S)
        except (Overloaded, ActorDown) as error:
            raise UpstreamUnreachable(f"{call.target}: {type(error).__name__}") from error
        except ActorError as error:
            raise UpstreamTimeout(f"{call.target}: {type(error).__name__}") from error
