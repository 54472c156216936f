"""The move itself: check the books, fill the new store, compare, close the old one, open the new one.

Every batch of rows is stored together with the mark of how far the move is, so that it may end anywhere and go on from
there.  The old store is closed before the new one is opened: whatever happens between, no call is taken by both.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import orjson

from gateway.actors.store import moves
from gateway.actors.store.postgresql_settings import PostgresqlSettings
from gateway.actors.store.protocol import Row
from gateway.moving import books
from gateway.moving.comparing import Compared, compare
from gateway.moving.mark import Mark
from gateway.moving.refusal import MoveRefused
from gateway.moving.source import Source, open_source
from gateway.moving.target import Target, open_target
from gateway.registry.receipts import timestamp

BATCH_ROWS = 5000
BATCH_BYTES = 8 * 1024 * 1024


class Work(enum.StrEnum):
    """What is being done."""

    CHECKING = "checking"
    COPYING = "copying"
    COMPARING = "comparing"


@attrs.frozen
class Step:
    """How far the move is with one table: `rows` of `of`."""

    work: Work
    table: str
    rows: int
    of: int


Observe = Callable[[Step], object]


@attrs.frozen
class Moved:
    """A move that is complete.

    Attributes:
        source: the file that was left, and is refused from now on.
        url: the store that holds everything, without a password.
        at: when the file was left, RFC 3339.
        before: the move was complete already when it was asked for; nothing was copied or compared.
        copied: rows that this run copied, `seconds` in how long.
        tables: what both sides hold.
        ledger: what the books of the file said.
    """

    source: Path
    url: str
    at: str
    before: bool = False
    copied: int = 0
    seconds: float = 0.0
    tables: tuple[Compared, ...] = ()
    ledger: books.Books | None = None


def move(
    path: Path,
    settings: PostgresqlSettings,
    *,
    migrate: Callable[[], object],
    key_set: Mapping[str, Any] | None,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    observe: Observe = lambda _: None,
) -> Moved:
    """Move the SQLite store at `path` to an empty PostgreSQL database, or go on with such a move.

    `migrate` brings the database to this release's schema, `key_set` are the node's public keys where they are known.
    Raises `MoveRefused` or `StoreRefused`; the file is then what it was, and the same call goes on.
    """
    with open_source(path, now_ms) as source, open_target(settings) as target:
        store_id = source.store_id
        there = target.require_ours(store_id, source.tables)
        left = source.fact(moves.MOVED_TO)
        if moves.MOVED_FROM in there:
            return _already(source, target, left)
        if left is not None and moves.MOVING_FROM not in there:
            raise MoveRefused(f"{path}: it was moved to {orjson.loads(left)['url']} already. Configure that store")
        ledger = _checked_books(source, key_set, observe)
        migrate()
        target.require_tables(source.tables)
        began = time.perf_counter()
        copied = _copy(source, target, Mark(store_id, source.state), observe)
        took = time.perf_counter() - began
        target.gather_statistics(source.tables)
        tables = _compared(source, target, ledger, observe)
        target.require_no_node()
        at = source.leave(target.shown, timestamp(now_ms()))
        target.declare_whole(store_id, at)
        return Moved(path, target.shown, at, copied=copied, seconds=took, tables=tables, ledger=ledger)


def _already(source: Source, target: Target, left: str | None) -> Moved:
    if left is None:
        raise MoveRefused(
            f"{target.shown}: it was filled from this file's store, and the file does not know: it is an old copy. "
            f"Keep it away from every node; {target.shown} is the store"
        )
    at = str(orjson.loads(left)["at"])
    return Moved(source.path, target.shown, at, before=True)


def _checked_books(source: Source, key_set: Mapping[str, Any] | None, observe: Observe) -> books.Books:
    entries = next(source.count(table) for table in source.tables if table.name == "ledger_entries")
    found = books.check(source, key_set, lambda rows: observe(Step(Work.CHECKING, "ledger_entries", rows, entries)))
    if found.faults:
        raise MoveRefused(
            f"{source.path}: its ledger does not stand ({len(found.faults)} faults, the first: {found.faults[0]}). "
            "Look with `gateway ledger verify`; nothing was moved"
        )
    return found


def _copy(source: Source, target: Target, fresh: Mark, observe: Observe) -> int:
    """Copy what is not there yet; return how many rows that was."""
    mark = target.begin(fresh, source.tables, source.epochs())
    before = mark.rows
    for table in source.tables:
        if table.name < mark.table:
            continue
        after = mark.after if table.name == mark.table else None
        count = source.count(table)
        done = count - source.count_after(table, after)
        observe(Step(Work.COPYING, table.name, done, count))
        for batch in _batches(source.rows(table, after)):
            mark = target.add(table, batch, mark)
            done += len(batch)
            observe(Step(Work.COPYING, table.name, done, count))
    return mark.rows - before


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += sum(len(value) for value in row if isinstance(value, str | bytes))
        if len(batch) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _compared(source: Source, target: Target, ledger: books.Books, observe: Observe) -> tuple[Compared, ...]:
    found = []
    for table in source.tables:
        count = source.count(table)

        def told(rows: int, table: str = table.name, count: int = count) -> None:
            observe(Step(Work.COMPARING, table, rows, count))

        found.append(compare(table, source.rows(table), target.rows(table), told))
    faults = [
        f"{each.table} has {each.rows[0]} rows here and {each.rows[1]} there, the first difference at {each.differing}"
        for each in found
        if not each.equal
    ]
    if target.head() != ledger.head:
        faults.append(f"the ledger's head is {ledger.head} here and {target.head()} there")
    if faults:
        raise MoveRefused(
            f"{target.shown}: it does not hold what {source.path} holds: {'; '.join(faults)}. The file is "
            "unchanged and still the store; empty the database (or name another one) and run the command again"
        )
    return tuple(found)
