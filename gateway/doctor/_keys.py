"""The node's keys: whether they can be read, and whether they are those that the store was filled with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gateway.doctor._check import Check, failed, fine, note
from gateway.keys import Keys, KeysRefused, differences, open_keys

START = "the node does not start"


def keys(directory: Path, known: Mapping[str, str], *, fresh: bool) -> list[Check]:
    """Check the keys against their fingerprints in the store; a `fresh` node makes what is missing at its start."""
    found, check = keys_in(directory, fresh=fresh)
    return [check] if found is None else [check, *of_the_store(found, known, directory)]


def keys_in(directory: Path, *, fresh: bool) -> tuple[Keys | None, Check]:
    """Return the keys and how they stand."""
    if fresh and not list(directory.glob("*.key")):
        return None, note("keys", f"none in {directory} yet", "the first start makes them; back them up with the store")
    try:
        found = open_keys(directory, create=False)
    except KeysRefused as refused:
        if fresh and "has no" in str(refused):
            return None, note("keys", f"some are missing in {directory}", "the first start makes them")
        return None, failed("keys", str(refused), START, "do what the line says; keys are never made anew for a store")
    count = len(found.fingerprints())
    return found, fine("keys", f"{count} in {directory}, readable by this user only")


def of_the_store(found: Keys, known: Mapping[str, str], directory: Path) -> list[Check]:
    """Compare the keys with those that the store knows."""
    name = "keys of the store"
    lines = list(differences(found, known, directory))
    if lines:
        what = [line.partition(": copy")[0] for line in lines]
        fix = f"copy the keys directory of another node of this store, or of the backup, to {directory}"
        return [failed(name, each, START, fix) for each in what]
    if known:
        return [fine(name, f"it knows {len(known)}, and these are the same")]
    return []
