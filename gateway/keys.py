"""The node's key files: peppers, node keys, quote secrets and receipt keys, one directory, mode 0600.

Names are `{kind}-{version}.key`; the highest version is current, older ones stay for what they once sealed, signed or
named.  A node that starts on an empty store makes what is missing.  On a store that has been used, a kind without any
key is an error: without its pepper the node would not know its old keys and would charge twice, without its node key
it could not take open operations on, and receipts must stay verifiable.

All nodes of a store have the same key files.  The store remembers a fingerprint of each, `{kind}-{version}`, which
tells one key from another and nothing else of it.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs

KINDS = ("pepper", "node", "quote", "receipt")
NAME = re.compile(r"(pepper|node|quote|receipt)-([1-9][0-9]{0,8})\.key\Z")
FACT = re.compile(r"(?P<kind>pepper|node|quote|receipt)-(?P<version>[1-9][0-9]{0,8})\Z")
"""How a store names a key that it knows."""

SIZE = 32

WITHOUT = {
    "pepper": "keys of callers would not be recognised, and they would be charged twice",
    "node": "operations that are open could not be taken over",
    "quote": "quotes of the other nodes would be refused",
    "receipt": "receipts could not be verified",
}
"""What follows where a key is missing."""


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

    def fingerprints(self) -> dict[str, str]:
        """Return what tells each key from another without telling it: hexadecimal digests by `{kind}-{version}`."""
        return {
            f"{kind}-{version}": hmac.digest(key, f"gateway {kind} fingerprint".encode(), "sha256").hex()
            for kind in KINDS
            for version, key in sorted(getattr(self, f"{kind}s").items())
        }


def open_shared_keys(directory: Path, known: Mapping[str, str]) -> tuple[Keys, dict[str, str]]:
    """Open the keys of a store that knows some by their fingerprints; return them, and which it does not know yet.

    Where the store knows none, what is missing is made first.  Raises `KeysRefused`, also for a key that the store
    knows and that is missing here or another one; of quote secrets only the newest is still needed.
    """
    keys = open_keys(directory, create=not known)
    require_known(keys, known, directory)
    return keys, {name: value for name, value in keys.fingerprints().items() if name not in known}


def require_known(keys: Keys, known: Mapping[str, str], directory: Path) -> None:
    """Raise `KeysRefused` unless the keys are those that a store knows by their fingerprints."""
    faults = list(differences(keys, known, directory))
    if faults:
        raise KeysRefused("\n".join(faults))


def differences(keys: Keys, known: Mapping[str, str], directory: Path) -> Iterator[str]:
    """Say of each key that a store knows and that is missing or another one: which file, what follows, what to do."""
    ours = keys.fingerprints()
    newest_quote = max((int(name.partition("-")[2]) for name in known if name.startswith("quote-")), default=0)
    for name, value in sorted(known.items()):
        kind, _, version = name.partition("-")
        path, remedy = directory / f"{name}.key", "copy it from another node of this store, or from the backup"
        if name in ours and ours[name] != value:
            yield f"{path} is another key than the store was filled with, {WITHOUT[kind]}: {remedy}"
        elif name not in ours and (kind != "quote" or int(version) == newest_quote):
            yield f"{path} is missing, and the store was filled with it, {WITHOUT[kind]}: {remedy}"


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
                    f" restore {kind}-*.key from the backup, or copy it from another node of this store"
                )
            _write(directory, kind, 1)
            found[kind] = _read(directory)[kind]
    except OSError as error:
        raise KeysRefused(f"{error.filename or directory}: {error.strerror}") from error
    return Keys(peppers=found["pepper"], nodes=found["node"], quotes=found["quote"], receipts=found["receipt"])


def rotate(directory: Path, kind: str) -> int:
    """Add the next version of a kind and return its number; older versions stay.

    Nodes that run take it up at their next start.  Raises `KeysRefused`, also where there is no first version yet.
    """
    if kind not in KINDS:
        raise KeysRefused(f"there are no {kind} keys; there are {', '.join(KINDS)}")
    try:
        versions = _read(directory)[kind]
        if not versions:
            raise KeysRefused(f"{directory} has no {kind} key to follow on; start the node once, or restore the backup")
        version = max(versions) + 1
        if not _write(directory, kind, version):
            raise KeysRefused(f"{directory}: {kind} key {version} was just made by somebody else")
    except OSError as error:
        raise KeysRefused(f"{error.filename or directory}: {error.strerror}") from error
    return version


def _read(directory: Path) -> dict[str, dict[int, bytes]]:
    if not directory.is_dir():
        raise KeysRefused(
            f"{directory}: is no directory; restore it from the backup, or copy it from another node of this store"
        )
    found: dict[str, dict[int, bytes]] = {kind: {} for kind in KINDS}
    for path in sorted(directory.glob("*.key")):
        if path.name.startswith("."):
            continue
        match = NAME.match(path.name)
        if match is None:
            raise KeysRefused(
                f"{path}: not a key file name of this node; expected KIND-VERSION.key with KIND in {', '.join(KINDS)}"
            )
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise KeysRefused(f"{path}: others can read it; run chmod 600 {path}")
            key = file.read(SIZE + 1)
        if len(key) != SIZE:
            held = f"{len(key)} bytes" if len(key) < SIZE else "more bytes"
            raise KeysRefused(f"{path}: holds {held} instead of {SIZE}; restore it from the backup")
        found[match[1]][int(match[2])] = key
    return found


def _write(directory: Path, kind: str, version: int) -> bool:
    """Write a fresh key durably before it is used for anything; return False if there is one by this name already.

    Until it is whole and on disk it has a draft's name, which no start reads.
    """
    path = directory / f"{kind}-{version}.key"
    draft = directory / f".{path.name}.{secrets.token_hex(4)}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(SIZE))
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    _sync_directory(directory)
    return True


def _sync_directory(directory: Path) -> None:
    folder = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
