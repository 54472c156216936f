"""Where the files of an image come from: node from a Python wheel, libraries from Debian packages or from this machine.

Downloads are made by the registries' ordinary clients, pip and apt, and are taken only with the hash of the lock.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from gateway.sandbox.image_lock import DebianPackage, Lock
from gateway.sandbox.image_refusal import BUILD_FROM_HOST, BuildFailed, PinGone, SourceMismatch, ToolMissing

Told = Callable[[str], object]
"""Hears of every step, in a line."""

DOWNLOAD_S = 600
OTHER_FIX = f"or take the libraries of this machine, which makes another image with another digest: `{BUILD_FROM_HOST}`"
APT_FIX = (
    "`apt-get update` as root and build again; if the mirror has dropped that version, update gateway, " + OTHER_FIX
)
PIP_FIX = "see that pip can reach its index, and build again; if the index has dropped that version, update gateway"
DEBIAN_FIX = "build on Debian or Ubuntu, " + OTHER_FIX


def node_of(lock: Lock, downloads: Path, work: Path, told: Told) -> Path:
    """Return the pinned node: that of the installed wheel if it is the one, else of the downloaded wheel.

    `downloads` keeps what is downloaded, `work` what is thrown away after the build.

    Raises `PinGone`, `SourceMismatch`, `ToolMissing`, `BuildFailed`.
    """
    name = f"{lock.wheel.distribution} {lock.wheel.version}"
    installed = installed_node(lock)
    if installed:
        told(f"node: from the installed {name}")
        return installed
    wheel = _kept(downloads.glob("*.whl"), lock.wheel.sha256)
    if wheel is None:
        told(f"node: downloading {name}")
        wheel = _download_wheel(lock, downloads, work)
    else:
        told(f"node: from the wheel {wheel.name} in {downloads}")
    unpacked = work / "node"
    with zipfile.ZipFile(wheel) as archive, archive.open(lock.wheel.node) as source, unpacked.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
    return unpacked


def installed_node(lock: Lock) -> Path | None:
    """Return node of the installed wheel, if version, the wheel's own RECORD, the lock and its bytes all agree."""
    try:
        distribution = metadata.distribution(lock.wheel.distribution)
    except metadata.PackageNotFoundError:
        return None
    if distribution.version != lock.wheel.version:
        return None
    record = next((each for each in distribution.files or () if str(each) == lock.wheel.node), None)
    if record is None or record.hash is None or record.hash.mode != "sha256":
        return None
    recorded = base64.urlsafe_b64decode(record.hash.value + "=").hex()
    path = Path(str(record.locate()))
    return path if path.is_file() and recorded == sha256_of(path) == lock.node.third else None


