"""Group commit against one transaction a request, at 64 callers: same statements, connection set-up, thread hop."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import trio

from gateway.actors.runtime import open_runtime
from gateway.actors.store import Statement, open_sqlite
from gateway.actors.store.sqlite_file import SqliteFile

CALLERS = 64
ROUNDS = 3
SECONDS = 2.0

Commit = Callable[[Sequence[Statement]], Awaitable[object]]


@pytest.fixture
def migrations(tmp_path: Path) -> Path:
    directory = tmp_path / "migrations"
    directory.mkdir()
    (directory / "0001_paid.sql").write_text(
        """
        CREATE TABLE paid (
            id TEXT NOT NULL PRIMARY KEY, state TEXT NOT NULL, epoch BIGINT NOT NULL, sealed BLOB NOT NULL
        );
        CREATE TABLE entries (id TEXT NOT NULL PRIMARY KEY, paid TEXT NOT NULL, amount BIGINT NOT NULL);
        """
    )
    return directory


def paid_call(name: str) -> list[Statement]:
    """What a paid call writes: its row, two ledger rows, its next state."""
    entry = "INSERT INTO entries VALUES (:id, :paid, :amount)"
    return [
        Statement(
            "INSERT INTO paid VALUES (:id, 'claimed', 1, :sealed) ON CONFLICT DO NOTHING",
            {"id": name, "sealed": bytes(600)},
            rows=1,
        ),
        Statement(entry, {"id": f"{name} payer", "paid": name, "amount": -100}, rows=1),
        Statement(entry, {"id": f"{name} hold", "paid": name, "amount": 100}, rows=1),
        Statement("UPDATE paid SET state = 'executed' WHERE id = :id AND epoch = 1", {"id": name}, rows=1),
    ]


async def rate(commit: Commit, prefix: str) -> tuple[float, float]:
    """Steps a second and the 99th percentile of their duration in milliseconds."""
    taken: list[float] = []
    began = time.perf_counter()

    async def caller(number: int) -> None:
        sequence = 0
        while time.perf_counter() - began < SECONDS:
            sequence += 1
            asked = time.perf_counter()
            await commit(paid_call(f"{prefix} {number} {sequence}"))
            taken.append(time.perf_counter() - asked)

    async with trio.open_nursery() as nursery:
        for number in range(CALLERS):
            nursery.start_soon(caller, number)
    elapsed = time.perf_counter() - began
    return len(taken) / elapsed, sorted(taken)[int(len(taken) * 0.99)] * 1000


def commit_alone(connection: sqlite3.Connection, statements: Sequence[Statement]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for statement in statements:
        connection.execute(statement.sql, statement.parameters)
    connection.execute("COMMIT")


@pytest.mark.benchmark
async def test_group_commit_is_at_least_four_times_one_transaction_a_request(tmp_path: Path, migrations: Path) -> None:
    file = SqliteFile(tmp_path / "alone.db", "node-1", lambda: 0)
    connection = file.open(migrations)
    one_thread = trio.CapacityLimiter(1)

    async def alone(statements: Sequence[Statement]) -> None:
        await trio.to_thread.run_sync(partial(commit_alone, connection, statements), limiter=one_thread)

    ratios = []
    async with open_runtime() as runtime, open_sqlite(runtime, tmp_path / "group.db", migrations=migrations) as store:
        for number in range(ROUNDS):
            grouped, grouped_p99 = await rate(lambda statements: store.commit(*statements), f"{number}")
            single, single_p99 = await rate(alone, f"{number}")
            ratios.append(grouped / single)
            print(
                f"\nround {number}: group commit {grouped:,.0f}/s (p99 {grouped_p99:.0f} ms), "
                f"one transaction a request {single:,.0f}/s (p99 {single_p99:.0f} ms), ratio {ratios[-1]:.1f}"
            )
    connection.close()
    file.release()
    print(f"best ratio {max(ratios):.1f}, worst {min(ratios):.1f}")
    assert max(ratios) >= 4
