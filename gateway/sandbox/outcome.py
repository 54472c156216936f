"""How a run ended, decided from evidence, and what was measured of it.

An exit code of bubblewrap's is poor evidence: 1 is also a command that could not be started, and 128 + n is a signal as
well as an ordinary exit with that code.  So a limit is told from the supervisor's own reason and from the kernel's
counters only, and whether the command started from whether an exit code is told at all: bubblewrap tells one only of
what it executed (`--json-status-fd`), and that is the starter, whose errno is then told of in place of a code.

Source: spec/outputs for the names on the wire, spec/readings for what is charged.
"""

from __future__ import annotations

import enum
import os
import signal
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import attrs

from gateway.sandbox.limits import Limits


class Outcome(enum.StrEnum):
    """How a run ended."""

    EXITED = "exited"
    SIGNALED = "signaled"
    NOT_STARTED = "not_started"
    CPU_LIMIT = "cpu_limit"
    MEMORY_LIMIT = "memory_limit"
    WALL_LIMIT = "wall_limit"
    OUTPUT_LIMIT = "output_limit"
    CANCELLED = "cancelled"

    @property
    def charged(self) -> bool:
        """Whether this is a result: the command started, and ended by itself or at a limit that was paid for."""
        return self not in {Outcome.NOT_STARTED, Outcome.CANCELLED}

    @property
    def may_have_run(self) -> bool:
        """Whether anything of the command may have run, so that it is never run again under the same key."""
        return self is not Outcome.NOT_STARTED


class Stop(enum.StrEnum):
    """Why the supervisor itself ended a run: the first reason that it had."""

    CPU = "cpu"
    MEMORY = "memory"
    WALL = "wall"
    OUTPUT = "output"
    CANCELLED = "cancelled"


STOPPED: Mapping[Stop, Outcome] = MappingProxyType(
    {
        Stop.CPU: Outcome.CPU_LIMIT,
        Stop.MEMORY: Outcome.MEMORY_LIMIT,
        Stop.WALL: Outcome.WALL_LIMIT,
        Stop.OUTPUT: Outcome.OUTPUT_LIMIT,
        Stop.CANCELLED: Outcome.CANCELLED,
    }
)


@attrs.frozen
class Evidence:
    """What is known of a run that was released and is over.

    Attributes:
        stopped: the supervisor's own first reason to end it, None where it had none.
        exit_code: the `exit-code` that bubblewrap told, None where it told none, or that of the starter alone.
        sandbox_status: the wait(2) status of bubblewrap itself, None where nobody reaped it; where the command is known
            not to have been executed, that of a program that exited, whoever ended it.
        command_status: the wait(2) status of the command, where the kernel told it to whoever held a pidfd of it
            (`PIDFD_INFO_EXIT`, Linux 6.15); it is what bubblewrap's code hides.
        oom_kills: of the run's cgroup.
        cpu_us: CPU time of the run's cgroup, in microseconds.
    """

    stopped: Stop | None
    exit_code: int | None
    sandbox_status: int | None
    oom_kills: int
    cpu_us: int
    command_status: int | None = None


