from __future__ import annotations

import base64
import hashlib
import io
import json
import subprocess
import tarfile
from pathlib import Path

import pytest

from gateway.world import npm
from gateway.world.npm import ToolUnavailable


def archive(path: Path, content: bytes) -> str:
    with tarfile.open(path, "w:gz") as packed:
        entry = tarfile.TarInfo("package/bin/tool")
        entry.size = len(content)
        packed.addfile(entry, io.BytesIO(content))
    return "sha512-" + base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()


def test_a_pinned_file_is_taken_out_executable(tmp_path: Path) -> None:
    integrity = archive(tmp_path / "it.tgz", b"#!/bin/sh\necho here\n")
    npm.extract(tmp_path / "it.tgz", "package/bin/tool", integrity, tmp_path / "tool")
    assert subprocess.run([tmp_path / "tool"], capture_output=True, check=True).stdout == b"here\n"


def test_an_altered_archive_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    integrity = archive(tmp_path / "it.tgz", b"good")
    archive(tmp_path / "it.tgz", b"evil")
    with pytest.raises(ToolUnavailable, match="not what was pinned"):
        npm.extract(tmp_path / "it.tgz", "package/bin/tool", integrity, tmp_path / "tool")
    assert not (tmp_path / "tool").exists()


def test_a_machine_without_a_pinned_chain_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(ToolUnavailable, match="riscv64"):
        npm.anvil_binary()


def test_npm_is_carried_by_the_environment() -> None:
    assert npm.npm(["--version"], Path.cwd()).strip().count(".") == 2


def test_npm_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(ToolUnavailable, match="npm ci failed"):
        npm.npm(["ci"], tmp_path)


def test_installed_clients_are_not_installed_again(tmp_path: Path) -> None:
    lock = b'{"lockfileVersion": 3}'
    (tmp_path / "package-lock.json").write_bytes(lock)
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / ".installed").write_text(hashlib.sha256(lock).hexdigest())
    npm.install_clients(tmp_path)
    assert [each.name for each in (tmp_path / "node_modules").iterdir()] == [".installed"]


def test_the_clients_are_locked_by_hash_and_by_no_address() -> None:
    lock = json.loads((Path(__file__).parents[1] / "npm" / "package-lock.json").read_text())
    packages = {name: each for name, each in lock["packages"].items() if name}
    assert packages
    assert all(each["integrity"].startswith("sha512-") for each in packages.values())
    assert all("resolved" not in each for each in packages.values())


@pytest.mark.parametrize("arguments", [[], ["anvil", "more"], ["clients"]])
def test_other_arguments_are_a_usage_error(arguments: list[str]) -> None:
    assert npm.main(arguments) == 2
