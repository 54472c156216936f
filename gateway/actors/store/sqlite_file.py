"""One SQLite file: claimed for this process, checked, migrated, and connected to.

Everything here blocks and runs in a worker thread.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from importlib.resources.abc import Traversable
from pathlib import Path

from gateway import __version__
from gateway.actors.store import moves, releases, schema
from gateway.actors.store.errors import Failure, Reason, StatementFailed, StoreRefused
from gateway.actors.store.protocol import STORE_CLOCK, Membership, Value

BUSY_TIMEOUT_S = 5.0
CHECKPOINT_PAGES = 4000
"""Pages of the log at which a commit copies it into the file."""
_CACHED_STATEMENTS = 256

_SETTINGS = """
PRAGMA foreign_keys = ON;
PRAGMA trusted_schema = OFF;
PRAGMA temp_store = MEMORY;
"""
# FULL: in WAL mode NORMAL loses acknowledged commits on power loss.  fullfsync only means something on macOS.
_WRITER_SETTINGS = f"""
PRAGMA synchronous = FULL;
PRAGMA fullfsync = ON;
PRAGMA checkpoint_fullfsync = ON;
PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES};
PRAGMA journal_size_limit = 67108864;
PRAGMA cache_size = -8192;
"""

# The lease of a file's only node never runs out.
_JOIN = """
INSERT INTO nodes (node, epoch, lease_until, step, joined_at, release) VALUES (?, 1, 9223372036854775807, 0, ?, ?)
ON CONFLICT (node) DO UPDATE SET epoch = nodes.epoch + 1, lease_until = excluded.lease_until, step = 0,
    joined_at = excluded.joined_at, release = excluded.release
RETURNING epoch
"""

_REASONS = {
    sqlite3.SQLITE_FULL: Reason.DISK_FULL,
    sqlite3.SQLITE_READONLY: Reason.READ_ONLY,
    sqlite3.SQLITE_PERM: Reason.READ_ONLY,
    sqlite3.SQLITE_IOERR: Reason.IO_ERROR,
    sqlite3.SQLITE_CANTOPEN: Reason.IO_ERROR,
    sqlite3.SQLITE_NOLFS: Reason.IO_ERROR,
    sqlite3.SQLITE_PROTOCOL: Reason.LOCKED,
    sqlite3.SQLITE_BUSY: Reason.LOCKED,
    sqlite3.SQLITE_LOCKED: Reason.LOCKED,
    sqlite3.SQLITE_CORRUPT: Reason.CORRUPT,
    sqlite3.SQLITE_NOTADB: Reason.CORRUPT,
    sqlite3.SQLITE_NOMEM: Reason.OUT_OF_MEMORY,
}

_OTHER_SCHEMA = re.compile(r"no such (?:table|column|index|view)\b|table \S+ has no column")

_REMEDIES = {
    Reason.DISK_FULL: "Free some space on its disk",
    Reason.READ_ONLY: "Give the node's user write access to the file and its directory, or remount the disk read-write",
    Reason.IO_ERROR: "Check the disk (dmesg), its quota and the permissions of the directory",
    Reason.LOCKED: "End the other program that has the database open",
    Reason.CORRUPT: "Keep the file and restore a backup; an empty store in its place would forget paid operations",
    Reason.OUT_OF_MEMORY: "Give the node more memory",
}


def reason_of(error: sqlite3.Error | sqlite3.Warning) -> Reason | None:
    """Why the database as a whole failed; None where the statement is at fault (codes: sqlite.org/rescode.html)."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else _REASONS.get(code & 0xFF)


def failed(index: int | None, error: sqlite3.Error | sqlite3.Warning) -> StatementFailed:
    """What a rejected statement means for its asker: SQLite has one code for most of that, and words."""
    words = str(error)
    if _OTHER_SCHEMA.match(words):
        return StatementFailed(index, words, Reason.SCHEMA_MISSING)
    name = getattr(error, "sqlite_errorname", "")
    if name == "SQLITE_AUTH":
        return StatementFailed(index, words, Reason.PERMISSION_DENIED)
    return StatementFailed(index, words, code=name)


