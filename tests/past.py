"""A store with a past: ended operations with their history, names, authorizations and books, made in bulk.

The past is that of a busy node: one operation every `EVERY_MS`, so that whatever looks at a stretch of time finds as
much in a long past as in a short one.  Nothing of it can be opened: what is sealed is chance.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from ulid import ULID

from gateway.actors.operations.rows import OUTPUT_LIFE_MS, TOMBSTONE_LIFE_MS
from gateway.actors.store import schema
from gateway.actors.store.protocol import Value
from gateway.registry.spells import COARSE_MS, FINE_MS

if TYPE_CHECKING:
    import psycopg

EVERY_MS = 8_000
AT_ONCE = 2_000
NETWORKS = 2_000
COUNTERS = 12
CHAIN_ID = 8453
NETWORK, ASSET = f"eip155:{CHAIN_ID}", "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"
PAY_TO = "0x90F79bf6EB2c4f870365E785982E1f101E93b906"
NODE = "node-1"
PROBED = ("ai/one", "search/embedded-index")
AMOUNT = 6_000
ROUTE = '{"routeId":"search:one","qualificationId":"qual_1"}'

PAID_LIFE = ("claimed", "verified", "executing", "executed", "settling", "settled", "receipted")
REFUSED_LIFE = ("claimed", "failed")
UNSETTLED_LIFE = (*PAID_LIFE[:5], "failed")
FREE_LIFE = ("claimed", "executing", "receipted")

Rows = dict[str, list[tuple[Value, ...]]]
"""Rows by table, their values in the order of `COLUMNS`."""

COLUMNS: Mapping[str, Sequence[str]] = {
    "operations": (
        "operation_id", "operation", "state", "epoch", "attempt", "node", "funding", "request_hash", "sealed_request",
        "quote_id", "price_version", "network", "asset", "amount", "pay_to", "protocol", "payer", "nonce",
        "valid_before", "sealed_payment", "look_from_block", "sealed_output", "result_hash", "route", "settlement",
        "transaction_hash", "block_number", "block_hash", "receipt", "failure_code", "failure_detail", "claimed_at",
        "executed_at", "ended_at", "output_until", "tombstone_until",
    ),
    "operation_events": ("operation_id", "step", "state", "at", "epoch", "note"),
    "idempotency_keys": ("key_hmac", "request_hash", "operation_id", "pepper", "key_wrap"),
    "idempotency_callers": ("key_hmac", "caller", "operation_id"),
    "authorizations": ("chain_id", "asset", "authorizer", "nonce", "operation_id", "claimed_at", "valid_before"),
    "payer_holds": ("payer", "hold_until", "operation_id"),
    "ledger_entries": (
        "entry_id", "operation_id", "step", "account", "network", "asset", "amount", "posted_at", "entry_hash",
        "height",
    ),
    "ledger_blocks": ("height", "previous_hash", "block_hash", "entries", "sealed_at", "signature"),
    "quota_counters": ("quota", "caller", "window_start", "used"),
    "probe_history": (
        "route", "began_at", "node", "ended_at", "width", "lasted_ms", "state", "qualification_id", "probes",
        "failed_probes", "calls", "failed_calls", "p50_ms",
    ),
}  # fmt: skip


@attrs.frozen
class Trace:
    """What a paid operation of the past is known by; some hundreds are kept, from all of its time."""

    operation_id: str
    key_hmac: str
    request_hash: str
    caller: str
    payer: str
    nonce: str

    @property
    def names(self) -> dict[str, Value]:
        """As the parameters of statements are called."""
        more: dict[str, Value] = {"authorizer": self.payer, "chain_id": CHAIN_ID, "asset": ASSET.lower()}
        return attrs.asdict(self) | more | {"entry_id": f"{self.operation_id}/executed.1/hold"}


@attrs.define(eq=False)
class Past:
    """The past of `count` operations that ended up to `now_ms`; the first `due` of them are due to be swept.

    `traces` and `opened` are filled as the rows are made.
    """

    count: int
    now_ms: int
    due: int = 0
    traces: list[Trace] = attrs.field(factory=list)
    opened: list[Trace] = attrs.field(factory=list)
    _chance: random.Random = attrs.field(factory=lambda: random.Random(4021))
    _blobs: Mapping[int, Sequence[bytes]] = attrs.field(factory=dict)
    _height: int = 0
    _left: int = 0

    def __attrs_post_init__(self) -> None:
        self._blobs = {size: [self._chance.randbytes(size) for _ in range(64)] for size in (60, 250, 900, 3000)}

    def batches(self) -> Iterator[Rows]:
        """Yield the rows of all tables, the oldest operations first, some thousands at once; the same each time."""
        self._chance, self._height, self._left = random.Random(4021), 0, self.due
        self.traces.clear()
        self.opened.clear()
        yield self._counters() | self._probed()
        for first in range(0, self.count, AT_ONCE):
            rows: Rows = {table: [] for table in COLUMNS}
            for number in range(first, min(first + AT_ONCE, self.count)):
                self._add(rows, number)
            yield rows

    def present(self, count: int) -> Rows:
        """Return the rows of operations that are open now, executed and not yet settled, on two nodes."""
        rows: Rows = {table: [] for table in COLUMNS}
        for number in range(count):
            trace = self._trace(self.now_ms - number)
            self.opened.append(trace)
            unsettled = {
                "state": "executed",
                "settlement": "unknown",
                "node": f"node-{1 + number % 2}",
            } | dict.fromkeys(("ended_at", "output_until", "tombstone_until"))
            self._operation(
                rows,
                trace,
                self.now_ms,
                self._payment(trace, self.now_ms) | self._result(self.now_ms) | unsettled,
            )
            self._authorized(rows, trace, self.now_ms)
            self._posted(rows, trace, self.now_ms, "executed.1", f"payer:{trace.payer}", "hold")
        rows["ledger_entries"] = [(*entry[:-1], None) for entry in rows["ledger_entries"]]
        return rows

    def _add(self, rows: Rows, number: int) -> None:
        ended = self.now_ms - (self.count - number) * EVERY_MS
        trace = self._trace(ended)
        kind = number % 20
        if kind < 13:
            self._paid(rows, trace, ended)
        elif kind < 17:
            self._free(rows, trace, ended)
        elif kind < 19:
            self._refused(rows, trace, ended, number)
        else:
            self._unsettled(rows, trace, ended)
        callers = [trace.caller] if 13 <= kind < 17 else [trace.caller, self._hash()]
        rows["idempotency_keys"].append((trace.key_hmac, trace.request_hash, trace.operation_id, 1, self._blob(60)))
        rows["idempotency_callers"] += [(trace.key_hmac, caller, trace.operation_id) for caller in callers]
        if kind < 13 and len(self.traces) * self.count < number * 400:
            self.traces.append(trace)

    def _trace(self, ended: int) -> Trace:
        chance = self._chance
        stamp = (ended - 3000).to_bytes(6, "big")
        return Trace(
            operation_id=f"op_{ULID.from_bytes(stamp + chance.randbytes(10))}",
            key_hmac=self._hash(),
            request_hash="sha256:" + self._hash(),
            caller=f"{chance.randrange(NETWORKS):064x}",
            payer=f"0x{int(self.count * chance.random() ** 3):040x}",
            nonce="0x" + self._hash(),
        )

    def _paid(self, rows: Rows, trace: Trace, ended: int) -> None:
        block = 20_000_000 + ended // 2000
        self._operation(
            rows,
            trace,
            ended,
            self._payment(trace, ended)
            | self._result(ended)
            | {
                "state": "receipted",
                "settlement": "settled",
                "transaction_hash": "0x" + self._hash(),
                "block_number": block,
                "block_hash": f"0x{block:064x}",
                "receipt": self._receipt(trace),
            },
        )
        self._happened(rows, trace, ended, PAID_LIFE)
        self._authorized(rows, trace, ended)
        self._posted(rows, trace, ended, "executed.1", f"payer:{trace.payer}", "hold")
        self._posted(rows, trace, ended, "receipted", "hold", "revenue")
        self._sealed(rows, ended)

    def _free(self, rows: Rows, trace: Trace, ended: int) -> None:
        self._operation(
            rows, trace, ended, self._result(ended) | {"state": "receipted", "receipt": self._receipt(trace)}
        )
        self._happened(rows, trace, ended, FREE_LIFE)

    def _refused(self, rows: Rows, trace: Trace, ended: int, number: int) -> None:
        changes: dict[str, Value] = {"state": "failed", "settlement": "not_settled", "failure_code": "payment_invalid"}
        if number < 60:  # as many in a short past as in a long one: an operator decides
            changes |= {"state": "needs_operator", "settlement": "unknown", "failure_code": "operator_needed"}
        self._operation(rows, trace, ended, self._payment(trace, ended) | changes)
        self._happened(rows, trace, ended, REFUSED_LIFE)
        self._authorized(rows, trace, ended)

    def _unsettled(self, rows: Rows, trace: Trace, ended: int) -> None:
        self._operation(
            rows,
            trace,
            ended,
            self._payment(trace, ended)
            | self._result(ended)
            | {"state": "failed", "settlement": "not_settled", "failure_code": "settlement_failed"},
        )
        self._happened(rows, trace, ended, UNSETTLED_LIFE)
        self._authorized(rows, trace, ended)
        rows["payer_holds"].append((trace.payer, ended + 900_000, trace.operation_id))
        self._posted(rows, trace, ended, "executed.1", f"payer:{trace.payer}", "hold")
        self._posted(rows, trace, ended, "failed.1", "hold", f"payer:{trace.payer}")
        self._sealed(rows, ended)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _operation(self, rows: Rows, trace: Trace, ended: int, changes: Mapping[str, Value]) -> None:
        kept = ended + OUTPUT_LIFE_MS > self.now_ms
        output = changes.get("sealed_output")
        due = self._due()
        values: dict[str, Value] = {
            "operation_id": trace.operation_id,
            "operation": "search.paid" if "payer" in changes else "search.free",
            "epoch": 1,
            "attempt": 1,
            "node": NODE,
            "funding": "paid" if "payer" in changes else "free",
            "request_hash": trace.request_hash,
            "sealed_request": self._blob(250) if kept else b"",
            "amount": 0,
            "settlement": "none",
            "claimed_at": ended - 3000,
            "ended_at": ended,
        }
        waits = changes["state"] == "needs_operator"
        values["output_until"] = (
            ended if due else ended + OUTPUT_LIFE_MS if kept and output is not None and not waits else None
        )
        values["tombstone_until"] = None if waits else ended if due else ended + TOMBSTONE_LIFE_MS
        values |= changes
        values["sealed_output"] = output if kept or due else None
        values["sealed_payment"] = changes.get("sealed_payment") if kept or waits else None
        rows["operations"].append(tuple(values.get(name) for name in COLUMNS["operations"]))

    def _due(self) -> bool:
        self._left -= 1
        return self._left >= 0

    def _payment(self, trace: Trace, ended: int) -> dict[str, Value]:
        return {
            "quote_id": "qt_" + trace.operation_id,
            "price_version": "2026-07-25.3",
            "network": NETWORK,
            "asset": ASSET,
            "amount": AMOUNT,
            "pay_to": PAY_TO,
            "protocol": "x402",
            "payer": trace.payer,
            "nonce": trace.nonce,
            "valid_before": ended // 1000 + 120,
            "sealed_payment": self._blob(900),
        }

    def _result(self, ended: int) -> dict[str, Value]:
        return {
            "sealed_output": self._blob(3000),
            "result_hash": "sha256:" + self._hash(),
            "route": ROUTE,
            "executed_at": ended - 1000,
            "look_from_block": 20_000_000 + ended // 2000,
        }

    def _receipt(self, trace: Trace) -> str:
        return f'{{"operationId":"{trace.operation_id}","signature":"{self._hash() * 12}"}}'

    def _happened(self, rows: Rows, trace: Trace, ended: int, life: Sequence[str]) -> None:
        rows["operation_events"] += [
            (trace.operation_id, step, state, ended - 3000 + 400 * step, 1, None) for step, state in enumerate(life, 1)
        ]

    def _authorized(self, rows: Rows, trace: Trace, ended: int) -> None:
        rows["authorizations"].append(
            (CHAIN_ID, ASSET.lower(), trace.payer, trace.nonce, trace.operation_id, ended - 3000, ended // 1000 + 120)
        )

    def _posted(self, rows: Rows, trace: Trace, ended: int, step: str, debit: str, credit: str) -> None:
        for account, amount in ((debit, -AMOUNT), (credit, AMOUNT)):
            entry_id = f"{trace.operation_id}/{step}/{account}"
            entry_hash, height = "sha256:" + self._hash(), self._height + 1
            rows["ledger_entries"].append(
                (
                    entry_id, trace.operation_id, step, account, NETWORK, ASSET.lower(), amount, ended, entry_hash,
                    height,
                )
            )  # fmt: skip

    def _sealed(self, rows: Rows, ended: int) -> None:
        """Seal what one operation posted in a block of its own."""
        self._height += 1
        rows["ledger_blocks"].append(
            (
                self._height,
                "sha256:" + self._hash(),
                "sha256:" + self._hash(),
                4,
                ended + 500,
                "e30." + self._hash() * 2,
            )
        )

    def _counters(self) -> Rows:
        counted: list[tuple[Value, ...]] = [
            ("unpaid_quotes", f"{number:064x}", self.now_ms - number * 40, 1 + number % 9) for number in range(COUNTERS)
        ]
        return {"quota_counters": counted}

    def _probed(self) -> Rows:
        """The history of routes that were well: hours of 90 days, five minutes of the last."""
        hours = range(self.now_ms // COARSE_MS - 90 * 24, self.now_ms // COARSE_MS - 24)
        minutes = range((self.now_ms // COARSE_MS - 24) * (COARSE_MS // FINE_MS), self.now_ms // FINE_MS)
        seen = [(hour * COARSE_MS, COARSE_MS) for hour in hours] + [(each * FINE_MS, FINE_MS) for each in minutes]
        return {
            "probe_history": [
                (route, began, NODE, began + width, width, width, "available", "q_1", 20, 0, 9, 0, 90)
                for began, width in seen
                for route in PROBED
            ]
        }

    def _hash(self) -> str:
        return self._chance.randbytes(32).hex()

    def _blob(self, size: int) -> bytes:
        return self._blobs[size][self._chance.randrange(64)]


def fill_sqlite(connection: sqlite3.Connection, past: Past, *, open_now: int = 0) -> None:
    """Write a past into a database that has the schema, faster than a node could: without waiting for the disk."""
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA cache_size = -4000000")
    connection.execute("BEGIN")
    for batch in past.batches():
        _insert(connection, batch)
    _insert(connection, past.present(open_now))
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _insert(connection: sqlite3.Connection, batch: Rows) -> None:
    for table, rows in batch.items():
        names = COLUMNS[table]
        twice = " ON CONFLICT (payer) DO UPDATE SET hold_until = excluded.hold_until" * (table == "payer_holds")
        marks = ", ".join("?" for _ in names)
        connection.executemany(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks}){twice}", rows)


def make_schema(connection: psycopg.Connection[Any]) -> None:
    """Make the tables of this release in an empty PostgreSQL database."""
    for table in schema.BOOTSTRAP:
        connection.execute(schema.translated(table, "postgresql").encode())
    for migration in schema.load(schema.shipped(), "postgresql"):
        connection.execute(migration.sql.encode())
    connection.commit()


def fill_postgresql(connection: psycopg.Connection[Any], past: Past, *, open_now: int = 0) -> None:
    """Write a past into a database that has the schema, and leave it as its own housekeeping would: analysed.

    It was analysed while nothing was open, as may be.
    """
    held: dict[Value, tuple[Value, ...]] = {}
    with connection.cursor() as cursor:
        for batch in past.batches():
            for hold in batch.pop("payer_holds", ()):
                held[hold[0]] = hold
            for table, rows in batch.items():
                _copy(cursor, table, rows)
        _copy(cursor, "payer_holds", list(held.values()))
    connection.commit()
    connection.autocommit = True
    connection.execute("VACUUM ANALYZE")
    connection.autocommit = False
    with connection.cursor() as cursor:
        for table, rows in past.present(open_now).items():
            _copy(cursor, table, rows)
    connection.commit()


def _copy(cursor: psycopg.Cursor[Any], table: str, rows: Sequence[tuple[Value, ...]]) -> None:
    with cursor.copy(f"COPY {table} ({', '.join(COLUMNS[table])}) FROM STDIN".encode()) as copy:
        for row in rows:
            copy.write_row(row)
