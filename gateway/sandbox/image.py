"""The pinned runtime image that commands run in: found, verified to the byte, watched, and asked what it can run.

An image is a read-only tree (`usr`, `lib`, `lib64`, `etc`) in a directory named by its digest, `sha256-HEX`, among the
others in the directory of images; its manifest stands beside it, `sha256-HEX.json`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs

from gateway.sandbox.image_lock import NODE, Lock, load_lock
from gateway.sandbox.image_manifest import Entry, differences, digest_of, read_tree, resolve, unsafe
from gateway.sandbox.image_refusal import ImageMismatch, ImageMissing, ImageRefused, ImageUnsafe, build_command

__all__ = [
    "HOST_LIBRARIES",
    "PATH",
    "PINNED",
    "Image",
    "ImageMismatch",
    "ImageMissing",
    "ImageRefused",
    "ImageUnsafe",
    "directory_of_images",
    "fingerprint",
    "load_lock",
    "locate",
    "names_of",
    "unchanged",
    "verify",
    "warm",
]

PATH = "/usr/bin"
"""The PATH of every command, and where argv[0] without a slash is looked for."""
PINNED, HOST_LIBRARIES = "pinned", "host-libraries"
DIRECTORY = re.compile(r"sha256-([0-9a-f]{64})")
SHARED = Path("/var/lib/gateway-sandbox")
BLOCK = 1 << 20


@attrs.frozen
class Image:
    """A verified image.

    `executables` are the paths inside of all that can be run, `verified` the fingerprint that the tree had when it was
    verified, `kind` whether its libraries are those of the lock or of this machine, `tree` the path of everything in
    the tree, itself first.
    """

    path: Path
    digest: str
    executables: frozenset[str]
    kind: str = PINNED
    verified: str = ""
    members: Mapping[str, Entry] = attrs.field(factory=dict, repr=False)
    tree: tuple[str, ...] = attrs.field(default=(), repr=False)

    def resolves(self, name: str) -> str | None:
        """Return the path inside of the executable that argv[0] `name` would run, or None.

        A bare name is looked for on `PATH`, an absolute path followed through the image's own links; any other has a
        slash and counts from the scratch directory, which is empty when the command starts.
        """
        path = name if "/" in name else f"{PATH}/{name}"
        real = resolve(self.members, path)
        return real if real in self.executables else None


def directory_of_images(data_dir: Path) -> Path:
    """Return where images stand when nothing else is configured.

    Under root each slot runs as a uid of its own, to whom a node's private data directory is closed.
    """
    return SHARED if os.geteuid() == 0 else data_dir / "sandbox-images"


def directory_named(digest: str) -> str:
    """Return the name of the directory of the image with this digest."""
    return digest.replace(":", "-")


def host_link(lock: Lock) -> str:
    """Return the name of the link to the image from host libraries that the operator chose in place of this lock's."""
    return f"{HOST_LIBRARIES}-for-{lock.digest.removeprefix('sha256:')[:16]}"


def locate(images: Path, lock: Lock) -> Path:
    """Return where the image of this lock stands among `images`.

    The pinned one is preferred; one from host libraries is taken only where the operator has built it for this very
    lock.  Raises `ImageMissing`, or `ImageMismatch` where the link leads elsewhere.
    """
    pinned = images / directory_named(lock.digest)
    if pinned.is_dir():
        return pinned
    link = images / host_link(lock)
    if not link.is_symlink():
        raise ImageMissing(images)
    target = str(link.readlink())
    if not DIRECTORY.fullmatch(target):
        raise ImageMismatch(link, [f"it leads to {target!a}"], build_command(images, host_libraries=True))
    if not (images / target).is_dir():
        raise ImageMissing(images)
    return images / target


def verify(path: Path, lock: Lock) -> Image:
    """Hash the whole tree and return it as the image that it is named, and that the lock allows; reads all of it.

    Raises `ImageMismatch` with where it differs, `ImageUnsafe` on what no image may hold, `ImageMissing`.
    """
    named = DIRECTORY.fullmatch(path.name)
    if not named:
        raise ImageMismatch(path, ["the directory is not named by a digest"])
    if not path.is_dir():
        raise ImageMissing(path.parent)
    if path.parent.stat().st_mode & stat.S_IWOTH:
        raise ImageUnsafe(path, [f"{path.parent}: anybody may write there"])
    try:
        tree = tuple(_paths(str(path)))
        before = _fingerprint(tree)
        entries = read_tree(path)
        if _fingerprint(_paths(str(path))) != before:
            raise ImageMismatch(path, ["it changed while it was read"])
        return attrs.evolve(_judged(path, lock, f"sha256:{named[1]}", entries, before), tree=tree)
    except OSError as error:
        raise ImageMismatch(path, [f"it cannot be read: {error}"]) from error


