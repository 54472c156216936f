"""A SQLite store with rows in every table, those a later migration adds too, and a ledger that stands."""

from __future__ import annotations

import itertools
import random
import sqlite3
import string
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from gateway.actors.store import schema
from gateway.actors.store.sqlite_file import SqliteFile
from gateway.moving.tables import tables_of
from gateway.registry import ledger
from gateway.registry.ledger import Block, seal_block
from gateway.registry.receipts import BLOCK_TYPE, Signer
from tests.store_of_a_node import ASSET, NETWORK, NOW, PAY_TO

SIGNER = Signer.from_keys({1: b"r" * 32})
AWKWARD = (
    "",
    "\\N",
    "\\.",
    "a\tb\nc\rd",
    "a\\b",
    "'\"`",
    "Zebra",
    "zebra",
    "_",
    "ä",
    "Ä",
    "😀",
    "\x7f",
    "\x01",
    "n" * 3000,
)
NUMBERS = (0, 1, -1, 2**31, -(2**63), 2**63 - 1)
BLOBS = (b"", b"\0", bytes(range(256)), b"\\x00", b"x" * 70_000)
EXTRA = 40


def fill(path: Path, operations: int, *, seed: int) -> None:
    """Make the store and put so many paid operations into it, and awkward rows into every table but the ledger's."""
    rng = random.Random(seed)
    file = SqliteFile(path, "node-1", lambda: NOW)
    with closing(file.open(schema.shipped())) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN")
        _sell(connection, operations, rng)
        for table in tables_of(connection):
            if not table.name.startswith("ledger_"):
                _insert(connection, table.name, _awkward_rows(connection, table.name, rng))
        connection.execute("COMMIT")
    file.release()


def _sell(connection: sqlite3.Connection, count: int, rng: random.Random) -> None:
    previous: Block | None = None
    for first in range(0, count, 250):
        ids = [f"op_{rng.randbytes(4).hex()}{number:010d}" for number in range(first, min(first + 250, count))]
        entries = [entry for operation_id in ids for entry in _postings(operation_id)]
        entries.sort(key=lambda entry: entry.entry_id)
        block = seal_block(previous, [entry.entry_hash for entry in entries], NOW + first)
        previous = block
        columns = ("height", "previous_hash", "block_hash", "entries", "sealed_at")
        signature = SIGNER.jws(block.head, BLOCK_TYPE)
        _insert(
            connection,
            "ledger_blocks",
            [{name: getattr(block, name) for name in columns} | {"signature": signature}],
        )
        names = ("operation_id", "step", "account", "network", "asset", "amount", "posted_at", "entry_id", "entry_hash")
        _insert(
            connection,
            "ledger_entries",
            ({name: getattr(entry, name) for name in names} | {"height": block.height} for entry in entries),
        )
        _insert(connection, "operations", (_operation(each, rng) for each in ids))
        _insert(connection, "operation_events", itertools.chain.from_iterable(map(_events, ids)))
        for table in ("idempotency_keys", "idempotency_callers", "authorizations"):
            _insert(connection, table, (_name(table, each, rng) for each in ids))


def _postings(operation_id: str) -> Iterator[ledger.Entry]:
    asked: dict[str, Any] = {
        "operation_id": operation_id,
        "network": NETWORK,
        "asset": ASSET,
        "amount": 6000,
        "at": NOW,
    }
    yield from ledger.move(step="executed.1", debit="payer:0xa", credit=ledger.HOLD, **asked)
    yield from ledger.move(step="receipted", debit=ledger.HOLD, credit=ledger.REVENUE, **asked)


def _operation(operation_id: str, rng: random.Random) -> dict[str, Any]:
    return {
        "operation_id": operation_id,
        "operation": "search.paid",
        "state": "receipted",
        "epoch": 1,
        "attempt": 1,
        "node": "node-1",
        "funding": "paid",
        "request_hash": "sha256:" + rng.randbytes(32).hex(),
        "sealed_request": rng.randbytes(200),
        "network": NETWORK,
        "asset": ASSET,
        "amount": 6000,
        "pay_to": PAY_TO,
        "protocol": "x402",
        "payer": "0x" + rng.randbytes(20).hex(),
        "nonce": "0x" + rng.randbytes(32).hex(),
        "valid_before": NOW // 1000 + 600,
        "sealed_payment": rng.randbytes(400),
        "sealed_output": rng.randbytes(600),
        "result_hash": "sha256:" + rng.randbytes(32).hex(),
        "route": "search/index",
        "settlement": "settled",
        "transaction_hash": "0x" + rng.randbytes(32).hex(),
        "block_number": rng.randrange(2**32),
        "receipt": '{"receiptId": "' + rng.randbytes(300).hex() + '"}',
        "claimed_at": NOW,
        "executed_at": NOW + 1,
        "ended_at": NOW + 2,
    }


def _events(operation_id: str) -> Iterator[dict[str, Any]]:
    states = ("claimed", "verified", "executing", "executed", "settling", "settled", "receipted")
    for step, state in enumerate(states, 1):
        yield {"operation_id": operation_id, "step": step, "state": state, "at": NOW + step, "epoch": 1}


def _name(table: str, operation_id: str, rng: random.Random) -> dict[str, Any]:
    hmac = rng.randbytes(32).hex()
    columns: dict[str, dict[str, Any]] = {
        "idempotency_keys": {"key_hmac": hmac, "request_hash": hmac, "pepper": 1, "key_wrap": rng.randbytes(60)},
        "idempotency_callers": {"key_hmac": hmac, "caller": rng.randbytes(32).hex()},
        "authorizations": {
            "chain_id": 8453,
            "asset": ASSET,
            "authorizer": hmac,
            "nonce": hmac,
            "claimed_at": NOW,
            "valid_before": NOW,
        },
    }
    return columns[table] | {"operation_id": operation_id}


def _awkward_rows(connection: sqlite3.Connection, table: str, rng: random.Random) -> Iterator[dict[str, Any]]:
    columns = connection.execute("SELECT name, type, pk FROM pragma_table_info(?)", [table]).fetchall()
    for number in range(EXTRA):
        yield {name: _awkward(kind, number, rng, key=bool(pk)) for name, kind, pk in columns}


def _awkward(kind: str, number: int, rng: random.Random, *, key: bool) -> Any:
    match kind:
        case "TEXT":
            unique = f"{rng.choice(string.ascii_letters)}{number}" if key else ""
            return rng.choice(AWKWARD) + unique
        case "BIGINT":
            return number - EXTRA // 2 if key else rng.choice(NUMBERS)
        case "BLOB":
            return rng.choice(BLOBS)
        case _:
            raise AssertionError(kind)


def _insert(connection: sqlite3.Connection, table: str, rows: Iterable[dict[str, Any]]) -> None:
    for row in rows:
        names = list(row)
        holders = ", ".join("?" * len(names))
        connection.execute(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({holders})", list(row.values()))
