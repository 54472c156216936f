"""What one server grants to strangers: sizes, times and numbers of connections."""

from __future__ import annotations

from typing import Any

import attrs
from attrs import validators

_positive: Any = validators.gt(0)


@attrs.frozen(kw_only=True)
class ServerLimits:
    """Bounds of one server; times are seconds, sizes bytes.

    Attributes:
        header_bytes: request line and header section together; over it 431.
        target_bytes: request target; over it 414.
        header_timeout_s: from the first byte of a request (or the connection's start) to the end of its header section.
        body_timeout_s: from the end of the header section to the end of the body: 16 MiB by a line of 0.5 Mbit/s.
        body_pace_s: for each 8 KiB of a body to arrive; a body that stalls is given up long before `body_timeout_s`.
        keep_alive_s: how long a connection may idle between two requests.
        write_timeout_s: for each 64 KiB of an answer to be taken by the client.
        drain_s: how long requests in flight may go on after `stop`; at least the longest operation.
        linger_s: how long a closed connection is still read, so that the client gets to see the last answer.
        max_connections: open connections, at most half of the descriptors the process may have; for a further one an
            idle or a stalled one is closed, and where there is none, only health is answered (`crowd.py`).
        small_body_bytes: what every connection may hold of a body, however much the others hold.
        body_memory_bytes: request bodies held beyond that at one time, all connections together; over it 503.
        requests_per_connection: after so many the connection is closed, which lets a load balancer balance again.
        backlog: connections the kernel holds until they are accepted.
    """

    header_bytes: int = attrs.field(default=16 * 1024, validator=_positive)
    target_bytes: int = attrs.field(default=8 * 1024, validator=_positive)
    header_timeout_s: float = attrs.field(default=10.0, validator=_positive)
    body_timeout_s: float = attrs.field(default=300.0, validator=_positive)
    body_pace_s: float = attrs.field(default=10.0, validator=_positive)
    keep_alive_s: float = attrs.field(default=20.0, validator=_positive)
    write_timeout_s: float = attrs.field(default=30.0, validator=_positive)
    drain_s: float = attrs.field(default=150.0, validator=_positive)
    linger_s: float = attrs.field(default=2.0, validator=_positive)
    max_connections: int = attrs.field(default=512, validator=_positive)
    small_body_bytes: int = attrs.field(default=64 * 1024, validator=_positive)
    body_memory_bytes: int = attrs.field(default=256 * 1024 * 1024, validator=_positive)
    requests_per_connection: int = attrs.field(default=1000, validator=_positive)
    backlog: int = attrs.field(default=256, validator=_positive)


@attrs.define
class BodyMemory:
    """The share of `body_memory_bytes` that is still free."""

    free: int

    def take(self, size: int) -> bool:
        """Reserve `size` bytes; false if so much is not free."""
        if size > self.free:
            return False
        self.free -= size
        return True

    def give_back(self, size: int) -> None:
        """Free what was taken."""
        self.free += size
