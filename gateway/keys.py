"""The node's key files: peppers, node keys, quote secrets and receipt keys, one directory, mode 0600.

Names are `{kind}-{version}.key`; the highest version is current, older ones stay for what they once sealed, signed or
named. A node that starts on an empty store makes what is missing; on a store that has rows, a missing pepper or node
key is an error: without it the node would not know its old keys and would charge twice.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

import attrs

KINDS = ("pepper", "node", "quote", "receipt")
NAME = re.compile(r"(pepper|node|quote|receipt)-([1-9][0-9]{0,8})\.key\Z")
SIZE = 32


class KeysRefused(Exception):
    """The key directory cannot be used: says which file and what to do."""


@attrs.frozen
class Keys:
    """Raw 32-byte keys by kind and version; `current` of a kind is its highest version."""

    peppers: Mapping[int, bytes] = attrs.field(repr=False)
    nodes: Mapping[int, bytes] = attrs.field(repr=False)
    quotes: Mapping[int, bytes] = attrs.field(repr=False)
    receipts: Mapping[int, bytes] = attrs.field(repr=False)

    def current(self, kind: str) -> tuple[int, bytes]:
        """Return (version, key) in use for new work."""
        keys: Mapping[int, bytes] = getattr(self, f"{kind}s")
        version = max(keys)
        return version, keys[version]


def open_keys(directory: Path, *, create: bool) -> Keys:
    """Read all keys under `directory`; with `create`, first make version 1 of each kind that has none.

    Raises `KeysRefused`.
    """
    try:
        if create:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = _read(directory)
        for kind in KINDS:
            if found[kind]:
                continue
            if not create:
                raise KeysRefused(
                    f"{directory} has no {kind} key, but the store has rows that need it:"
                    f" restore {kind}-*.key from the backup"
                )
            found[kind][1] = _write(directory, kind, 1)
    except OSError as error:
        raise KeysRefused(f"{error.filename or directory}: {error.strerror}") from error
    return Keys(peppers=found["pepper"], nodes=found["node"], quotes=found["quote"], receipts=found["receipt"])


def rotate(directory: Path, kind: str) -> int:
    """Add the next version of a kind and return its number; older versions stay.  Raises `KeysRefused`."""
    try:
        version = max(_read(directory)[kind], default=0) + 1
        _write(directory, kind, version)
    except OSError as error:
        raise KeysRefused(f"{error.filename or directory}: {error.strerror}") from error
    return version


def _read(directory: Path) -> dict[str, dict[int, bytes]]:
    found: dict[str, dict[int, bytes]] = {kind: {} for kind in KINDS}
    for path in sorted(directory.glob("*.key")):
        match = NAME.match(path.name)
        if match is None:
            raise KeysRefused(
                f"{path}: not a key file name of this node; expected KIND-VERSION.key with KIND in {KINDS}"
            )
        key = path.read_bytes()
        if len(key) != SIZE:
            raise KeysRefused(f"{path}: holds {len(key)} bytes instead of {SIZE}; restore it from the backup")
        if path.stat().st_mode & 0o077:
            raise KeysRefused(f"{path}: others can read it; run chmod 600 {path}")
        found[match[1]][int(match[2])] = key
    return found


def _write(directory: Path, kind: str, version: int) -> bytes:
    """Write a fresh key durably before it is used for anything."""
    key = secrets.token_bytes(SIZE)
    path = directory / f"{kind}-{version}.key"
    draft = directory / f".{path.name}.{secrets.token_hex(4)}"
    with draft.open("xb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(key)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(draft, path)
    finally:
        draft.unlink()
    folder = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return key
