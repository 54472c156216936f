from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.sandbox import seccomp
from gateway.sandbox.host import (
    Grade,
    Host,
    Machine,
    Wanted,
    examine,
    groups,
    image,
    kernel,
    leftovers,
    system_call_filter,
)
from gateway.sandbox.image import HOST_LIBRARIES, PINNED
from gateway.sandbox.image_building import build
from gateway.sandbox.image_lock import lock_of
from gateway.sandbox.image_refusal import ArchitectureUnsupported
from tests.sandbox.fake_host import WANTED, Programs, a_machine
from tests.sandbox.fake_image import FakePins, fake_pins, standing_image


def reasons(found: Host) -> list[str | None]:
    return [each.reason for each in found.facts if each.grade is not Grade.FINE]


@pytest.fixture
def open_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have other users enter all directories on the way to an image, which pytest's own are closed to."""
    monkeypatch.setattr("gateway.sandbox.host.closed_to_others", lambda path: None)


@pytest.mark.parametrize("v1", [False, True])
def test_a_sound_machine_is_fine_in_everything(tmp_path: Path, open_way: None, v1: bool) -> None:
    standing, pins = standing_image(tmp_path)
    machine = a_machine(tmp_path / "machine", v1=v1, lock=lambda: pins.lock)
    found = examine(Wanted(images=standing.parent), machine)
    assert reasons(found) == []
    assert found.closing == ()
    assert [each.name for each in found.facts] == [
        "kernel",
        "system-call filter",
        "bubblewrap",
        "user namespaces",
        "cgroups",
        "launcher",
        "users of runs",
        "memory for runs",
        "limits of a user",
        "image",
    ]


def test_the_facts_that_close_are_told_in_the_order_in_which_things_are_needed(tmp_path: Path) -> None:
    machine = a_machine(
        tmp_path, arch="riscv64", bubblewrap=None, files={"self/status": "CapEff:\t0000000000000000\n", "meminfo": ""}
    )
    (machine.cgroups / "cgroup.controllers").write_text("cpu pids\n")
    found = examine(WANTED, machine)
    assert [each.reason for each in found.closing] == [
        "sandbox.seccomp_unsupported",
        "sandbox.bwrap_missing",
        "sandbox.memory_controller_missing",
        "sandbox.launcher_root_uid",
        "sandbox.memory_short",
    ]
    assert all(each.consequence and each.fix for each in found.closing)


def test_a_note_does_not_close(tmp_path: Path) -> None:
    found = examine(WANTED, a_machine(tmp_path, programs=Programs(version="bubblewrap 0.8.0")))
    assert (reasons(found), found.closing) == (["sandbox.bwrap_vulnerable"], ())


def test_this_machine_is_examined_without_a_change_or_a_fall() -> None:
    found = examine(WANTED)
    assert len(found.facts) >= 8
    assert all(each.reason and each.fix for each in found.facts if each.grade is not Grade.FINE)


def test_a_machine_that_is_no_linux_is_told_so_without_a_fall(tmp_path: Path) -> None:
    nowhere = Machine(
        proc=tmp_path / "proc", security=tmp_path, cgroups=tmp_path / "cgroup", arch="arm64", bubblewrap=None, cores=2
    )
    closing = {each.reason for each in examine(WANTED, nowhere).closing}
    assert {"sandbox.kernel_too_old", "sandbox.bwrap_missing", "sandbox.cgroups_missing"} <= closing


@pytest.mark.parametrize(
    ("release", "grade"),
    [
        ("5.7.19-generic", Grade.CLOSES),
        ("4.18.0-553.el8", Grade.CLOSES),
        ("5.8.0", Grade.FINE),
        ("6.18.44-x", Grade.FINE),
    ],
)
def test_a_kernel_that_cannot_hide_proc_closes_the_sandbox(tmp_path: Path, release: str, grade: Grade) -> None:
    found = kernel(a_machine(tmp_path, files={"sys/kernel/osrelease": f"{release}\n"}))
    assert (found.grade, found.fact) == (grade, f"Linux {release}")
    assert (found.reason == "sandbox.kernel_too_old") is (grade is Grade.CLOSES)


# -- the filter --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_an_architecture_with_a_filter_is_fine(tmp_path: Path, arch: str) -> None:
    found = system_call_filter(a_machine(tmp_path, arch=arch))
    assert (found.grade, found.fact.startswith(f"{arch}, sha256:")) == (Grade.FINE, True)


