"""Parts that several tests of the sandbox begin with."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import trio

from gateway.actors.sandbox.ground import Ground
from gateway.actors.sandbox.link import Link, open_link
from gateway.actors.sandbox.run import Command, Run
from gateway.actors.sandbox.settings import SandboxSettings
from gateway.sandbox.canaries import SMALL, Canary
from gateway.sandbox.image import Image, fingerprint
from gateway.sandbox.launcher_messages import Up
from gateway.sandbox.limits import Limits
from gateway.sandbox.run_result import RunResult
from gateway.sandbox.seccomp import Filter

SCRIPTED = (sys.executable, "-I", "-S", str(Path(__file__).with_name("scripted_launcher.py")))
SOON_S = 10.0
LIMITS = Limits(output_bytes=100, wall_time_ms=5000)


async def at_once() -> None:
    """Let go without a word to anybody."""
    await trio.lowlevel.checkpoint()


def settings_in(images: Path, *options: str, **more: Any) -> SandboxSettings:
    quick: dict[str, Any] = {
        "slots": 2,
        "memory_bytes": 2**30,
        "start_s": 5.0,
        "setup_s": 1.0,
        "end_s": 1.0,
        "retry_first_s": 0.05,
        "doubt_s": 0.05,
        "canary_patience_s": 0.2,
        "bubblewrap": "/usr/bin/bwrap",
        "program": (*SCRIPTED, *options),
    }
    return SandboxSettings(images, "test-run-", **{**quick, **more})


def script(**members: Any) -> tuple[bytes, ...]:
    """Return the command that has the scripted launcher do so."""
    return (json.dumps(members).encode(),)


def command(
    arguments: tuple[bytes, ...] = (b"{}",),
    *,
    run: str = "run-of-a-test",
    stdin: bytes = b"",
    limits: Limits = LIMITS,
    within: float = 30.0,
    release: Callable[[], Awaitable[None]] = at_once,
) -> Command:
    return Command(run, arguments, stdin, limits, trio.current_time() + within, release)


def descriptors() -> set[str]:
    """Return what is open in this process, each with its number."""
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself
            found.add(f"{each.name} {each.readlink()}")
    return found


def opened(descriptor: int) -> str:
    """Return the path of what is open."""
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


async def until(true: Callable[[], bool]) -> None:
    with trio.fail_after(SOON_S):
        while not true():  # noqa: ASYNC110 - of another process, or of somebody who rings no bell
            await trio.sleep(0.005)


@attrs.frozen(eq=False)
class Launched:
    """A scripted launcher that works, and where it notes what it hears."""

    link: Link
    notes: Path

    @property
    def heard(self) -> list[tuple[str, str]]:
        """What it heard, and why where it is told to stop."""
        lines = [json.loads(line) for line in self.notes.read_text().splitlines()]
        return [(each["says"], each.get("reason", "")) for each in lines]

    def run(self, command: Command) -> Run:
        return Run(command, 0, self.link, b"filter", setup_s=1.0, end_s=0.5)


@asynccontextmanager
async def launched(images: Path, *options: str) -> AsyncIterator[Launched]:
    async with open_link(settings_in(images, *options).command(images / "image"), end_s=1.0) as link:
        assert isinstance(await link.greeting(SOON_S), Up)
        yield Launched(link, images / "work/heard")


def ground_of(image: Path) -> Ground:
    stands = Image(image, "sha256:5f", frozenset({"/usr/bin/node"}))
    stands = attrs.evolve(stands, verified=fingerprint(stands))
    return Ground(stands, Filter(b"many", "sha256:01", "x86_64"), Filter(b"one", "sha256:02", "x86_64"), "sha256:03")


def canary(name: str = "inet", judge: Callable[[RunResult], str | None] = lambda _: None, **members: Any) -> Canary:
    """Return a canary for the scripted launcher."""
    words = tuple(each.decode() for each in script(**members))
    return Canary(name, "what it proves", words, b"", SMALL, judge)
