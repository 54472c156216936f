from __future__ import annotations

import pytest

from gateway.sandbox.image_lock import load_lock
from gateway.sandbox.image_manifest import digest_of, unsafe
from gateway.sandbox.image_refusal import ArchitectureUnsupported


def test_the_digest_of_the_lock_is_that_of_its_manifest() -> None:
    lock = load_lock("x86_64")
    assert digest_of(lock.manifest) == lock.digest


def test_the_locked_image_is_safe_and_has_node_alone_on_its_path() -> None:
    manifest = load_lock("x86_64").manifest
    assert unsafe(manifest) == []
    assert [entry.path for entry in manifest if entry.path.startswith("/usr/bin/")] == ["/usr/bin/node"]


def test_the_locked_image_has_no_shell_and_no_package_manager() -> None:
    names = {entry.path.rpartition("/")[2] for entry in load_lock("x86_64").manifest}
    assert not names & {"sh", "bash", "busybox", "npm", "npx", "corepack", "apt", "dpkg", "python3", "env"}


def test_everything_that_is_downloaded_has_a_hash() -> None:
    lock = load_lock("x86_64")
    hashes = [lock.wheel.sha256, lock.node.third or "", *(package.sha256 for package in lock.packages)]
    assert [len(bytes.fromhex(each)) for each in hashes] == [32] * 5


def test_a_machine_without_pins_is_refused_by_name() -> None:
    with pytest.raises(ArchitectureUnsupported, match=r"no image is pinned for sparc64\. Fix: run the node on x86_64"):
        load_lock("sparc64")
