"""What an operation's executor is given and gives back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Any, Protocol

import attrs
import orjson


async def _nothing_to_release() -> None:
    return


@attrs.frozen
class Work:
    """One attempt at one operation.  `deadline` is on the trio clock; `request` is the operation's own frozen class.

    `budget` is the quota (`Family.budget`) that this free call was counted on: no other upstream that bills may be
    asked for it.  None: no such quota, or an attempt that is taken on after a crash.

    `network` is that of the caller, empty where it is not known any more: in an attempt that is taken on after a crash.
    `payer` is the address that pays, in lower case; empty in a free call.

    `release` is for what must never be begun twice (`Operation.repeatable`): it returns once it is durable that this
    attempt may have begun, and raises a `GatewayError` where it may not begin.
    """

    operation_id: str
    operation: str
    request: Any
    attempt: int
    deadline: float
    budget: str | None = None
    release: Callable[[], Awaitable[None]] = _nothing_to_release
    network: str = attrs.field(default="", repr=False)
    payer: str = ""

    @property
    def caller(self) -> str:
        """Whose turn the work takes where few slots are shared: the payer's, of a free call the network's."""
        return self.payer or self.network


@attrs.frozen
class Served:
    """A result: `output` holds `route` (interface.md 2.2); `execution` is the family's own measured usage."""

    output: dict[str, Any]
    execution: dict[str, Any]

    @cached_property
    def plain(self) -> bytes:
        """Both as the JSON that is sealed; raises `TypeError` where they are none."""
        return orjson.dumps({"output": self.output, "execution": self.execution})


class Family(Protocol):
    """The executor of a family of operations."""

    def admit(self, operation: str, request: Any) -> None:
        """Return if something proven can serve `request` now.

        Reads the last snapshot only, no I/O.  Raises `OperationUnavailable` or `CapabilityUnavailable`.
        """

    def budget(self, operation: str, request: Any) -> str | None:
        """Return the node-wide quota that a free call spends where its upstream bills every call, or None."""
        ...

    async def execute(self, work: Work) -> Served:
        """Serve it.  Raises a `GatewayError` when the execution failed; nothing is then charged."""
        ...
