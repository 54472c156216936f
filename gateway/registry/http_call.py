"""One HTTP exchange with a back end, as values: what to send and what came back.

Adapters are sans-IO: they plan an `HttpCall` and read an `HttpAnswer`; only `gateway.actors.upstream` touches a socket.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen
class HttpCall:
    """A bounded call: `timeout_s` seconds in all, at most `max_bytes` of body read; `target` labels it in logs."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    content: bytes = b""
    timeout_s: float = 10.0
    max_bytes: int = 2**20
    target: str = "backend"


@attrs.frozen
class HttpAnswer:
    """What a back end answered: header names are lower-case, `elapsed_ms` is the time for all of it."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    elapsed_ms: int


class UpstreamFailed(Exception):
    """No complete answer came.  `sent` is False only when no byte of the request can have reached the back end."""

    sent = True


class UpstreamUnreachable(UpstreamFailed):
    """The connection was never made."""

    sent = False


class UpstreamTimeout(UpstreamFailed):
    """The answer did not come in time."""


class UpstreamBroken(UpstreamFailed):
    """The connection broke, or what came is not HTTP."""


class AnswerTooLarge(UpstreamFailed):
    """The body went over `max_bytes`; the rest was not read."""
