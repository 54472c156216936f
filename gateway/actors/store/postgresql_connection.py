"""One connection to PostgreSQL, driven by trio: libpq's non-blocking calls, no threads, no other event loop.

It is in pipeline mode throughout (libpq manual, "Pipeline Mode"): an exchange sends its commands and one Sync, and
reads their answers, in one round trip.  After a rejected command the server skips the rest of the exchange.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import final

import attrs
import psycopg
import trio
from psycopg import pq
from psycopg.pq.abc import PGconn, PGresult

from gateway.actors.store.errors import Reason
from gateway.actors.store.postgresql_failures import (
    OF_STALE_PLANS,
    STALE,
    Disconnected,
    Rejection,
    code_of_refused_connection,
    reason_of,
    refusal_of,
)

_BINARY = 1
_MOST_PREPARED = 400
_CANCEL_S = 2.0

_FAILED = (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE)


@attrs.frozen
class Command:
    """One SQL command with `$1`... and its encoded values, their types (0: inferred) and formats (1: binary).

    It is prepared on its first use by a connection, unless it is used `once`.  With `describe` it is prepared and not
    run: the result tells the types of its parameters.
    """

    sql: str
    values: Sequence[bytes | None] = ()
    types: tuple[int, ...] = ()
    formats: Sequence[int] = ()
    once: bool = False
    describe: bool = False


Outcome = PGresult | Rejection | None
"""What became of a command: its result, why it was rejected, or None where it was skipped after another's rejection."""

Notification = tuple[str, str, int]
"""Channel, payload, and the process of the teller."""


