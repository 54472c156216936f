"""The artifacts of a run: what it left in `/out`, listed by name, size and digest.

Everything is read through the descriptor of a directory after every process of the run is dead, and no link is ever
followed.  Whatever the command made of `/out` costs no more than the bounds below: a regular file whose size fits is
read once, nothing else is ever opened.

Names are paths beneath `/out`, written so that they can be shown: printable characters stand for themselves, every byte
of everything else (controls, line breaks, marks of direction, blanks but the space, bytes that are not UTF-8) and `%`
as `%XX`.  `urllib.parse.unquote_to_bytes` gives the true name back.
"""

from __future__ import annotations

import enum
import errno
import hashlib
import os
import stat
from collections.abc import Generator
from contextlib import closing
from itertools import islice
from typing import Any

import attrs

CHUNK = 2**16


class Skip(enum.StrEnum):
    """Why something in `/out` is no artifact."""

    SYMLINK = "symlink"
    FIFO = "fifo"
    SOCKET = "socket"
    DEVICE = "device"
    HARD_LINK = "hard_link"
    """Another name of a file that is listed already."""
    TOO_LARGE = "too_large"
    """It would take the artifacts over their limit, or is a sparse file that seems to."""
    TOO_DEEP = "too_deep"
    OTHER_FILESYSTEM = "other_filesystem"
    UNREADABLE = "unreadable"
    """It may not be opened, or is not what it was a moment ago."""


@attrs.frozen
class Bounds:
    """How much of a directory is looked at.

    Attributes:
        artifact_bytes: of all files together; sizes count, whatever of a sparse file is on disk.
        depth: directories beneath the first that are entered.
        listed: entries of the listing.
        seen: names read in all directories together, listed or not.
    """

    artifact_bytes: int
    depth: int = 8
    listed: int = 256
    seen: int = 4096


@attrs.frozen
class Artifact:
    """One entry: a file with its digest, or something else and why it was skipped.

    Attributes:
        name: the path beneath the directory, see the module.
        size: bytes; of what was skipped only where it was too large.
        sha256: lower-case hex digits.
    """

    name: str
    size: int | None = None
    sha256: str | None = None
    skipped: Skip | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the entry of `artifacts` (spec/outputs)."""
        return {
            "name": self.name,
            "bytes": self.size,
            "sha256": self.sha256,
            "skipped": None if self.skipped is None else self.skipped.value,
        }


@attrs.frozen
class Listing:
    """The artifacts depth first, sorted by name; `complete` unless there was more than the bounds allow."""

    artifacts: tuple[Artifact, ...]
    complete: bool

    @property
    def total_bytes(self) -> int:
        """What the files that were not skipped have together."""
        return sum(each.size or 0 for each in self.artifacts if each.skipped is None)


def listing(directory: int, bounds: Bounds) -> Listing:
    """Return what stands in an open directory, which stays open.

    Raises `OSError` where the directory itself cannot be read.
    """
    walk = _Walk(bounds, os.fstat(directory).st_dev)
    with closing(walk.entries(directory, b"", 0)) as entries:
        found = tuple(islice(entries, bounds.listed + 1))
    over = len(found) > bounds.listed
    return Listing(found[: bounds.listed], complete=not over and not walk.cut)


def shown_name(path: bytes) -> str:
    """Return a path as it is shown, see the module."""
    text = path.decode(errors="surrogateescape")
    return "".join(char if char.isprintable() and char != "%" else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode(errors="surrogateescape"))


@attrs.define
class _Walk:
    """One walk; the descriptors that it holds are those of the directories above where it is."""

    bounds: Bounds
    device: int
    cut: bool = False
    seen: int = 0
    spent: int = 0
    files: set[int] = attrs.field(factory=set)  # inode numbers, all of one device

    def entries(self, directory: int, above: bytes, depth: int) -> Generator[Artifact, None, None]:
        for name in self._names(directory):
            path = above + name
            try:
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode) and status.st_dev == self.device and depth < self.bounds.depth:
                    beneath = _opened(directory, name, status, os.O_DIRECTORY)
                    try:
                        yield from self.entries(beneath, path + b"/", depth + 1)
                    finally:
                        os.close(beneath)
                else:
                    yield self._entry(directory, name, shown_name(path), status)
            except OSError:
                yield Artifact(shown_name(path), skipped=Skip.UNREADABLE)

    def _names(self, directory: int) -> list[bytes]:
        """Return the names in a directory, sorted; a directory too large to be read whole is cut first."""
        with os.scandir(directory) as entries:
            names = [os.fsencode(each.name) for each in islice(entries, self.bounds.seen - self.seen)]
            self.cut = self.cut or next(entries, None) is not None
        self.seen += len(names)
        return sorted(names)

    def _entry(self, directory: int, name: bytes, shown: str, status: os.stat_result) -> Artifact:
        skip = self._skip(status)
        if skip is not None:
            return Artifact(shown, status.st_size if skip is Skip.TOO_LARGE else None, skipped=skip)
        file = _opened(directory, name, status)
        try:
            digest = _sha256(file, status.st_size)
        finally:
            os.close(file)
        self.files.add(status.st_ino)
        self.spent += status.st_size
        return Artifact(shown, status.st_size, digest)

    def _skip(self, status: os.stat_result) -> Skip | None:
        kind = _KINDS.get(stat.S_IFMT(status.st_mode))
        if kind is not None:
            return kind
        if status.st_dev != self.device:
            return Skip.OTHER_FILESYSTEM
        if stat.S_ISDIR(status.st_mode):
            return Skip.TOO_DEEP
        if status.st_ino in self.files:
            return Skip.HARD_LINK
        if self.spent + status.st_size > self.bounds.artifact_bytes:
            return Skip.TOO_LARGE
        return None


_KINDS = {
    stat.S_IFLNK: Skip.SYMLINK,
    stat.S_IFIFO: Skip.FIFO,
    stat.S_IFSOCK: Skip.SOCKET,
    stat.S_IFCHR: Skip.DEVICE,
    stat.S_IFBLK: Skip.DEVICE,
}


def _opened(directory: int, name: bytes, status: os.stat_result, flags: int = 0) -> int:
    """Return a descriptor of what `status` told of.

    Raises `OSError` where it cannot be opened or is something else by now; a link is not followed, and a fifo does not
    block.
    """
    always = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    file = os.open(name, always | flags, dir_fd=directory)
    now = os.fstat(file)
    if (now.st_dev, now.st_ino, now.st_mode) != (status.st_dev, status.st_ino, status.st_mode):
        os.close(file)
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    return file


def _sha256(file: int, size: int) -> str:
    """Return the digest of a file of `size` bytes.  Raises `OSError` where it has fewer or more by now."""
    digest = hashlib.sha256()
    left = size
    while left:
        chunk = os.read(file, min(left, CHUNK))
        if not chunk:
            break
        digest.update(chunk)
        left -= len(chunk)
    if left or os.read(file, 1):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    return digest.hexdigest()
