"""Numbered migrations: what ships, what a database has, and what is still to do.

A migration is a file `0001_name.sql`, or a pair `0001_name.sqlite.sql` and `0001_name.postgresql.sql` where the
engines differ.  It is applied once, in its own transaction, and recorded in `schema_migrations` with the
SHA-256 of its file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from importlib import resources
from importlib.resources.abc import Traversable

import attrs

from gateway.actors.store.errors import StoreRefused

DIALECTS = ("sqlite", "postgresql")

CREATE_TABLE = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    version BIGINT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    checksum TEXT NOT NULL,
    applied_at BIGINT NOT NULL
)
"""
SELECT_APPLIED = "SELECT version, name, checksum FROM schema_migrations ORDER BY version"
INSERT_APPLIED = "INSERT INTO schema_migrations VALUES (:version, :name, :checksum, :applied_at)"
"""`applied_at` is in milliseconds since 1970."""

_FILE_NAME = re.compile(r"(?P<version>\d{4})_(?P<name>[a-z0-9_]+)(?:\.(?P<dialect>[a-z]+))?\.sql")


@attrs.frozen
class Migration:
    """One numbered change of the schema; `checksum` is the SHA-256 of its file in hexadecimal."""

    version: int
    name: str
    checksum: str
    sql: str = attrs.field(repr=False)


@attrs.frozen
class Applied:
    """A migration as the database remembers it."""

    version: int
    name: str
    checksum: str


def shipped() -> Traversable:
    """The directory of migrations that this release ships."""
    return resources.files("gateway.actors.store") / "migrations"


def load(directory: Traversable, dialect: str) -> tuple[Migration, ...]:
    """The migrations of one engine, by number.

    Raises StoreRefused when a file is misnamed, a number is missing or twice there, or there is none.
    """
    migrations = []
    for file in directory.iterdir() if directory.is_dir() else ():
        if not file.name.endswith(".sql"):
            continue
        match = _FILE_NAME.fullmatch(file.name)
        if match is None or match["dialect"] not in (None, *DIALECTS):
            raise _bad_release(directory, f"{file.name} is not named like 0001_name.sql or 0001_name.sqlite.sql")
        if match["dialect"] in (None, dialect):
            content = file.read_bytes()
            checksum = hashlib.sha256(content).hexdigest()
            migrations.append(Migration(int(match["version"]), match["name"], checksum, content.decode()))
    migrations.sort(key=lambda migration: migration.version)
    versions = [migration.version for migration in migrations]
    if not versions or versions != list(range(1, len(versions) + 1)):
        raise _bad_release(directory, f"the {dialect} migrations are numbered {versions}, not 1, 2, 3 and so on")
    return tuple(migrations)


def pending(migrations: Sequence[Migration], applied: Sequence[Applied], where: object) -> Sequence[Migration]:
    """What is still to be applied, in order.

    Raises StoreRefused when the database was written by a newer release, lacks a migration in the middle, or holds one
    that this release ships with other contents; `where` names the database.
    """
    if [one.version for one in applied] != list(range(1, len(applied) + 1)):
        raise StoreRefused(
            where,
            f"its schema history has gaps: {[one.version for one in applied]}",
            "Restore a backup; schema_migrations was edited by hand",
        )
    if len(applied) > len(migrations):
        raise StoreRefused(
            where,
            f"its schema is version {len(applied)} and this release knows {len(migrations)}",
            "Start the newer release that wrote it, or restore a backup from before the upgrade",
        )
    for ours, theirs in zip(migrations, applied, strict=False):
        if ours.checksum != theirs.checksum:
            raise StoreRefused(
                where,
                f"migration {ours.version} ({theirs.name}) was applied with other contents "
                f"({theirs.checksum[:12]}, this release ships {ours.checksum[:12]})",
                "Install the release that wrote it; a migration is never edited once released",
            )
    return migrations[len(applied) :]


def _bad_release(directory: Traversable, what: str) -> StoreRefused:
    return StoreRefused(directory, what, "Reinstall the release")
