"""Building the runtime image: assembled aside, compared with the lock, renamed into place in one step.

Builders of one directory wait for each other, and one that was killed leaves nothing that the next does not remove.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import rfc8785

from gateway.sandbox.image import HOST_LIBRARIES, PINNED, Image, directory_named, host_link, manifest_beside, verify
from gateway.sandbox.image_lock import NODE, Lock
from gateway.sandbox.image_manifest import Entry, differences, digest_of, manifest_of, read_tree
from gateway.sandbox.image_refusal import ImageRefused, SourceMismatch
from gateway.sandbox.image_sources import Told, libraries_of_host, libraries_of_packages, node_of

ASIDE = ".building-"
BUILDERS_LOCK = ".builders"
ETC = {
    "passwd": "sandbox:x:65534:65534:sandbox:/scratch:/bin/false\n",
    "group": "sandbox:x:65534:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
DIRECTORIES = ("/etc", "/usr", "/usr/bin", "/usr/lib")
LINKS = {"/lib": "usr/lib", "/lib64": "usr/lib"}


@attrs.frozen
class Built:
    """What a build has come to: the verified image, and whether this build made it or found it."""

    image: Image
    made: bool


def build(
    images: Path,
    lock: Lock,
    *,
    host_libraries: bool = False,
    downloads: Path | None = None,
    told: Told = lambda _: None,
) -> Built:
    """Build the image of the lock among `images`, unless it stands there whole.

    With `host_libraries` the libraries are this machine's own: another digest, its kind stated inside, and a link that
    says the operator chose it.  `downloads` is where downloads are looked for and kept; without it they are removed.
    Raises a kind of `ImageRefused`.
    """
    # What downloads and unpacks runs in a directory of its own, from where a relative path leads elsewhere.
    images = images.absolute()
    if not images.is_dir():
        images.mkdir(parents=True)
        images.chmod(0o755)
    if downloads:
        downloads = downloads.absolute()
        downloads.mkdir(parents=True, exist_ok=True)
    with _only_builder(images, told):
        _sweep(images)
        if host_libraries:
            return _build_of_host(images, lock, downloads, told)
        final = images / directory_named(lock.digest)
        standing = _standing(final, lock, told)
        if standing:
            return Built(standing, made=False)
        with _work(images) as work:
            place = downloads or work
            node, libraries = node_of(lock, place, work, told), libraries_of_packages(lock, place, work, told)
            with _assembled(images, files_of(lock, PINNED, node, libraries)) as (tree, entries):
                if digest_of(entries) != lock.digest:
                    raise SourceMismatch("what was assembled", differences(lock.manifest, entries))
                _put_in_place(tree, final, entries)
        return Built(verify(final, lock), made=True)


def _build_of_host(images: Path, lock: Lock, downloads: Path | None, told: Told) -> Built:
    with _work(images) as work:
        node = node_of(lock, downloads or work, work, told)
        told("libraries: this machine's own")
        files = files_of(lock, HOST_LIBRARIES, node, libraries_of_host(node, lock))
        with _assembled(images, files) as (tree, entries):
            final = images / directory_named(digest_of(entries))
            standing = _standing(final, lock, told)
            if not standing:
                _put_in_place(tree, final, entries)
    image = standing or verify(final, lock)
    _point(images / host_link(lock), final.name)
    return Built(image, made=standing is None)


def files_of(lock: Lock, kind: str, node: Path, libraries: Mapping[str, Path]) -> dict[str, tuple[Path | bytes, int]]:
    """Return every file of an image: where its bytes come from, and its mode."""
    about: dict[str, Any] = {"architecture": lock.machine, "kind": kind, "node": lock.wheel.version}
    if kind == PINNED:
        about["libraries"] = {package.name: package.version for package in lock.packages}
    files: dict[str, tuple[Path | bytes, int]] = {NODE: (node, 0o555)}
    for name, path in libraries.items():
        files[f"/usr/lib/{name}"] = (path, 0o555 if name == lock.interpreter else 0o444)
    for name, text in ETC.items():
        files[f"/etc/{name}"] = (text.encode(), 0o444)
    files["/etc/image.json"] = (rfc8785.dumps(about) + b"\n", 0o444)
    return files


def assemble(tree: Path, files: Mapping[str, tuple[Path | bytes, int]]) -> tuple[Entry, ...]:
    """Lay out an image in the empty directory `tree`, durably and read-only, and return its entries as read back."""
    for directory in DIRECTORIES:
        (tree / directory[1:]).mkdir()
    for path, (source, mode) in files.items():
        with (tree / path[1:]).open("xb") as file:
            if isinstance(source, bytes):
                file.write(source)
            else:
                with source.open("rb") as original:
                    shutil.copyfileobj(original, file, 1 << 20)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
    for path, target in LINKS.items():
        (tree / path[1:]).symlink_to(target)
    for directory in ("/", *DIRECTORIES):
        (tree / directory[1:]).chmod(0o555)
        _sync(tree / directory[1:])
    return read_tree(tree)


@contextmanager
def _assembled(images: Path, files: Mapping[str, tuple[Path | bytes, int]]) -> Iterator[tuple[Path, tuple[Entry, ...]]]:
    """Assemble beside the images: a directory keeps its parent when it is renamed, so it may be read-only by then."""
    tree = Path(tempfile.mkdtemp(prefix=ASIDE, dir=images))
    try:
        yield tree, assemble(tree, files)
    finally:
        if tree.exists():
            remove_tree(tree)


def _put_in_place(tree: Path, final: Path, entries: tuple[Entry, ...]) -> None:
    """Rename `tree` to `final`; what stands there and is damaged goes aside, and runs that have it open keep it."""
    beside = manifest_beside(final)
    written = beside.with_name(f"{ASIDE}{beside.name}")
    written.write_bytes(manifest_of(entries))
    written.chmod(0o444)
    written.replace(beside)
    if os.path.lexists(final):
        damaged = final.with_name(f"{ASIDE}{final.name}")
        final.rename(damaged)
        tree.rename(final)
        remove_tree(damaged)
    else:
        tree.rename(final)
    _sync(final.parent)


def _standing(final: Path, lock: Lock, told: Told) -> Image | None:
    if not os.path.lexists(final):
        return None
    try:
        return verify(final, lock)
    except ImageRefused as refused:
        told(f"the image that stands there is replaced: {refused.what}: {'; '.join(refused.where)}")
        return None


def _point(link: Path, target: str) -> None:
    fresh = link.with_name(f"{ASIDE}{link.name}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(link)


@contextmanager
def _only_builder(images: Path, told: Told) -> Iterator[None]:
    with (images / BUILDERS_LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            told("waiting for another build in the same directory")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _work(images: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=ASIDE, dir=images) as work:
        yield Path(work)


def _sweep(images: Path) -> None:
    """Remove what builds have left that were killed; only the only builder may."""
    for path in images.glob(f"{ASIDE}*"):
        remove_tree(path)


def remove_tree(path: Path) -> None:
    """Remove an image, read-only as it is, or any other file."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    path.chmod(0o700)
    for directory, below, _ in os.walk(path):
        for name in below:
            if not (inner := Path(directory, name)).is_symlink():
                inner.chmod(0o700)
    shutil.rmtree(path)


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
