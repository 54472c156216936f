"""The image that the battery runs in: the pinned one with `/usr/bin/hostile` beside node, under its own digest."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from gateway.sandbox.image import PINNED, Image, closed_to_others, directory_named, load_lock, verify
from gateway.sandbox.image_building import assemble, files_of, remove_tree
from gateway.sandbox.image_manifest import digest_of
from gateway.sandbox.image_refusal import PinGone
from gateway.sandbox.image_sources import libraries_of_packages, node_of
from tests.sandbox.in_groups import unavailable

SOURCE = Path(__file__).with_name("hostile.c")
KEPT_DOWNLOADS = Path(__file__).parents[2] / ".gateway" / "sandbox-downloads"
HOSTILE = "/usr/bin/hostile"
BUBBLEWRAP = shutil.which("bwrap") or ""


def require_a_sandbox() -> None:
    """Skip where no sandbox can be had, but not in CI."""
    if os.geteuid() != 0:
        unavailable("only root gives each slot a user of its own")
    if not BUBBLEWRAP:
        unavailable("bubblewrap is not installed (apt-get install bubblewrap)")
    if shutil.which("gcc") is None:
        unavailable("the hostile program needs a C compiler (apt-get install gcc libc6-dev)")


@contextmanager
def hostile_image() -> Iterator[Image]:
    """Build and verify the image where the users of slots may enter, and remove it afterwards."""
    place = Path(tempfile.mkdtemp(prefix="gateway-hostile-"))
    try:
        place.chmod(0o755)
        if closed := closed_to_others(place):
            unavailable(f"other users may not enter {closed}")
        yield _built(place)
    finally:
        for each in place.iterdir():
            if each.is_dir():
                remove_tree(each)
        shutil.rmtree(place)


def _built(place: Path) -> Image:
    lock = load_lock()
    work = place / "work"
    tree = place / "tree"
    for each in (work, tree, KEPT_DOWNLOADS):
        each.mkdir(parents=True, exist_ok=True)
    try:
        node = node_of(lock, KEPT_DOWNLOADS, work, lambda _: None)
        libraries = libraries_of_packages(lock, KEPT_DOWNLOADS, work, lambda _: None)
    except PinGone as gone:
        unavailable(str(gone))
        raise
    files = {**files_of(lock, PINNED, node, libraries), HOSTILE: (compiled(work / "hostile"), 0o555)}
    entries = assemble(tree, files)
    digest = digest_of(entries)
    final = tree.rename(place / directory_named(digest))
    return verify(final, attrs.evolve(lock, digest=digest, manifest=entries))


def compiled(program: Path) -> Path:
    """Compile the hostile program, with every warning an error."""
    options = ["-std=gnu2x", "-O1", "-static", "-pthread", "-Wall", "-Wextra", "-Werror"]
    done = subprocess.run(
        ["gcc", *options, "-o", str(program), str(SOURCE)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return program
