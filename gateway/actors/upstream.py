"""Calls to back ends (facilitator, chain, engines): the only place where the node touches httpx.

httpcore wedges a pool for ever when a request is cancelled while it connects, so no cancellation of an asker reaches
a call: it runs in the actor's own nursery, bounded by `httpx.Timeout`, a total deadline and a size cap.  A pool that
times out is thrown away.  Redirects are not followed: a back end that redirects is misconfigured.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import attrs
import httpx
import trio

from gateway.actors.runtime import ActorError, Ask, Inbox, Letter, Ref
from gateway.registry.http_call import (
    AnswerTooLarge,
    HttpAnswer,
    HttpCall,
    UpstreamBroken,
    UpstreamFailed,
    UpstreamTimeout,
    UpstreamUnreachable,
)

CONNECT_S = 3.0
CONCURRENCY = 256


@attrs.frozen
class Call(Ask[HttpAnswer]):
    """Make one call; refused with an `UpstreamFailed` when no complete answer came."""

    call: HttpCall


def open_client() -> httpx.AsyncClient:
    """Return a client with a bounded pool; proxies of the environment do not apply to back ends."""
    limits = httpx.Limits(max_connections=CONCURRENCY, max_keepalive_connections=32, keepalive_expiry=30)
    return httpx.AsyncClient(limits=limits, follow_redirects=False, trust_env=False)


async def upstream(inbox: Inbox[Call], *, connect: Callable[[], httpx.AsyncClient] = open_client) -> None:
    """Serve calls, each in a task of its own, until the mailbox closes; then let the running ones end."""
    client = connect()
    retired: list[httpx.AsyncClient] = []

    async def serve(letter: Letter[Call]) -> None:
        nonlocal client
        used = client
        try:
            answer = await exchange(used, letter.message.call)
        except UpstreamFailed as failure:
            if isinstance(failure.__cause__, httpx.PoolTimeout) and used is client:
                retired.append(client)
                client = connect()
            letter.refuse(failure)
        else:
            letter.answer(letter.message, answer)

    try:
        async with trio.open_nursery() as nursery:
            inbox.ready()
            async for letter in inbox:
                nursery.start_soon(serve, letter)
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
            for each in (*retired, client):
                await each.aclose()


async def exchange(client: httpx.AsyncClient, call: HttpCall) -> HttpAnswer:
    """Send one call and read its whole answer within the call's bounds; raises `UpstreamFailed`."""
    started = time.monotonic()
    ends = started + call.timeout_s
    timeout = httpx.Timeout(call.timeout_s, connect=min(CONNECT_S, call.timeout_s), pool=min(CONNECT_S, call.timeout_s))
    content = bytearray()
    try:
        async with client.stream(
            call.method, call.url, headers=list(call.headers), content=call.content, timeout=timeout
        ) as response:
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > call.max_bytes:
                    raise AnswerTooLarge(f"{call.target}: over {call.max_bytes} bytes")
                if time.monotonic() > ends:
                    raise UpstreamTimeout(f"{call.target}: not complete after {call.timeout_s:g} s")
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol) as error:
        raise UpstreamUnreachable(f"{call.target}: {type(error).__name__}") from error
    except httpx.TimeoutException as error:
        raise UpstreamTimeout(f"{call.target}: {type(error).__name__}") from error
    except httpx.HTTPError as error:
        raise UpstreamBroken(f"{call.target}: {type(error).__name__}") from error
    except (httpx.InvalidURL, UnicodeError) as error:
        raise UpstreamUnreachable(f"{call.target}: {type(error).__name__}") from error
    headers = {name.lower(): value for name, value in response.headers.items()}
    return HttpAnswer(response.status_code, headers, bytes(content), int((time.monotonic() - started) * 1000))


@attrs.frozen
class Caller:
    """Asks the upstream actor on behalf of other actors, with its failures told in this module's terms."""

    ref: Ref[Call]

    async def __call__(self, call: HttpCall) -> HttpAnswer:
        """Make the call; raises `UpstreamFailed`."""
        try:
            return await self.ref.ask(Call(call), within=call.timeout_s + CONNECT_S)
        except ActorError as error:
            sent = type(error).__name__ in {"Unanswered", "ActorCrashed"}
            kind = UpstreamTimeout if sent else UpstreamUnreachable
            raise kind(f"{call.target}: {type(error).__name__}") from error
