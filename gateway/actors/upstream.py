"""Calls to back ends (facilitator, chain, models, engines): the only place where the node opens connections to them.

A call is made once, and is over `timeout_s` after it began whatever the other side does: one deadline stands over all
of it, so neither a slow drip nor endless headers outlive it.  It runs in the actor's own nursery and outlives an asker
that leaves, unless that one said otherwise (`stops`): then its connection is closed at once, which is how HTTP/1.1
tells the other side to stop.  Such a call need not outlive its asker, so that one's own task makes it over the actor's
connections, while the actor says in a `ClientPlace` that it takes calls: a letter costs more than the exchange.
Redirects are not followed: a back end that redirects is misconfigured.
"""

from __future__ import annotations

from base64 import b64encode
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import lru_cache
from urllib.parse import unquote, urlsplit

import attrs
import h11
import structlog
import trio

from gateway.actors.http_connection import Body, Connection, Head, Origin, Trust, authorities, connect
from gateway.actors.runtime import ActorDown, ActorError, Ask, Inbox, Letter, Overloaded, Ref
from gateway.registry.http_call import (
    AnswerLost,
    HttpAnswer,
    HttpCall,
    NodeOverloaded,
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

FRAMING = {"content-length", "transfer-encoding", "connection"}
DEFAULT_HEADERS = {"accept": "*/*", "accept-encoding": "gzip", "user-agent": "gateway"}
PORTS = {"http": 80, "https": 443}


@attrs.frozen
class Call(Ask[HttpAnswer]):
    """Make one call; refused with an `UpstreamFailed` when no complete answer came.

    `stop` ends it when cancelled, in whichever task.
    """

    call: HttpCall
    stop: trio.CancelScope | None = None


@attrs.define(eq=False)
class _BackEnd:
    """The connections to one origin: as many as there are places, the idle ones kept for a while."""

    origin: Origin
    trust: Trust
    places: trio.Semaphore
    idle: deque[tuple[float, Connection]] = attrs.field(factory=deque)
    busy: set[Connection] = attrs.field(factory=set)

    async def connection(self, ends: float) -> Connection:
        """Return a connection for one exchange, a kept one if there is any; raises `trio.TooSlowError` and OSError."""
        oldest = trio.current_time() - IDLE_S
        while self.idle and self.idle[0][0] < oldest:
            self.idle.popleft()[1].close()
        while self.idle:
            _, kept = self.idle.pop()
            if kept.usable:
                self.busy.add(kept)
                return kept
            kept.close()
        with trio.fail_at(ends):
            made = await connect(self.origin, self.trust)
        self.busy.add(made)
        return made

    def put_back(self, connection: Connection) -> None:
        """Keep a connection if it can be used again, else close it."""
        self.busy.remove(connection)
        if not connection.idle:
            connection.close()
            return
        self.idle.append((trio.current_time(), connection))
        if len(self.idle) > IDLE_CONNECTIONS:
            self.idle.popleft()[1].close()

    def close(self) -> None:
        """Close all connections; the exchanges over them fail."""
        while self.idle:
            self.idle.pop()[1].close()
        for each in self.busy:
            each.close()


@attrs.define(eq=False)
class Client:
    """Makes calls over kept connections, at most `places` at once to one origin; `open_client` makes one.

    A call that is cancelled closes its connection and is over; one that finds the client closed is unreachable.
    """

    places: int
    trust: Trust
    back_ends: dict[Origin, _BackEnd] = attrs.field(factory=dict)
    under_way: int = attrs.field(default=0, init=False)
    closed: bool = attrs.field(default=False, init=False)
    _rested: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def exchange(self, call: HttpCall) -> HttpAnswer:
        """Make one call; raises `UpstreamFailed`."""
        self.under_way += 1
        try:
            return await self._exchange(call)
        finally:
            self.under_way -= 1
            if not self.under_way:
                self._rested.set()

    async def rest(self) -> None:
        """Wait until no call is under way."""
        while self.under_way:
            self._rested = trio.Event()
            await self._rested.wait()

    def close(self) -> None:
        """Close all connections; the calls under way fail."""
        self.closed = True
        for each in self.back_ends.values():
            each.close()

    async def _exchange(self, call: HttpCall) -> HttpAnswer:
        await trio.lowlevel.checkpoint_if_cancelled()  # what follows may send before it first waits
        began = trio.current_time()
        ends = began + call.timeout_s
        origin, head = _head(call)
        back_end = self.back_ends.get(origin)
        if back_end is None:
            places = trio.Semaphore(self.places, max_value=self.places)
            back_end = self.back_ends[origin] = _BackEnd(origin, self.trust, places)
        await _placed(back_end, call, min(ends, began + CONNECT_S))
        try:
            connection = await _connected(back_end, call, ends)
            try:
                if self.closed:
                    connection.close()
                    raise UpstreamUnreachable(f"{call.target}: the node makes no more calls")
                return await _converse(connection, call, head, began, ends)
            finally:
                back_end.put_back(connection)
        finally:
            back_end.places.release()


async def _placed(back_end: _BackEnd, call: HttpCall, ends: float) -> None:
    """Take a place; raises `NodeOverloaded` where none comes free before `ends`."""
    try:
        back_end.places.acquire_nowait()
    except trio.WouldBlock:
        with trio.move_on_at(ends) as waiting:
            await back_end.places.acquire()
        if waiting.cancelled_caught:
            told = f"{call.target}: {back_end.places.max_value} calls to it are under way"
            raise NodeOverloaded(told) from None


async def _connected(back_end: _BackEnd, call: HttpCall, ends: float) -> Connection:
    """Return a connection for the call; raises `UpstreamUnreachable`."""
    try:
        return await back_end.connection(min(ends, trio.current_time() + CONNECT_S))
    except (OSError, trio.BrokenResourceError, trio.TooSlowError) as error:
        raise UpstreamUnreachable(f"{call.target}: {type(error).__name__}") from error


async def _converse(connection: Connection, call: HttpCall, head: Head, began: float, ends: float) -> HttpAnswer:
    """Send one call and read its whole answer before `ends` on trio's clock; raises `UpstreamFailed`."""
    body = Body(call.target, call.max_bytes)
    answer: h11.Response | None = None
    try:
        with trio.CancelScope(deadline=ends):
            answer = await connection.exchange(head, call.content, body)
    except (h11.RemoteProtocolError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
        raise UpstreamBroken(f"{call.target}: {type(error).__name__}") from error
    if answer is None:
        raise UpstreamTimeout(f"{call.target}: no answer after {call.timeout_s:g} s")
    content = body.whole()
    elapsed = int((trio.current_time() - began) * 1000)
    return HttpAnswer(answer.status_code, _names(answer.headers), content, elapsed)


@asynccontextmanager
async def open_client(*, trust: Trust = authorities, places: int = CONCURRENCY) -> AsyncIterator[Client]:
    """Hold a client for the length of a block, then close its connections."""
    client = Client(places, trust)
    try:
        yield client
    finally:
        client.close()


async def exchange(client: Client, call: HttpCall) -> HttpAnswer:
    """Make one call outside any actor (a command, a check); raises `UpstreamFailed`."""
    return await client.exchange(call)


@attrs.define(eq=False)
class ClientPlace:
    """The actor's client while it takes calls, else None.  Read by anyone in the loop, written by the actor alone."""

    client: Client | None = None


async def upstream(
    inbox: Inbox[Call], *, place: ClientPlace | None = None, trust: Trust = authorities, places: int = CONCURRENCY
) -> None:
    """Serve calls, each in a task of its own, until the mailbox closes; then let the running ones end.

    At most `places` calls to one origin are under way at once, so a back end that hangs starves no other.  `place` is
    where those look for its client who make calls in their own tasks; their calls are let end as well.
    """
    place = place or ClientPlace()
    async with open_client(trust=trust, places=places) as client:
        try:
            async with trio.open_nursery() as nursery:
                inbox.ready()
                place.client = client
                async for letter in inbox:
                    nursery.start_soon(_serve, client, letter)
                place.client = None  # while the letters in hand are finished
        finally:
            place.client = None
        await client.rest()


async def _serve(client: Client, letter: Letter[Call]) -> None:
    """Make one call and answer its letter."""
    call, stop = letter.message.call, letter.message.stop or trio.CancelScope()
    with stop:
        try:
            answer = await _answered(client, call)
        except UpstreamFailed as failure:
            letter.refuse(failure)
        else:
            letter.answer(letter.message, answer)
    if stop.cancelled_caught:
        letter.refuse(UpstreamBroken(f"{call.target}: stopped"))


async def _answered(client: Client, call: HttpCall) -> HttpAnswer:
    """Make one call; a defect met on the way is an `UpstreamFailed` like any other."""
    try:
        return await client.exchange(call)
    except UpstreamFailed:
        raise
    except Exception as error:
        log.exception("call_failed", target=call.target, error=repr(error))
        raise UpstreamBroken(f"{call.target}: {type(error).__name__}") from error


def _head(call: HttpCall) -> tuple[Origin, Head]:
    """Return where a call goes and its head; raises `UpstreamUnreachable` for what cannot be sent."""
    try:
        return _written(call.method, call.url, call.headers, len(call.content))
    except (ValueError, TypeError, h11.LocalProtocolError) as error:
        raise UpstreamUnreachable(f"{call.target}: cannot be called ({type(error).__name__})") from error


@lru_cache(maxsize=256)
def _written(method: str, url: str, given: tuple[tuple[str, str], ...], length: int) -> tuple[Origin, Head]:
    """Return where a call goes and its head; raises ValueError, TypeError and h11.LocalProtocolError.

    h11 looks at every byte of a head, and many calls differ in their bodies alone.
    """
    origin, host, target, authorization = _address(url)
    names = {name.lower() for name, _ in given}
    headers = [*given, *((name, value) for name, value in DEFAULT_HEADERS.items() if name not in names)]
    if "host" not in names:
        headers.insert(0, ("host", host))
    if authorization is not None and "authorization" not in names:
        headers.append(("authorization", authorization))
    if not names.isdisjoint(FRAMING):
        raise ValueError("a call is framed here")
    if length or method not in {"GET", "HEAD"}:
        headers.append(("content-length", str(length)))
    return origin, Head.of(h11.Request(method=method, target=target, headers=headers))


@lru_cache(maxsize=256)
def _address(url: str) -> tuple[Origin, str, str, str | None]:
    """Return the origin, `Host`, target and authorization of an address; raises ValueError.

    A user name in the address becomes basic authorization.
    """
    parts = urlsplit(url)
    if parts.scheme not in PORTS or not parts.hostname:
        raise ValueError("no http address")
    usual = PORTS[parts.scheme]
    host, port = parts.hostname, usual if parts.port is None else parts.port
    host.encode("ascii").decode("ascii").encode("idna")
    name = f"[{host}]" if ":" in host else host
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    authorization = None
    if parts.username is not None:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {b64encode(user.encode()).decode()}"
    origin = Origin(parts.scheme == "https", host, port)
    return origin, name if port == usual else f"{name}:{port}", target, authorization


def _names(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    named: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        named[name] = f"{named[name]}, {value}" if name in named else value
    return named


@attrs.frozen
class Caller:
    """Asks the upstream actor on behalf of other actors, with its failures told in this module's terms.

    `place` is the one that the actor was given, None: every call is a letter.
    """

    ref: Ref[Call]
    place: ClientPlace | None = None

    async def __call__(self, call: HttpCall, *, stops: bool = False) -> HttpAnswer:
        """Make the call; raises `UpstreamFailed`.

        With `stops`, the call is over as soon as nobody waits for it: the back end then sees its connection close.
        """
        if stops and self.place is not None and (client := self.place.client) is not None:
            return await _answered(client, call)
        stop = trio.CancelScope() if stops else None
        try:
            return await self.ref.ask(Call(call, stop), within=call.timeout_s + CONNECT_S)
        except (Overloaded, ActorDown) as error:
            raise NodeOverloaded(f"{call.target}: {type(error).__name__}") from error
        except ActorError as error:
            raise AnswerLost(f"{call.target}: {type(error).__name__}") from error
        finally:
            if stop is not None:
                stop.cancel()