def test_an_architecture_without_a_filter_closes_the_sandbox(tmp_path: Path) -> None:
    found = system_call_filter(a_machine(tmp_path, arch="riscv64"))
    assert (found.grade, found.reason) == (Grade.CLOSES, "sandbox.seccomp_unsupported")
    assert "no system-call filter for riscv64" in found.fact


def test_a_kernel_that_takes_no_filter_closes_the_sandbox(tmp_path: Path) -> None:
    found = system_call_filter(a_machine(tmp_path, files={"sys/kernel/seccomp/actions_avail": "allow errno\n"}))
    assert (found.reason, found.fact) == ("sandbox.seccomp_unsupported", "seccomp lacks kill_process")
    assert "CONFIG_SECCOMP_FILTER" in found.fix


def test_an_altered_filter_closes_the_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def altered(machine: str, *, single: bool) -> seccomp.Filter:
        raise seccomp.FilterUnavailable("sandbox.filter_digest_mismatch", f"{machine} {single} is another")

    monkeypatch.setattr("gateway.sandbox.host.load_filter", altered)
    found = system_call_filter(a_machine(tmp_path))
    assert (found.reason, found.fix) == ("sandbox.filter_digest_mismatch", "install gateway anew")


# -- cgroups -----------------------------------------------------------------------------------------------------------


def test_the_kind_of_cgroups_is_told(tmp_path: Path) -> None:
    (found,) = groups(a_machine(tmp_path, v1=True), WANTED)
    assert (found.grade, found.fact) == (Grade.FINE, "v1: memory, pids and cpu can be bounded")


@pytest.mark.parametrize("controller", ["memory", "pids", "cpu"])
def test_a_missing_controller_closes_the_sandbox(tmp_path: Path, controller: str) -> None:
    machine = a_machine(tmp_path)
    has = " ".join(each for each in ("cpu", "memory", "pids") if each != controller)
    (machine.cgroups / "cgroup.controllers").write_text(has)
    (found,) = groups(machine, WANTED)
    assert (found.grade, found.reason) == (Grade.CLOSES, f"sandbox.{controller}_controller_missing")
    assert found.fix


def test_a_machine_without_cgroups_closes_the_sandbox(tmp_path: Path) -> None:
    (found,) = groups(a_machine(tmp_path, cgroups=tmp_path / "none"), WANTED)
    assert (found.grade, found.reason) == (Grade.CLOSES, "sandbox.cgroups_missing")


def test_swap_that_is_not_counted_is_a_note(tmp_path: Path) -> None:
    machine = a_machine(
        tmp_path, v1=True, files={"swaps": "Filename Type Size Used Priority\n/dev/vdb partition 1 0 -2\n"}
    )
    (machine.cgroups / "memory/memory.memsw.limit_in_bytes").unlink()
    (found,) = groups(machine, WANTED)
    assert (found.grade, found.reason) == (Grade.NOTE, "sandbox.swap_accounting_missing")


