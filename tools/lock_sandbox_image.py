"""Write `gateway/sandbox/image_lock.json` anew: the pins of this machine's architecture, and what comes of them.

    python tools/lock_sandbox_image.py            the versions that are locked now: the same bytes again
    python tools/lock_sandbox_image.py --newest   the installed wheel of node, and the versions that the mirror has now

Runs on Debian with an image's libraries in its `apt` sources; other architectures in the lock stay as they are.
"""

# ruff: noqa: INP001  # scripts, no package

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import attrs

from gateway.sandbox.image import PINNED
from gateway.sandbox.image_building import assemble, files_of, remove_tree
from gateway.sandbox.image_lock import Lock, lock_of
from gateway.sandbox.image_manifest import digest_of
from gateway.sandbox.image_sources import libraries_of_packages, node_of, sha256_of

LOCK = Path(__file__).parent.parent / "gateway" / "sandbox" / "image_lock.json"


def newest(lock: Lock, work: Path) -> Lock:
    """Return the lock with the versions and hashes that can be had now; its digest and manifest are still the old."""
    distribution = lock.wheel.distribution
    version = metadata.version(distribution)
    fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*fetch, "--dest", str(work), f"{distribution}=={version}"], check=True)  # noqa: S603
    (wheel,) = work.glob("*.whl")
    packages = []
    for package in lock.packages:
        name = f"{package.name}:{package.architecture}"
        subprocess.run(["apt-get", "-qq", "download", name], cwd=work, check=True)  # noqa: S603, S607
        (archive,) = work.glob(f"{package.name}_*.deb")
        told = subprocess.run(["dpkg-deb", "-f", archive, "Version"], check=True, capture_output=True, text=True)  # noqa: S603, S607
        packages.append(attrs.evolve(package, version=told.stdout.strip(), sha256=sha256_of(archive)))
    pinned = attrs.evolve(lock.wheel, version=version, sha256=sha256_of(wheel))
    return attrs.evolve(lock, wheel=pinned, packages=tuple(packages))


def made(lock: Lock, downloads: Path, work: Path) -> Lock:
    """Return the lock with the manifest and the digest of the image that its pins make."""
    libraries = libraries_of_packages(lock, downloads, work, print)
    tree = work / "tree"
    tree.mkdir()
    try:
        entries = assemble(tree, files_of(lock, PINNED, node_of(lock, downloads, work, print), libraries))
    finally:
        remove_tree(tree)
    return attrs.evolve(lock, digest=digest_of(entries), manifest=entries)


def text_of(document: dict[str, object], lock: Lock) -> str:
    """Return the lock file with this lock in it; an entry of a manifest is one line."""
    pins = attrs.asdict(lock, filter=lambda attribute, _: attribute.name not in {"machine", "manifest"})
    entries = ",\n".join(f"      {json.dumps(entry.as_json())}" for entry in lock.manifest)
    document = {**document, lock.machine: {**pins, "manifest": "ENTRIES"}}
    return json.dumps(document, indent=2).replace('"ENTRIES"', f"[\n{entries}\n    ]") + "\n"


def main() -> None:
    """Write the lock."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--newest", action="store_true", help="move the pins")
    arguments.add_argument("--machine", default=platform.machine())
    arguments.add_argument("--downloads", type=Path, help="where downloads are looked for and kept")
    arguments.add_argument("--lock", type=Path, default=LOCK, help="the file to write")
    asked = arguments.parse_args()
    document = json.loads(LOCK.read_text())
    lock = lock_of(document, asked.machine)
    with tempfile.TemporaryDirectory() as work:
        place = Path(work)
        if asked.newest:
            lock = newest(lock, place)
        lock = made(lock, asked.downloads or place, place)
    asked.lock.write_text(text_of(document, lock))
    print(f"{asked.lock}: {lock.digest}")  # noqa: T201


if __name__ == "__main__":
    main()