@attrs.frozen
class Ending:
    """An outcome, with the exit code or the signal that the command itself ended with.

    Both are None where it was stopped or did not start, and one of them where it ended by itself.
    """

    outcome: Outcome
    exit_code: int | None = None
    signal: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the members of the output: the signal by its name."""
        return {
            "outcome": self.outcome.value,
            "exitCode": self.exit_code,
            "signal": None if self.signal is None else signal_name(self.signal),
        }


def decide(evidence: Evidence, limits: Limits) -> Ending:
    """Return how a run ended.

    1. Bubblewrap exited and told no exit code: the command was never executed, whatever else happened.
    2. The supervisor stopped it: that limit, or cancelled, also where the command ended in the same moment.
    3. The kernel killed some of it for memory: the memory limit, even where the rest went on to exit with 0.
    4. Bubblewrap told no exit code and did not exit: it was killed from outside, and the command with it, or lost.
       That is cancelled, whatever the command's own status: the signal in it was not the command's doing.
    5. It ended by itself; by SIGKILL or SIGXCPU after more CPU time than it may have: the kernel's own bound on CPU
       time of a process came before the supervisor's, the CPU limit.

    With no more to go by than bubblewrap's code, 128 + n is signal n, for that is what it says of a crash.  137 alone
    is the exception: neither the supervisor nor the kernel sent a SIGKILL, so it is told as the exit code that it is.
    """
    if evidence.exit_code is None and _exited(evidence.sandbox_status):
        return Ending(Outcome.NOT_STARTED)
    if evidence.stopped is not None:
        return Ending(STOPPED[evidence.stopped])
    if evidence.oom_kills > 0:
        return Ending(Outcome.MEMORY_LIMIT)
    if evidence.exit_code is None:
        return Ending(Outcome.CANCELLED)
    if evidence.cpu_us >= limits.cpu_millis * 1000 and _may_have_hit_the_kernel_s_cpu_bound(evidence):
        return Ending(Outcome.CPU_LIMIT)
    return _own_ending(evidence.exit_code, evidence.command_status)


_SIGNALS = range(1, 65)  # of Linux, real-time ones included
_SAID_OF_SIGKILL = 128 + signal.SIGKILL
_SAID_OF_SIGXCPU = 128 + signal.SIGXCPU


def _may_have_hit_the_kernel_s_cpu_bound(evidence: Evidence) -> bool:
    status = evidence.command_status
    if status is None:
        return evidence.exit_code in {_SAID_OF_SIGKILL, _SAID_OF_SIGXCPU}
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) in {signal.SIGKILL, signal.SIGXCPU}


def _own_ending(code: int, status: int | None) -> Ending:
    """Return how the command ended by itself: exactly where its own status is known, else as bubblewrap's code says."""
    if status is None:
        if code - 128 in _SIGNALS and code != _SAID_OF_SIGKILL:
            return Ending(Outcome.SIGNALED, signal=code - 128)
        return Ending(Outcome.EXITED, code)
    if os.WIFSIGNALED(status):
        return Ending(Outcome.SIGNALED, signal=os.WTERMSIG(status))
    return Ending(Outcome.EXITED, os.WEXITSTATUS(status))


def _exited(status: int | None) -> bool:
    return status is not None and os.WIFEXITED(status)


def signal_name(number: int) -> str:
    """Return the name of a signal as kill(1) writes it, `SIGSEGV`, `SIGRTMIN+3`."""
    first_real_time = int(signal.SIGRTMIN)
    if number > first_real_time:
        return f"SIGRTMIN+{number - first_real_time}"
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"  # 32 and 33 are the C library's own


@attrs.frozen
class Usage:
    """What a run used, in the units of the names; None where it could not be measured."""

    cpu_millis: int | None
    peak_memory_bytes: int | None
    processes_peak: int | None
    wall_ms: int | None
    disk_bytes: int | None
    output_bytes: int | None
    artifact_bytes: int | None

    def as_json(self) -> dict[str, int | None]:
        """Return the `usage` of an execution."""
        return {
            "cpuMillis": self.cpu_millis,
            "peakMemoryBytes": self.peak_memory_bytes,
            "processesPeak": self.processes_peak,
            "wallMs": self.wall_ms,
            "diskBytes": self.disk_bytes,
            "outputBytes": self.output_bytes,
            "artifactBytes": self.artifact_bytes,
        }


@attrs.frozen
class Denials:
    """How often the kernel refused a run a task, and killed one of its processes for memory; None where unknown."""

    processes: int | None
    oom_kills: int | None

    def as_json(self) -> dict[str, int | None]:
        """Return the `denials` of an execution."""
        return {"processes": self.processes, "oomKills": self.oom_kills}


@attrs.frozen
class Cleanup:
    """What a run left behind, counted after everything was removed; None where it could not be looked at."""

    processes: int | None
    mounts: int | None
    cgroups: int | None

    @property
    def verified(self) -> bool:
        """Whether nothing at all was left: what could not be looked at is not clean."""
        return (self.processes, self.mounts, self.cgroups) == (0, 0, 0)

    def as_json(self) -> dict[str, int | bool | None]:
        """Return the `cleanup` of an execution."""
        return {
            "processes": self.processes,
            "mounts": self.mounts,
            "cgroups": self.cgroups,
            "verified": self.verified,
        }