def test_groups_that_only_the_node_itself_may_not_make_do_not_stop_a_launcher_with_privilege(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = a_machine(tmp_path, v1=True, uid=1000)
    monkeypatch.setattr("gateway.sandbox.cgroups_v1.os.access", lambda path, mode: False)
    (alone,) = groups(machine, WANTED)
    assert (alone.grade, alone.reason) == (Grade.CLOSES, "sandbox.cgroup_not_writable")
    (helped,) = groups(machine, Wanted(launcher=("sudo", "-n")))
    assert helped.grade is Grade.FINE


# -- the image ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def pins(tmp_path: Path) -> FakePins:
    return fake_pins(tmp_path)


Examined = Callable[..., tuple[Grade, str | None, str, str]]


@pytest.fixture
def examined(tmp_path: Path, pins: FakePins) -> Examined:
    def of(**more: Any) -> tuple[Grade, str | None, str, str]:
        ours: dict[str, Any] = {"lock": lambda: pins.lock}
        machine = a_machine(tmp_path / "machine", **(ours | more))
        (found,) = image(machine, Wanted(images=tmp_path / "images"))
        return found.grade, found.reason, found.fact, found.fix

    return of


def test_no_image_closes_the_sandbox_with_the_command_that_builds_it(tmp_path: Path, examined: Examined) -> None:
    assert examined() == (
        Grade.CLOSES,
        "sandbox.image_missing",
        f"no image of the sandbox in {tmp_path}/images",
        f"`gateway sandbox build --images {tmp_path}/images`",
    )


def test_the_pinned_image_is_fine(tmp_path: Path, open_way: None, pins: FakePins, examined: Examined) -> None:
    assert build(tmp_path / "images", pins.lock, downloads=pins.downloads).image.kind == PINNED
    assert examined()[:3] == (Grade.FINE, None, f"{pins.lock.digest}, as this version pins it")


def test_an_altered_byte_closes_the_sandbox_and_says_where(tmp_path: Path, pins: FakePins, examined: Examined) -> None:
    path = build(tmp_path / "images", pins.lock, downloads=pins.downloads).image.path
    (path / "etc/hosts").chmod(0o644)
    (path / "etc/hosts").write_text("127.0.0.2 localhost")
    (path / "etc/hosts").chmod(0o444)
    grade, reason, fact, fix = examined()
    assert (grade, reason) == (Grade.CLOSES, "sandbox.image_digest_mismatch")
    assert "/etc/hosts: " in fact
    assert "gateway sandbox build" in fix


def test_an_image_of_this_machine_s_libraries_is_a_note(
    tmp_path: Path, open_way: None, pins: FakePins, examined: Examined
) -> None:
    built = build(tmp_path / "images", pins.lock, downloads=pins.downloads, host_libraries=True).image
    assert built.kind == HOST_LIBRARIES
    grade, reason, fact, _ = examined()
    assert (grade, reason) == (Grade.NOTE, "sandbox.image_from_host")
    assert built.digest in fact


def test_an_image_that_the_users_of_runs_cannot_reach_closes_the_sandbox_under_root(
    tmp_path: Path, pins: FakePins, examined: Examined
) -> None:
    build(tmp_path / "images", pins.lock, downloads=pins.downloads)
    (tmp_path / "images").chmod(0o700)
    grade, reason, _, fix = examined()
    assert (grade, reason, "`chmod o+x " in fix) == (Grade.CLOSES, "sandbox.image_closed", True)


def test_an_image_that_only_the_node_can_reach_is_fine_where_runs_have_its_user(
    tmp_path: Path, pins: FakePins, examined: Examined
) -> None:
    build(tmp_path / "images", pins.lock, downloads=pins.downloads)
    (tmp_path / "images").chmod(0o700)
    assert examined(uid=1000)[0] is Grade.FINE


def test_an_architecture_without_an_image_closes_the_sandbox(pins: FakePins, examined: Examined) -> None:
    grade, reason, _, fix = examined(lock=lambda: lock_of(pins.document, "s390x"))
    assert (grade, reason) == (Grade.CLOSES, ArchitectureUnsupported.reason)
    assert fix == "run the node on x86_64"


# -- leftovers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("v1", [False, True])
def test_groups_of_earlier_runs_are_a_note_and_are_not_touched(tmp_path: Path, v1: bool) -> None:
    machine = a_machine(tmp_path, v1=v1)
    assert leftovers(WANTED, machine).grade is Grade.FINE
    at = "memory/deep/" if v1 else "deep/"
    machine.files.put(at.rstrip("/"), {})  # type: ignore[attr-defined]
    machine.files.put(f"{at}{WANTED.prefix}17", {"cgroup.procs": "4711\n", "cgroup.events": "populated 1\n"})  # type: ignore[attr-defined]
    machine.files.put(f"{at}another-17", {})  # type: ignore[attr-defined]
    found = leftovers(WANTED, machine)
    assert (found.grade, found.reason) == (Grade.NOTE, "sandbox.leftovers")
    assert found.fact == "1 groups of earlier runs stand, 1 of them with processes"
    assert (machine.cgroups / f"{at}{WANTED.prefix}17").is_dir()


def test_leftovers_of_this_machine_can_be_looked_for() -> None:
    assert leftovers(Wanted(prefix="gateway-nobody-s-")).grade is Grade.FINE


def test_a_machine_without_cgroups_has_no_leftovers(tmp_path: Path) -> None:
    assert leftovers(WANTED, a_machine(tmp_path, cgroups=tmp_path / "none")).grade is Grade.FINE
