"""How a run ended: the decision table, walked in full."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable

import attrs
import pytest

from gateway.sandbox.limits import Limits
from gateway.sandbox.outcome import Cleanup, Denials, Ending, Evidence, Outcome, Stop, Usage, decide, signal_name

LIMITS = Limits(cpu_millis=500)
WITHIN, OVER = 499_999, 500_000


def exited(code: int) -> int:
    return code << 8


def killed(number: int) -> int:
    return number


def evidence(
    *,
    stopped: Stop | None = None,
    exit_code: int | None = 0,
    sandbox_status: int | None = exited(0),
    oom_kills: int = 0,
    cpu_us: int = WITHIN,
    command_status: int | None = None,
) -> Evidence:
    return Evidence(stopped, exit_code, sandbox_status, oom_kills, cpu_us, command_status)


# -- the table: each piece of evidence, each other piece of evidence ---------------------------------------------------

STOPS: list[Stop | None] = [None, *Stop]
CODES = [None, 0, 1, 2, 126, 127, 128, 129, 130, 134, 136, 137, 138, 139, 143, 152, 153, 159, 191, 192, 193, 254, 255]
SANDBOX = [None, exited(0), exited(1), exited(137), killed(9), killed(15)]
COMMAND = [None, exited(0), exited(1), exited(137), killed(9), killed(11), killed(24), killed(6) | 0x80]
ALL = [
    Evidence(stopped, code, sandbox, oom, cpu, command)
    for stopped, code, sandbox, oom, cpu, command in itertools.product(
        STOPS, CODES, SANDBOX, [0, 1, 8], [0, WITHIN, OVER], COMMAND
    )
]

LIMIT_OF = {
    Stop.CPU: "cpu_limit",
    Stop.MEMORY: "memory_limit",
    Stop.WALL: "wall_limit",
    Stop.OUTPUT: "output_limit",
    Stop.CANCELLED: "cancelled",
}
KILLED_OR_LOST = {None, killed(9), killed(15)}
CPU_SIGNALS = {killed(9), killed(24)}
type_of_row = tuple[str, Callable[[Evidence], bool], Callable[[Evidence], tuple[str, int | None, int | None]]]

TABLE: list[type_of_row] = [
    (
        "bubblewrap ended by itself without an exit code",
        lambda e: e.exit_code is None and e.sandbox_status not in KILLED_OR_LOST,
        lambda _: ("not_started", None, None),
    ),
    ("stopped", lambda e: e.stopped is not None, lambda e: (LIMIT_OF[e.stopped or Stop.CPU], None, None)),
    ("killed for memory", lambda e: e.oom_kills > 0, lambda _: ("memory_limit", None, None)),
    ("lost", lambda e: e.exit_code is None, lambda _: ("cancelled", None, None)),
    (
        "over its CPU time, and seen to have been killed so",
        lambda e: e.cpu_us >= OVER and e.command_status in CPU_SIGNALS,
        lambda _: ("cpu_limit", None, None),
    ),
    (
        "over its CPU time, and said to have been killed so",
        lambda e: e.cpu_us >= OVER and e.command_status is None and e.exit_code in {137, 152},
        lambda _: ("cpu_limit", None, None),
    ),
    ("seen to be killed by 9", lambda e: e.command_status == killed(9), lambda _: ("signaled", None, 9)),
    ("seen to be killed by 11", lambda e: e.command_status == killed(11), lambda _: ("signaled", None, 11)),
    ("seen to be killed by 24", lambda e: e.command_status == killed(24), lambda _: ("signaled", None, 24)),
    ("seen to dump its core", lambda e: e.command_status == killed(6) | 0x80, lambda _: ("signaled", None, 6)),
    (
        "seen to exit",
        lambda e: e.command_status is not None,
        lambda e: ("exited", (e.command_status or 0) >> 8, None),
    ),
    ("said 137 and no more", lambda e: e.exit_code == 137, lambda _: ("exited", 137, None)),
    (
        "said to be killed by a signal",
        lambda e: e.exit_code is not None and 129 <= e.exit_code <= 192,
        lambda e: ("signaled", None, (e.exit_code or 0) - 128),
    ),
    ("said to exit", lambda _: True, lambda e: ("exited", e.exit_code, None)),
]


def row_of(each: Evidence) -> type_of_row:
    return next(row for row in TABLE if row[1](each))


def test_every_combination_of_evidence_is_decided_by_the_first_row_that_it_fits() -> None:
    wrong = []
    for each in ALL:
        name, _, told = row_of(each)
        ending = decide(each, LIMITS)
        if (ending.outcome.value, ending.exit_code, ending.signal) != told(each):
            wrong.append((name, each, ending))
    assert wrong == []


def test_every_exit_code_is_a_signal_or_an_exit_and_only_137_is_an_exit_among_the_signals() -> None:
    for code in range(256):
        ending = decide(evidence(exit_code=code), LIMITS)
        signaled = 129 <= code <= 192 and code != 137
        assert ending == (Ending(Outcome.SIGNALED, signal=code - 128) if signaled else Ending(Outcome.EXITED, code))


def test_no_row_of_the_table_is_idle() -> None:
    assert {row_of(each)[0] for each in ALL} == {name for name, _, _ in TABLE}


def test_every_outcome_can_come_about() -> None:
    assert {decide(each, LIMITS).outcome for each in ALL} == set(Outcome)


def test_a_limit_is_never_told_from_an_exit_code() -> None:
    for each in ALL:
        outcome = decide(each, LIMITS).outcome
        if outcome is Outcome.MEMORY_LIMIT:
            assert each.oom_kills or each.stopped is Stop.MEMORY
        if outcome is Outcome.CPU_LIMIT:
            assert each.cpu_us >= LIMITS.cpu_millis * 1000 or each.stopped is Stop.CPU
        if outcome is Outcome.WALL_LIMIT:
            assert each.stopped is Stop.WALL
        if outcome is Outcome.OUTPUT_LIMIT:
            assert each.stopped is Stop.OUTPUT


def test_a_code_or_a_signal_is_told_only_of_a_command_that_ended_by_itself() -> None:
    for each in ALL:
        ending = decide(each, LIMITS)
        told = (ending.exit_code is not None, ending.signal is not None)
        expected = {Outcome.EXITED: (True, False), Outcome.SIGNALED: (False, True)}.get(ending.outcome, (False, False))
        assert told == expected


# -- single facts ------------------------------------------------------------------------------------------------------


def test_exit_1_of_a_command_is_not_a_command_that_could_not_start() -> None:
    assert decide(evidence(exit_code=1, sandbox_status=exited(1)), LIMITS) == Ending(Outcome.EXITED, 1)
    assert decide(evidence(exit_code=None, sandbox_status=exited(1)), LIMITS) == Ending(Outcome.NOT_STARTED)


@pytest.mark.parametrize("stop", Stop)
def test_a_command_that_never_started_did_not_reach_a_limit(stop: Stop) -> None:
    asked = evidence(exit_code=None, sandbox_status=exited(1), stopped=stop, oom_kills=1)
    assert decide(asked, LIMITS).outcome is Outcome.NOT_STARTED


def test_137_alone_is_an_exit_code_not_a_kill() -> None:
    assert decide(evidence(exit_code=137), LIMITS) == Ending(Outcome.EXITED, 137)


def test_137_of_a_command_that_was_seen_to_be_killed_is_the_signal() -> None:
    asked = evidence(exit_code=137, command_status=killed(9))
    assert decide(asked, LIMITS) == Ending(Outcome.SIGNALED, signal=9)


def test_a_crash_is_a_signal() -> None:
    assert decide(evidence(exit_code=139), LIMITS) == Ending(Outcome.SIGNALED, signal=signal.SIGSEGV)


def test_children_killed_for_memory_are_the_memory_limit_though_the_parent_exits_with_0() -> None:
    assert decide(evidence(exit_code=0, oom_kills=8), LIMITS) == Ending(Outcome.MEMORY_LIMIT)


def test_an_exit_with_0_past_the_limit_of_cpu_time_that_nothing_stopped_is_an_exit() -> None:
    assert decide(evidence(cpu_us=OVER + 1), LIMITS) == Ending(Outcome.EXITED, 0)


def test_a_command_that_exits_with_137_past_its_cpu_time_and_was_seen_to_is_an_exit() -> None:
    asked = evidence(exit_code=137, command_status=exited(137), cpu_us=OVER)
    assert decide(asked, LIMITS) == Ending(Outcome.EXITED, 137)


def test_a_sandbox_killed_from_outside_is_cancelled_not_a_signal_of_the_command() -> None:
    asked = evidence(exit_code=None, sandbox_status=killed(9), command_status=killed(9))
    assert decide(asked, LIMITS) == Ending(Outcome.CANCELLED)


def test_a_sandbox_that_nobody_saw_end_is_cancelled() -> None:
    assert decide(evidence(exit_code=None, sandbox_status=None), LIMITS) == Ending(Outcome.CANCELLED)


@pytest.mark.parametrize(
    ("code", "ending"),
    [
        ("raise SystemExit(7)", Ending(Outcome.EXITED, 7)),
        ("import os; os.kill(os.getpid(), 15)", Ending(Outcome.SIGNALED, signal=15)),
        ("import os; os.kill(os.getpid(), 9)", Ending(Outcome.SIGNALED, signal=9)),
    ],
)
def test_the_status_of_a_real_child_is_read_right(code: str, ending: Ending) -> None:
    child = os.posix_spawn(sys.executable, [sys.executable, "-I", "-c", code], {})
    _, status = os.waitpid(child, 0)
    assert decide(evidence(exit_code=137, command_status=status), LIMITS) == ending


# -- what it means -----------------------------------------------------------------------------------------------------


def test_what_started_is_charged_unless_it_was_cancelled() -> None:
    assert {each.value for each in Outcome if not each.charged} == {"not_started", "cancelled"}


def test_only_what_was_not_started_never_ran() -> None:
    assert [each for each in Outcome if not each.may_have_run] == [Outcome.NOT_STARTED]


def test_the_outcomes_have_their_published_names() -> None:
    assert [each.value for each in Outcome] == [
        "exited",
        "signaled",
        "not_started",
        "cpu_limit",
        "memory_limit",
        "wall_limit",
        "output_limit",
        "cancelled",
    ]


@pytest.mark.parametrize(
    ("ending", "told"),
    [
        (Ending(Outcome.EXITED, 0), {"outcome": "exited", "exitCode": 0, "signal": None}),
        (Ending(Outcome.SIGNALED, signal=11), {"outcome": "signaled", "exitCode": None, "signal": "SIGSEGV"}),
        (Ending(Outcome.WALL_LIMIT), {"outcome": "wall_limit", "exitCode": None, "signal": None}),
    ],
)
def test_an_ending_is_told_in_three_members(ending: Ending, told: dict[str, object]) -> None:
    assert ending.as_json() == told


@pytest.mark.parametrize(
    ("number", "name"),
    [(1, "SIGHUP"), (6, "SIGABRT"), (9, "SIGKILL"), (29, "SIGIO"), (31, "SIGSYS"), (33, "SIG33"), (34, "SIGRTMIN")],
)
def test_a_signal_has_its_name(number: int, name: str) -> None:
    assert signal_name(number) in {name, "SIGPOLL"}


def test_real_time_signals_are_counted_from_the_first() -> None:
    assert signal_name(37) == "SIGRTMIN+3"
    assert len({signal_name(number) for number in range(1, 65)}) == 64


# -- what was measured -------------------------------------------------------------------------------------------------


def test_usage_has_its_published_members_and_unknown_is_null() -> None:
    assert Usage(1, 2, 3, 4, 5, 6, 7).as_json() == {
        "cpuMillis": 1,
        "peakMemoryBytes": 2,
        "processesPeak": 3,
        "wallMs": 4,
        "diskBytes": 5,
        "outputBytes": 6,
        "artifactBytes": 7,
    }
    unknown = Usage(*[None] * len(attrs.fields(Usage)))
    assert set(unknown.as_json().values()) == {None}


def test_denials_have_their_published_members() -> None:
    assert Denials(22_013, None).as_json() == {"processes": 22_013, "oomKills": None}


def test_a_cleanup_that_left_nothing_is_verified() -> None:
    assert Cleanup(0, 0, 0).as_json() == {"processes": 0, "mounts": 0, "cgroups": 0, "verified": True}


@pytest.mark.parametrize("left", [1, None])
@pytest.mark.parametrize("what", ["processes", "mounts", "cgroups"])
def test_a_cleanup_that_left_something_or_could_not_look_is_not(what: str, left: int | None) -> None:
    assert not attrs.evolve(Cleanup(0, 0, 0), **{what: left}).verified
