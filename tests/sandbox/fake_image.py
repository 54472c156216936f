"""A small image with pins of its own: a wheel and a Debian package made here, so that builds need no network."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import attrs
import pytest

from gateway.sandbox.image import PINNED, Image, directory_named, verify
from gateway.sandbox.image_building import assemble, files_of
from gateway.sandbox.image_lock import Lock, lock_of
from gateway.sandbox.image_manifest import digest_of

NODE = Path("/bin/true")
"""Stands for node: any program of this machine with a loader."""
DISTRIBUTION = "standing-in-for-node"
INTERPRETER = "ld-linux-x86-64.so.2"


@attrs.frozen
class FakePins:
    """The lock of a small image, as its document and as it is read, and where its packages can be had."""

    document: dict[str, Any]
    downloads: Path

    @property
    def lock(self) -> Lock:
        return lock_of(self.document, "x86_64")


def fake_pins(place: Path, *, version: str = "1.0", library: bytes = b"a library") -> FakePins:
    downloads = place / f"downloads-{version}"
    downloads.mkdir()
    wheel = fake_wheel(downloads, version)
    package = fake_package(downloads, version, library)
    pins: dict[str, Any] = {
        "wheel": {
            "distribution": DISTRIBUTION,
            "version": version,
            "sha256": sha256(wheel.read_bytes()),
            "node": "standing/bin/node",
        },
        "packages": [
            {
                "name": "libfake",
                "version": version,
                "architecture": "amd64",
                "sha256": sha256(package.read_bytes()),
                "libraries": ["usr/lib/libfake.so.1"],
            }
        ],
        "interpreter": INTERPRETER,
        "digest": "",
        "manifest": [],
    }
    unfinished = lock_of({"x86_64": pins}, "x86_64")
    source = place / "libfake.so.1"
    source.write_bytes(library)
    tree = place / f"tree-{version}"
    tree.mkdir()
    entries = assemble(tree, files_of(unfinished, PINNED, NODE, {"libfake.so.1": source}))
    pins["manifest"] = [entry.as_json() for entry in entries]
    pins["digest"] = digest_of(entries)
    return FakePins({"x86_64": pins}, downloads)


def standing_image(place: Path, *, version: str = "1.0") -> tuple[Path, FakePins]:
    """An image in place as a build would leave it, and its pins; its files may be altered by `altered`."""
    pins = fake_pins(place, version=version)
    images = place / "images"
    images.mkdir(exist_ok=True)
    path = images / directory_named(pins.lock.digest)
    (place / f"tree-{version}").rename(path)
    return path, pins


def verified(place: Path) -> tuple[Image, FakePins]:
    path, pins = standing_image(place)
    return verify(path, pins.lock), pins


def writable(path: Path) -> Path:
    """The same path, its directory and itself open to changes."""
    path.parent.chmod(0o755)
    if path.exists() and not path.is_symlink():
        path.chmod(0o755)
    return path


def fake_wheel(place: Path, version: str, node: bytes | None = None) -> Path:
    name = DISTRIBUTION.replace("-", "_")
    path = place / f"{name}-{version}-py3-none-any.whl"
    about = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("standing/bin/node", NODE.read_bytes() if node is None else node)
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {version}\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    return path


def fake_package(place: Path, version: str, library: bytes) -> Path:
    if shutil.which("dpkg-deb") is None:
        if os.environ.get("CI"):
            pytest.fail("dpkg-deb is not here, and CI must not skip")
        pytest.skip("dpkg-deb is not here")
    tree = place.parent / f"package-{version}"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN").chmod(0o755)
    (tree / "DEBIAN" / "control").write_text(
        f"Package: libfake\nVersion: {version}\nArchitecture: amd64\nMaintainer: a test <test@example.com>\n"
        "Description: stands for a library\n"
    )
    (tree / "usr/lib").mkdir(parents=True)
    (tree / "usr/lib/libfake.so.1.0.3").write_bytes(library)
    (tree / "usr/lib/libfake.so.1").symlink_to("libfake.so.1.0.3")
    path = place / f"libfake_{version}_amd64.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", str(tree), str(path)], check=True, capture_output=True)
    return path


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def written(pins: FakePins, path: Path) -> Path:
    """The lock document in a file, for another process."""
    path.write_text(json.dumps(pins.document))
    return path
