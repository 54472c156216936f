from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import attrs
import trio
import trio.testing
from structlog.testing import capture_logs

from gateway.actors.sandbox.closed import Closed
from gateway.actors.sandbox.place import SandboxPlace
from gateway.actors.sandbox.proving import Round
from gateway.sandbox.artifacts import Listing
from gateway.sandbox.canaries import Canary
from gateway.sandbox.outcome import Cleanup, Denials, Ending, Outcome, Usage
from gateway.sandbox.output_text import Text
from gateway.sandbox.run_result import RunResult
from tests.actors.sandbox.scenes import canary, settings_in

NOTHING = Text(b"", truncated=False)
RESULT = RunResult(
    Ending(Outcome.EXITED, 0),
    NOTHING,
    NOTHING,
    Listing((), complete=True),
    Usage(1, 1, 1, 1, 1, 1, 1),
    Denials(0, 0),
    Cleanup(0, 0, 0),
    1,
    laid_ahead=False,
)
AT = datetime(2026, 1, 2, tzinfo=UTC)


@attrs.define(eq=False)
class Runs:
    """Runs of canaries that come to nothing, and how many were at once."""

    now: int = 0
    most: int = 0

    async def run(self, _: Canary) -> RunResult:
        self.now += 1
        self.most = max(self.most, self.now)
        await trio.testing.wait_all_tasks_blocked()
        self.now -= 1
        return RESULT


def round_of(*canaries: Canary) -> tuple[Round, SandboxPlace, Runs]:
    place, runs = SandboxPlace.of(settings_in(Path("/images"))), Runs()
    return Round(canaries, place, runs.run, lambda: AT), place, runs


def defect(_: RunResult) -> str | None:
    raise ZeroDivisionError


async def test_a_round_in_which_all_are_content_finds_nothing() -> None:
    rounds, place, _ = round_of(canary("a"), canary("b"))
    assert await rounds.make(at_once=1) is None
    assert {name: (each.fault, each.at) for name, each in place.canaries.items()} == {"a": (None, AT), "b": (None, AT)}


async def test_the_first_in_order_that_fails_is_told_and_all_of_them_are_run() -> None:
    rounds, place, _ = round_of(canary("a"), canary("b", lambda _: "seen b"), canary("c", lambda _: "seen c"))
    with capture_logs():
        found = await rounds.make(at_once=2)
    assert found is not None
    assert (found[0].name, found[1]) == ("b", "seen b")
    assert list(place.canaries) == ["a", "b", "c"]


async def test_no_more_are_run_at_once_than_may_be() -> None:
    rounds, _, runs = round_of(*(canary(name) for name in "abcdef"))
    await rounds.make(at_once=2)
    assert runs.most == 2


async def test_a_judge_that_cannot_judge_proves_nothing() -> None:
    rounds, _, _ = round_of(canary("a", defect))
    with capture_logs():
        found = await rounds.make(at_once=1)
    assert found is not None
    assert "ZeroDivisionError" in found[1]


async def test_a_run_that_was_refused_proves_nothing() -> None:
    async def refuse(_: Canary) -> RunResult:
        await trio.lowlevel.checkpoint()
        raise Closed("sandbox.launcher_died").refusal()

    rounds, _, _ = round_of(canary("a"))
    with capture_logs():
        found = await attrs.evolve(rounds, run=refuse).make(at_once=1)
    assert found is not None
    assert found[1] == "it was not run: sandbox.launcher_died"
