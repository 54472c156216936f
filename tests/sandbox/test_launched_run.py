"""A run goes one way, whatever is said of it and in what order."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.sandbox.cgroups import ROOT
from gateway.sandbox.launched_run import LONGEST_COMMAND, read_command
from gateway.sandbox.launcher_messages import Clear, Cleared
from gateway.sandbox.outside_check import status_of
from tests.sandbox.in_groups import eventually, standing
from tests.sandbox.launcher_driver import MIB, Driver, Run, uids_alive

FOREVER = ["node", "-e", "setInterval(() => {}, 1000); console.log('there')"]


def running(driver: Driver) -> Run:
    run = driver.spawn(FOREVER)
    driver.release(run)
    assert eventually(lambda: b"there" in run.so_far(), within=10)
    return run


def test_the_first_reason_counts(driver: Driver) -> None:
    run = running(driver)
    driver.stop(run, "output")
    driver.stop(run, "cancelled")
    assert driver.ended(run).stopped == "output"
    driver.stop(run, "wall")
    driver.clear(run)


def test_a_second_release_changes_nothing(driver: Driver) -> None:
    run = running(driver)
    driver.release(run)
    driver.stop(run)
    assert driver.ended(run).stopped == "cancelled"
    driver.release(run)
    assert driver.clear(run).cgroups == 0


def test_clear_waits_for_the_end(driver: Driver) -> None:
    run = running(driver)
    driver.say(Clear(run.name))
    driver.stop(run)
    assert driver.ended(run).processes == 0
    assert driver.clear(run).cgroups == 0


def writes(driver: Driver, script: str) -> Run:
    """Run this to its end."""
    run = driver.spawn(["node", "-e", f"const fs = require('fs'); {script}"])
    driver.release(run)
    assert driver.ended(run).processes == 0
    return run


def test_a_run_that_left_nothing_is_cleared_away_unasked(driver: Driver) -> None:
    run = writes(driver, "fs.writeFileSync('/scratch/a', 'x'.repeat(8192)); fs.rmSync('/out/b', {force: true})")
    assert (run.left, run.told().disk_bytes) == ((), 8192)
    cleared, _ = driver.expect(Cleared, run.name)
    assert (cleared.mounts, cleared.cgroups) == (0, 0)
    assert standing(ROOT, driver.prefix) == []
    driver.say(Clear(run.name))
    assert driver.run(["node", "-e", "0"]).told().exit_code == 0
    assert driver.silent()


@pytest.mark.parametrize(
    ("script", "disk_bytes"),
    [("fs.mkdirSync('/out/a')", 0), ("fs.writeFileSync('/scratch/a', Buffer.alloc(24 << 20))", 24 * MIB)],
    ids=["in /out", "much in /scratch"],
)
def test_what_a_run_has_left_stands_until_nobody_holds_it(driver: Driver, script: str, disk_bytes: int) -> None:
    run = writes(driver, script)
    assert (len(run.left), run.told().disk_bytes) == (2, disk_bytes)
    assert not {os.fstat(each).st_dev for each in run.left} & devices_open_in(driver.process.pid)
    assert driver.failed(driver.begin(["node"])).reason == "sandbox.spawn_refused"  # the slot is still its own
    cleared = driver.clear(run)
    assert (cleared.mounts, cleared.cgroups) == (0, 0)


def devices_open_in(pid: int) -> set[int]:
    return {each.stat().st_dev for each in Path(f"/proc/{pid}/fd").iterdir()}


def test_what_is_said_of_a_run_that_is_not_known_is_not_answered(driver: Driver) -> None:
    stranger = Run("run-of-nobody", -1)
    driver.release(stranger)
    driver.stop(stranger)
    assert driver.run(["node", "-e", "console.log(1)"]).stdout == b"1\n"


def test_a_slot_is_free_again_after_a_failure_and_after_a_clear(driver: Driver) -> None:
    run = driver.spawn(FOREVER)
    driver.stop(run)
    driver.failed(run)
    assert driver.run(["node", "-e", "0"]).told().exit_code == 0
    assert driver.run(["node", "-e", "0"]).told().exit_code == 0


def test_what_the_command_left_running_ends_with_it(driver: Driver) -> None:
    script = """
