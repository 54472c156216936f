"""Read-only connections, one a thread at a time, each query list in one snapshot.

Everything here blocks and runs in worker threads, as many at once as there are readers.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping, Sequence

from gateway.actors.store.errors import Failure, Reason
from gateway.actors.store.protocol import Row, Value
from gateway.actors.store.sqlite_file import FileUnusable, SqliteFile, failed, reason_of

Query = tuple[str, Mapping[str, Value]]


class Readers:
    """The idle read-only connections; more are opened on demand, a failed one is closed."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._guard = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        self._closed = False

    def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        """The rows of each query, all from one snapshot.  Raises StatementFailed or FileUnusable."""
        try:
            connection = self._take()
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise FileUnusable(Failure(reason_of(error) or Reason.IO_ERROR)) from error
        try:
            results = _snapshot(connection, [(sql, self._file.bound(sql, values)) for sql, values in queries])
        except BaseException:
            connection.close()
            raise
        self._give_back(connection)
        return results

    @property
    def size(self) -> int:
        """Bytes of the database file."""
        return self._file.size

    def open(self) -> None:
        """Serve, again if it was closed."""
        with self._guard:
            self._closed = False

    def close(self) -> None:
        """Close every connection; one in use is closed when its query ends."""
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take(self) -> sqlite3.Connection:
        with self._guard:
            if self._closed:
                raise FileUnusable(Failure(Reason.STOPPED))
            if self._idle:
                return self._idle.pop()
        return self._file.reader()

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._guard:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()


def _snapshot(connection: sqlite3.Connection, queries: Sequence[Query]) -> list[list[Row]]:
    results: list[list[Row]] = []
    try:
        if len(queries) > 1:
            connection.execute("BEGIN")
        for sql, parameters in queries:
            results.append(connection.execute(sql, parameters).fetchall())
        if len(queries) > 1:
            connection.execute("COMMIT")
    except (sqlite3.Error, sqlite3.Warning) as error:
        reason = reason_of(error)
        if reason is not None:
            raise FileUnusable(Failure(reason)) from error
        raise failed(len(results), error) from error
    return results
