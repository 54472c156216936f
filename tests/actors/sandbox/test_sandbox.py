"""The supervisor with the real launcher: what a scripted one cannot show."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import psutil
import pytest
import trio

from gateway.actors.runtime import ActorError, Ref, open_runtime
from gateway.actors.sandbox.place import SandboxPlace, Standing
from gateway.actors.sandbox.run import Command
from gateway.actors.sandbox.settings import SandboxSettings
from gateway.actors.sandbox.supervisor import Execute, Message, sandbox
from gateway.errors import ExecutionReconciliation
from gateway.sandbox.canaries import CANARIES
from gateway.sandbox.cgroups import find
from gateway.sandbox.host import Machine
from gateway.sandbox.limits import Limits
from gateway.sandbox.run_result import RunResult
from tests.actors.sandbox.scenes import at_once, descriptors, until
from tests.sandbox.in_groups import a_prefix
from tests.sandbox.launcher_driver import pinned_image, require_a_sandbox, uids_alive

FIRST_UID = 64_600
SOON_S = 60.0
PROCESSES_LAID = 3
"""Bubblewrap, the first process of the sandbox, and the starter."""


@pytest.fixture(scope="module")
def image() -> Iterator[Path]:
    require_a_sandbox()
    with pinned_image() as path:
        yield path


@attrs.define(eq=False)
class Scene:
    place: SandboxPlace
    ref: Ref[Message]
    prefix: str
    runs: int = 0

    async def open(self, starts: int = 1) -> None:
        with trio.fail_after(SOON_S):
            while not isinstance(self.place.now(), Standing) or self.place.starts < starts:  # noqa: ASYNC110 - bounded
                await trio.sleep(0.02)

    async def run(
        self, script: str, *, stdin: bytes = b"", release: Callable[[], Awaitable[None]] = at_once, **limits: int
    ) -> RunResult:
        self.runs += 1
        bounds = Limits(**limits)
        arguments = (b"node", b"-e", script.encode())
        deadline = trio.current_time() + bounds.deadline_s
        command = Command(f"run-{self.runs}", arguments, stdin, bounds, deadline, release)
        return (await self.ref.ask(Execute(command), within=90)).result

    @property
    def groups(self) -> tuple[str, ...]:
        return find().leftovers(self.prefix)


@asynccontextmanager
async def scene(
    image: Path, *, canaries: int = 1, grace: float = 10.0, ahead: bool = False, **more: Any
) -> AsyncIterator[Scene]:
    """Have a supervisor; what is laid ahead would be taken for what is left of runs, so that it is only where asked."""
    prefix = a_prefix()
    settings = SandboxSettings(
        image.parent, prefix, slots=2, first_uid=FIRST_UID, retry_first_s=0.1, ahead=ahead, **more
    )
    settings = settings.on(Machine())
    place = SandboxPlace.of(settings)
    body = partial(sandbox, place=place, settings=settings, canaries=CANARIES[:canaries])
    async with open_runtime(grace=grace) as runtime:
        here = Scene(place, await runtime.start("sandbox", body), prefix)
        await here.open()
        yield here


@attrs.define(eq=False)
class Runs:
    """Tells when a run is let go."""

    let_go: trio.Event = attrs.field(factory=trio.Event)

    async def release(self) -> None:
        await at_once()
        self.let_go.set()


async def nobody_left() -> None:
    with trio.fail_after(1.0):
        while uids_alive(FIRST_UID):  # noqa: ASYNC110 - of other processes
            await trio.sleep(0.01)


async def test_it_opens_once_every_canary_is_content(image: Path) -> None:
    async with scene(image, canaries=len(CANARIES)) as here:
        shown = here.place.shown()
        assert {each["name"]: each["fault"] for each in shown["canaries"]} == {each.name: None for each in CANARIES}
        assert (shown["image"], shown["slots"], shown["quarantined"]) == (f"sha256:{image.name[7:]}", 2, [])
    assert here.groups == ()


async def test_a_run_goes_the_whole_way(image: Path) -> None:
    script = """