def _download_wheel(lock: Lock, downloads: Path, work: Path) -> Path:
    pinned = f"{lock.wheel.distribution}=={lock.wheel.version}"
    requirements = work / "requirements.txt"
    requirements.write_text(f"{pinned} --hash=sha256:{lock.wheel.sha256}\n")
    ended = _run(
        [
            *(sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet", "--no-deps"),
            *("--require-hashes", "--only-binary=:all:", "--dest", str(downloads), "-r", str(requirements)),
        ],
        work,
    )
    said = _last_line(ended.stderr)
    if "No module named pip" in ended.stderr:
        raise ToolMissing("pip", f"`{sys.executable} -m ensurepip`, or install {pinned} beside gateway")
    if "DO NOT MATCH THE HASHES" in ended.stderr:
        raise SourceMismatch(pinned)
    if ended.returncode:
        raise PinGone(pinned, said, PIP_FIX)
    wheel = _kept(downloads.glob("*.whl"), lock.wheel.sha256)
    if wheel is None:
        raise SourceMismatch(pinned)
    return wheel


def libraries_of_packages(lock: Lock, downloads: Path, work: Path, told: Told) -> dict[str, Path]:
    """Return the libraries of the pinned Debian packages by file name.

    Raises `PinGone`, `SourceMismatch`, `ToolMissing`, `BuildFailed`.
    """
    unpacked = work / "unpacked"
    found: dict[str, Path] = {}
    for package in lock.packages:
        archive = package_archive(package, downloads, work, told)
        ended = _run([_tool("dpkg-deb", DEBIAN_FIX), "-x", str(archive), str(unpacked)], work)
        if ended.returncode:
            raise BuildFailed(f"dpkg-deb cannot unpack {archive.name}: {_last_line(ended.stderr)}", "build again")
        found |= {Path(path).name: _inside(unpacked, path, package) for path in package.libraries}
    return found


def package_archive(package: DebianPackage, downloads: Path, work: Path, told: Told) -> Path:
    """Return the pinned Debian package, downloaded unless it is there."""
    pinned = f"{package.name}={package.version}"
    kept = _kept(downloads.glob(f"{package.name}_*.deb"), package.sha256)
    if kept:
        told(f"libraries: {package.name} {package.version} from {downloads}")
        return kept
    told(f"libraries: downloading {package.name} {package.version}")
    fresh = work / package.name
    fresh.mkdir()
    asked = f"{package.name}:{package.architecture}={package.version}"
    ended = _run([_tool("apt-get", DEBIAN_FIX), "-qq", "download", asked], fresh)
    if ended.returncode:
        raise PinGone(pinned, _last_line(ended.stderr), APT_FIX)
    archive = _kept(fresh.glob("*.deb"), package.sha256)
    if archive is None:
        raise SourceMismatch(pinned, [f"{each.name}: sha256 {sha256_of(each)}" for each in fresh.glob("*.deb")])
    return Path(shutil.move(archive, downloads / archive.name))


def _inside(unpacked: Path, path: str, package: DebianPackage) -> Path:
    real = (unpacked / path).resolve()
    if not real.is_relative_to(unpacked.resolve()) or not real.is_file():
        raise SourceMismatch(f"{package.name}={package.version}", [f"{path}: not in it"])
    return real


def libraries_of_host(node: Path, lock: Lock) -> dict[str, Path]:
    """Return by file name the libraries that this machine's own loader gives to node, and that loader.

    Raises `ToolMissing` where there is no glibc, `BuildFailed` where a library is missing.
    """
    loader = Path("/lib64") / lock.interpreter
    if not loader.exists():
        raise ToolMissing(f"glibc ({loader})", "run the node on a distribution with glibc")
    ended = _run([str(loader), "--list", str(node)], node.parent, clean=True)
    if ended.returncode or "not found" in ended.stdout:
        said = next((line.strip() for line in ended.stdout.splitlines() if "not found" in line), ended.stderr.strip())
        raise BuildFailed(f"this machine lacks a library of node: {said}", "install it (Debian: libstdc++6)")
    return {**libraries_listed(ended.stdout), lock.interpreter: loader.resolve()}


def libraries_listed(told: str) -> Mapping[str, Path]:
    """Return the libraries that `ld.so --list` tells of: `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x...)`."""
    words = [line.split() for line in told.splitlines()]
    return {line[0]: Path(line[2]).resolve() for line in words if len(line) >= 3 and line[1] == "=>"}


def sha256_of(path: Path) -> str:
    """Return the hex SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _kept(candidates: Iterable[Path], sha256: str) -> Path | None:
    return next((each for each in sorted(candidates) if sha256_of(each) == sha256), None)


def _tool(name: str, fix: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise ToolMissing(name, fix)
    return found


def _run(command: Sequence[str], cwd: Path, *, clean: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, its messages in English; `clean` gives it no other environment."""
    environment = ["/usr/bin/env", *(["-i"] if clean else []), "LC_ALL=C"]
    try:
        return subprocess.run(  # noqa: S603  # fixed programs, arguments of the lock
            [*environment, *command],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=DOWNLOAD_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BuildFailed(f"{command[0]} has not ended within {DOWNLOAD_S} s", "build again") from error


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("W:")]
    errors = [line for line in lines if line.startswith(("E:", "ERROR:"))]
    return (errors or lines or ["it said nothing"])[-1]
