"""Small runs that prove the sandbox on this machine, made like any other: what each tries, and what has to come of it.

A mechanism that is configured may yet contain nothing, and only a run shows it.  Each canary tries what the sandbox has
to refuse or to end, with nothing but the node of the image, and its judge reads the result.  All together take about a
second of CPU.  What they cannot try, for node makes no system call of one's own choosing, the launcher looks at from
outside before each run, and the tests try with a program of their own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import attrs

from gateway.sandbox import canary_scripts
from gateway.sandbox.artifacts import Artifact, Skip
from gateway.sandbox.limits import Limits
from gateway.sandbox.outcome import Ending, Outcome
from gateway.sandbox.run_result import RunResult
from gateway.sandbox.starter import environment

Judge = Callable[[RunResult], str | None]
"""Returns None where the result proves what it should, else what was seen."""

SMALL = Limits(
    cpu_millis=2000,
    memory_bytes=2**26,
    processes=2,
    disk_bytes=2**20,
    output_bytes=4096,
    artifact_bytes=2**14,
    wall_time_ms=10_000,
)
"""What a canary may use unless it is about that limit: little, so that it fits beside sold runs."""
SLACK = 2**22
"""Bytes that the kernel may charge over a bound in memory, for what it cannot refuse."""
SHOWN = 300
"""Characters of what a run wrote that a finding shows."""
GIVEN = b"\x00\xff canary\n"


@attrs.frozen
class Canary:
    """A run and its judge.

    Attributes:
        name: one word.
        proves: what is known of the sandbox when the judge is content.
        command: for the pinned image.
        stdin: standard input.
        limits: of the run.
        judge: see `Judge`; also content only where nothing at all was left of the run.
    """

    name: str
    proves: str
    command: tuple[str, ...] = attrs.field(repr=False)
    stdin: bytes = attrs.field(repr=False)
    limits: Limits = attrs.field(repr=False)
    judge: Judge = attrs.field(repr=False)

    @property
    def reason(self) -> str:
        """The machine reason for which the sandbox is closed when this canary fails."""
        return f"sandbox.canary_{self.name}"


def _canary(name: str, proves: str, script: str, judge: Judge, *, stdin: bytes = b"", limits: Limits = SMALL) -> Canary:
    return Canary(name, proves, ("node", "-e", script), stdin, limits, partial(_with_cleanup, judge))


def _with_cleanup(judge: Judge, result: RunResult) -> str | None:
    found = judge(result)
    if found is None and not result.cleanup.verified:
        return f"something was left of it: {json.dumps(result.cleanup.as_json())}"
    return found


# -- judges ------------------------------------------------------------------------------------------------------------


def said(expected: Mapping[str, object]) -> Judge:
    """Return a judge of a run that exits with 0 and says exactly this as JSON; of a frozenset, any one member."""

    def judge(result: RunResult) -> str | None:
        if result.ending != Ending(Outcome.EXITED, 0):
            return _ended(result)
        try:
            told: Any = json.loads(result.stdout.kept)
        except ValueError:
            told = None
        if not isinstance(told, dict):
            return f"it said {_shown(result.stdout.kept)}"
        differing = [
            f"{name} is {json.dumps(told.get(name))}"
            for name in sorted({*expected, *told})
            if name not in expected or not _is(told.get(name), expected[name])
        ]
        return "; ".join(differing) or None

    return judge


def _is(value: object, expected: object) -> bool:
    if isinstance(expected, frozenset):
        return isinstance(value, str) and value in expected
    return type(value) is type(expected) and value == expected


def ended(expected: Ending, *more: Judge) -> Judge:
    """Return a judge of a run that ends so, and with which these others are content."""

    def judge(result: RunResult) -> str | None:
        if result.ending != expected:
            return _ended(result)
        return next((found for each in more if (found := each(result)) is not None), None)

    return judge


def _ended(result: RunResult) -> str:
    told = ", ".join(f"{name} {value}" for name, value in result.ending.as_json().items() if value is not None)
    wrote = result.stderr.kept or result.stdout.kept
    return f"it ended otherwise: {told}{f'; it wrote {_shown(wrote)}' if wrote else ''}"


def _shown(wrote: bytes) -> str:
    return ascii(wrote.decode(errors="replace")[:SHOWN])


def measured(what: str, *, least: int = 0, most: int | None = None) -> Judge:
    """Return a judge of a figure of `Usage`, both ends included; one that this kernel does not tell is none."""

    def judge(result: RunResult) -> str | None:
        figure: int | None = getattr(result.usage, what)
        if figure is None or (least <= figure and (most is None or figure <= most)):
            return None
        return f"{what} is {figure}, {f'less than {least}' if most is None else f'not {least} to {most}'}"

    return judge


def _task_denied(result: RunResult) -> str | None:
    return "the kernel counts no denied task" if result.denials.processes == 0 else None


def _exactly_as_much(most: int) -> Judge:
    def judge(result: RunResult) -> str | None:
        if result.stdout.kept == b"x" * most and result.stdout.truncated:
            return None
        return f"{len(result.stdout.kept)} bytes were kept of {most}, truncated: {result.stdout.truncated}"

    return judge


def _artifacts(result: RunResult) -> str | None:
    expected = (
        Artifact("link", skipped=Skip.SYMLINK),
        Artifact("proof", len(GIVEN), hashlib.sha256(GIVEN).hexdigest()),
    )
    if result.artifacts.artifacts == expected and result.artifacts.complete:
        return None
    return f"the artifacts are {json.dumps([each.as_json() for each in result.artifacts.artifacts])}"


# -- the canaries ------------------------------------------------------------------------------------------------------

_MOST_OUTPUT = 1000

CANARIES: Sequence[Canary] = (
    _canary(
        "identity",
        "a command is nobody, without capabilities, under the filter, and sees its own processes and environment only",
        canary_scripts.IDENTITY,
        said(
            {
                "uid": "65534 65534 65534 65534",
                "gid": "65534 65534 65534 65534",
                "groups": "",
                "newPrivileges": "1",
                "filter": "2",
                "capabilities": "0 0 0 0 0",
                "processes": "1 2 self thread-self",
                "environment": dict(each.decode().split("=", 1) for each in environment(SMALL.memory_bytes)),
                "files": [],
            }
        ),
    ),
    _canary(
        "writes",
        "neither the image nor the kernel's settings can be written, and no directory of the host is there",
        canary_scripts.WRITES,
        said(
            {
                **dict.fromkeys(("/", "/usr/bin/", "/usr/lib/", "/etc/", "/dev/"), "EROFS"),
                "node": frozenset({"EROFS", "EACCES"}),
                "corePattern": frozenset({"ENOENT", "EACCES", "EROFS"}),
                "ofTheHost": [],
            }
        ),
    ),
    _canary(
        "execution",
        "nothing that a command writes can be executed, nor loaded as code, nor written over code that there is",
        canary_scripts.EXECUTION,
        said(
            {
                **dict.fromkeys(("/scratch/script", "/scratch/elf", "/out/script", "/out/elf"), "EACCES"),
                "library": "not mapped",
                **dict.fromkeys(("/proc/self/mem", "/proc/1/mem"), "EROFS"),
            }
        ),
    ),
    _canary(
        "network",
        "there is no network",
        canary_scripts.NETWORK,
        said(dict.fromkeys(("tcp4", "tcp6", "udp4", "listener"), "EAFNOSUPPORT")),
    ),
    _canary(
        "memory",
        "a run is ended as a whole where its memory ends, also where only a child of the command asks for more",
        canary_scripts.MEMORY,
        ended(
            Ending(Outcome.MEMORY_LIMIT),
            measured("peak_memory_bytes", least=SMALL.memory_bytes, most=SMALL.host_bytes + SLACK),
        ),
    ),
    _canary(
        "tasks",
        "no more tasks than the limit allows can be started",
        canary_scripts.TASKS,
        ended(
            Ending(Outcome.SIGNALED, signal=6),  # libuv aborts where it is refused a thread
            _task_denied,
            measured("processes_peak", most=SMALL.tasks),
        ),
    ),
    _canary(
        "single",
        "processes: 1 is exact: threads start, and children do not",
        canary_scripts.SINGLE,
        said({"child": "EAGAIN", "thread": "ran"}),
        limits=attrs.evolve(SMALL, processes=1),
    ),
    _canary(
        "cpu",
        "a run is ended at its CPU limit, long before its wall limit",
        "for (;;);",
        ended(Ending(Outcome.CPU_LIMIT), measured("cpu_millis", least=100)),
        limits=attrs.evolve(SMALL, cpu_millis=100),
    ),
    _canary(
        "wall",
        "a run is ended at its wall limit, whatever signals it ignores",
        canary_scripts.WALL,
        ended(Ending(Outcome.WALL_LIMIT), measured("wall_ms", least=150)),
        limits=attrs.evolve(SMALL, wall_time_ms=150),
    ),
    _canary(
        "disk",
        "exactly so much can be written to /scratch as the limit allows",
        canary_scripts.DISK,
        ended(
            Ending(Outcome.EXITED, 0),
            said({"stopped": "ENOSPC", "written": SMALL.disk_bytes}),
            measured("disk_bytes", least=SMALL.disk_bytes, most=SMALL.disk_bytes),
        ),
    ),
    _canary(
        "artifacts",
        "standard input arrives, and what a command leaves in /out is listed with its digest, no link followed",
        canary_scripts.ARTIFACTS,
        ended(Ending(Outcome.EXITED, 0), _artifacts),
        stdin=GIVEN,
    ),
    _canary(
        "output",
        "a run is ended when it writes one byte too many, and exactly the bytes up to the limit are kept",
        f"process.stdout.write('x'.repeat({_MOST_OUTPUT + 1})); setInterval(() => {{}}, 1000);",
        ended(Ending(Outcome.OUTPUT_LIMIT), _exactly_as_much(_MOST_OUTPUT)),
        limits=attrs.evolve(SMALL, output_bytes=_MOST_OUTPUT),
    ),
)
"""In the order in which they are to be run: what contains first, then what bounds."""

BY_NAME: Mapping[str, Canary] = MappingProxyType({each.name: each for each in CANARIES})
