"""What lies on the disk: the data directory, the keys, the store."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from gateway.actors.store import StoreRefused, schema
from gateway.config import Configuration
from gateway.doctor._check import Check, failed, fine, note
from gateway.keys import Keys, KeysRefused, open_keys
from gateway.reading import connect
from gateway.registry.sealing import Naming

LEAST_FREE = 256 * 2**20
COMFORTABLE_FREE = 2 * 2**30
START = "the node does not start"


def disk(configuration: Configuration) -> list[Check]:
    """Check where the node keeps its data, and what is there already."""
    data_dir, path = configuration.data_dir, configuration.store_path
    ground = _nearest(data_dir)
    keys, about_keys = keys_in(data_dir / "keys", fresh=not path.exists())
    free = shutil.disk_usage(_nearest(path.parent)).free
    return [directory(data_dir, ground), space(free), about_keys, *store(path, keys)]


def directory(data_dir: Path, ground: Path) -> Check:
    """Check that the node can write; `ground` is the directory itself, or what it will be made in."""
    name = "data directory"
    if not ground.is_dir() or not os.access(ground, os.W_OK | os.X_OK):
        return failed(
            name,
            f"{ground} cannot be written by this user",
            START,
            f"as root: install -d -m 700 -o $USER {data_dir}; or set [node] data_dir",
        )
    if ground != data_dir:
        return note(name, f"{data_dir} is not there yet", "the first start makes it")
    if data_dir.stat().st_mode & 0o077:
        return note(name, f"{data_dir} is open to others", "they see the names of its files", f"chmod 700 {data_dir}")
    return fine(name, str(data_dir))


def space(free: int) -> Check:
    """Check the free space, in bytes."""
    told = f"{free / 2**30:.1f} GiB free"
    if free < LEAST_FREE:
        return failed("disk", told, "the store soon answers 503 to every call", "free some space")
    if free < COMFORTABLE_FREE:
        return note("disk", told, "results are kept for 7 days and need room", "free some space")
    return fine("disk", told)


def keys_in(directory: Path, *, fresh: bool) -> tuple[Keys | None, Check]:
    """Return the keys and how they stand; a `fresh` node makes what is missing at its first start."""
    if fresh and not list(directory.glob("*.key")):
        return None, note("keys", f"none in {directory} yet", "the first start makes them; back them up with the store")
    try:
        keys = open_keys(directory, create=False)
    except KeysRefused as refused:
        if fresh and "has no" in str(refused):
            return None, note("keys", f"some are missing in {directory}", "the first start makes them")
        return None, failed("keys", str(refused), START, "do what the line says; keys come back from a backup only")
    count = sum(map(len, (keys.peppers, keys.nodes, keys.quotes, keys.receipts)))
    return keys, fine("keys", f"{count} in {directory}, readable by this user only")


def store(path: Path, keys: Keys | None) -> list[Check]:
    """Check a store without writing to it."""
    if not path.exists():
        return [note("store", f"{path} is not there yet", "the first start makes it")]
    try:
        with closing(connect(path)) as connection:
            return [_schema(connection, path), _integrity(connection, path), *_peppers(connection, keys)]
    except StoreRefused as refused:
        return [failed("store", f"{refused.where}: {refused.what}", START, refused.remedy)]
    except sqlite3.Error as error:
        return [failed("store", f"{path}: {error}", START, "keep the file and restore the backup")]


def _schema(connection: sqlite3.Connection, path: Path) -> Check:
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'schema_migrations'").fetchone():
        raise StoreRefused(path, "it is no node's store", "Name a file of the node's own in [store] url")
    applied = [schema.Applied(*row) for row in connection.execute(schema.SELECT_APPLIED)]
    waiting = schema.pending(schema.load(schema.shipped(), "sqlite"), applied, path)
    if waiting:
        return note("store", f"schema {len(applied)} of {path}", "the next start migrates it", "back it up before")
    return fine("store", f"{path}, schema {len(applied)}")


def _integrity(connection: sqlite3.Connection, path: Path) -> Check:
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        return failed("integrity", f"{path}: {verdict}", START, "keep the file and restore the backup")
    return fine("integrity", "SQLite finds no damage")


def _peppers(connection: sqlite3.Connection, keys: Keys | None) -> list[Check]:
    """Compare the peppers with those that the store was filled with."""
    if keys is None:
        return []
    known = connection.execute("SELECT name, value FROM node_facts WHERE name LIKE 'pepper-%'").fetchall()
    ours = {f"pepper-{version}": value for version, value in Naming(keys.peppers).fingerprints().items()}
    lost = [name for name, value in known if ours.get(name) != value]
    if not lost:
        return []
    return [
        failed(
            "peppers",
            f"the store was filled with another {', '.join(lost)}",
            f"{START}, it would not know its old keys and charge twice",
            "restore the key files that belong to this store",
        )
    ]


def _nearest(path: Path) -> Path:
    """Return the path itself, or its nearest parent that is there."""
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
