"""What a sandbox is given, and what is made of what bubblewrap tells."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.sandbox.launcher_messages import Ready
from tests.sandbox.in_groups import a_prefix
from tests.sandbox.launcher_driver import BUBBLEWRAP, FIRST_UID, Driver, bounded, none_alive, uids_alive

ROOT = Path(__file__).parents[2]


def test_a_run_without_a_command_never_runs_and_leaves_nothing(driver: Driver) -> None:
    run = driver.begin([])
    failed = driver.failed(run)
    assert (failed.reason, failed.left) == ("sandbox.setup_failed", None)
    assert "each end with NUL" in failed.detail
    assert run.stdout == b""


def test_a_bound_that_cannot_be_set_up_fails_that_run_alone(driver: Driver) -> None:
    run = driver.begin(["node", "-e", "0"], bounded(disk_bytes=0))
    failed = driver.failed(run)
    assert (failed.reason, failed.left) == ("sandbox.bwrap_failed", None)
    assert failed.detail.startswith("bubblewrap ended with 1 before the release: bwrap: --size")
    assert driver.run(["node", "-e", "console.log(1)"]).stdout == b"1\n"


def test_the_longest_command_there_may_be_is_handed_over_whole(driver: Driver) -> None:
    arguments = ["ä" * 2048 + "𝄞" * 2048] * 29
    script = "console.log(process.argv.length, new Set(process.argv.slice(1)).size, process.argv[1].length)"
    assert driver.run(["node", "-e", script, *arguments]).stdout == b"30 1 6144\n"


@pytest.mark.parametrize("released", [False, True] * 3)
def test_every_child_is_reaped_before_a_run_is_told_to_be_over(driver: Driver, released: bool) -> None:
    children = Path(f"/proc/{driver.process.pid}/task/{driver.process.pid}/children")
    switch = children.read_text()
    run = driver.spawn(["node", "-e", "setInterval(() => {}, 1e3)"])
    if released:
        driver.release(run)
        driver.stop(run)
        driver.ended(run)
        seen = children.read_text()
        driver.clear(run)
    else:
        driver.stop(run)
        driver.failed(run)
        seen = children.read_text()
    assert seen == switch


def starter_is_there() -> bool:
    with suppress(OSError):
        return any("memfd:starter" in str(Path(f"/proc/{pid}/exe").readlink()) for pid in uids_alive())
    return False


def step(driver: Driver) -> None:
    """Let the launcher go on for a moment, and all others meanwhile as far as they come without it."""
    driver.process.send_signal(signal.SIGCONT)
    time.sleep(0.0002)
    driver.process.send_signal(signal.SIGSTOP)
    time.sleep(0.02)


def test_one_that_is_stopped_while_its_starter_says_that_it_is_there_is_not_held(driver: Driver) -> None:
    unheard = False
    while not unheard:
        driver.process.send_signal(signal.SIGSTOP)
        run = driver.begin(["node", "-e", "0"])
        while not starter_is_there() and driver.silent():
            step(driver)
        unheard = driver.silent()
        driver.stop(run)
        driver.process.send_signal(signal.SIGCONT)
        if not unheard:  # the launcher was too fast
            driver.expect(Ready, run.name)
        assert driver.failed(run).reason == "sandbox.stopped"
    assert driver.run(["node", "-e", "0"]).told().exit_code == 0
    assert driver.silent()


KILLED_WHEN_LOOKED_AT = """
import os, signal, sys
from pathlib import Path
_, root, image, bubblewrap_, prefix, user = sys.argv
sys.path.append(root)
from gateway.sandbox import bubblewrap, cgroups, outside_check, starter
from gateway.sandbox.bubblewrap_start import Place
from gateway.sandbox.cgroup_files import Files, members
from gateway.sandbox.event_loop import EventLoop
from gateway.sandbox.rehearsal import rehearse
from gateway.sandbox.kernel_calls import PR_SET_CHILD_SUBREAPER, prctl

def killed(init, places, _):
    for pid in members(Files(), places["pids"]):
        os.kill(pid, signal.SIGKILL)
    while outside_check.status_of(init)["State"][0] != "Z":
        pass
    return ()

prctl(PR_SET_CHILD_SUBREAPER, 1)
outside_check.faults = killed
image = bubblewrap.image_arguments(Path(image))
place = Place(Path(bubblewrap_), image, cgroups.find(), EventLoop(), prefix, starter.open_starter(os.uname().machine))
print(rehearse(place, int(user)).reason)
"""


def test_one_that_dies_just_as_it_was_looked_at_has_failed(image_of_runs: Path) -> None:
    told = (str(ROOT), str(image_of_runs), BUBBLEWRAP, a_prefix(), str(FIRST_UID))
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", KILLED_WHEN_LOOKED_AT, *told],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == ("sandbox.bwrap_failed\n", "", 0)
    assert none_alive()
