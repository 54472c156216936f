"""Bubblewrap is recognised by what it says, and told of a run in arguments that nobody can add to."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from gateway.sandbox.bubblewrap import BLOCK_AT, FILTER_AT, STATUS_AT, arguments, examine, image_arguments
from tests.sandbox.in_groups import unavailable
from tests.sandbox.launcher_driver import BUBBLEWRAP, FIRST_UID


def program(place: Path, script: str, mode: int = 0o755) -> Path:
    path = place / "bwrap"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(mode)
    return path


def told(**of: int) -> list[str]:
    given = {"disk_bytes": 3, "artifact_bytes": 5, **of}
    said = arguments(["--ro-bind", "/image/usr", "/usr"], filtered=True, **given)
    assert said.endswith(b"\0")
    return said[:-1].decode().split("\0")


def after(said: list[str], *option: str) -> list[str]:
    at = next(n for n in range(len(said)) if said[n : n + len(option)] == [*option])
    return said[at + len(option) :]


def test_the_program_at_hand_is_known() -> None:
    if not BUBBLEWRAP:
        unavailable("bubblewrap is not installed")
    found = examine(Path(BUBBLEWRAP))
    assert found.numbers >= (0, 8)
    assert (found.too_old, found.setuid) == (False, False)
    assert found.version == ".".join(map(str, found.numbers))


@pytest.mark.parametrize(("version", "too_old"), [("0.7.9", True), ("0.8.0", False), ("0.11.1", False), ("1.0", False)])
def test_a_version_is_compared_as_numbers(tmp_path: Path, version: str, too_old: bool) -> None:
    assert examine(program(tmp_path, f"echo bubblewrap {version}")).too_old is too_old


def test_a_program_that_takes_rights_is_known(tmp_path: Path) -> None:
    path = program(tmp_path, "echo bubblewrap 0.8.0")
    path.chmod(0o4755)
    assert examine(path).setuid


@pytest.mark.parametrize("script", ["true", "echo bubblewrap", "echo bubblewrap 1; echo more", "echo bwrap 0.8.0"])
def test_another_program_is_none(tmp_path: Path, script: str) -> None:
    with pytest.raises(ValueError, match="does not say its version"):
        examine(program(tmp_path, script))


def test_what_is_not_there_or_cannot_be_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        examine(tmp_path / "bwrap")
    with pytest.raises(PermissionError):
        examine(program(tmp_path, "echo bubblewrap 0.8.0", mode=0o644))


def test_an_image_is_bound_read_only_and_its_links_stay_links(tmp_path: Path) -> None:
    (tmp_path / "usr").mkdir()
    (tmp_path / "etc").mkdir()
    (tmp_path / "lib").symlink_to("usr/lib")
    assert image_arguments(tmp_path) == [
        *("--ro-bind", str(tmp_path / "etc"), "/etc"),
        *("--symlink", "usr/lib", "/lib"),
        *("--ro-bind", str(tmp_path / "usr"), "/usr"),
    ]


def test_every_namespace_has_to_be_had() -> None:
    said = told()
    assert {each for each in said if each.startswith("--unshare")} == {
        f"--unshare-{kind}" for kind in ("user", "ipc", "pid", "net", "uts", "cgroup")
    }
    assert {"--die-with-parent", "--new-session", "--clearenv", "--disable-userns"} <= set(said)


def test_the_directories_have_their_sizes() -> None:
    said = told(disk_bytes=1 << 20, artifact_bytes=1)
    assert after(said, "--perms", "0700", "--size", "1048576", "--tmpfs")[0] == "/scratch"
    assert after(said, "--perms", "0700", "--size", "1", "--tmpfs")[0] == "/out"


def test_nothing_is_mounted_after_the_root_is_read_only() -> None:
    rest = after(told(), "--remount-ro", "/")
    assert not {"--tmpfs", "--ro-bind", "--dev-bind", "--symlink", "--proc"} & set(rest)


def test_the_descriptors_are_those_that_the_child_gets() -> None:
    said = told()
    assert after(said, "--json-status-fd")[0] == str(STATUS_AT)
    assert after(said, "--block-fd")[0] == str(BLOCK_AT)
    assert after(said, "--seccomp") == [str(FILTER_AT)]
    assert b"--seccomp" not in arguments([], disk_bytes=1, artifact_bytes=1, filtered=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a program as another user")
def test_the_program_is_asked_as_the_user_that_it_is_named_for_and_never_as_root() -> None:
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        said = Path(place, "said")
        said.touch()
        said.chmod(0o666)
        asked = program(Path(place), f"id -u >{said}; id -G >>{said}; echo bubblewrap 0.8.0")
        assert examine(asked, FIRST_UID).version == "0.8.0"
        assert said.read_text().split() == [str(FIRST_UID)] * 2