def _judged(path: Path, lock: Lock, digest: str, entries: Sequence[Entry], seen: str) -> Image:
    if forbidden := unsafe(entries):
        raise ImageUnsafe(path, forbidden)
    if digest_of(entries) != digest:
        expected = _expected(path, lock, digest)
        where = differences(expected, entries) if expected else ["nobody knows where: no manifest"]
        raise ImageMismatch(
            path, where, "" if digest == lock.digest else build_command(path.parent, host_libraries=True)
        )
    members = {entry.path: entry for entry in entries}
    kind = PINNED
    if digest != lock.digest:
        kind = _kind(path)
        if kind != HOST_LIBRARIES:
            raise ImageMismatch(path, ["it is not the image that this version of gateway pins"])
        if members.get(NODE) != lock.node:
            raise ImageMismatch(
                path,
                [f"{NODE}: not the node that this version of gateway pins"],
                build_command(path.parent, host_libraries=True),
            )
    return Image(path, digest, _executables(members), kind, seen, members)


def names_of(lock: Lock) -> Callable[[str], str | None]:
    """Return `Image.resolves` of the image that a lock pins, which need not stand here."""
    members = {entry.path: entry for entry in lock.manifest}
    return Image(Path(directory_named(lock.digest)), lock.digest, _executables(members), members=members).resolves


def _expected(path: Path, lock: Lock, digest: str) -> Sequence[Entry]:
    """Return the manifest with this digest, from the lock or from beside the image; nothing where neither has it."""
    if digest == lock.digest:
        return lock.manifest
    try:
        beside = tuple(Entry(*each) for each in json.loads(manifest_beside(path).read_bytes()))
        return beside if digest_of(beside) == digest else ()
    except (OSError, ValueError, TypeError):
        return ()


def manifest_beside(path: Path) -> Path:
    """Return where the manifest of the image at `path` stands."""
    return path.with_name(f"{path.name}.json")


def _kind(path: Path) -> str:
    """Return what kind of image this says it is; it has been hashed, so it says what its builder said."""
    try:
        told = json.loads((path / "etc/image.json").read_bytes())
    except (OSError, ValueError):
        return ""
    return str(told.get("kind", "")) if isinstance(told, dict) else ""


def _executables(members: Mapping[str, Entry]) -> frozenset[str]:
    on_path = (path for path in members if path.rpartition("/")[0] == PATH)
    found = (members[real] for path in on_path if (real := resolve(members, path)))
    return frozenset(entry.path for entry in found if entry.kind == "f" and int(entry.mode, 8) & 0o111)


def fingerprint(image: Image) -> str:
    """Return a hash of the stat of everything in the tree, blind to nothing but the clock.

    Any write, rename, new file, new mode or new mount changes it (ctime cannot be set).  Raises `ImageMismatch` when
    the tree cannot be read.
    """
    try:
        return _fingerprint(_paths(str(image.path)))
    except OSError as error:
        raise ImageMismatch(image.path, [f"it cannot be read: {error}"]) from error


def unchanged(image: Image) -> str:
    """Return the image's fingerprint, as it was when it was verified.  Raises `ImageMismatch` if it is another.

    Cheap enough for every run: the tree is not listed, for whatever comes into a directory or leaves it changes that.
    """
    try:
        now = _fingerprint(image.tree or _paths(str(image.path)))
    except FileNotFoundError:
        now = "not all of it is there"
    except OSError as error:
        raise ImageMismatch(image.path, [f"it cannot be read: {error}"]) from error
    if now != image.verified:
        raise ImageMismatch(image.path, ["it changed since it was verified"])
    return now


def _fingerprint(paths: Iterable[str]) -> str:
    told = hashlib.sha256()
    for path in paths:
        seen = os.lstat(path)
        parts = (path, seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)
        told.update(repr(parts).encode())
    return told.hexdigest()


def _paths(root: str) -> Iterator[str]:
    todo = [root]
    while todo:
        directory = todo.pop()
        yield directory
        with os.scandir(directory) as entries:
            below = sorted(entries, key=lambda entry: entry.name)
        for entry in below:
            if entry.is_dir(follow_symlinks=False):
                todo.append(entry.path)
            else:
                yield entry.path


def warm(image: Image) -> int:
    """Read every file of the image once, so that no tenant is charged for the page cache; return how many bytes."""
    total = 0
    for path in _paths(str(image.path)):
        if stat.S_ISREG(os.lstat(path).st_mode):
            with Path(path).open("rb", buffering=0) as file:
                while block := file.read(BLOCK):
                    total += len(block)
    return total


def closed_to_others(path: Path) -> Path | None:
    """Return the topmost directory on the way to `path` that other users may not enter, or None.

    A sandbox that runs as a uid of its own cannot be given an image behind it.
    """
    way = [*reversed(path.absolute().parents), path.absolute()]
    return next((each for each in way if not each.stat().st_mode & stat.S_IXOTH), None)
