"""One HTTP exchange with a back end, as values: what to send and what came back.

Adapters are sans-IO: they plan an `HttpCall` and read an `HttpAnswer`; only `gateway.actors.upstream` touches a socket.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import attrs

from gateway.registry.call_evidence import Weight, weight_of


@attrs.frozen
class HttpCall:
    """A bounded call: `timeout_s` seconds in all, at most `max_bytes` of body read; `target` labels it in logs.

    It is made once: nothing beneath repeats it, not even when a kept connection turns out to be dead.
    """

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
    """No complete answer came.

    `sent` is False only when no byte of the request can have reached the back end; `reason` is a machine word, and
    `weight` what the failure says of the back end: `own_weight`, or else what the word says.
    """

    sent: ClassVar[bool] = True
    reason: str = "upstream_failed"
    own_weight: ClassVar[Weight | None] = None

    @property
    def weight(self) -> Weight:
        """What the failure says of the back end."""
        return self.own_weight or weight_of(self.reason)


class UpstreamUnreachable(UpstreamFailed):
    """The request was never sent: no connection was made, or there was none to be had."""

    sent = False
    reason = "unreachable"


class NodeOverloaded(UpstreamUnreachable):
    """The request was never sent, because this node has too many calls under way."""

    reason = "node_overloaded"


class UpstreamTimeout(UpstreamFailed):
    """The answer did not come in time."""

    reason = "timeout"


class AnswerLost(UpstreamTimeout):
    """The answer, if there was one, was lost within this node."""

    reason = "answer_lost"


class UpstreamBroken(UpstreamFailed):
    """The connection broke, or what came is not HTTP."""

    reason = "connection_broken"


class AnswerTooLarge(UpstreamFailed):
    """The body went over `max_bytes`; the rest was not read."""

    reason = "answer_too_large"


class WorkerFailed(UpstreamBroken):
    """The program that was run in place of a call ended without an answer."""

    reason = "worker_failed"
