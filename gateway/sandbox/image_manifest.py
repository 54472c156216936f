"""What a runtime image consists of, entry by entry, and the digest that names it.

The digest is the SHA-256 of the RFC 8785 form of the sorted entries `[path, type, mode, size, third]`: paths as seen
inside, type `d`, `f` or `l`, mode in octal, size in bytes (0 of a directory), third the hex SHA-256 of a file, the
target of a link, null of a directory.  Owners and times are no part of it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs
import rfc8785

from gateway.sandbox.image_refusal import ImageUnsafe

Kind = Literal["d", "f", "l"]
NAME = re.compile(r"[!-.0-~]+")
"""Printable ASCII without the slash: what is shown to people cannot deceive them."""
DEEPEST = 8
MOST_ENTRIES = 1024
MOST_LINKS = 40
"""As the kernel (path_resolution(7))."""
LONGEST_PATH = 4095
FORBIDDEN_BITS = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX | 0o222
CAPABILITY = "security.capability"


@attrs.frozen(order=True)
class Entry:
    """One file, directory or link of an image."""

    path: str
    kind: Kind
    mode: str
    size: int
    third: str | None

    def as_json(self) -> list[Any]:
        """Return the entry as it stands in the manifest."""
        return [self.path, self.kind, self.mode, self.size, self.third]


def manifest_of(entries: Sequence[Entry]) -> bytes:
    """Return the manifest of these entries."""
    return rfc8785.dumps([entry.as_json() for entry in sorted(entries)])


def digest_of(entries: Sequence[Entry]) -> str:
    """Return `sha256:` and the hex digest of the manifest of these entries."""
    return f"sha256:{hashlib.sha256(manifest_of(entries)).hexdigest()}"


def read_tree(root: Path) -> tuple[Entry, ...]:
    """Read and hash a whole tree; links are read, never followed.

    Raises `ImageUnsafe` on what no manifest can hold or vouch for (a device, a name that is not printable ASCII, an
    owner who is neither root nor this user, a file capability), `OSError` on what cannot be read.
    """
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        entries: list[Entry] = []
        for entry in _walk(root, fd, "/"):
            entries.append(entry)
            if len(entries) > MOST_ENTRIES:
                raise ImageUnsafe(root, [f"it has more than {MOST_ENTRIES} entries"])
        return tuple(sorted(entries))
    finally:
        os.close(fd)


def _walk(root: Path, fd: int, path: str) -> Iterator[Entry]:
    here = os.fstat(fd)
    _known_owner(root, path, here)
    yield Entry(path, "d", _mode(here), 0, None)
    if path.count("/") > DEEPEST:
        raise ImageUnsafe(root, [f"{path}: deeper than any image"])
    for name in sorted(os.listdir(fd)):
        if not NAME.fullmatch(name):
            raise ImageUnsafe(root, [f"{path}: a file is called {name!a}"])
        inner = f"{path.rstrip('/')}/{name}"
        seen = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if stat.S_ISLNK(seen.st_mode):
            _known_owner(root, inner, seen)
            target = os.readlink(name, dir_fd=fd)
            yield Entry(inner, "l", _mode(seen), len(os.fsencode(target)), target)
        elif stat.S_ISDIR(seen.st_mode):
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
            try:
                yield from _walk(root, below, inner)
            finally:
                os.close(below)
        elif stat.S_ISREG(seen.st_mode):
            yield _file(root, name, fd, inner)
        else:
            raise ImageUnsafe(root, [f"{inner}: neither file, directory nor link"])


def _file(root: Path, name: str, directory: int, path: str) -> Entry:
    with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory), "rb") as file:  # noqa: PTH123  # from a descriptor
        seen = os.fstat(file.fileno())
        _known_owner(root, path, seen)
        if CAPABILITY in _attributes(file.fileno()):
            raise ImageUnsafe(root, [f"{path}: it has file capabilities"])
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Entry(path, "f", _mode(seen), seen.st_size, digest)


def _attributes(fd: int) -> list[str]:
    try:
        return os.listxattr(fd)
    except OSError as error:
        if error.errno == errno.ENOTSUP:  # a file system without any
            return []
        raise


def _known_owner(root: Path, path: str, seen: os.stat_result) -> None:
    if seen.st_uid not in {0, os.geteuid()}:
        raise ImageUnsafe(root, [f"{path}: owned by uid {seen.st_uid}, neither root nor uid {os.geteuid()}"])


def _mode(seen: os.stat_result) -> str:
    return f"{stat.S_IMODE(seen.st_mode):04o}"


def unsafe(entries: Sequence[Entry]) -> list[str]:
    """Return what is forbidden in any image: bits to write or to become another by, and links that may lead out.

    A link is safe when it is relative, has no `..` and leads to an entry: however links are chained, it only descends.
    """
    members = {entry.path: entry for entry in entries}
    found = []
    for entry in entries:
        if entry.kind == "l":
            target = entry.third or ""
            if target.startswith("/") or ".." in target.split("/"):
                found.append(f"{entry.path}: a link to {target!a}, out of the image")
            elif resolve(members, entry.path) is None:
                found.append(f"{entry.path}: a link to {target!a}, which is not there")
        elif int(entry.mode, 8) & FORBIDDEN_BITS:
            found.append(f"{entry.path}: mode {entry.mode}")
    return found


def differences(expected: Sequence[Entry], found: Sequence[Entry]) -> list[str]:
    """Return how a tree differs from its manifest, a line an entry."""
    wanted = {entry.path: entry for entry in expected}
    there = {entry.path: entry for entry in found}
    lines = []
    for path in sorted(wanted.keys() | there.keys()):
        match wanted.get(path), there.get(path):
            case None, _:
                lines.append(f"{path}: extra")
            case _, None:
                lines.append(f"{path}: missing")
            case Entry() as one, Entry() as other if one != other:
                lines.append(f"{path}: {_difference(one, other)}")
            case _:
                pass
    return lines


def _difference(expected: Entry, found: Entry) -> str:
    if expected.kind != found.kind:
        return f"type {found.kind} instead of {expected.kind}"
    if expected.mode != found.mode:
        return f"mode {found.mode} instead of {expected.mode}"
    if expected.size != found.size:
        return f"{found.size} bytes instead of {expected.size}"
    return "other content"


def resolve(members: Mapping[str, Entry], path: str) -> str | None:
    """Return where an absolute path leads to inside the image, links followed as if its root were `/`, or None.

    Walks as path_resolution(7) does: `..` after a link counts from where the link led, a file has nothing beneath it.
    """
    if not path.startswith("/") or len(path) > LONGEST_PATH:
        return None
    todo = path.split("/")[::-1]
    at: list[str] = []
    links = 0
    while todo:
        name = todo.pop()
        if name in {"", "."}:
            continue
        if name == "..":
            at = at[:-1]
            continue
        entry = members.get("/".join(["", *at, name]))
        if entry is None or (entry.kind == "f" and todo):
            return None
        if entry.kind != "l":
            at.append(name)
            continue
        links += 1
        if links > MOST_LINKS:
            return None
        target = entry.third or ""
        at = [] if target.startswith("/") else at
        todo.extend(target.split("/")[::-1])
    return "/" + "/".join(at)