const fs = require("fs");
fs.writeFileSync("/scratch/some", Buffer.alloc(1 << 20));
fs.writeFileSync("/out/a\\n\\u202eb", "one");
process.stdin.pipe(process.stdout);
console.error("\\x1b[31m");
process.exitCode = 3;
"""
    async with scene(image) as here:
        result = await here.run(script, stdin=bytes(range(256)) * 4096, output_bytes=2**20)
        assert (result.ending.outcome, result.ending.exit_code) == ("output_limit", None)
        result = await here.run(script, stdin=bytes(range(256)), output_bytes=2**20)
        assert (result.ending.outcome, result.ending.exit_code) == ("exited", 3)
        assert result.stdout.kept == bytes(range(256))
        assert [(each.name, each.size) for each in result.artifacts.artifacts] == [("a%0A%E2%80%AEb", 3)]
        usage = result.usage
        assert usage.disk_bytes == 2**20
        assert usage.cpu_millis is not None
        assert usage.wall_ms is not None
        assert 0 < usage.cpu_millis < 5000
        assert 0 < usage.wall_ms < 10_000
        assert result.cleanup.verified


async def test_a_run_longer_than_a_thread_that_started_something_lives_is_not_ended(image: Path) -> None:
    async with scene(image) as here:
        result = await here.run("setTimeout(() => console.log('there'), 12000)", wall_time_ms=20_000)
        assert (result.ending.outcome, result.stdout.kept) == ("exited", b"there\n")


async def test_nothing_grows_with_runs(image: Path) -> None:
    async with scene(image) as here:
        await here.run("0")
        launcher = psutil.Process(here.place.pid)
        before = (descriptors(), launcher.num_fds(), launcher.children(recursive=True))
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(here.run, "0")
        for _ in range(6):
            await here.run("require('fs').writeFileSync('/out/a', 'b'); console.log('x'.repeat(100))", output_bytes=50)
        assert (descriptors(), launcher.num_fds(), launcher.children(recursive=True)) == before
        assert here.groups == ()


async def test_what_is_laid_ahead_is_one_sandbox_a_slot_and_is_what_is_given_out(image: Path) -> None:
    async with scene(image, canaries=len(CANARIES), ahead=True) as here:
        launcher = psutil.Process(here.place.pid)

        async def laid() -> tuple[int, int, int, int]:
            with trio.fail_after(SOON_S):
                while len(uids_alive(FIRST_UID)) != 2 * PROCESSES_LAID:  # noqa: ASYNC110 - of other processes
                    await trio.sleep(0.01)
            await trio.sleep(0.05)
            return len(descriptors()), launcher.num_fds(), len(launcher.children(recursive=True)), len(here.groups)

        before = await laid()
        assert before[3] == 2
        for _ in range(6):
            result = await here.run("console.log(process.pid)")
            assert (result.stdout.kept, result.laid_ahead) == (b"2\n", True)
            assert result.cleanup.verified
            assert await laid() == before
        other = [await here.run("0", disk_bytes=2**21) for _ in range(6)]
        assert [each.laid_ahead for each in other] == [False] * 2 + [True] * 4
        assert await laid() == before
    assert here.groups == ()
    assert uids_alive(FIRST_UID) == []


def command_runs() -> bool:
    """Return whether a process of the slots' users executes the command: it is let go, and not only allowed to be."""
    commands = [Path(f"/proc/{pid}/cmdline") for pid in uids_alive(FIRST_UID)]
    with suppress(OSError):  # one of them has just ended
        return any(each.read_bytes().startswith(b"node\0") for each in commands)
    return False


@pytest.mark.parametrize("ahead", [False, True])
async def test_a_launcher_that_is_killed_takes_its_runs_along_and_another_opens(image: Path, ahead: bool) -> None:
    runs = Runs()
    async with scene(image, ahead=ahead) as here:
        async with trio.open_nursery() as nursery:

            async def lose() -> None:
                with pytest.raises(ExecutionReconciliation) as lost:
                    await here.run("setInterval(() => {}, 1000)", release=runs.release)
                assert lost.value.extra["reason"] == "sandbox.launcher_died"

            nursery.start_soon(lose)
            await runs.let_go.wait()
            await until(command_runs)
            os.kill(here.place.pid or 0, signal.SIGKILL)
            await nobody_left()
        await until(lambda: here.groups == ())
        await here.open(starts=2)
        assert (await here.run("console.log(1)")).stdout.kept == b"1\n"


async def test_a_launcher_that_hangs_is_killed_with_its_runs_and_another_opens(image: Path) -> None:
    runs = Runs()
    async with scene(image, end_s=0.5) as here:
        pid = here.place.pid
        assert pid is not None
        async with trio.open_nursery() as nursery:

            async def lose() -> None:
                with pytest.raises(ExecutionReconciliation) as lost:
                    await here.run("setInterval(() => {}, 1000)", release=runs.release, wall_time_ms=500)
                assert lost.value.extra["reason"] == "sandbox.launcher_hung"

            nursery.start_soon(lose)
            await runs.let_go.wait()
            await until(command_runs)
            os.kill(pid, signal.SIGSTOP)
        await here.open(starts=2)
        assert not psutil.pid_exists(pid)
        await nobody_left()
        assert here.groups == ()


async def test_a_node_that_gives_up_its_supervisor_leaves_no_run_behind(image: Path) -> None:
    async with trio.open_nursery() as nursery, scene(image, grace=0.1) as here:

        async def lose() -> None:
            with pytest.raises(ActorError):
                await here.run("setInterval(() => {}, 1000)")

        nursery.start_soon(lose)
        await trio.sleep(0.5)
        assert uids_alive(FIRST_UID)
    await nobody_left()
    assert here.groups == ()
