"""Numbered migrations: what ships, what a database has, and what is still to do.

A migration is a file `0001_name.sql`, or a pair `0001_name.sqlite.sql` and `0001_name.postgresql.sql` where the
engines differ.  It is applied once, in its own transaction, and recorded in `schema_migrations` with the
SHA-256 of its file.

Files are written in one dialect for both engines: TEXT, BIGINT and BLOB; PostgreSQL is told `TEXT COLLATE "C"`, so that
text sorts alike, and BYTEA.

A migration that older releases can live with says so in a line of its own, `-- serves N`: a release that knows the
schema up to number N may go on, and be started again, on a database that has it.  That is what lets nodes be upgraded
one at a time.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable

import attrs

from gateway.actors.store.errors import StoreRefused

DIALECTS = ("sqlite", "postgresql")

BOOTSTRAP = (
    """
    CREATE TABLE IF NOT EXISTS schema_migrations (
        version BIGINT NOT NULL PRIMARY KEY,
        name TEXT NOT NULL,
        checksum TEXT NOT NULL,
        applied_at BIGINT NOT NULL
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS schema_compatibility (
        version BIGINT NOT NULL PRIMARY KEY,
        serves BIGINT NOT NULL
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS nodes (
        node TEXT NOT NULL PRIMARY KEY,
        epoch BIGINT NOT NULL,
        lease_until BIGINT NOT NULL,
        step BIGINT NOT NULL,
        joined_at BIGINT NOT NULL,
        release TEXT NOT NULL
    )
    """,
)
"""The engines' own tables, in the portable dialect.

`nodes` has a row a node that ever wrote to this store.  It lives while `lease_until` (milliseconds, by the store's
clock) is not past, `epoch` counts its joinings, `step` is the last group of steps that it committed in this epoch: what
tells, after a lost connection, whether a COMMIT was carried out.
"""

SELECT_APPLIED = "SELECT version, name, checksum FROM schema_migrations ORDER BY version"
SELECT_SERVES = "SELECT version, serves FROM schema_compatibility"
_INSERT_APPLIED = """
    INSERT INTO schema_migrations (version, name, checksum, applied_at)
    VALUES (:version, :name, :checksum, :applied_at)
"""
_INSERT_SERVES = "INSERT INTO schema_compatibility (version, serves) VALUES (:version, :serves)"

_FILE_NAME = re.compile(r"(?P<version>\d{4})_(?P<name>[a-z0-9_]+)(?:\.(?P<dialect>[a-z]+))?\.sql")
_SERVES = re.compile(r"^-- serves (\d+)$", re.MULTILINE)
_MADE = re.compile(r"^CREATE TABLE (?:IF NOT EXISTS )?(\w+)", re.MULTILINE)
_DROPPED = re.compile(r"^DROP TABLE (?:IF EXISTS )?(\w+)", re.MULTILINE)
_TYPES = {"TEXT": 'TEXT COLLATE "C"', "BLOB": "BYTEA"}
_TYPE = re.compile(r"\b(?:TEXT|BLOB)\b")


@attrs.frozen
class Migration:
    """One numbered change of the schema.

    `checksum` is the SHA-256 of its file in hexadecimal, `sql` in the engine's dialect, `serves` the oldest release, as
    the number of migrations that it knows, which can live with it.
    """

    version: int
    name: str
    checksum: str
    sql: str = attrs.field(repr=False)
    serves: int = attrs.field(default=attrs.Factory(lambda self: self.version, takes_self=True))

    def records(self, now_ms: int) -> list[tuple[str, dict[str, str | int]]]:
        """Return the statements that remember it as applied, with their parameters."""
        applied: dict[str, str | int] = {
            "version": self.version,
            "name": self.name,
            "checksum": self.checksum,
            "applied_at": now_ms,
        }
        found = [(_INSERT_APPLIED, applied)]
        if self.serves < self.version:
            found.append((_INSERT_SERVES, {"version": self.version, "serves": self.serves}))
        return found


@attrs.frozen
class Applied:
    """A migration as the database remembers it."""

    version: int
    name: str
    checksum: str


def tables(migrations: Sequence[Migration]) -> list[str]:
    """The tables that a node works with once these migrations are applied, by name."""
    made: dict[str, None] = {"nodes": None}
    for migration in migrations:
        made |= dict.fromkeys(_MADE.findall(migration.sql))
        for name in _DROPPED.findall(migration.sql):
            made.pop(name, None)
    return sorted(made)


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
            sql, version = content.decode(), int(match["version"])
            told = _SERVES.search(sql)
            serves = min(int(told[1]), version) if told else version
            migrations.append(Migration(version, match["name"], checksum, translated(sql, dialect), serves))
    migrations.sort(key=lambda migration: migration.version)
    versions = [migration.version for migration in migrations]
    if not versions or versions != list(range(1, len(versions) + 1)):
        raise _bad_release(directory, f"the {dialect} migrations are numbered {versions}, not 1, 2, 3 and so on")
    return tuple(migrations)


def translated(sql: str, dialect: str) -> str:
    """Portable SQL of tables and indexes in the dialect of an engine."""
    return _TYPE.sub(lambda match: _TYPES[match[0]], sql) if dialect == "postgresql" else sql


def pending(
    migrations: Sequence[Migration],
    applied: Sequence[Applied],
    where: object,
    serves: Mapping[int, int] = {},
) -> Sequence[Migration]:
    """What is still to be applied, in order.

    Raises StoreRefused when the database was written by a newer release that this one cannot live with, lacks a
    migration in the middle, or holds one that this release ships with other contents; `where` names the database,
    `serves` is what `SELECT_SERVES` found.
    """
    if [one.version for one in applied] != list(range(1, len(applied) + 1)):
        raise StoreRefused(
            where,
            f"its schema history has gaps: {[one.version for one in applied]}",
            "Restore a backup; schema_migrations was edited by hand",
        )
    if any(serves.get(one.version, one.version) > len(migrations) for one in applied[len(migrations) :]):
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
