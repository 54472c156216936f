"""What the runtime image is made of, pinned: `image_lock.json`, per architecture.

`tools/lock_sandbox_image.py` writes it anew when a pin is to be moved.
"""

from __future__ import annotations

import json
import platform
from importlib.resources import files
from typing import Any

import attrs

from gateway.sandbox.image_manifest import Entry
from gateway.sandbox.image_refusal import ArchitectureUnsupported

NODE = "/usr/bin/node"


@attrs.frozen
class Wheel:
    """The Python distribution that brings node: the wheel's SHA-256, and which file of it is node."""

    distribution: str
    version: str
    sha256: str
    node: str


@attrs.frozen
class DebianPackage:
    """One Debian package: its SHA-256, and which of its files become libraries of the image."""

    name: str
    version: str
    architecture: str
    sha256: str
    libraries: tuple[str, ...]


@attrs.frozen
class Lock:
    """The pins of one architecture.

    `interpreter` is the file name of the ELF loader; `manifest` the entries that `digest` is the digest of.
    """

    machine: str
    wheel: Wheel
    packages: tuple[DebianPackage, ...]
    interpreter: str
    digest: str
    manifest: tuple[Entry, ...]

    @property
    def node(self) -> Entry:
        """Node itself: every image of this lock has this very file, whatever its libraries."""
        return next(entry for entry in self.manifest if entry.path == NODE)


def load_lock(machine: str | None = None) -> Lock:
    """Return the pins for `machine`, as `uname -m` calls it; this one if None.  Raises `ArchitectureUnsupported`."""
    document = json.loads(files("gateway.sandbox").joinpath("image_lock.json").read_text())
    return lock_of(document, machine or platform.machine())


def lock_of(document: dict[str, Any], machine: str) -> Lock:
    """Return the pins for `machine` of a lock document.  Raises `ArchitectureUnsupported`."""
    if machine not in document:
        raise ArchitectureUnsupported(machine, sorted(document))
    pins = document[machine]
    return Lock(
        machine,
        Wheel(**pins["wheel"]),
        tuple(DebianPackage(**{**each, "libraries": tuple(each["libraries"])}) for each in pins["packages"]),
        pins["interpreter"],
        pins["digest"],
        tuple(Entry(*each) for each in pins["manifest"]),
    )