class FileUnusable(Exception):
    """The file cannot be used now."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.reason.story)


class SqliteFile:
    """A database file that this process alone writes; `<path>.lock` is held from `claim` to `release`."""

    def __init__(self, path: Path, node: str, now_ms: Callable[[], int]) -> None:
        self.path = path.absolute()
        self.membership = Membership(node, 0)
        self.now_ms = now_ms
        self.release_name = __version__
        self._lock: int | None = None
        self._log_path = self.path.with_name(self.path.name + "-wal")
        self._identity: tuple[int, int] | None = None
        self._log_identity: tuple[int, int] | None = None

    @property
    def size(self) -> int:
        """Bytes of the database file; 0 where it is gone, which the next read finds out."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def open(self, migrations: Traversable) -> sqlite3.Connection:
        """Claim, check and migrate the file, creating it where it is missing, and join; return the writer's connection.

        Raises StoreRefused, also where the store was moved away, and then holds nothing.
        """
        connection = self.take(migrations)
        try:
            self._require_here(connection)
            with self._refusing("it cannot be written"):
                self._join(connection)
            self._remember()  # the log of a new file was made by its first commit
        except BaseException:
            connection.close()
            self.release()
            raise
        return connection

    def take(self, migrations: Traversable) -> sqlite3.Connection:
        """The same without joining, for who serves nothing from it: a store that was moved away is taken too."""
        self.claim()
        try:
            with self._refusing("it cannot be opened"):
                self._create()
                connection = self.writer()
            try:
                with self._refusing("it failed the check at opening"):
                    self._check(connection)
                ours = schema.load(migrations, "sqlite")
                self.release_name = releases.named(__version__, len(ours))
                self._migrate(connection, ours)
            except BaseException:
                connection.close()
                raise
        except BaseException:
            self.release()
            raise
        return connection

    def claim(self) -> None:
        """Hold the lock file, so that no other node writes this database.  Raises StoreRefused."""
        if self._lock is not None:
            return
        lock_path = self.path.with_name(self.path.name + ".lock")
        with self._refusing("its lock file cannot be made"):
            lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(lock, 32).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise StoreRefused(
                    self.path, f"its lock file cannot be locked ({error.strerror})", "Put the store on a local disk"
                ) from error
            raise StoreRefused(
                self.path,
                f"another node (process {holder}) has it open",
                "Stop that node, or give this one its own data_dir; several nodes over one store need PostgreSQL",
            ) from None
        with suppress(OSError):  # the name of the holder is a courtesy, the lock is what counts
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        self._lock = lock

    def release(self) -> None:
        """Let go of the lock file, which stays."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def writer(self) -> sqlite3.Connection:
        """A connection that writes durably.  Raises sqlite3.Error, FileUnusable or StoreRefused."""
        self._log_identity = None  # closing the last connection removes the log, this one makes it again
        if self._identity is not None:
            self.require_unmoved()
        connection = self._connect("rw")
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise StoreRefused(
                    self.path, f"its journal mode stays {mode!r}, not WAL", "Put the store on a local disk"
                )
            connection.executescript(_WRITER_SETTINGS)
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # makes the log
            self._remember()
            if self.membership.epoch:  # it joined before: while it had let go of the lock, the store may have moved
                self._require_here(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def reader(self) -> sqlite3.Connection:
        """A connection that only reads.  Raises sqlite3.Error or FileUnusable."""
        self.require_unmoved()
        connection = self._connect("ro")
        try:
            connection.execute("PRAGMA query_only = ON")
        except BaseException:
            connection.close()
            raise
        return connection

    def require_unmoved(self) -> None:
        """Raise FileUnusable unless the paths of the database and its log still name the files that were opened.

        SQLite itself would go on writing to deleted ones.
        """
        moved = _identity(self.path) != self._identity
        if moved or (self._log_identity is not None and _identity(self._log_path) != self._log_identity):
            raise FileUnusable(Failure(Reason.FILE_REPLACED))

    def _remember(self) -> None:
        self._identity = self._identity or _identity(self.path)
        self._log_identity = _identity(self._log_path)

    def _create(self) -> None:
        if self.path.exists():
            return
        if self._log_path.exists() and self._log_path.stat().st_size:
            raise StoreRefused(
                self.path,
                f"it is missing and its write-ahead log {self._log_path.name} is there",
                "Put both files back; the log alone may hold acknowledged operations and would be discarded",
            )
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def _connect(self, mode: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode={mode}",
            uri=True,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_CACHED_STATEMENTS,
        )
        try:
            connection.executescript(_SETTINGS)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check(self, connection: sqlite3.Connection) -> None:
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            finding = "; ".join(verdict.splitlines())
            raise StoreRefused(self.path, f"it is damaged ({finding})", _REMEDIES[Reason.CORRUPT])
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and "schema_migrations" not in tables:
            raise StoreRefused(
                self.path, "it is another program's database", "Name a file of the node's own in [store] url"
            )

    def bound(self, sql: str, parameters: Mapping[str, Value]) -> Mapping[str, Value]:
        """The parameters with the store's clock, where the SQL asks for it."""
        return {**parameters, STORE_CLOCK: self.now_ms()} if f":{STORE_CLOCK}" in sql else parameters

    def _require_here(self, connection: sqlite3.Connection) -> None:
        with self._refusing("its facts cannot be read"):
            if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'node_facts'").fetchone():
                moves.require_here(dict(connection.execute(moves.SELECT_OF_THE_MOVE).fetchall()), self.path)

    def _join(self, connection: sqlite3.Connection) -> None:
        """Be the one node of this file: whoever has the lock lives, and nobody else does."""
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute("UPDATE nodes SET lease_until = 0 WHERE node <> ?", [self.membership.node])
            (epoch,) = connection.execute(_JOIN, [self.membership.node, self.now_ms(), self.release_name]).fetchone()
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        self.membership = Membership(self.membership.node, epoch)

    def _migrate(self, connection: sqlite3.Connection, migrations: tuple[schema.Migration, ...]) -> None:
        with self._refusing("its schema history cannot be read"):
            for statement in schema.BOOTSTRAP:
                connection.execute(statement)
            applied = [schema.Applied(*row) for row in connection.execute(schema.SELECT_APPLIED)]
            serves = dict(connection.execute(schema.SELECT_SERVES).fetchall())
        for migration in schema.pending(migrations, applied, self.path, serves):
            with self._refusing(f"migration {migration.version} ({migration.name}) failed and was undone"):
                connection.execute("BEGIN IMMEDIATE")
                try:
                    for statement in statements_of(migration.sql):
                        connection.execute(statement)
                    for record in migration.records(self.now_ms()):
                        connection.execute(*record)
                    connection.execute("COMMIT")
                finally:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")

    @contextmanager
    def _refusing(self, what: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            remedy = _REMEDIES.get(
                reason_of(error) or Reason.FILE_REPLACED, "Report this to the makers of this release"
            )
            raise StoreRefused(self.path, f"{what} ({error})", remedy) from error
        except OSError as error:
            remedy = (
                "Make the directory first"
                if error.errno == errno.ENOENT
                else _REMEDIES[Reason.DISK_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else Reason.READ_ONLY]
            )
            raise StoreRefused(self.path, f"{what} ({error.strerror})", remedy) from error


def touch(connection: sqlite3.Connection) -> None:
    """Commit the smallest durable change: `user_version`, which means nothing here.  Raises sqlite3.Error."""
    with closing(connection.execute("PRAGMA user_version")) as cursor:
        (version,) = cursor.fetchone()
    connection.execute(f"PRAGMA user_version = {(version + 1) % 2**31}")


def statements_of(script: str) -> Iterator[str]:
    """The statements of an SQL script; semicolons in strings, comments and trigger bodies do not end one."""
    statement = ""
    *pieces, rest = script.split(";")
    for piece in pieces:
        statement += piece + ";"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if (statement + rest).strip():
        yield statement + rest


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
