"""What a sandbox is given, and what is made of what bubblewrap tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sandbox.launcher_driver import Driver, bounded


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
