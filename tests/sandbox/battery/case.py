"""A case of the battery: one command, and exactly what has to come of it."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from gateway.sandbox.artifacts import Artifact
from gateway.sandbox.limits import Limits
from gateway.sandbox.outcome import Cleanup, Ending, Outcome
from gateway.sandbox.run_result import RunResult

MIB = 2**20
TIGHT = Limits(
    cpu_millis=2000,
    memory_bytes=128 * MIB,
    processes=8,
    disk_bytes=16 * MIB,
    output_bytes=65536,
    artifact_bytes=MIB,
    wall_time_ms=5000,
)
"""What a case has unless it is about a limit."""
LATE_MS = 400
"""How much later than at its limit a run may be over, on a machine that has other things to do."""
WELL = Ending(Outcome.EXITED, 0)
NOTHING_LEFT = Cleanup(processes=0, mounts=0, cgroups=0)

Fact = Callable[[RunResult], object]
"""Something else that has to hold of a result; it asserts."""


def limits(**changed: int) -> Limits:
    return attrs.evolve(TIGHT, **changed)


def node(script: str, *arguments: str) -> tuple[str, ...]:
    return ("node", "-e", script, *arguments)


def hostile(*words: str) -> tuple[str, ...]:
    return ("hostile", *words)


@attrs.frozen
class Case:
    """One command and what has to come of it.

    Attributes:
        fact: the case as a sentence.
        command: what is run.
        ending: how it has to end; by default with exit code 0.
        says: standard output to the byte; None where it says something else each time.
        complains: the same of standard error.
        artifacts: what it leaves in `/out`.
        facts: whatever else has to hold.
    """

    fact: str
    command: tuple[str, ...]
    ending: Ending = WELL
    says: str | bytes | None = ""
    complains: str | bytes | None = ""
    stdin: bytes = b""
    limits: Limits = TIGHT
    artifacts: tuple[Artifact, ...] | None = ()
    facts: tuple[Fact, ...] = ()

    def judge(self, result: RunResult) -> None:
        """Assert that this is what came of it."""
        told = {
            "ending": result.ending,
            "says": result.stdout.kept,
            "complains": result.stderr.kept,
            "artifacts": result.artifacts.artifacts,
            "cleanup": result.cleanup,
        }
        expected = {
            "ending": self.ending,
            "says": told["says"] if self.says is None else _bytes(self.says),
            "complains": told["complains"] if self.complains is None else _bytes(self.complains),
            "artifacts": told["artifacts"] if self.artifacts is None else self.artifacts,
            "cleanup": NOTHING_LEFT,
        }
        wrong = {
            name: {"told": told[name], "expected": expected[name]} for name in told if told[name] != expected[name]
        }
        assert not wrong, (wrong, result.usage)
        for fact in self.facts:
            fact(result)


def stopped(outcome: Outcome) -> Ending:
    return Ending(outcome)


def exits(code: int) -> Ending:
    return Ending(Outcome.EXITED, code)


def dies_of(number: int) -> Ending:
    return Ending(Outcome.SIGNALED, signal=number)


CPU = stopped(Outcome.CPU_LIMIT)
MEMORY = stopped(Outcome.MEMORY_LIMIT)
WALL = stopped(Outcome.WALL_LIMIT)
OUTPUT = stopped(Outcome.OUTPUT_LIMIT)
NOT_STARTED = stopped(Outcome.NOT_STARTED)


def table(*cases: Case) -> pytest.MarkDecorator:
    """Return the mark that makes a test of each case."""
    return pytest.mark.parametrize("case", cases, ids=[case.fact for case in cases])


def all_say(answer: str, *names: str) -> str:
    """Return the lines of a program that was given the same answer each time."""
    return "".join(f"{name}: {answer}\n" for name in names)


def within(name: str, least: int, most: int) -> Fact:
    """Return the fact that a figure of the usage is in a range, both ends included."""

    def fact(result: RunResult) -> None:
        figure = getattr(result.usage, name)
        assert figure is not None
        assert least <= figure <= most, (name, result.usage)

    return fact


def used_up_cpu(millis: int) -> Fact:
    return within("cpu_millis", millis, millis + LATE_MS)


def took(millis: int, late: int = LATE_MS) -> Fact:
    return within("wall_ms", millis, millis + late)


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
