"""Runs of the battery through the real path: the node's end of a launcher, the launcher, bubblewrap, the kernel."""

from __future__ import annotations

import itertools
import os
import platform
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from gateway.actors.sandbox.link import Link, open_link
from gateway.actors.sandbox.run import Command, Run
from gateway.actors.sandbox.settings import SandboxSettings
from gateway.sandbox.image import Image, unchanged
from gateway.sandbox.launcher_messages import Up
from gateway.sandbox.run_result import RunResult
from gateway.sandbox.seccomp import load_filter
from tests.sandbox.battery.case import Case
from tests.sandbox.battery.outside import Left, groups, left, standing
from tests.sandbox.hostile_image import BUBBLEWRAP
from tests.sandbox.in_groups import a_prefix

SLOTS = 2
ENDS_WITHIN_S = 1.0
FIRST_UIDS = itertools.cycle(range(61_200 + os.getpid() % 20 * 200, 61_400 + os.getpid() % 20 * 200, SLOTS))
"""Users that are one launcher's alone, so that whose processes they are tells whose runs."""


@attrs.define(eq=False)
class Sandbox:
    """A launcher for the test image, and what runs it has made."""

    image: Image
    link: Link
    settings: SandboxSettings
    at_first: Left
    _runs: int = 0

    async def run(self, case: Case, *, slot: int = 0) -> RunResult:
        """Run a case, and prove from outside that nothing of it is left."""
        before = self.look()
        result = await self.run_beside_others(case, slot=slot)
        await self.prove_nothing_left(before)
        unchanged(self.image)
        return result

    async def prove_nothing_left(self, before: Left | None = None) -> None:
        """Assert that from outside all is as it was before, or at first, and that nothing of any run is there."""
        before = before or self.at_first
        after = self.look()
        assert after.is_nothing, after
        assert after == before, (before, after)
        assert (after.children, after.launcher) == (self.at_first.children, self.at_first.launcher), self.at_first

    async def run_beside_others(self, case: Case, *, slot: int = 0) -> RunResult:
        """Run a case while others may run."""
        run = self.begin(case, slot=slot)
        result = await run.live()
        assert (run.released, run.clean) == (True, True)
        return result

    def begin(self, case: Case, *, slot: int = 0, program: bytes | None = None, again: bool = False) -> Run:
        """Return the run of a case, which has yet to live; under its own filter unless another is given.

        `again` has another sandbox laid ahead when it is over.
        """
        self._runs += 1
        command = Command(
            run=f"run{self._runs}",
            arguments=tuple(each.encode() for each in case.command),
            stdin=case.stdin,
            limits=case.limits,
            deadline=trio.current_time() + case.limits.deadline_s,
            release=trio.lowlevel.checkpoint,
        )
        if program is None:
            program = load_filter(platform.machine(), single=case.limits.single).program
        return Run(command, slot, self.link, program, self.settings.setup_s, self.settings.end_s, again)

    @property
    def users(self) -> range:
        """The users of its slots."""
        return users_from(self.settings.first_uid)

    def groups(self) -> list[str]:
        """Return the directories of its groups."""
        return groups(self.settings.prefix)

    def look(self) -> Left:
        """Return what is there now, see `Left`."""
        return look(self.link, self.settings, self.image)


def users_from(first: int) -> range:
    return range(first, first + SLOTS)


def look(link: Link, settings: SandboxSettings, image: Image) -> Left:
    users = users_from(settings.first_uid)
    return left(users=users, prefix=settings.prefix, image=image.path, launcher=link.process.pid)


@asynccontextmanager
async def open_sandbox(image: Image, *, ends_by_itself: bool = True) -> AsyncIterator[Sandbox]:
    """Have a launcher for the length of a block, which ends by itself and takes all its processes with it."""
    settings = SandboxSettings(
        images=Path(image.path).parent,
        slots=SLOTS,
        memory_bytes=2**31,
        prefix=a_prefix(),
        first_uid=next(FIRST_UIDS),
        bubblewrap=BUBBLEWRAP,
    )
    async with open_link(settings.command(image.path), end_s=settings.end_s) as link:
        greeting = await link.greeting(settings.start_s)
        assert isinstance(greeting, Up), greeting
        # Its only child is the one that ends what it would leave if it were killed.
        at_first = look(link, settings, image)
        assert at_first.is_nothing, at_first
        assert len(at_first.children) == 1, at_first
        yield Sandbox(image, link, settings, at_first)
    assert (link.process.returncode == 0) is ends_by_itself
    if ends_by_itself:
        assert standing(at_first.children) == []
    with trio.fail_after(ENDS_WITHIN_S):
        # What ends the runs of a launcher that was killed ends after them, and nobody is there to be told.
        while standing(at_first.children):  # noqa: ASYNC110 - nobody tells
            await trio.sleep(0.01)
