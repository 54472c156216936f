from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gateway.sandbox.host_bubblewrap import NAMESPACES, bubblewrap, namespaces, trial
from gateway.sandbox.host_machine import Grade, Machine, Ran, Wanted
from tests.sandbox.fake_host import WANTED, Programs, a_bwrap, a_machine

DENIED = Ran(1, "bwrap: setting up uid map: Permission denied")


def test_a_new_bubblewrap_is_fine(tmp_path: Path) -> None:
    machine = a_machine(tmp_path)
    (found,) = bubblewrap(machine)
    assert (found.grade, found.fact) == (Grade.FINE, f"{machine.bubblewrap}, 0.12.0")


def test_without_bubblewrap_the_sandbox_is_closed(tmp_path: Path) -> None:
    (found,) = bubblewrap(a_machine(tmp_path, bubblewrap=None))
    assert (found.grade, found.reason) == (Grade.CLOSES, "sandbox.bwrap_missing")
    assert "apt install bubblewrap" in found.fix


def test_a_path_that_leads_nowhere_closes_the_sandbox(tmp_path: Path) -> None:
    found = bubblewrap(a_machine(tmp_path, bubblewrap=f"{tmp_path}/none", programs=Programs(version="")))
    assert [each.reason for each in found] == ["sandbox.bwrap_missing", "sandbox.bwrap_broken"]


@pytest.mark.parametrize(
    ("mode", "reason", "fix"),
    [
        (0o4755, "sandbox.bwrap_setuid", "chmod ug-s"),
        (0o2755, "sandbox.bwrap_setuid", "chmod ug-s"),
        (0o775, "sandbox.bwrap_writable", "chmod go-w"),
        (0o757, "sandbox.bwrap_writable", "chmod go-w"),
    ],
)
def test_a_bubblewrap_with_privileges_or_in_others_hands_closes_the_sandbox(
    tmp_path: Path, mode: int, reason: str, fix: str
) -> None:
    program = tmp_path / "it"
    program.mkdir()
    machine = a_machine(tmp_path, bubblewrap=a_bwrap(program, mode))
    found, version = bubblewrap(machine)
    assert (found.grade, found.reason) == (Grade.CLOSES, reason)
    assert fix in found.fix
    assert version.grade is Grade.FINE


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file capabilities")
def test_a_bubblewrap_with_file_capabilities_closes_the_sandbox(tmp_path: Path) -> None:
    machine = a_machine(tmp_path)
    assert machine.bubblewrap is not None
    of_setuid = b"\x00\x00\x00\x02" + b"\x80\x00\x00\x00" + bytes(12)  # VFS_CAP_REVISION_2, permitted: CAP_SETUID
    os.setxattr(machine.bubblewrap, "security.capability", of_setuid)
    found, _ = bubblewrap(machine)
    assert (found.grade, found.reason) == (Grade.CLOSES, "sandbox.bwrap_setuid")
    assert found.fix == f"`setcap -r {machine.bubblewrap}`"


@pytest.mark.parametrize(
    ("said", "grade", "reason"),
    [
        ("bubblewrap 0.7.0", Grade.CLOSES, "sandbox.bwrap_too_old"),
        ("bubblewrap 0.8.0", Grade.NOTE, "sandbox.bwrap_vulnerable"),
        ("bubblewrap 0.11.9", Grade.NOTE, "sandbox.bwrap_vulnerable"),
        ("bubblewrap 0.12.0", Grade.FINE, None),
        ("bubblewrap 1.0", Grade.FINE, None),
        ("bubblewrap devel", Grade.CLOSES, "sandbox.bwrap_broken"),
        ("", Grade.CLOSES, "sandbox.bwrap_broken"),
    ],
)
def test_the_version_is_judged(tmp_path: Path, said: str, grade: Grade, reason: str | None) -> None:
    (found,) = bubblewrap(a_machine(tmp_path, programs=Programs(version=said)))
    assert (found.grade, found.reason) == (grade, reason)


