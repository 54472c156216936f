"""What lies on this machine's disk: the data directory and, where the store is a file, the store."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from gateway.actors.store import StoreRefused, moves, schema
from gateway.config import Configuration
from gateway.doctor._check import Check, failed, fine, note
from gateway.doctor._keys import START, keys
from gateway.reading import connect
from gateway.shared_keys import SELECT_KNOWN, known_keys

LEAST_FREE = 256 * 2**20
COMFORTABLE_FREE = 2 * 2**30


def disk(configuration: Configuration) -> list[Check]:
    """Check where the node keeps its data, and what is there already."""
    data_dir = configuration.data_dir
    about = [directory(data_dir, _nearest(data_dir))]
    if configuration.shared_store:
        return about  # what needs room is on the server
    path = configuration.store_path
    checks, known = store(path)
    free = shutil.disk_usage(_nearest(path.parent)).free
    return [*about, space(free), *keys(configuration.keys_dir, known, fresh=not path.exists()), *checks]


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


def store(path: Path) -> tuple[list[Check], dict[str, str]]:
    """Check a store without writing to it; return also the fingerprints of the keys that it knows."""
    if not path.exists():
        return [note("store", f"{path} is not there yet", "the first start makes it")], {}
    try:
        with closing(connect(path)) as connection:
            return [_schema(connection, path), _integrity(connection, path)], _known(connection, path)
    except StoreRefused as refused:
        return [failed("store", f"{refused.where}: {refused.what}", START, refused.remedy)], {}
    except sqlite3.Error as error:
        return [failed("store", f"{path}: {error}", START, "keep the file and restore the backup")], {}


def _schema(connection: sqlite3.Connection, path: Path) -> Check:
    if not _has(connection, "schema_migrations"):
        raise StoreRefused(path, "it is no node's store", "Name a file of the node's own in [store] url")
    applied = [schema.Applied(*row) for row in connection.execute(schema.SELECT_APPLIED)]
    served = connection.execute(schema.SELECT_SERVES).fetchall() if _has(connection, "schema_compatibility") else []
    waiting = schema.pending(schema.load(schema.shipped(), "sqlite"), applied, path, dict(served))
    if waiting:
        return note("store", f"schema {len(applied)} of {path}", "the next start migrates it", "back it up before")
    return fine("store", f"{path}, schema {len(applied)}")


def _integrity(connection: sqlite3.Connection, path: Path) -> Check:
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        return failed("integrity", f"{path}: {verdict}", START, "keep the file and restore the backup")
    return fine("integrity", "SQLite finds no damage")


def _known(connection: sqlite3.Connection, path: Path) -> dict[str, str]:
    if not _has(connection, "node_facts"):
        return {}
    facts = connection.execute(SELECT_KNOWN).fetchall()
    moves.require_here(dict(facts), path)
    return known_keys(facts)


def _has(connection: sqlite3.Connection, table: str) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [table]).fetchone() is not None


def _nearest(path: Path) -> Path:
    """Return the path itself, or its nearest parent that is there."""
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
