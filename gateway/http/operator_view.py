"""What an operator sees of operations: which rows are read, in which order, and how they are shown.

Stuck ones come first: those that wait for a decision, then those whose settlement is open, oldest first.  Prompts,
results and credentials are sealed and never shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gateway.actors.store.protocol import Row, Value
from gateway.http.operation_view import SETTLEMENTS
from gateway.registry.receipts import timestamp

Query = tuple[str, Mapping[str, Value]]

COLUMNS = (
    "operation_id",
    "operation",
    "state",
    "funding",
    "settlement",
    "amount",
    "asset",
    "network",
    "payer",
    "pay_to",
    "protocol",
    "nonce",
    "transaction_hash",
    "block_number",
    "failure_code",
    "failure_detail",
    "attempt",
    "epoch",
    "node",
    "request_hash",
    "quote_id",
    "result_hash",
    "valid_before",
    "claimed_at",
    "executed_at",
    "ended_at",
)
MOMENTS = frozenset({"claimed_at", "executed_at", "ended_at"})
GROUPS: Mapping[str, str] = {
    "open": "ended_at IS NULL",
    "settling": "ended_at IS NULL AND state = 'executed'",
    "stuck": "failure_code = 'operator_needed'",
}
"""What can be asked for beside a state."""

STATES = ("claimed", "executed", "receipted", "failed", "expired", "needs_operator")
"""The states that rows have; those between two durable steps are told by an operation's history."""

_OPEN = frozenset({"claimed", "executed"})

FILTERS = (*GROUPS, *STATES)
"""Every name that `listing` knows."""

ENTRIES = """
    SELECT step, account, amount, posted_at, height FROM ledger_entries
    WHERE operation_id = :operation_id ORDER BY posted_at, entry_id
"""
_SELECT = f"SELECT {', '.join(COLUMNS)} FROM operations"  # noqa: S608 - constant names
COUNTS: Query = (
    """
    SELECT ended_as, COUNT(*) FROM operations WHERE ended_as IS NOT NULL GROUP BY ended_as
    UNION ALL SELECT state, COUNT(*) FROM operations WHERE ended_at IS NULL GROUP BY state
    """,
    {},
)


NODES: Sequence[Query] = (
    (
        """
        SELECT n.node, n.epoch, CASE WHEN n.lease_until >= :store_ms THEN 1 ELSE 0 END, n.joined_at, n.release,
            (SELECT COUNT(*) FROM operations o WHERE o.node = n.node AND o.ended_at IS NULL)
        FROM nodes n ORDER BY n.node
        """,
        {},
    ),
    (
        """
        SELECT l.name, l.node, l.taken_at FROM leases l WHERE EXISTS (
            SELECT 1 FROM nodes n WHERE n.node = l.node AND n.epoch = l.node_epoch AND n.lease_until >= :store_ms)
        ORDER BY l.name
        """,
        {},
    ),
)
"""The nodes of the store with their open operations, and the duties that one of them does for all."""


def nodes(found: Sequence[Sequence[Row]]) -> list[dict[str, Any]]:
    """Return what the queries of `NODES` found: each node that ever joined, and the duties of those that live."""
    members, leases = found
    duties: dict[str, list[dict[str, Any]]] = {}
    for name, holder, taken_at in leases:
        duties.setdefault(str(holder), []).append({"duty": name, "since": _moment(taken_at)})
    return [
        {
            "node": node,
            "alive": alive == 1,
            "epoch": epoch,
            "joinedAt": _moment(joined_at),
            "release": release,
            "openOperations": open_operations,
            "duties": duties.get(str(node), []),
        }
        for node, epoch, alive, joined_at, release, open_operations in members
    ]


def listing(only: str | None, limit: int) -> list[Query]:
    """Return the queries of a list; `only` is one of `FILTERS`."""
    bound: dict[str, Value] = {"limit": limit}
    oldest, newest = "ORDER BY operation_id LIMIT :limit", "ORDER BY operation_id DESC LIMIT :limit"
    if only is None:
        settling_first = "ORDER BY CASE state WHEN 'executed' THEN 0 ELSE 1 END, operation_id LIMIT :limit"
        return [
            (f"{_SELECT} WHERE {GROUPS['stuck']} {oldest}", bound),
            (f"{_SELECT} WHERE {GROUPS['open']} {settling_first}", bound),
            (f"{_SELECT} {newest}", bound),
        ]
    if only in GROUPS:
        return [(f"{_SELECT} WHERE {GROUPS[only]} {oldest}", bound)]
    # Spelt out, so that PostgreSQL plans for how rare this state is.
    name = STATES[STATES.index(only)]
    chosen = f"ended_at IS NULL AND state = '{name}'" if name in _OPEN else f"ended_as = '{name}'"
    return [(f"{_SELECT} WHERE {chosen} {newest}", bound)]


def listed(found: Sequence[Sequence[Row]], limit: int) -> list[dict[str, Any]]:
    """Return what the queries of `listing` found, each operation once, `limit` at most."""
    rows = {str(row[0]): row for rows in found for row in rows}
    return [shown(row) for row in list(rows.values())[:limit]]


def details(operation_id: str) -> list[Query]:
    """Return the queries of one operation: its row, its history, its ledger entries."""
    by_id: dict[str, Value] = {"operation_id": operation_id}
    return [
        (f"SELECT {', '.join(COLUMNS)}, receipt FROM operations WHERE operation_id = :operation_id", by_id),  # noqa: S608
        ("SELECT state, at, note FROM operation_events WHERE operation_id = :operation_id ORDER BY step", by_id),
        (ENTRIES, by_id),
    ]


def detailed(found: Sequence[Sequence[Row]]) -> dict[str, Any] | None:
    """Return what the queries of `details` found; None where there is no such operation."""
    rows, history, entries = found
    if not rows:
        return None
    *row, receipt = rows[0]
    return shown(tuple(row)) | {
        "receipt": orjson.loads(receipt) if isinstance(receipt, str) else None,
        "transitions": [{"state": str(state).upper(), "at": _moment(at), "note": note} for state, at, note in history],
        "ledger": [
            {"step": step, "account": account, "amountAtomic": str(amount), "at": _moment(at), "block": height}
            for step, account, amount, at, height in entries
        ],
    }


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """Return how many operations there are of each state, from the rows of `COUNTS`."""
    return {str(state): count for state, count in rows if isinstance(count, int)}


def shown(row: Row) -> dict[str, Any]:
    """Return a row of `COLUMNS` as JSON: camelCase names, states in upper case, times in RFC 3339."""
    members: dict[str, Any] = {}
    for name, value in zip(COLUMNS, row, strict=True):
        if name == "state":
            members["state"] = str(value).upper()
        elif name == "amount":
            members["amountAtomic"] = str(value)
        elif name == "settlement":
            members["settlement"] = SETTLEMENTS.get(str(value), value)
        else:
            members[_camel(name)] = _moment(value) if name in MOMENTS else value
    return members


def _moment(milliseconds: Value) -> str | None:
    return timestamp(milliseconds) if isinstance(milliseconds, int) else None


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.title() for word in rest)
