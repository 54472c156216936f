from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Configuration, structure
from gateway.doctor import Check
from gateway.doctor._sandbox import judged, sandbox
from gateway.sandbox.host import Machine
from gateway.sandbox.host_machine import Ran, closes, fine, note
from gateway.sandbox_settings import prefix_of
from tests.sandbox.fake_host import Programs, a_machine
from tests.sandbox.fake_image import FakePins, fake_pins, standing_image


@pytest.fixture
def configuration(tmp_path: Path) -> Configuration:
    return configured(tmp_path)


def configured(tmp_path: Path, **section: Any) -> Configuration:
    images = {"image": str(tmp_path / "images")}
    return structure({"node": {"data_dir": str(tmp_path / "data"), "name": "one"}, "sandbox": images | section})


@pytest.fixture
def pins(tmp_path: Path) -> FakePins:
    return fake_pins(tmp_path, version="0.9")


def sound(tmp_path: Path, pins: FakePins, **more: Any) -> Machine:
    return a_machine(tmp_path / "machine", lock=lambda: pins.lock, **more)


def found(checks: list[Check], name: str) -> Check:
    (one,) = [each for each in checks if each.name == f"sandbox {name}"]
    return one


def test_a_machine_with_everything_is_fine_in_every_line(
    tmp_path: Path, configuration: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, standing = standing_image(tmp_path)
    monkeypatch.setattr("gateway.sandbox.host.closed_to_others", lambda path: None)
    checks = sandbox(configuration, machine=sound(tmp_path, standing))
    assert {each.standing for each in checks} == {"fine"}
    assert found(checks, "image").fact == f"{standing.lock.digest}, as this version pins it"
    assert found(checks, "leftovers").fact == "nothing is left of earlier runs"


def test_a_sandbox_that_is_switched_off_is_fine_and_nothing_is_looked_at(tmp_path: Path) -> None:
    (check,) = sandbox(configured(tmp_path, enabled=False), machine=Machine(proc=tmp_path / "none", bubblewrap=None))
    assert (check.name, check.standing) == ("sandbox", "fine")
    assert "switched off" in check.fact


def test_what_is_not_installed_yet_is_a_note_with_the_command(
    tmp_path: Path, configuration: Configuration, pins: FakePins
) -> None:
    checks = sandbox(configuration, machine=sound(tmp_path, pins, bubblewrap=None))
    image, program = found(checks, "image"), found(checks, "bubblewrap")
    assert {image.standing, program.standing} == {"note"}
    assert image.line() == (
        f"sandbox image: no image of the sandbox in {tmp_path}/images (sandbox.image_missing); "
        "sandbox.execute answers 503 before any quote. "
        f"Fix: `gateway sandbox build --images {tmp_path}/images`; or set enabled = false in [sandbox]"
    )
    assert "apt install bubblewrap" in program.fix


@pytest.mark.parametrize(
    ("more", "name", "reason", "fix"),
    [
        (
            {"files": {"sys/kernel/unprivileged_userns_clone": "0\n"}, "programs": Programs(tried=Ran(1, "denied"))},
            "user namespaces",
            "sandbox.userns_denied",
            "sysctl -w kernel.unprivileged_userns_clone=1",
        ),
        ({"arch": "riscv64"}, "system-call filter", "sandbox.seccomp_unsupported", "run the node on x86_64"),
        ({"account": lambda uid: "mallory"}, "users of runs", "sandbox.slot_uid_in_use", "[sandbox] first_uid"),
    ],
)
def test_what_closes_the_sandbox_is_a_failure_with_reason_and_fix(
    tmp_path: Path, configuration: Configuration, pins: FakePins, more: dict[str, Any], name: str, reason: str, fix: str
) -> None:
    check = found(sandbox(configuration, machine=sound(tmp_path, pins, **more)), name)
    assert check.standing == "failed"
    assert f"({reason})" in check.fact
    assert "sandbox.execute answers 503 before any quote" in check.consequence
    assert fix in check.fix
    assert "or set enabled = false in [sandbox]" in check.fix


def test_a_missing_memory_controller_is_a_failure(tmp_path: Path, configuration: Configuration, pins: FakePins) -> None:
    machine = sound(tmp_path, pins)
    (machine.cgroups / "cgroup.controllers").write_text("cpu pids\n")
    check = found(sandbox(configuration, machine=machine), "cgroups")
    assert (check.standing, "(sandbox.memory_controller_missing)" in check.fact) == ("failed", True)


def test_an_altered_byte_of_the_image_is_a_failure_that_says_where(
    tmp_path: Path, configuration: Configuration
) -> None:
    path, standing = standing_image(tmp_path)
    (path / "etc/hosts").chmod(0o644)
    (path / "etc/hosts").write_text("127.0.0.2 localhost\n")
    (path / "etc/hosts").chmod(0o444)
    check = found(sandbox(configuration, machine=sound(tmp_path, standing)), "image")
    assert check.standing == "failed"
    assert "/etc/hosts" in check.fact
    assert "sandbox.image_digest_mismatch" in check.fact


def test_leftovers_are_looked_for_only_where_the_node_does_not_run(
    tmp_path: Path, configuration: Configuration, pins: FakePins
) -> None:
    machine = sound(tmp_path, pins)
    (machine.cgroups / f"{prefix_of(configuration)}7").mkdir()
    check = found(sandbox(configuration, machine=machine), "leftovers")
    assert (check.standing, check.fact[:30]) == ("note", "1 groups of earlier runs stand")
    configuration.data_dir.mkdir()
    with configuration.store_path.with_name(f"{configuration.store_path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        checks = sandbox(configuration, machine=machine)
    assert [each for each in checks if each.name == "sandbox leftovers"] == []


def test_over_a_shared_store_a_node_that_is_alive_has_no_leftovers(tmp_path: Path, pins: FakePins) -> None:
    shared = structure(
        {
            "node": {"data_dir": str(tmp_path / "data"), "name": "one"},
            "store": {"url": "postgresql://127.0.0.1/gateway"},
            "sandbox": {"image": str(tmp_path / "images")},
        }
    )
    machine = sound(tmp_path, pins)
    names = {each.name for each in sandbox(shared, frozenset({"one"}), machine)}
    assert "sandbox leftovers" not in names
    assert names < {each.name for each in sandbox(shared, frozenset({"two"}), machine)}


def test_each_grade_has_its_standing() -> None:
    assert judged(fine("x", "a")).standing == "fine"
    told = judged(note("x", "sandbox.y", "a", "b", "c"))
    assert (told.standing, told.fact, told.consequence, told.fix) == ("note", "a", "b", "c")
    assert judged(closes("x", "sandbox.y", "a", "b", "c")).standing == "failed"
