from __future__ import annotations

from pathlib import Path

import pytest

from gateway.sandbox.host_machine import Grade, Wanted
from gateway.sandbox.host_users import BECOMES_ANOTHER, REACHES_ANOTHER, launcher, slot_users
from tests.sandbox.fake_host import WANTED, a_machine

ALL = 0x1FFFFFFFFFF


def holding(capabilities: int) -> dict[str, str]:
    return {"self/status": f"Name:\tx\nUid:\t0\t0\t0\t0\nCapPrm:\t{0:016x}\nCapEff:\t{capabilities:016x}\n"}


def test_root_with_its_capabilities_is_fine(tmp_path: Path) -> None:
    found = launcher(a_machine(tmp_path, files=holding(ALL)), WANTED)
    assert (found.grade, found.fact) == (Grade.FINE, "root, which gives each slot a user of its own")


def test_only_these_capabilities_are_needed(tmp_path: Path) -> None:
    needed = sum(1 << bit for bit in (*BECOMES_ANOTHER.values(), *REACHES_ANOTHER.values()))
    assert launcher(a_machine(tmp_path, files=holding(needed)), WANTED).grade is Grade.FINE


@pytest.mark.parametrize("lacking", BECOMES_ANOTHER)
def test_root_that_cannot_become_another_user_closes_the_sandbox(tmp_path: Path, lacking: str) -> None:
    found = launcher(a_machine(tmp_path, files=holding(ALL & ~(1 << BECOMES_ANOTHER[lacking]))), WANTED)
    assert (found.grade, found.reason) == (Grade.CLOSES, "sandbox.launcher_root_uid")
    assert found.fact == f"it is root without {lacking}"
    assert lacking in found.fix


@pytest.mark.parametrize("lacking", REACHES_ANOTHER)
def test_root_that_may_not_reach_into_a_run_is_a_note(tmp_path: Path, lacking: str) -> None:
    found = launcher(a_machine(tmp_path, files=holding(ALL & ~(1 << REACHES_ANOTHER[lacking]))), WANTED)
    assert (found.grade, found.reason) == (Grade.NOTE, "sandbox.launcher_short_of_capabilities")
    assert (lacking in found.fact, lacking in found.fix) == (True, True)


def test_a_node_that_is_not_root_sells_one_run_at_a_time(tmp_path: Path) -> None:
    found = launcher(a_machine(tmp_path, uid=1000, files=holding(0)), WANTED)
    assert (found.grade, found.reason) == (Grade.NOTE, "sandbox.one_slot")
    assert "uid 1000" in found.fact


def test_a_launcher_that_is_given_privilege_is_not_tried(tmp_path: Path) -> None:
    found = launcher(a_machine(tmp_path, uid=1000, files=holding(0)), Wanted(launcher=("sudo", "-n")))
    assert (found.grade, "`sudo -n`" in found.fact) == (Grade.FINE, True)


def test_a_launcher_that_can_be_given_no_privilege_is_a_note(tmp_path: Path) -> None:
    bound = {"self/status": "Name:\tpython\nNoNewPrivs:\t1\nCapEff:\t0000000000000000\n"}
    found = launcher(a_machine(tmp_path, uid=1000, files=bound), Wanted(launcher=("sudo", "-n")))
    assert (found.grade, found.reason) == (Grade.NOTE, "sandbox.no_new_privileges")
    assert "NoNewPrivileges=no" in found.fix


def test_users_whom_nobody_else_has_are_fine(tmp_path: Path) -> None:
    (found,) = slot_users(a_machine(tmp_path), WANTED)
    assert (found.grade, found.fact) == (Grade.FINE, "uids 64400 to 64401, which nobody else has")


def test_an_account_with_the_uid_of_a_slot_closes_the_sandbox(tmp_path: Path) -> None:
    (found,) = slot_users(a_machine(tmp_path), Wanted(slots=1, first_uid=65_534))
    assert (found.grade, found.reason) == (Grade.CLOSES, "sandbox.slot_uid_in_use")
    assert found.fact == "uid 65534 is the account nobody"
    assert "first_uid" in found.fix
    (last,) = slot_users(a_machine(tmp_path / "b"), Wanted(slots=2, first_uid=65_533))
    assert last.reason == "sandbox.slot_uid_in_use"


def test_a_foreign_process_with_the_uid_of_a_slot_is_a_note(tmp_path: Path) -> None:
    theirs = {"77/status": "Name:\tx\nUid:\t64401\t64401\t64401\t64401\n", "77/cgroup": "0::/user.slice\n"}
    (found,) = slot_users(a_machine(tmp_path, files=theirs), WANTED)
    assert (found.grade, found.reason) == (Grade.NOTE, "sandbox.slot_uid_shared")
    assert "process 77 has uid 64401" in found.fact


def test_a_run_of_this_node_s_own_and_a_process_that_is_gone_are_no_foreign_ones(tmp_path: Path) -> None:
    own = {"77/status": "Uid:\t64401\t64401\n", "77/cgroup": f"4:memory:/a/{WANTED.prefix}17\n0::/\n"}
    gone = {"78/status": "Uid:\t64401\t64401\n", "79/cgroup": "0::/\n"}
    (found,) = slot_users(a_machine(tmp_path, files=own | gone), WANTED)
    assert found.grade is Grade.FINE


def test_a_user_that_this_namespace_lacks_closes_the_sandbox(tmp_path: Path) -> None:
    narrow = {"self/uid_map": "         0     100000       1000\n      1000 1000 1\n"}
    (found,) = slot_users(a_machine(tmp_path, files=narrow), WANTED)
    assert (found.grade, found.reason) == (Grade.CLOSES, "sandbox.slot_uid_unmapped")
    assert "uid 64400 does not exist" in found.fact
    wide = {"self/uid_map": "         0     100000      64402\n"}
    (found,) = slot_users(a_machine(tmp_path / "wide", files=wide), WANTED)
    assert found.grade is Grade.FINE
    short = {"self/uid_map": "         0     100000      64401\n"}
    (found,) = slot_users(a_machine(tmp_path / "short", files=short), WANTED)
    assert "uid 64401 does not exist" in found.fact


def test_a_kernel_without_user_namespaces_maps_nothing(tmp_path: Path) -> None:
    machine = a_machine(tmp_path)
    (machine.proc / "self/uid_map").unlink()
    (found,) = slot_users(machine, WANTED)
    assert found.grade is Grade.FINE


def test_without_privilege_the_node_s_own_user_is_not_looked_at(tmp_path: Path) -> None:
    assert slot_users(a_machine(tmp_path, uid=1000, account=lambda uid: "me"), WANTED) == []
