from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.sandbox import host as host_module
from gateway.sandbox import image as image_module
from gateway.sandbox.host import Machine
from gateway.sandbox.image import host_link
from tests.sandbox.fake_host import a_machine
from tests.sandbox.fake_image import FakePins, fake_pins
from tests.sandbox.in_groups import unavailable


@pytest.fixture
def pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePins:
    """The pins of a small image in place of the real ones."""
    pins = fake_pins(tmp_path)
    monkeypatch.setattr(image_module, "load_lock", lambda: pins.lock)
    return pins


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return tmp_path / "images"


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["sandbox", *map(str, words)])


def build(images: Path, pins: FakePins, *words: str) -> Result:
    return run("build", "--images", images, "--downloads", pins.downloads, *words)


def test_build_says_its_steps_on_standard_error_and_what_came_of_it_on_the_other(images: Path, pins: FakePins) -> None:
    told = build(images, pins)
    assert told.exit_code == 0, told.output
    assert [line.partition(":")[0] for line in told.stderr.splitlines()][:2] == ["node", "libraries"]
    lines = dict(line.split(maxsplit=1) for line in told.stdout.splitlines())
    assert (lines["digest"], lines["kind"], lines["made"]) == (pins.lock.digest, "pinned", "yes")
    assert lines["executables"] == "/usr/bin/node"
    again = build(images, pins)
    assert (again.exit_code, "no, it stood there whole" in again.stdout) == (0, True)
    assert "libraries" not in again.stderr


def test_build_and_verify_as_json_are_one_document(images: Path, pins: FakePins) -> None:
    built = json.loads(build(images, pins, "--json").stdout)
    assert (built["ok"], built["made"], built["digest"]) == (True, True, pins.lock.digest)
    verified = json.loads(run("verify", "--images", images, "--json").stdout)
    assert verified == {name: value for name, value in built.items() if name != "made"}


def test_the_image_of_host_libraries_states_its_kind_and_another_digest(images: Path, pins: FakePins) -> None:
    told = json.loads(build(images, pins, "--host-libraries", "--json").stdout)
    assert told["kind"] == "host-libraries"
    assert told["digest"] != pins.lock.digest
    assert (images / host_link(pins.lock)).is_symlink()
    assert "host-libraries" in run("verify", "--images", images).stdout


def test_verify_without_an_image_ends_with_1_and_the_command_that_builds_it(images: Path, pins: FakePins) -> None:
    told = run("verify", "--images", images)
    assert told.exit_code == 1
    assert told.stderr == (
        f"sandbox.image_missing: no image of the sandbox in {images}. Fix: `gateway sandbox build --images {images}`\n"
    )


def test_verify_of_an_altered_image_ends_with_1_and_says_where(images: Path, pins: FakePins) -> None:
    path = Path(json.loads(build(images, pins, "--json").stdout)["path"])
    (path / "etc/hosts").chmod(0o644)
    (path / "etc/hosts").write_text("10.0.0.1 localhost\n")
    (path / "etc/hosts").chmod(0o444)
    told = run("verify", "--images", images, "--json")
    document = json.loads(told.stdout)
    assert (told.exit_code, document["ok"], document["reason"]) == (1, False, "sandbox.image_digest_mismatch")
    assert [each.partition(":")[0] for each in document["where"]] == ["/etc/hosts"]
    assert document["fix"] == f"`gateway sandbox build --images {images}`, then start the node anew"
    assert build(images, pins).exit_code == 0
    assert run("verify", "--images", images).exit_code == 0


def test_a_directory_that_other_users_cannot_enter_is_told_with_the_fix(
    images: Path, tmp_path: Path, pins: FakePins
) -> None:
    build(images, pins)
    images.chmod(0o700)
    told = run("verify", "--images", images)
    assert told.exit_code == 0
    closed = json.loads(run("verify", "--images", images, "--json").stdout)["closedToOtherUsers"]
    assert f"Fix: `chmod o+x {closed}`" in told.stderr


