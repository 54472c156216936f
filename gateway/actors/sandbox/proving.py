"""The canaries: run like any other, behind those that were sold, and judged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

import attrs
import structlog
import trio

from gateway.actors.sandbox.place import SandboxPlace, Seen
from gateway.errors import GatewayError
from gateway.sandbox.canaries import Canary
from gateway.sandbox.run_result import RunResult

log = structlog.get_logger(__name__)


@attrs.frozen(eq=False)
class Round:
    """Makes rounds of canaries.

    Attributes:
        run: makes the run of a canary and returns what it came to; raises `GatewayError`.
    """

    canaries: Sequence[Canary]
    place: SandboxPlace
    run: Callable[[Canary], Awaitable[RunResult]]
    utc: Callable[[], datetime]

    async def make(self, at_once: int) -> tuple[Canary, str] | None:
        """Run every canary, so many at a time; returns the first in order that failed, and what was seen."""
        left = list(reversed(self.canaries))
        seen: dict[str, Seen] = {}

        async def take() -> None:
            while left:
                canary = left.pop()
                seen[canary.name] = await self._one(canary)
                self.place.canaries = {each.name: seen[each.name] for each in self.canaries if each.name in seen}

        async with trio.open_nursery() as nursery:
            for _ in range(at_once):
                nursery.start_soon(take)
        failed = [(each, fault) for each in self.canaries if (fault := seen[each.name].fault) is not None]
        for canary, fault in failed:
            log.error("sandbox_canary_failed", canary=canary.name, proves=canary.proves, seen=fault)
        return failed[0] if failed else None

    async def _one(self, canary: Canary) -> Seen:
        began = trio.current_time()
        try:
            fault = canary.judge(await self.run(canary))
        except GatewayError as failure:
            fault = f"it was not run: {failure.extra.get('reason', failure.code)}"
        except Exception as error:  # noqa: BLE001 - a judge that cannot judge proves nothing
            fault = f"it could not be judged: {error!r}"
        return Seen(fault, round((trio.current_time() - began) * 1000), self.utc())
