"""Ending, proving and removing groups on a real v2 tree, with and without what newer kernels have."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.sandbox.cgroup_files import Files
from gateway.sandbox.cgroup_trees import GroupTrees, leftovers, remove_directory, sweep
from gateway.sandbox.cgroups import ROOT
from tests.sandbox.in_groups import EIGHT_DEAF_CHILDREN, a_prefix, ended, heard, start, unavailable

FORK_WITHOUT_END = (
    "import os\nprint('started', flush=True)\nwhile True:\n  if os.fork() == 0: os._exit(0)\n  os.wait()\n"
)


class AnOlderKernel(Files):
    """The real files, but for some that it has not got yet."""

    def __init__(self, *missing: str) -> None:
        self.missing = missing

    def write(self, path: Path, text: str) -> None:
        if path.name in self.missing:
            raise OSError(errno.ENOENT, "no such file on this kernel", str(path))
        super().write(path, text)


@pytest.fixture
def directory() -> Iterator[Path]:
    root = next((each for each in (ROOT, ROOT / "unified") if (each / "cgroup.controllers").exists()), None)
    if root is None or os.geteuid() != 0:
        unavailable("no cgroup v2 tree here, or no root")
        raise AssertionError
    group = root / a_prefix()
    group.mkdir()
    yield group
    if group.exists():
        (group / "cgroup.kill").write_text("1")
        assert remove_directory(Files(), group, time.monotonic() + 2)


def a_group(directory: Path, *missing: str) -> GroupTrees:
    return GroupTrees({"unified": directory}, AnOlderKernel(*missing))


@pytest.mark.parametrize("missing", [(), ("cgroup.kill",), ("cgroup.kill", "cgroup.freeze")])
def test_a_tree_of_eight_is_ended_on_kernels_of_any_age(directory: Path, missing: tuple[str, ...]) -> None:
    group = a_group(directory, *missing)
    program = start(group, EIGHT_DEAF_CHILDREN)
    heard(program, "started")
    began = time.monotonic()
    assert group.kill()
    assert time.monotonic() - began < 0.2
    assert ended(program) == -9
    assert group.remove() == ()
    assert not directory.exists()


def test_a_program_that_forks_all_the_time_is_frozen_and_ended(directory: Path) -> None:
    group = a_group(directory, "cgroup.kill")
    program = start(group, FORK_WITHOUT_END)
    heard(program, "started")
    assert group.kill()
    assert ended(program) == -9


def test_where_pidfds_are_denied_processes_are_ended_by_number(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_pid: int) -> int:
        raise PermissionError(errno.EPERM, "a container's filter")

    monkeypatch.setattr(os, "pidfd_open", denied)
    group = a_group(directory, "cgroup.kill")
    program = start(group, EIGHT_DEAF_CHILDREN)
    heard(program, "started")
    assert group.kill()
    monkeypatch.undo()
    assert ended(program) == -9


def test_a_number_that_passed_to_a_stranger_is_spared(directory: Path) -> None:
    stranger = subprocess.Popen(["/bin/sleep", "60"])
    a_group(directory)._end(directory, stranger.pid)
    stranger.terminate()
    assert stranger.wait(timeout=5) == -signal.SIGTERM  # of this, not of the other


def test_a_number_that_nobody_has_is_passed_over(directory: Path) -> None:
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    a_group(directory)._end(directory, gone.pid)


@pytest.mark.parametrize("missing", [(), ("cgroup.kill",)])
def test_without_waiting_a_kill_is_only_begun(directory: Path, missing: tuple[str, ...]) -> None:
    group = a_group(directory, *missing)
    program = start(group, EIGHT_DEAF_CHILDREN)
    heard(program, "started")
    began = time.monotonic()
    group.begin_to_kill()
    assert time.monotonic() - began < 0.05
    assert ended(program) == -9
    assert group.kill()


def test_a_zombie_does_not_populate_its_group(directory: Path) -> None:
    group = a_group(directory)
    program = start(group, "print('started', flush=True)\nimport time; time.sleep(60)")
    heard(program, "started")
    assert group.kill()
    assert not group.populated()
    assert Path(f"/proc/{program.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    assert ended(program) == -9
    assert group.remove() == ()


def test_groups_within_are_ended_and_removed_too(directory: Path) -> None:
    (directory / "inner" / "innermost").mkdir(parents=True)
    group = a_group(directory)
    program = start(a_group(directory / "inner" / "innermost"), EIGHT_DEAF_CHILDREN)
    heard(program, "started")
    assert group.populated()
    assert group.kill()
    assert ended(program) == -9
    assert group.remove() == ()
    assert not directory.exists()


def test_the_groups_that_this_process_is_in_are_spared(tmp_path: Path) -> None:
    for each in ("gateway-a/gateway-b/inner", "gateway-c", "gateway.own", "gateway-d.scope"):
        (tmp_path / each).mkdir(parents=True)
    own = {"unified": tmp_path / "gateway-a" / "gateway-b"}
    found = leftovers({"unified": tmp_path}, own, "gateway", Files())
    assert [group.name for group in found] == ["gateway-c"]


def test_directories_of_one_name_in_several_places_are_each_swept(tmp_path: Path) -> None:
    for each in ("memory/a/gateway-x", "memory/b/gateway-x", "pids/gateway-x"):
        (tmp_path / each).mkdir(parents=True)
    roots = {tree: tmp_path / tree for tree in ("memory", "pids")}
    swept = sweep(leftovers(roots, {}, "gateway", Files()))
    assert (swept.removed, swept.left) == (("gateway-x", "gateway-x"), ())
    assert not list(tmp_path.rglob("gateway-x"))


def test_a_link_is_not_followed_by_a_sweep(tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "gateway-x").mkdir(parents=True)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "elsewhere")
    assert leftovers({"unified": tmp_path / "tree"}, {}, "gateway", Files()) == []