def test_the_note_on_an_old_version_names_the_advisory_and_why_it_does_not_meet_the_image(tmp_path: Path) -> None:
    (found,) = bubblewrap(a_machine(tmp_path, programs=Programs(version="bubblewrap 0.8.0")))
    assert "CVE-2026-87766" in found.fact
    assert "the image, pinned and verified to the byte" in found.consequence
    assert "0.12.0" in found.fix


# -- namespaces --------------------------------------------------------------------------------------------------------


def test_namespaces_are_tried_as_the_user_of_the_first_slot(tmp_path: Path) -> None:
    programs = Programs()
    found = namespaces(a_machine(tmp_path, programs=programs), WANTED)
    assert (found.grade, found.fact) == (Grade.FINE, "uid 64400 may have them")
    assert programs.asked == [("--unshare-user", 64_400)]


def test_without_root_they_are_tried_as_the_node_s_own_user(tmp_path: Path) -> None:
    programs = Programs()
    assert namespaces(a_machine(tmp_path, uid=1000, programs=programs), WANTED).fact == "this user may have them"
    assert programs.asked == [("--unshare-user", None)]


@pytest.mark.parametrize("more", [{"bubblewrap": None}, {"uid": 1000}])
def test_what_cannot_be_tried_is_told_so(tmp_path: Path, more: dict[str, Any]) -> None:
    programs = Programs()
    found = namespaces(a_machine(tmp_path, programs=programs, **more), Wanted(launcher=("sudo", "-n")))
    assert (found.grade, found.fact) == (Grade.FINE, "nothing forbids them; not tried")
    assert programs.asked == []


SETTINGS = [
    (
        {"sys/kernel/unprivileged_userns_clone": "0\n"},
        "kernel.unprivileged_userns_clone is 0",
        "`sysctl -w kernel.unprivileged_userns_clone=1`",
    ),
    (
        {"sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"},
        "kernel.apparmor_restrict_unprivileged_userns is 1, and no AppArmor profile lets bwrap have them",
        "apparmor_parser -r /etc/apparmor.d/bwrap-userns-restrict",
    ),
    *(
        (
            {f"sys/user/max_{each}_namespaces": "0\n"},
            f"user.max_{each}_namespaces is 0",
            f"`sysctl -w user.max_{each}_namespaces=15000`",
        )
        for each in NAMESPACES
    ),
]


@pytest.mark.parametrize(("files", "fact", "fix"), SETTINGS)
def test_a_setting_that_denies_them_is_named_with_its_fix(
    tmp_path: Path, files: dict[str, str], fact: str, fix: str
) -> None:
    found = namespaces(a_machine(tmp_path, files=files, programs=Programs(tried=DENIED)), WANTED)
    assert (found.grade, found.reason, found.fact) == (Grade.CLOSES, "sandbox.userns_denied", fact)
    assert fix in found.fix


@pytest.mark.parametrize(("files", "fact", "fix"), SETTINGS)
def test_a_setting_counts_where_nothing_can_be_tried(
    tmp_path: Path, files: dict[str, str], fact: str, fix: str
) -> None:
    found = namespaces(a_machine(tmp_path, files=files, bubblewrap=None), WANTED)
    assert (found.grade, found.fact, fix in found.fix) == (Grade.CLOSES, fact, True)


@pytest.mark.parametrize(("files", "fact", "fix"), SETTINGS)
def test_what_was_made_in_spite_of_a_setting_is_fine(
    tmp_path: Path, files: dict[str, str], fact: str, fix: str
) -> None:
    assert namespaces(a_machine(tmp_path, files=files), WANTED).grade is Grade.FINE


def test_a_kernel_without_a_namespace_is_named(tmp_path: Path) -> None:
    machine = a_machine(tmp_path, programs=Programs(tried=DENIED))
    (machine.proc / "self/ns/mnt").unlink()
    found = namespaces(machine, WANTED)
    assert (found.reason, found.fact) == ("sandbox.userns_denied", "this kernel has no mnt namespaces")
    assert "CONFIG_MOUNT_NS" in found.fix


