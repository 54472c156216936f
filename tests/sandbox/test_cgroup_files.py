"""The kernel's files are read as it writes them, and never made."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gateway.sandbox import cgroup_files
from gateway.sandbox.cgroup_files import Descriptor, Files, MechanismMissing


def test_a_file_that_the_kernel_has_not_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Files().write(tmp_path / "memory.peak", "1")
    assert list(tmp_path.iterdir()) == []


def test_fields_are_the_lines_of_a_name_and_a_number(tmp_path: Path) -> None:
    path = tmp_path / "cpu.stat"
    path.write_text("usage_usec 12\nburst -\nthree words here\n\nuser_usec 7\n")
    assert cgroup_files.fields(Files(), path) == {"usage_usec": 12, "user_usec": 7}
    assert cgroup_files.fields(Files(), tmp_path / "absent") == {}


def test_processes_outside_this_pid_namespace_are_no_members(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("0\n17\n0\n18\n")
    assert cgroup_files.members(Files(), tmp_path) == [17, 18]
    assert cgroup_files.members(Files(), tmp_path / "absent") == []


def test_own_paths_are_told_by_controller(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("3:cpu,cpuacct:/a:b\n2:name=systemd:/c\n0::/d\n")
    assert cgroup_files.own_paths(Files(), tmp_path) == {
        "cpu": "/a:b",
        "cpuacct": "/a:b",
        "name=systemd": "/c",
        "": "/d",
    }


def test_a_proc_without_these_files_tells_neither_swap_nor_what_is_disabled(tmp_path: Path) -> None:
    assert not cgroup_files.swaps(Files(), tmp_path)
    assert not cgroup_files.switched_off(Files(), tmp_path, "memory")


def test_a_missing_file_names_its_controller(tmp_path: Path) -> None:
    with pytest.raises(MechanismMissing) as missing:
        cgroup_files.bound(Files(), "pids", tmp_path / "pids.max", 3)
    [finding] = missing.value.findings
    assert (finding.reason, finding.fact) == (
        "sandbox.pids_controller_missing",
        "the pids controller of this kernel has no pids.max",
    )


def test_a_kernel_s_other_refusal_is_raised_as_it_is(tmp_path: Path) -> None:
    class Refusing(Files):
        def write(self, path: Path, text: str) -> None:
            raise OSError(errno.EINVAL, text, str(path))

    with pytest.raises(OSError, match="Errno 22"):
        cgroup_files.bound(Refusing(), "cpu", tmp_path / "cpu.max", "1 2")


def test_a_descriptor_is_closed_once() -> None:
    mine = Descriptor(os.open("/dev/null", os.O_RDONLY))
    number = mine.fileno()
    mine.close()
    another = os.open("/dev/null", os.O_RDONLY)
    assert another == number
    mine.close()
    os.close(another)
    assert mine.fileno() == -1


@pytest.mark.parametrize("controller", ["memory", "pids", "cpu", "cpuacct"])
def test_every_finding_has_a_consequence_and_a_fix(controller: str) -> None:
    for finding in (
        cgroup_files.disabled(controller),
        cgroup_files.bound_missing(controller, Path("x")),
        cgroup_files.not_writable(Path("x")),
        cgroup_files.swap_unbounded("so it is"),
    ):
        assert finding.reason.startswith("sandbox.")
        assert finding.fact
        assert finding.consequence
        assert finding.fix