const child = require('child_process').spawn('node', ['-e', 'setInterval(() => {}, 1e3); console.log(1)'],
    {detached: true, stdio: ['ignore', 'pipe', 'inherit']});
child.stdout.on('data', () => { console.log('there'); process.exit(3) });
"""
    ran = driver.run(["node", "-e", script])
    assert (ran.stdout, ran.told().exit_code, ran.told().processes) == (b"there\n", 3, 0)


@pytest.fixture
def file() -> Iterator[int]:
    descriptor = os.memfd_create("command")
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("command", [[b"node"], [b"node", b"", b"\xff\n"], [b""]])
def test_a_command_is_read_as_it_was_written_wherever_the_file_stands(file: int, command: list[bytes]) -> None:
    os.write(file, b"".join(each + b"\0" for each in command))
    assert read_command(file) == command


@pytest.mark.parametrize("content", [b"", b"node", b"node\0-e", b"x" * LONGEST_COMMAND + b"\0"])
def test_what_is_no_command_is_refused(file: int, content: bytes) -> None:
    os.write(file, content)
    with pytest.raises(ValueError, match="each end with NUL"):
        read_command(file)


def test_a_command_s_pipes_are_its_user_s_and_what_is_no_pipe_stays_whose_it_was(driver: Driver) -> None:
    before = Path("/dev/null").stat()
    script = "const fs = require('fs'); fs.writeFileSync('/dev/stdout', fs.readFileSync('/dev/stdin'))"
    assert driver.run(["node", "-e", script], stdin=b"given", slot=1).stdout == b"given"
    after = Path("/dev/null").stat()
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid) == (0, 0)


def processes() -> tuple[int, int]:
    """The bubblewrap and the starter of the one sandbox that there is."""
    pids = sorted(uids_alive(), key=lambda pid: len(status_of(pid)["NSpid"].split()))
    return pids[0], next(pid for pid in pids if status_of(pid)["NSpid"].split()[1:] == ["2"])


def test_one_whose_starter_is_gone_at_its_release_never_ran(driver: Driver) -> None:
    run = driver.spawn(["node", "-e", "console.log('there')"])
    outer, starter = processes()
    os.kill(outer, signal.SIGSTOP)  # so that it does not tell of it
    os.kill(starter, signal.SIGKILL)
    assert eventually(lambda: starter not in uids_alive())
    driver.release(run)
    failed = driver.failed(run)
    assert (failed.reason, failed.left, run.stdout) == ("sandbox.starter_gone", None, b"")


def test_one_whose_starter_is_killed_before_it_takes_its_order_was_not_started(driver: Driver) -> None:
    run = driver.spawn(["node", "-e", "console.log('there')"])
    _, starter = processes()
    os.kill(starter, signal.SIGSTOP)
    driver.release(run)
    assert driver.failed(driver.begin(["node"], slot=9)).reason == "sandbox.spawn_refused"  # so it was let go
    os.kill(starter, signal.SIGKILL)
    told = driver.ended(run)
    assert (told.exit_code, told.sandbox_status is not None and os.WIFEXITED(told.sandbox_status)) == (None, True)
    assert run.stdout == b""
    driver.clear(run)


@pytest.mark.parametrize("reason", ["output", "wall", "cpu", "cancelled"])
def test_what_could_not_be_executed_was_not_started_whatever_ends_it(driver: Driver, reason: str) -> None:
    run = driver.spawn(["nothing"])
    outer, _ = processes()
    os.kill(outer, signal.SIGSTOP)
    driver.release(run)
    assert eventually(lambda: b"No such file" in run.so_far(1), within=10)
    driver.stop(run, reason)
    told = driver.ended(run)
    assert (told.exit_code, told.sandbox_status is not None and os.WIFEXITED(told.sandbox_status)) == (None, True)
    driver.clear(run)