def test_images_stand_in_the_data_directory_of_a_node_that_is_not_root(
    tmp_path: Path, pins: FakePins, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(f'[node]\ndata_dir = "{tmp_path}/data"\n')
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    told = run("verify", "--config", config)
    assert f"no image of the sandbox in {tmp_path}/data/sandbox-images" in told.stderr


def test_a_configuration_that_cannot_be_read_ends_with_2(pins: FakePins) -> None:
    assert run("verify", "--config", "/nowhere/gateway.toml").exit_code == 2


@pytest.fixture
def machine(tmp_path: Path, pins: FakePins, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A sound machine in place of this one."""
    machine = a_machine(tmp_path / "machine", lock=lambda: pins.lock)
    monkeypatch.setattr(host_module, "Machine", lambda: machine)
    monkeypatch.setattr(host_module, "closed_to_others", lambda path: None)
    return machine


def test_check_of_a_machine_with_everything_is_a_table_and_ends_with_0(
    images: Path, pins: FakePins, machine: Machine
) -> None:
    build(images, pins)
    told = run("check", "--images", images)
    assert told.exit_code == 0, told.output
    rows = told.stdout.splitlines()
    assert rows[0].split() == ["of", "found", "reason"]
    assert {row.split()[0] for row in rows[1:]} == {"ok"}
    assert "Fix: " not in told.stdout
    assert any(pins.lock.digest in row for row in rows)


def test_check_names_what_closes_the_sandbox_with_reason_and_fix_and_ends_with_1(
    images: Path, machine: Machine
) -> None:
    (machine.cgroups / "cgroup.controllers").write_text("cpu pids\n")
    told = run("check", "--images", images)
    assert told.exit_code == 1
    closed = [row.rstrip() for row in told.stdout.splitlines() if row.startswith("CLOSED")]
    assert [row.split()[1] for row in closed] == ["cgroups", "image"]
    assert closed[0].endswith("sandbox.memory_controller_missing")
    assert (
        f"\nimage: there is nothing to run a command in. Fix: `gateway sandbox build --images {images}`\n"
        in told.stdout
    )
    document = json.loads(run("check", "--images", images, "--json").stdout)
    assert document["ok"] is False
    closing = {each["reason"]: each for each in document["facts"] if each["grade"] == "closes"}
    assert set(closing) == {"sandbox.memory_controller_missing", "sandbox.image_missing"}
    assert closing["sandbox.image_missing"]["fix"] == f"`gateway sandbox build --images {images}`"


def test_check_takes_the_directory_of_images_from_the_configuration(tmp_path: Path, machine: Machine) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(f'[node]\ndata_dir = "{tmp_path}/data"\n[sandbox]\nimage = "{tmp_path}/elsewhere"\n')
    assert f"no image of the sandbox in {tmp_path}/elsewhere" in run("check", "--config", config, "--json").stdout


def test_a_host_that_denies_user_namespaces_is_closed_with_the_setting_and_its_fix(images: Path) -> None:
    # These settings count for each user namespace by itself: inside one of its own, this machine is such a host.
    deny = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    inside = ["unshare", "--user", "--map-root-user", "sh", "-c", deny, "sh"]
    try:
        subprocess.run([*inside, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        unavailable(f"no user namespace can be made: {error}")
    if Machine().bubblewrap is None:
        unavailable("bubblewrap is not installed")
    check = [sys.executable, "-m", "gateway", "sandbox", "check", "--images", str(images), "--json"]
    told = subprocess.run([*inside, *check], check=False, capture_output=True, timeout=60)
    closing = {each["reason"]: each for each in json.loads(told.stdout)["facts"] if each["grade"] == "closes"}
    assert told.returncode == 1
    assert closing["sandbox.userns_denied"]["fact"] == "user.max_user_namespaces is 0"
    assert "`sysctl -w user.max_user_namespaces=15000`" in closing["sandbox.userns_denied"]["fix"]