@pytest.mark.parametrize(
    ("loaded", "names_a_setting"),
    [
        ("firefox (enforce)\nbwrap-userns-restrict (enforce)\n", False),
        ("bwrap (unconfined)\n", False),
        ("firefox (enforce)\nunpriv_bwrap (enforce)\n", True),
    ],
)
def test_a_profile_for_bubblewrap_is_what_apparmor_asks_for(tmp_path: Path, loaded: str, names_a_setting: bool) -> None:
    restricted = {"sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"}
    machine = a_machine(tmp_path, files=restricted, bubblewrap=None)
    (machine.security / "apparmor").mkdir(parents=True)
    (machine.security / "apparmor/profiles").write_text(loaded)
    assert ("AppArmor" in namespaces(machine, WANTED).fact) is names_a_setting


@pytest.mark.parametrize(
    ("said", "reason", "fix"),
    [
        ("bwrap: setting up uid map: Permission denied", "sandbox.userns_denied", "RestrictNamespaces="),
        ("bwrap: No permissions to create new namespace", "sandbox.userns_denied", "--security-opt seccomp=FILE"),
        (
            "bwrap: Can't mount proc on /newroot/proc: Operation not permitted",
            "sandbox.proc_denied",
            "ProtectKernelTunables=",
        ),
    ],
)
def test_a_sandbox_that_cannot_be_made_for_no_setting_is_told_in_bubblewrap_s_words(
    tmp_path: Path, said: str, reason: str, fix: str
) -> None:
    found = namespaces(a_machine(tmp_path, programs=Programs(tried=Ran(1, said))), WANTED)
    assert (found.grade, found.reason) == (Grade.CLOSES, reason)
    assert said.removeprefix("bwrap: ")[:20] in found.fact.replace("\\'", "'")
    assert fix in found.fix


def test_what_bubblewrap_says_in_several_lines_is_one(tmp_path: Path) -> None:
    said = Ran(1, "bwrap: No permissions to create new namespace.\nSee\t<https://example.org>.\n" + "x" * 999)
    found = namespaces(a_machine(tmp_path, programs=Programs(tried=said)), WANTED)
    assert "new namespace. See <https://example.org>. xxx" in found.fact
    assert len(found.fact) < 400


def test_a_user_that_nothing_can_be_started_as_is_no_verdict_on_namespaces(tmp_path: Path) -> None:
    found = namespaces(a_machine(tmp_path, programs=Programs(tried=Ran(None, "Operation not permitted"))), WANTED)
    assert (found.grade, found.reason) == (Grade.NOTE, "sandbox.userns_untried")
    assert "Operation not permitted" in found.fact


def test_the_trial_makes_a_sandbox_on_this_machine_or_says_why_not() -> None:
    machine = Machine()
    if machine.bubblewrap is None:
        assert not os.environ.get("CI"), "CI has bubblewrap"
        pytest.skip("bubblewrap is not installed")
    ran = machine.run(trial(machine.bubblewrap), 64_986 if machine.uid == 0 else None)
    assert (ran.code, ran.said.split()[:1]) == (0, ["bubblewrap"])


def test_the_trial_shows_a_namespace_that_is_denied() -> None:
    machine = Machine()
    if machine.bubblewrap is None:
        assert not os.environ.get("CI"), "CI has bubblewrap"
        pytest.skip("bubblewrap is not installed")
    # Inside a sandbox that forbids further user namespaces, as a host that does.
    inside = trial(machine.bubblewrap)
    inside[inside.index("--") + 1 :] = trial(machine.bubblewrap)
    ran = machine.run(inside, 64_986 if machine.uid == 0 else None)
    assert ran.code == 1
    assert ran.said.startswith("bwrap: ")