@final
class Connection:
    """An open connection; used by one task at a time."""

    def __init__(self, pgconn: PGconn) -> None:
        self._pgconn = pgconn
        self._prepared: dict[tuple[str, tuple[int, ...]], bytes] = {}
        self._named = 0
        self._last = _LastWords()
        self.since = trio.current_time()
        pgconn.notice_handler = self._last.take  # a server that ends an idle connection says why unasked
        pgconn.nonblocking = 1
        pgconn.enter_pipeline_mode()

    @property
    def closed(self) -> bool:
        """Whether it is of no more use."""
        return self._pgconn.status == pq.ConnStatus.BAD

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, or has failed and is to be rolled back."""
        return self._pgconn.transaction_status != pq.TransactionStatus.IDLE

    @property
    def pid(self) -> int:
        """The process that serves it on the server."""
        return self._pgconn.backend_pid

    def parameter(self, name: str) -> str | None:
        """What the server said of itself when the connection was made, such as its `server_encoding`."""
        value = self._pgconn.parameter_status(name.encode())
        return None if value is None else value.decode()

    async def exchange(self, *commands: Command, within: float) -> list[Outcome]:
        """Send the commands and return what became of each.

        A caller that is cancelled cancels them on the server, and the connection stays usable if that succeeds.
        Raises `Disconnected` when it was lost, or did not answer within so many seconds, and is closed then.
        """
        answers = self._send(commands)
        try:
            with trio.move_on_after(within):
                await self._read(answers)
                return answers.outcomes
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                await self._abandon(answers)
            raise
        self.close()
        raise Disconnected(Reason.STALLED, f"no answer within {within:g} s")

    async def readable(self) -> None:
        """Wait until something arrives, unasked."""
        self._require_open()
        await trio.lowlevel.wait_readable(self._pgconn.socket)

    def look(self) -> None:
        """Take in what has arrived, without waiting.  Raises `Disconnected` when the server hung up."""
        self._require_open()
        try:
            self._pgconn.consume_input()
        except psycopg.Error as error:
            raise self._lost(str(error)) from error

    def heard(self) -> list[Notification]:
        """The notifications that have been taken in."""
        found = []
        while (notification := self._pgconn.notifies()) is not None:
            found.append((notification.relname.decode(), notification.extra.decode(), notification.be_pid))
        return found

    def close(self) -> None:
        """Hang up; the server rolls an open transaction back."""
        with suppress(psycopg.Error, OSError):
            if self._pgconn.socket >= 0:
                trio.lowlevel.notify_closing(self._pgconn.socket)
        self._pgconn.finish()

    # -- one round trip ------------------------------------------------------------------------------------------------

    def _send(self, commands: Sequence[Command]) -> _Answers:
        self._require_open()
        answers = _Answers(self._prepared)
        try:
            if len(self._prepared) > _MOST_PREPARED:
                self._prepared.clear()
                self._pgconn.send_query_params(b"DEALLOCATE ALL", None)
                answers.expect_housekeeping()
            for command in commands:
                self._send_one(command, answers)
            self._pgconn.pipeline_sync()
        except psycopg.Error as error:
            raise self._lost(str(error)) from error
        return answers

    def _send_one(self, command: Command, answers: _Answers) -> None:
        if command.once:
            self._pgconn.send_query_params(
                command.sql.encode(), command.values, command.types, command.formats, _BINARY
            )
            answers.expect(None)
            return
        key = (command.sql, command.types)
        name = self._prepared.get(key) or answers.preparing.get(key)
        if name is None:
            self._named += 1
            name = answers.preparing[key] = b"g%d" % self._named
            self._pgconn.send_prepare(name, command.sql.encode(), command.types)
            answers.expect_preparation(key, name)
        if command.describe:
            self._pgconn.send_describe_prepared(name)
        else:
            self._pgconn.send_query_prepared(name, command.values, command.formats, _BINARY)
        answers.expect(key)

    async def _read(self, answers: _Answers) -> None:
        """Read until all is answered.  Raises `Disconnected`."""
        try:
            while True:
                unsent = self._pgconn.flush()
                silent = False
                while not self._pgconn.is_busy():
                    result = self._pgconn.get_result()
                    if result is None and silent:
                        break
                    silent = result is None
                    if result is not None and result.status in _FAILED:
                        self._last.take(result)
                    if answers.complete(result):
                        await trio.lowlevel.cancel_shielded_checkpoint()
                        return
                await self._ready(sending=bool(unsent))
                self._pgconn.consume_input()
        except psycopg.Error as error:
            raise self._lost(str(error)) from error
        finally:
            if self.closed and not answers.done:
                self.close()

    async def _ready(self, *, sending: bool) -> None:
        """Wait until the socket can be read, or written if there is something left to send."""
        if not sending:
            await trio.lowlevel.wait_readable(self._pgconn.socket)
            return
        async with trio.open_nursery() as nursery:
            for wait in (trio.lowlevel.wait_readable, trio.lowlevel.wait_writable):
                nursery.start_soon(_first, wait, self._pgconn.socket, nursery.cancel_scope)

    async def _abandon(self, answers: _Answers) -> None:
        """Have the server stop what it does for us, and read to the end of it; hang up where that fails."""
        with trio.move_on_after(_CANCEL_S), suppress(psycopg.Error, Disconnected, OSError):
            cancelling = self._pgconn.cancel_conn()
            try:
                cancelling.start()
                await _cancelled(cancelling)
            finally:
                with suppress(psycopg.Error, OSError):
                    trio.lowlevel.notify_closing(cancelling.socket)
                cancelling.finish()
            await self._read(answers)
        if not answers.done:
            self.close()

    def _require_open(self) -> None:
        if self.closed:
            raise Disconnected(Reason.UNREACHABLE, "the connection is closed")

    def _lost(self, words: str) -> Disconnected:
        """Hang up, and tell why as well as can be known: the server's last words are more than the system's."""
        with suppress(psycopg.Error):
            for _ in range(64):
                result = self._pgconn.get_result()
                if result is not None and result.status in _FAILED:
                    self._last.take(result)
        self.close()
        last = self._last.rejection
        if last is None or reason_of(last.sqlstate) is None:
            return Disconnected(Reason.UNREACHABLE, words.strip())
        return Disconnected(reason_of(last.sqlstate) or Reason.UNREACHABLE, last.words)


@attrs.define(eq=False)
class _LastWords:
    """What the server said last before it hung up."""

    rejection: Rejection | None = None

    def take(self, result: PGresult) -> None:
        rejection = _rejection(result)
        if rejection.sqlstate not in {"", "00000"}:  # libpq's own words have no code
            self.rejection = rejection


@attrs.define(eq=False)
class _Answers:
    """The answers of one exchange as they come in."""

    prepared: dict[tuple[str, tuple[int, ...]], bytes]
    preparing: dict[tuple[str, tuple[int, ...]], bytes] = attrs.field(factory=dict)
    outcomes: list[Outcome] = attrs.field(factory=list)
    done: bool = False
    _expected: deque[tuple[str, tuple[str, tuple[int, ...]] | None, bytes]] = attrs.field(factory=deque)
    _refused: dict[tuple[str, tuple[int, ...]], Rejection] = attrs.field(factory=dict)
    _result: PGresult | None = None

    def expect(self, key: tuple[str, tuple[int, ...]] | None) -> None:
        self._expected.append(("run", key, b""))

    def expect_preparation(self, key: tuple[str, tuple[int, ...]], name: bytes) -> None:
        self._expected.append(("prepare", key, name))

    def expect_housekeeping(self) -> None:
        self._expected.append(("housekeeping", None, b""))

    def complete(self, result: PGresult | None) -> bool:
        """Take in the next result, or the None that follows the results of a command; whether that was all."""
        if result is None:
            if self._result is not None:
                self._settle(self._result)
                self._result = None
        elif result.status == pq.ExecStatus.PIPELINE_SYNC:
            self.done = True
        else:
            self._result = result
        return self.done

    def _settle(self, result: PGresult) -> None:
        kind, key, name = self._expected.popleft()
        skipped = result.status == pq.ExecStatus.PIPELINE_ABORTED
        rejection = _rejection(result) if result.status in _FAILED else None
        if kind == "prepare" and key is not None:
            if rejection is not None:
                self._refused[key] = rejection
            elif not skipped:
                self.prepared[key] = name
        elif kind == "run":
            refused = self._refused.pop(key, None) if key is not None else None
            old = key in self.prepared and key not in self.preparing
            if rejection is not None and old and key is not None and rejection.sqlstate in OF_STALE_PLANS:
                del self.prepared[key]
                rejection = Rejection(STALE, rejection.words)
            self.outcomes.append(rejection or refused or (None if skipped else result))


def _rejection(result: PGresult) -> Rejection:
    code = result.error_field(pq.DiagnosticField.SQLSTATE)
    words = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message
    return Rejection((code or b"").decode(), words.decode(errors="replace").strip())


async def _first(wait: object, socket: int, scope: trio.CancelScope) -> None:
    await wait(socket)  # type: ignore[operator]
    scope.cancel()


async def _cancelled(cancelling: pq.abc.PGcancelConn) -> None:
    while (status := cancelling.poll()) != pq.PollingStatus.OK:
        match status:
            case pq.PollingStatus.READING:
                await trio.lowlevel.wait_readable(cancelling.socket)
            case pq.PollingStatus.WRITING:
                await trio.lowlevel.wait_writable(cancelling.socket)
            case _:
                raise Disconnected(Reason.UNREACHABLE, "the server cannot be asked to stop")


async def connect(conninfo: str) -> Connection:
    """Connect; `conninfo` names one server by its address, so that nothing blocks.  Raises `Disconnected`."""
    pgconn = pq.PGconn.connect_start(conninfo.encode())
    try:
        while True:
            status = pgconn.connect_poll() if pgconn.status != pq.ConnStatus.BAD else pq.PollingStatus.FAILED
            match status:
                case pq.PollingStatus.OK:
                    return Connection(pgconn)
                case pq.PollingStatus.READING:
                    await trio.lowlevel.wait_readable(pgconn.socket)
                case pq.PollingStatus.WRITING:
                    await trio.lowlevel.wait_writable(pgconn.socket)
                case _:
                    words = pgconn.error_message.decode(errors="replace").strip()
                    raise Disconnected(refusal_of(code_of_refused_connection(words)).reason, words)
    except BaseException:
        with suppress(psycopg.Error, OSError):
            if pgconn.socket >= 0:
                trio.lowlevel.notify_closing(pgconn.socket)
        pgconn.finish()
        raise
