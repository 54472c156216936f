"""A sandbox is looked at from outside before its command runs: every fault is seen, and of a right one nothing is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.sandbox.outside_check import blocked, faults, faults_of_starter, mount_faults, status_of
from tests.sandbox.in_namespaces import sleeping
from tests.sandbox.launcher_driver import FIRST_UID, Driver, Run

RIGHT = [
    "10 1 0:1 / / ro,nosuid,nodev,relatime - tmpfs tmpfs rw",
    "11 10 8:1 /image/usr /usr ro,nosuid,nodev,relatime - ext4 /dev/vda rw",
    "12 10 0:2 / /proc ro,nosuid,nodev,noexec,relatime - proc proc rw,hidepid=invisible,subset=pid",
    "13 10 0:3 / /dev ro,nosuid,nodev,relatime - tmpfs tmpfs rw",
    "14 13 0:4 /null /dev/null rw,nosuid,relatime - devtmpfs devtmpfs rw",
    "15 10 0:5 / /scratch rw,nosuid,nodev,noexec,relatime - tmpfs tmpfs rw,size=4k",
    "16 10 0:6 / /out rw,nosuid,nodev,noexec,relatime - tmpfs tmpfs rw,size=4k",
]


@pytest.fixture
def held(driver: Driver) -> Iterator[Run]:
    run = driver.spawn(["node", "-e", "0"])
    yield run
    driver.stop(run)
    driver.failed(run)


def init_of(run: Run) -> tuple[int, dict[str, Path]]:
    assert run.ready is not None
    places = {tree: Path(path) for tree, path in run.ready.places.items()}
    pids = [int(each) for each in (places["pids"] / "cgroup.procs").read_text().split()]
    return next(each for each in pids if status_of(each)["NSpid"].endswith("\t1")), places


def test_a_held_sandbox_has_no_fault(held: Run) -> None:
    init, places = init_of(held)
    assert list(faults(init, places, FIRST_UID)) == []


def starter_of(run: Run) -> tuple[int, int]:
    init, places = init_of(run)
    pids = [int(each) for each in (places["pids"] / "cgroup.procs").read_text().split()]
    return next(each for each in pids if status_of(each)["NSpid"].endswith("\t2")), init


def test_the_starter_of_a_held_sandbox_has_no_fault(held: Run) -> None:
    starter, init = starter_of(held)
    assert list(faults_of_starter(starter, init, filtered=True)) == []


def test_a_starter_under_another_parent_or_that_is_not_the_second_process_is_a_fault(held: Run) -> None:
    starter, init = starter_of(held)
    second = ["the starter is not the second process of its namespace"]
    assert list(faults_of_starter(starter, init + 1, filtered=True)) == second
    assert list(faults_of_starter(init, int(status_of(init)["PPid"]), filtered=True)) == second


def test_an_ordinary_process_is_no_starter() -> None:
    told = "\n".join(faults_of_starter(os.getpid(), os.getppid(), filtered=True))
    for each in ("may gain privileges", "not the second process", "not under a filter"):
        assert each in told


def test_another_user_than_was_asked_for_is_a_fault(held: Run) -> None:
    init, places = init_of(held)
    told = list(faults(init, places, FIRST_UID + 1))
    assert [each.split()[0] for each in told] == ["Uid", "Uid", "Gid", "Gid"]


def test_a_group_that_it_is_not_in_is_a_fault(held: Run, tmp_path: Path) -> None:
    init, places = init_of(held)
    (tmp_path / "cgroup.procs").write_text("1\n")
    assert list(faults(init, {**places, "other": tmp_path}, FIRST_UID)) == [f"it is not in {tmp_path}"]


def test_an_ordinary_process_is_nothing_but_faults() -> None:
    told = "\n".join(faults(os.getpid(), {}, None))
    for each in ("it may gain privileges", "not the first process", "Uid", "mapped", "/scratch is not mounted"):
        assert each in told
    for kind in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
        assert f"it is in the host's {kind} namespace" in told


def test_who_has_capabilities_is_not_taken_for_blocked() -> None:
    with sleeping("-m") as pid:
        if status_of(pid)["CapEff"].strip("0"):
            assert not blocked(pid)


def test_who_is_gone_cannot_be_looked_at() -> None:
    with sleeping("-m") as pid:
        pass
    with pytest.raises(OSError, match="No such"):
        blocked(pid)


def test_right_mounts_have_no_fault() -> None:
    assert list(mount_faults("\n".join(RIGHT))) == []


@pytest.mark.parametrize(
    ("line", "was", "becomes", "fault"),
    [
        (0, "ro,", "rw,", "/ is mounted rw,nosuid,nodev,relatime"),
        (1, "ro,", "rw,", "/usr is mounted rw,nosuid,nodev,relatime"),
        (1, "nosuid,", "", "/usr is mounted ro,nodev,relatime"),
        (2, "subset=pid", "subset=no", "/proc is mounted proc proc rw,hidepid=invisible,subset=no"),
        (2, "hidepid=invisible", "hidepid=0", "/proc is mounted proc proc rw,hidepid=0,subset=pid"),
        (3, "ro,", "rw,", "/dev is mounted rw,nosuid,nodev,relatime"),
        (5, "noexec,", "", "/scratch is mounted rw,nosuid,nodev,relatime"),
        (6, "nodev,", "", "/out is mounted rw,nosuid,noexec,relatime"),
        (4, "/dev/null", "/dev/kmsg", "/dev/kmsg is mounted rw,nosuid,relatime"),
    ],
)
def test_a_mount_that_is_not_right_is_a_fault(line: int, was: str, becomes: str, fault: str) -> None:
    wrong = [*RIGHT]
    wrong[line] = wrong[line].replace(was, becomes, 1)
    assert list(mount_faults("\n".join(wrong))) == [fault]


@pytest.mark.parametrize("line", [2, 5, 6])
def test_a_mount_that_is_missing_is_a_fault(line: int) -> None:
    place = RIGHT[line].split()[4]
    assert list(mount_faults("\n".join(RIGHT[:line] + RIGHT[line + 1 :]))) == [f"{place} is not mounted"]
