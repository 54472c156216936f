"""Bubblewrap starts with nothing of a command, and whoever starts it keeps one end of each thing that it has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.sandbox.outside_check import status_of
from tests.sandbox.in_groups import standing
from tests.sandbox.launcher_driver import Driver, bounded, uids_alive

LONGEST_NAME = 63
"""Bytes: what may name a group."""


def streams_of(pid: int) -> list[tuple[int, str]]:
    return [(fd, str(Path(f"/proc/{pid}/fd/{fd}").readlink()).split(":")[0]) for fd in range(3)]


def test_its_streams_are_none_of_the_command_s(driver: Driver) -> None:
    run = driver.spawn(["node", "-e", "0"])
    reads = os.fstat(run.unread).st_ino
    for pid in uids_alive():
        assert streams_of(pid) == [(0, "pipe"), (1, "pipe"), (2, "pipe")]
        held = {Path(f"/proc/{pid}/fd/{each.name}").stat().st_ino for each in Path(f"/proc/{pid}/fd").iterdir()}
        assert reads not in held
    driver.stop(run)
    driver.failed(run)


def test_it_executes_the_starter_which_is_held_by_its_socket_alone(driver: Driver) -> None:
    run = driver.spawn(["node", "-e", "0"])
    (starter,) = (pid for pid in uids_alive() if status_of(pid)["NSpid"].split()[1:] == ["2"])
    numbers = sorted(int(each.name) for each in Path(f"/proc/{starter}/fd").iterdir())
    assert numbers == [0, 1, 2, 6, 7]
    assert "memfd:starter" in str(Path(f"/proc/{starter}/fd/6").readlink())
    assert str(Path(f"/proc/{starter}/fd/7").readlink()).startswith("socket:")
    others = [pid for pid in uids_alive() if pid != starter]
    assert not any(
        str(each.readlink()).startswith("socket:") for pid in others for each in Path(f"/proc/{pid}/fd").iterdir()
    )
    driver.stop(run)
    driver.failed(run)


def test_what_cannot_be_started_leaves_no_descriptor(driver: Driver) -> None:
    held = Path(f"/proc/{driver.process.pid}/fd")
    driver.run(["node", "-e", "0"])
    before = len(list(held.iterdir()))
    for _ in range(3):
        driver.failed(driver.begin(["node"], bounded(tasks=-1)))
        driver.failed(driver.begin(["node"], bounded(disk_bytes=0)))
    assert len(list(held.iterdir())) == before
    assert driver.run(["node", "-e", "console.log(1)"]).stdout == b"1\n"


@pytest.mark.parametrize("length", [1, 200])
def test_the_name_of_a_group_is_the_launcher_s_own_and_short_whatever_the_run_s_is(driver: Driver, length: int) -> None:
    run = driver.spawn(["node", "-e", "0"], name="r" * length)
    (name,) = {each.name for each in standing(Path("/sys/fs/cgroup"), driver.prefix)}
    assert len(name) < LONGEST_NAME
    assert "rr" not in name
    driver.stop(run)
    driver.failed(run)
