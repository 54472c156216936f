"""The canaries' judges: content with what proves the sandbox, and with nothing else."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from gateway.sandbox import artifacts
from gateway.sandbox.artifacts import Artifact, Listing, Skip
from gateway.sandbox.bubblewrap import image_arguments
from gateway.sandbox.canaries import BY_NAME, CANARIES, GIVEN, SLACK, SMALL, Canary, said
from gateway.sandbox.launcher_messages import Bounds
from gateway.sandbox.limits import fits
from gateway.sandbox.outcome import Cleanup, Denials, Ending, Evidence, Outcome, Stop, Usage, decide
from gateway.sandbox.output_text import Text
from gateway.sandbox.request import SandboxRequest, check
from gateway.sandbox.run_result import RunResult
from tests.sandbox.launcher_driver import BUBBLEWRAP, Driver, Run, launcher, pinned_image, require_a_sandbox

NOTHING = Text(b"", truncated=False)
PLAIN = RunResult(
    Ending(Outcome.EXITED, 0),
    NOTHING,
    NOTHING,
    Listing((), complete=True),
    Usage(60, 2**24, 9, 70, 0, 0, 0),
    Denials(0, 0),
    Cleanup(0, 0, 0),
    setup_ms=15,
    laid_ahead=False,
)


def saying(told: object, **changes: Any) -> RunResult:
    return attrs.evolve(PLAIN, stdout=Text(json.dumps(told).encode() + b"\n", truncated=False), **changes)


def ending(outcome: Outcome, signal: int | None = None, **changes: Any) -> RunResult:
    return attrs.evolve(PLAIN, ending=Ending(outcome, signal=signal), **changes)


def using(**figures: int | None) -> Usage:
    return attrs.evolve(PLAIN.usage, **figures)


IDENTITY: dict[str, Any] = {
    "uid": "65534 65534 65534 65534",
    "gid": "65534 65534 65534 65534",
    "groups": "",
    "newPrivileges": "1",
    "filter": "2",
    "capabilities": "0 0 0 0 0",
    "processes": "1 2 self thread-self",
    "environment": {
        "PATH": "/usr/bin",
        "HOME": "/scratch",
        "TMPDIR": "/scratch",
        "PWD": "/scratch",
        "NODE_OPTIONS": "--max-old-space-size=36 --max-semi-space-size=4",
    },
    "files": [],
}
WRITES: dict[str, Any] = {
    **dict.fromkeys(("/", "/usr/bin/", "/usr/lib/", "/etc/", "/dev/"), "EROFS"),
    "node": "EACCES",
    "corePattern": "ENOENT",
    "ofTheHost": [],
}
EXECUTION = {
    **dict.fromkeys(("/scratch/script", "/scratch/elf", "/out/script", "/out/elf"), "EACCES"),
    "library": "not mapped",
    **dict.fromkeys(("/proc/self/mem", "/proc/1/mem"), "EROFS"),
}
NETWORK = dict.fromkeys(("tcp4", "tcp6", "udp4", "listener"), "EAFNOSUPPORT")
PROOF = Artifact("proof", 10, "067f5d0c19621d03931abe8e9da18bba4fced25814bedb8e2459f42be2a1908e")
LINK = Artifact("link", skipped=Skip.SYMLINK)
FULL = 2**20
A_THOUSAND = Text(b"x" * 1000, truncated=True)

PROVED = {
    "identity": saying(IDENTITY),
    "writes": saying(WRITES),
    "execution": saying(EXECUTION),
    "network": saying(NETWORK),
    "memory": ending(Outcome.MEMORY_LIMIT, usage=using(peak_memory_bytes=SMALL.host_bytes)),
    "tasks": ending(Outcome.SIGNALED, 6, denials=Denials(1, 0), usage=using(processes_peak=SMALL.tasks)),
    "single": saying({"child": "EAGAIN", "thread": "ran"}),
    "cpu": ending(Outcome.CPU_LIMIT, usage=using(cpu_millis=100)),
    "wall": ending(Outcome.WALL_LIMIT, usage=using(wall_ms=150)),
    "disk": saying({"stopped": "ENOSPC", "written": FULL}, usage=using(disk_bytes=FULL)),
    "artifacts": attrs.evolve(PLAIN, artifacts=Listing((LINK, PROOF), complete=True)),
    "output": ending(Outcome.OUTPUT_LIMIT, stdout=A_THOUSAND),
}


@pytest.mark.parametrize("name", BY_NAME)
def test_a_judge_is_content_with_what_proves_the_sandbox(name: str) -> None:
    assert BY_NAME[name].judge(PROVED[name]) is None


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("left", [Cleanup(1, 0, 0), Cleanup(0, 1, 0), Cleanup(0, 0, 1), Cleanup(None, 0, 0)])
def test_no_judge_is_content_where_something_was_left(name: str, left: Cleanup) -> None:
    found = BY_NAME[name].judge(attrs.evolve(PROVED[name], cleanup=left))
    assert found is not None
    assert found.startswith("something was left of it: ")
    assert '"verified": false' in found


@pytest.mark.parametrize(
    ("name", "outcome"),
    [(name, outcome) for name in BY_NAME for outcome in Outcome if PROVED[name].ending.outcome is not outcome],
)
def test_no_judge_is_content_with_another_ending(name: str, outcome: Outcome) -> None:
    found = BY_NAME[name].judge(attrs.evolve(PROVED[name], ending=Ending(outcome)))
    assert found is not None
    assert found.startswith(f"it ended otherwise: outcome {outcome.value}")


def test_no_judge_is_content_with_another_signal() -> None:
    found = BY_NAME["tasks"].judge(attrs.evolve(PROVED["tasks"], ending=Ending(Outcome.SIGNALED, signal=11)))
    assert found == "it ended otherwise: outcome signaled, signal SIGSEGV"


@pytest.mark.parametrize("name", BY_NAME)
def test_no_judge_is_content_with_a_command_that_exits_with_1(name: str) -> None:
    failed = attrs.evolve(
        PROVED[name], ending=Ending(Outcome.EXITED, 1), stderr=Text(b"Error: \xff\x1b[2J" + b"z" * 999, truncated=False)
    )
    found = BY_NAME[name].judge(failed)
    assert found is not None
    assert found.startswith("it ended otherwise: outcome exited, exitCode 1; it wrote 'Error: \\ufffd\\x1b[2Jzzz")
    assert len(found) < 400


@pytest.mark.parametrize(
    ("name", "changed", "found"),
    [
        ("identity", {"uid": "0 0 0 0"}, 'uid is "0 0 0 0"'),
        ("identity", {"gid": "65534 0 65534 65534"}, 'gid is "65534 0 65534 65534"'),
        ("identity", {"groups": "27"}, 'groups is "27"'),
        ("identity", {"newPrivileges": "0"}, 'newPrivileges is "0"'),
        ("identity", {"filter": "0"}, 'filter is "0"'),
        ("identity", {"capabilities": "0 0 0 2199023255551 0"}, 'capabilities is "0 0 0 2199023255551 0"'),
        ("identity", {"processes": "1 2 cpuinfo self"}, 'processes is "1 2 cpuinfo self"'),
        ("identity", {"files": ["/etc/shadow"]}, 'files is ["/etc/shadow"]'),
        ("identity", {"files": None}, "files is null"),
        ("identity", {"environment": {"TOKEN": "x"}}, 'environment is {"TOKEN": "x"}'),
        ("identity", {"more": 1}, "more is 1"),
        ("writes", {"/etc/": "done", "/": "EACCES"}, '/ is "EACCES"; /etc/ is "done"'),
        ("writes", {"node": "done"}, 'node is "done"'),
        ("writes", {"node": None}, "node is null"),
        ("writes", {"corePattern": "done"}, 'corePattern is "done"'),
        ("writes", {"ofTheHost": ["/sys"]}, 'ofTheHost is ["/sys"]'),
        ("execution", {"/scratch/elf": "ENOENT"}, '/scratch/elf is "ENOENT"'),
        ("execution", {"/out/script": "ran, 0"}, '/out/script is "ran, 0"'),
        ("execution", {"library": "Module did not"}, 'library is "Module did not"'),
        ("execution", {"/proc/self/mem": "done"}, '/proc/self/mem is "done"'),
        ("network", {"tcp4": "ECONNREFUSED"}, 'tcp4 is "ECONNREFUSED"'),
        ("network", {"udp4": "listening"}, 'udp4 is "listening"'),
        ("single", {"child": "ran"}, 'child is "ran"'),
        ("single", {"child": "ENOENT"}, 'child is "ENOENT"'),
        ("disk", {"written": FULL + 4096}, f"written is {FULL + 4096}"),
        ("disk", {"stopped": None}, "stopped is null"),
    ],
)
def test_a_judge_says_in_which_members_a_run_tells_something_else(
    name: str, changed: dict[str, Any], found: str
) -> None:
    told = json.loads(PROVED[name].stdout.kept) | changed
    kept = Text(json.dumps(told).encode(), truncated=False)
    assert BY_NAME[name].judge(attrs.evolve(PROVED[name], stdout=kept)) == found


@pytest.mark.parametrize("name", ["identity", "writes", "execution", "network", "single", "disk"])
@pytest.mark.parametrize("wrote", [b"", b"[]", b"ok", b"\xff", b"null"])
def test_a_judge_is_not_content_with_a_run_that_says_nothing_of_it(name: str, wrote: bytes) -> None:
    silent = attrs.evolve(PROVED[name], stdout=Text(wrote, truncated=False))
    assert BY_NAME[name].judge(silent) == f"it said {wrote.decode(errors='replace')!a}"


@pytest.mark.parametrize(
    ("name", "seen", "found"),
    [
        (
            "memory",
            {"usage": using(peak_memory_bytes=SMALL.host_bytes + SLACK + 1)},
            f"peak_memory_bytes is {SMALL.host_bytes + SLACK + 1}, not {2**26} to {SMALL.host_bytes + SLACK}",
        ),
        (
            "memory",
            {"usage": using(peak_memory_bytes=2**26 - 1)},
            f"peak_memory_bytes is {2**26 - 1}, not {2**26} to {SMALL.host_bytes + SLACK}",
        ),
        ("tasks", {"denials": Denials(0, 0)}, "the kernel counts no denied task"),
        ("tasks", {"usage": using(processes_peak=35)}, "processes_peak is 35, not 0 to 34"),
        ("cpu", {"usage": using(cpu_millis=99)}, "cpu_millis is 99, less than 100"),
        ("wall", {"usage": using(wall_ms=149)}, "wall_ms is 149, less than 150"),
        (
            "disk",
            {"usage": using(disk_bytes=FULL - 4096)},
            f"disk_bytes is {FULL - 4096}, not {FULL} to {FULL}",
        ),
        (
            "output",
            {"stdout": Text(b"x" * 999, truncated=True)},
            "999 bytes were kept of 1000, truncated: True",
        ),
        (
            "output",
            {"stdout": Text(b"x" * 1000, truncated=False)},
            "1000 bytes were kept of 1000, truncated: False",
        ),
        ("output", {"stdout": Text(b"y" * 1000, truncated=True)}, "1000 bytes were kept of 1000, truncated: True"),
    ],
)
def test_a_judge_is_not_content_with_other_figures(name: str, seen: dict[str, Any], found: str) -> None:
    assert BY_NAME[name].judge(attrs.evolve(PROVED[name], **seen)) == found


@pytest.mark.parametrize(
    "listing",
    [
        Listing((), complete=True),
        Listing((PROOF,), complete=True),
        Listing((LINK, PROOF), complete=False),
        Listing((Artifact("link", 50, "0" * 64), PROOF), complete=True),
        Listing((LINK, attrs.evolve(PROOF, sha256="0" * 64)), complete=True),
        Listing((LINK, attrs.evolve(PROOF, size=0)), complete=True),
    ],
)
def test_the_artifacts_must_be_those_that_were_left(listing: Listing) -> None:
    found = BY_NAME["artifacts"].judge(attrs.evolve(PLAIN, artifacts=listing))
    assert found is not None
    assert found.startswith("the artifacts are [")


@pytest.mark.parametrize(
    ("name", "unknown"),
    [
        ("memory", {"usage": using(peak_memory_bytes=None)}),
        ("tasks", {"usage": using(processes_peak=None), "denials": Denials(None, None)}),
        ("disk", {"usage": using(disk_bytes=None)}),
    ],
)
def test_a_figure_that_this_kernel_does_not_tell_is_no_fault(name: str, unknown: dict[str, Any]) -> None:
    assert BY_NAME[name].judge(attrs.evolve(PROVED[name], **unknown)) is None


def test_a_number_is_not_taken_for_the_truth_value_that_equals_it() -> None:
    assert said({"one": 1})(saying({"one": True})) == "one is true"
    assert said({"one": True})(saying({"one": 1})) == "one is 1"


def test_canaries_are_runs_that_anybody_could_buy() -> None:
    for each in CANARIES:
        request = SandboxRequest(each.command, limits=each.limits)
        assert check(request, resolves=lambda name: name == "node") is None, each.name
        assert max(map(len, each.command)) <= 4096


def test_a_canary_fits_into_little_memory() -> None:
    assert all(fits(each.limits, [], 2**27) for each in CANARIES)


def test_canaries_are_told_apart_and_closed_for_by_their_names() -> None:
    assert len(BY_NAME) == len(CANARIES)
    assert set(PROVED) == set(BY_NAME)
    assert BY_NAME["network"].reason == "sandbox.canary_network"
    assert BY_NAME["artifacts"].stdin == GIVEN


# -- on the kernel and the bubblewrap at hand --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def image() -> Iterator[Path]:
    require_a_sandbox()
    with pinned_image() as path:
        yield path


@pytest.fixture(scope="module")
def driver(image: Path) -> Iterator[Driver]:
    with launcher(image) as started:
        yield started


@pytest.mark.parametrize("canary", CANARIES, ids=lambda canary: canary.name)
def test_the_sandbox_of_this_machine_is_proved(driver: Driver, canary: Canary) -> None:
    assert canary.judge(whole_run(driver, canary)) is None


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("identity", 'capabilities is "2'),
        ("writes", '/ is "done"'),
        (
            "execution",
            '/out/elf is "ENOENT"; /out/script is "ran, 0"; /proc/1/mem is "done"; /proc/self/mem is "done"; ',
        ),
        ("network", 'listener is "listening"; tcp4 is "ECONNREFUSED"; '),
        ("tasks", "it ended otherwise: outcome exited, exitCode 0; it wrote '64 threads more were made"),
        ("single", 'child is "ran"'),
        ("disk", "stopped is null; written is 4194304"),
    ],
)
def test_a_sandbox_without_its_mechanisms_is_found_out(image: Path, name: str, found: str) -> None:
    seen = BY_NAME[name].judge(run_in_a_weak_sandbox(image, BY_NAME[name]))
    assert seen is not None
    assert seen.startswith(found)


def whole_run(driver: Driver, canary: Canary) -> RunResult:
    limits = canary.limits
    bounds = Bounds(
        limits.cpu_millis * 1000,
        limits.memory_bytes,
        limits.host_bytes,
        limits.tasks,
        limits.disk_bytes,
        limits.artifact_bytes,
        limits.wall_time_ms * 1000,
        limits.single,
    )
    run = driver.spawn(canary.command, bounds, stdin=canary.stdin)
    driver.release(run)
    if canary.name == "output":
        stop_at_its_output_limit(driver, run, limits.output_bytes)
    told = driver.ended(run)
    nothing = artifacts.Listing((), complete=True)
    listing = artifacts.listing(run.left[1], artifacts.Bounds(limits.artifact_bytes)) if run.left else nothing
    cleared = driver.clear(run)
    stopped = None if told.stopped is None else Stop(told.stopped)
    evidence = Evidence(
        stopped, told.exit_code, told.sandbox_status, told.oom_kills or 0, told.cpu_us, told.command_status
    )
    kept = run.stdout[: limits.output_bytes]
    return RunResult(
        decide(evidence, limits),
        Text(kept, truncated=len(run.stdout) > len(kept)),
        Text(run.stderr, truncated=False),
        listing,
        Usage(
            told.cpu_us // 1000,
            told.peak_memory,
            told.peak_tasks,
            told.wall_us // 1000,
            told.disk_bytes,
            len(kept),
            listing.total_bytes,
        ),
        Denials(told.task_denials, told.oom_kills),
        Cleanup(told.processes, cleared.mounts, cleared.cgroups),
        setup_ms=0,
        laid_ahead=False,
    )


def stop_at_its_output_limit(driver: Driver, run: Run, most: int) -> None:
    until = time.monotonic() + 10
    while len(run.so_far()) <= most:
        assert time.monotonic() < until, "it writes no more"
        time.sleep(0.001)
    driver.stop(run, "output")


def run_in_a_weak_sandbox(image: Path, canary: Canary) -> RunResult:
    """Run a canary in the image alone: root to itself, with the host's network, no filter and no bounds."""
    weak = ["--unshare-user", "--unshare-pid", "--uid", "0", "--gid", "0", "--cap-add", "ALL", "--die-with-parent"]
    places = [*image_arguments(image), "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/scratch", "--tmpfs", "/out"]
    ran = subprocess.run(
        [BUBBLEWRAP, *weak, *places, "--chdir", "/scratch", "--", *canary.command],
        input=canary.stdin,
        capture_output=True,
        timeout=30,
        check=False,
        env={"PATH": "/usr/bin"},
        user=64_999,
        group=64_999,
        extra_groups=(),
    )
    return attrs.evolve(
        PLAIN,
        ending=Ending(Outcome.EXITED, ran.returncode),
        stdout=Text(ran.stdout, truncated=False),
        stderr=Text(ran.stderr, truncated=False),
    )
