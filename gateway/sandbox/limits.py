"""The seven limits of a run: their ranges, their defaults, and what they come to for the host.

Source: interface.md 4.6 for the ranges and defaults, spec/readings for merging them field by field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import attrs

TASKS_PER_PROCESS = 16
"""Threads and all: Node.js cannot print a word on fewer than 8 tasks, and hangs silently where it gets fewer."""
TASKS_OF_THE_SANDBOX = 2
"""What bubblewrap itself has in the run's cgroup."""
GRACE_S = 15.0
"""What a run may take beside its wall limit, to be set up, cleaned away and accounted for."""


@attrs.frozen
class Range:
    """The integers that a limit may have, both ends included, and the one it has when it is left out."""

    least: int
    most: int
    default: int
    description: str


RANGES: Mapping[str, Range] = MappingProxyType(
    {
        "cpuMillis": Range(1, 30_000, 5_000, "CPU time of all its processes together, in milliseconds."),
        "memoryBytes": Range(2**24, 2**29, 2**28, "Memory of all its processes together, in bytes."),
        "processes": Range(
            1,
            64,
            16,
            "Processes at a time. 1 is exact: the command cannot start another. More is a bound on tasks, "
            f"{TASKS_PER_PROCESS} for each process and {TASKS_OF_THE_SANDBOX} for the sandbox, threads included.",
        ),
        "diskBytes": Range(2**20, 2**30, 2**26, "What may be written to `/scratch`, in bytes."),
        "outputBytes": Range(
            1, 2**20, 2**16, "Standard output and standard error together, in bytes; one byte more ends the run."
        ),
        "artifactBytes": Range(1, 10 * 2**20, 2**20, "What may be written to `/out`, in bytes."),
        "wallTimeMs": Range(100, 60_000, 10_000, "Time from start to end, in milliseconds."),
    }
)
"""Every limit by its name on the wire."""

DEFAULTS: Mapping[str, int] = MappingProxyType({name: each.default for name, each in RANGES.items()})

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "default": dict(DEFAULTS),
    "description": "Limits that are left out have their defaults, each for itself.",
    "properties": {
        name: {
            "type": "integer",
            "minimum": each.least,
            "maximum": each.most,
            "default": each.default,
            "description": each.description,
        }
        for name, each in RANGES.items()
    },
}


def _within(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    name = attribute.metadata["json"]
    each = RANGES[name]
    if type(value) is not int:
        raise TypeError(f"{name} is an integer")
    if not each.least <= value <= each.most:
        raise ValueError(f"{name} is between {each.least} and {each.most}")


def _limit(name: str) -> Any:
    return attrs.field(default=RANGES[name].default, validator=_within, metadata={"json": name})


@attrs.frozen
class Limits:
    """The limits of one run, in the units of their names.

    Raises `TypeError` on what is no integer, `ValueError` on what is out of range.
    """

    cpu_millis: int = _limit("cpuMillis")
    memory_bytes: int = _limit("memoryBytes")
    processes: int = _limit("processes")
    disk_bytes: int = _limit("diskBytes")
    output_bytes: int = _limit("outputBytes")
    artifact_bytes: int = _limit("artifactBytes")
    wall_time_ms: int = _limit("wallTimeMs")

    @property
    def tasks(self) -> int:
        """The most tasks, threads included, that the run's cgroup may hold."""
        return self.processes * TASKS_PER_PROCESS + TASKS_OF_THE_SANDBOX

    @property
    def single(self) -> bool:
        """Whether the filter has to refuse every process after the first: no bound on tasks tells it from a thread."""
        return self.processes == 1

    @property
    def host_bytes(self) -> int:
        """The most memory of the host that the run may take: its disk and its artifacts are memory too.

        This bounds the run's cgroup, and that `memory_bytes` is kept has to be watched apart from it: a bound of
        `memory_bytes` would end a run for what it may well write.
        """
        return self.memory_bytes + self.disk_bytes + self.artifact_bytes

    @property
    def deadline_s(self) -> float:
        """How long the execution may take as a whole, in seconds."""
        return self.wall_time_ms / 1000 + GRACE_S

    def as_json(self) -> dict[str, int]:
        """Return the limits by their names on the wire."""
        return {name: getattr(self, attribute) for name, attribute in _ATTRIBUTES}


_ATTRIBUTES = tuple((each.metadata["json"], each.name) for each in attrs.fields(Limits))
LONGEST_DEADLINE_S = RANGES["wallTimeMs"].most / 1000 + GRACE_S


def reserved_bytes(runs: Iterable[Limits]) -> int:
    """Return the memory of the host that these runs may take together, in bytes."""
    return sum(each.host_bytes for each in runs)


def fits(asked: Limits, running: Iterable[Limits], memory_bytes: int) -> bool:
    """Return True if one run more can be admitted beside those running, where they share so much of the host's memory.

    What the runs may take counts, not what they have taken so far.
    """
    return reserved_bytes(running) + asked.host_bytes <= memory_bytes
