"""Runs that only end where they are ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from gateway.actors.sandbox.run import Run
from gateway.sandbox.outcome import Ending, Outcome
from tests.sandbox.battery.case import Case, hostile, limits
from tests.sandbox.battery.outside import processes_of
from tests.sandbox.battery.real_path import Sandbox

RUNNING = Case("one that only ends where it is ended", hostile("longsleep"), limits=limits(wall_time_ms=20_000))
CANCELLED = Ending(Outcome.CANCELLED)


@asynccontextmanager
async def running(sandbox: Sandbox, *, slot: int) -> AsyncIterator[None]:
    """Have something run in a slot for the length of a block."""
    user = sandbox.settings.first_uid + slot
    run = sandbox.begin(RUNNING, slot=slot)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ends_as_cancelled, run)
        await three_processes_of(range(user, user + 1))
        yield
        assert len(processes_of(range(user, user + 1))) == 3
        run.call_off()


async def three_processes_of(users: range) -> set[int]:
    """Wait until there are bubblewrap, the init of the sandbox and the command, and return their pids."""
    with trio.fail_after(5):
        while set(processes_of(users).values()) != {"bwrap", "hostile"} or len(processes_of(users)) != 3:  # noqa: ASYNC110
            await trio.sleep(0.005)
    return set(processes_of(users))


async def ends_as_cancelled(run: Run) -> None:
    assert (await run.live()).ending == CANCELLED
