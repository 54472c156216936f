from __future__ import annotations

import os
import sys
from pathlib import Path

import attrs
import pytest

from gateway.sandbox import host_machine
from gateway.sandbox.cgroup_files import Finding
from gateway.sandbox.host_machine import Grade, Machine, Ran, Wanted, account, closes, fine, note, of_finding, run
from tests.sandbox.fake_host import a_machine

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts programs as another user")


def test_a_fact_has_its_grade_and_all_but_a_fine_one_a_reason_and_a_fix() -> None:
    assert fine("x", "all is well").as_json() == {
        "name": "x",
        "grade": "fine",
        "fact": "all is well",
        "consequence": "",
        "fix": "",
        "reason": None,
    }
    assert note("x", "sandbox.y", "a", "b", "c").grade is Grade.NOTE
    assert closes("x", "sandbox.y", "a", "b", "c").as_json()["reason"] == "sandbox.y"
    found = of_finding("cgroups", Grade.CLOSES, Finding("sandbox.z", "the fact", "so", "do"))
    assert attrs.astuple(found) == ("cgroups", Grade.CLOSES, "the fact", "so", "do", "sandbox.z")


def test_a_program_is_run_and_heard_on_both_streams_without_the_environment() -> None:
    script = "import os, sys; print(sorted(os.environ)); sys.stdout.flush(); sys.exit('no')"
    ran = run([sys.executable, "-I", "-c", script], None)
    assert ran.code == 1
    assert "PATH" not in ran.said
    assert ran.said.endswith("no")


@ROOT
def test_a_program_is_run_as_another_user_without_the_groups_of_this_one() -> None:
    assert run(["/usr/bin/id"], 64_987) == Ran(0, "uid=64987 gid=64987 groups=64987")


def test_a_program_that_is_not_there_has_no_exit_code() -> None:
    assert run(["/nowhere/bwrap"], None) == Ran(None, "No such file or directory")


def test_a_program_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_machine, "PATIENCE_S", 0.2)
    ran = run([sys.executable, "-c", "import signal; signal.pause()"], None)
    assert (ran.code, ran.said) == (-9, "it did not end within 0 s")


def test_accounts_have_names_and_other_users_none() -> None:
    assert account(0) == "root"
    assert account(4_000_000_123) is None


def test_this_machine_is_read_as_it_is() -> None:
    machine = Machine()
    assert machine.arch == os.uname().machine
    assert machine.uid == os.geteuid()
    assert 1 <= machine.cores <= (os.cpu_count() or 1)
    assert machine.memory_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert machine.lock().machine == machine.arch


def test_what_is_not_in_proc_is_none(tmp_path: Path) -> None:
    machine = a_machine(tmp_path, files={"meminfo": "", "words": "many\n", "number": "-3\n"})
    assert machine.read("sys/nothing") is None
    assert machine.read("self") is None
    assert machine.number("words") is None
    assert machine.number("number") == -3
    assert machine.memory_bytes == 0


def test_under_root_each_core_has_a_slot_with_a_user_of_its_own(tmp_path: Path) -> None:
    machine = a_machine(tmp_path, cores=3)
    assert Wanted().slots_on(machine) == 3
    assert Wanted().uids_on(machine) == range(64_400, 64_403)
    assert Wanted(slots=5, first_uid=70_000).uids_on(machine) == range(70_000, 70_005)


def test_without_privilege_there_is_one_slot_as_the_node_s_own_user(tmp_path: Path) -> None:
    machine = a_machine(tmp_path, uid=1000)
    assert Wanted(slots=5).slots_on(machine) == 1
    assert Wanted(slots=5).uids_on(machine) == range(1000, 1001)
    assert Wanted(slots=5, launcher=("sudo", "-n")).slots_on(machine) == 5


def test_runs_may_take_half_of_the_memory_unless_it_is_said(tmp_path: Path) -> None:
    machine = a_machine(tmp_path)
    assert machine.memory_bytes == 2**34
    assert Wanted().memory_on(machine) == 2**33
    assert Wanted(memory_bytes=2**30).memory_on(machine) == 2**30
