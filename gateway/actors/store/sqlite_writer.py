"""Group commit: many steps, one transaction, one fsync, and each step stands or falls alone.

Everything here blocks and runs in one thread at a time, a worker thread but for `Writer.run_at_once`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial

from gateway.actors.store.errors import Conflict, Failure, Reason, StatementFailed, StoreRefused
from gateway.actors.store.protocol import Row, Statement
from gateway.actors.store.sqlite_file import (
    BUSY_TIMEOUT_S,
    CHECKPOINT_PAGES,
    FileUnusable,
    SqliteFile,
    failed,
    reason_of,
    touch,
)

Step = Sequence[Statement]
Result = list[list[Row]] | Conflict | StatementFailed | Failure
"""What became of one step: the rows that its statements returned, or why it was not stored."""


class Manner(Enum):
    """How a transaction is committed: `synchronous`, how long it waits for a lock (ms), when it checkpoints (pages).

    In WAL mode NORMAL flushes the log before a checkpoint only, and FULL all of it at every commit.
    """

    DURABLE = ("FULL", int(BUSY_TIMEOUT_S * 1000), CHECKPOINT_PAGES)
    RELAXED = ("NORMAL", int(BUSY_TIMEOUT_S * 1000), CHECKPOINT_PAGES)
    AT_ONCE = ("NORMAL", 0, 0)
    """Waits for nothing: a lock is a failure, and the log is left for another transaction to checkpoint."""

    def set(self, connection: sqlite3.Connection) -> None:
        """Have the connection commit like this from now on."""
        synchronous, patience_ms, pages = self.value
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute(f"PRAGMA busy_timeout = {patience_ms}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {pages}")


_CONNECTION_SURVIVES = frozenset({Reason.DISK_FULL, Reason.LOCKED})
# A COMMIT that fails like this wrote no commit frame; after any other failure the frame may stand on the disk.
_NEVER_COMMITTED = frozenset({Reason.DISK_FULL, Reason.LOCKED, Reason.READ_ONLY})


class _GroupLost(Exception):
    """The transaction is gone.  `result` is for each of its steps; `apart` when they may fare better on their own."""

    def __init__(self, result: Failure | StatementFailed, *, apart: bool) -> None:
        self.result = result
        self.apart = apart


class Writer:
    """The one connection that writes.  After an error of the disk it is closed, and opened again for the next group."""

    def __init__(self, file: SqliteFile, connection: sqlite3.Connection) -> None:
        self._file = file
        self.connection: sqlite3.Connection | None = connection
        self._manner = Manner.DURABLE

    def run(self, steps: Sequence[Step], *, relaxed: bool = False) -> list[Result]:
        """Store the steps, all in one transaction if that can be; what is returned as rows is durable.

        Where all are `relaxed` the log is not flushed: what it holds is the kernel's, which outlives this process.
        """
        return self._run(steps, Manner.RELAXED if relaxed else Manner.DURABLE)

    def run_at_once(self, steps: Sequence[Step]) -> list[Result]:
        """Store relaxed steps without waiting for anybody: where a lock is in the way, all failed as `LOCKED`."""
        return self._run(steps, Manner.AT_ONCE)

    def close(self) -> None:
        """Close the connection; an unfinished transaction is rolled back."""
        if self.connection is not None:
            with suppress(sqlite3.Error):
                self.connection.close()
            self.connection = None

    def _run(self, steps: Sequence[Step], manner: Manner) -> list[Result]:
        if len(steps) > 1:
            try:
                return self._transaction(steps, manner)
            except _GroupLost as lost:
                if not lost.apart:
                    return [lost.result for _ in steps]
        return [self._alone(step, manner) for step in steps]

    def _alone(self, step: Step, manner: Manner) -> Result:
        try:
            (result,) = self._transaction([step], manner)
        except _GroupLost as lost:
            return lost.result
        return result

    def _transaction(self, steps: Sequence[Step], manner: Manner) -> list[Result]:
        committing = False
        try:
            connection = self._connected()
            if self._manner is not manner:
                manner.set(connection)
                self._manner = manner
            connection.execute("BEGIN IMMEDIATE")
            if len(steps) == 1:
                results = [self._run_step(connection, steps[0], connection.rollback)]
            else:
                results = [self._run_in_savepoint(connection, step) for step in steps]
            if len(steps) > 1 or isinstance(results[0], list):  # else it is undone
                committing = True
                connection.execute("COMMIT")
        except (sqlite3.Error, FileUnusable) as error:
            raise self._lost(error, committing=committing) from error
        except BaseException:
            self.close()
            raise
        return results

    def _run_in_savepoint(self, connection: sqlite3.Connection, step: Step) -> Result:
        """Run one step of several, each in a savepoint; see `_run_step`."""
        connection.execute("SAVEPOINT step")
        result = self._run_step(connection, step, partial(_undo_step, connection))
        connection.execute("RELEASE step")
        return result

    def _run_step(self, connection: sqlite3.Connection, step: Step, undo: Callable[[], object]) -> Result:
        """Run one step, and undo it where it fails.  Raises sqlite3.Error when the transaction as a whole is lost."""
        results: list[list[Row]] = []
        for index, statement in enumerate(step):
            try:
                cursor = connection.execute(statement.sql, self._file.bound(statement.sql, statement.parameters))
                rows: list[Row] = cursor.fetchall()
            except (sqlite3.Error, sqlite3.Warning) as error:
                if isinstance(error, sqlite3.Error) and (reason_of(error) or not connection.in_transaction):
                    raise
                undo()
                return failed(index, error)
            if statement.rows is not None:
                found = len(rows) if cursor.description else _changed(connection, cursor)
                if found != statement.rows:
                    undo()
                    return Conflict(index, found, statement.rows)
            results.append(rows)
        return results

    def _connected(self) -> sqlite3.Connection:
        if self.connection is None:
            try:
                self.connection = self._file.writer()
                self._manner = Manner.DURABLE
            except StoreRefused as refusal:
                raise FileUnusable(Failure(Reason.IO_ERROR)) from refusal
        self._file.require_unmoved()
        return self.connection

    def _lost(self, error: sqlite3.Error | FileUnusable, *, committing: bool) -> _GroupLost:
        """Undo what stands of the transaction and tell what it was."""
        if isinstance(error, FileUnusable):
            return _GroupLost(error.failure, apart=False)
        reason = reason_of(error)
        if reason is None:  # a deferred constraint at COMMIT, or SQL that ended the transaction by itself
            self._undo()
            return _GroupLost(failed(None, error), apart=True)
        undone = self._undo()
        uncertain = committing and reason not in _NEVER_COMMITTED and not (undone and self._overwrite())
        if reason not in _CONNECTION_SURVIVES:
            self.close()
        return _GroupLost(Failure(reason, uncertain=uncertain), apart=reason is Reason.DISK_FULL)

    def _undo(self) -> bool:
        connection = self.connection
        if connection is None:
            return True
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self.close()
            return False
        return True

    def _overwrite(self) -> bool:
        """Make a failed COMMIT certain: another commit takes its place in the log, so no recovery can bring it back."""
        if self.connection is None:
            return False
        try:
            touch(self.connection)
        except sqlite3.Error:
            return False
        return True


def _undo_step(connection: sqlite3.Connection) -> None:
    connection.execute("ROLLBACK TO step")


def _changed(connection: sqlite3.Connection, cursor: sqlite3.Cursor) -> int:
    """How many rows the statement changed; the module does not count for a statement that begins with WITH."""
    if cursor.rowcount >= 0:
        return cursor.rowcount
    (changes,) = connection.execute("SELECT changes()").fetchone()
    return int(changes)
