"""How long anything is kept: outputs seven days, then tombstones four hundred, then nothing (spec/readings).

What only had refused payments is kept minutes (`rows.REFUSED_LIFE_MS`).

An output that is past its life takes the request, the payment and the wrapped key along; what stays answers
`result_expired` with the receipt.  What routes and nodes that are gone left behind goes after a month.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog
import trio

from gateway.actors.leases import JOINED
from gateway.actors.store import Statement, Store, Value
from gateway.errors import StoreUnavailable

log = structlog.get_logger(__name__)

SWEEP_EVERY_S = 600.0
SWEEP_AT_ONCE = 100
LEFT_BEHIND_MS = 30 * 24 * 3600 * 1000
LEASE = "retention"


async def keep_sweeping(store: Store, clock_ms: Callable[[], int]) -> None:
    """Sweep again and again; a store that is away is swept later."""
    while True:
        try:
            await sweep(store, clock_ms())
        except StoreUnavailable as error:
            log.warning("sweep_failed", reason=error.detail)
        await trio.sleep(SWEEP_EVERY_S)


async def sweep(store: Store, now: int) -> None:
    """Drop outputs past their life and, much later, whole tombstones; a bounded number in one step."""
    for overdue, drop in ((OUTPUTS_DUE, _drop_output), (TOMBSTONES_DUE, _drop_tombstone)):
        due = await store.fetch(overdue, {"now": now, "limit": SWEEP_AT_ONCE})
        while due:
            await store.commit(*(statement for (operation_id,) in due for statement in drop(str(operation_id), now)))
            left = await store.fetch(overdue, {"now": now, "limit": SWEEP_AT_ONCE})
            due = left if left != due else []
    await _drop_left_behind(store)


OUTPUTS_DUE = """
    SELECT operation_id FROM operations WHERE output_until < :now AND output_until IS NOT NULL AND ended_at IS NOT NULL
    ORDER BY output_until LIMIT :limit
"""
TOMBSTONES_DUE = """
    SELECT operation_id FROM operations
    WHERE tombstone_until < :now AND tombstone_until IS NOT NULL AND ended_at IS NOT NULL
    ORDER BY tombstone_until LIMIT :limit
"""


def _locked(due: str, named: Mapping[str, Value]) -> Statement:
    """Return the statement by which a sweep locks the operation that it drops something of.

    Changing nothing locks the row.  A node that takes a failed attempt on again then waits for the whole sweep, or the
    sweep for it; nobody sees half of one.
    """
    return Statement(
        f"UPDATE operations SET epoch = epoch WHERE operation_id = :operation_id AND {due} < :now"  # noqa: S608 - a column's name
        " AND ended_at IS NOT NULL",
        named,
    )


def _drop_output(operation_id: str, now: int) -> list[Statement]:
    """Forget output, request, payment and key of an operation that is still ended; one taken on again keeps them."""
    named: dict[str, Value] = {"operation_id": operation_id, "now": now}
    return [
        _locked("output_until", named),
        Statement(
            """
            UPDATE idempotency_keys SET key_wrap = NULL WHERE operation_id = :operation_id AND EXISTS (
                SELECT 1 FROM operations o WHERE o.operation_id = :operation_id
                    AND o.output_until < :now AND o.ended_at IS NOT NULL)
            """,
            named,
        ),
        Statement(
            """
            UPDATE operations SET sealed_output = NULL, sealed_request = :empty, sealed_payment = NULL,
                output_until = NULL
            WHERE operation_id = :operation_id AND output_until < :now AND ended_at IS NOT NULL
            """,
            named | {"empty": b""},
        ),
    ]


def _drop_tombstone(operation_id: str, now: int) -> list[Statement]:
    """Forget an operation altogether, its authorization too, which has long been too old to be taken."""
    tables = ("idempotency_keys", "idempotency_callers", "operation_events", "authorizations")
    still = """EXISTS (SELECT 1 FROM operations o WHERE o.operation_id = :operation_id
        AND o.tombstone_until < :now AND o.ended_at IS NOT NULL)"""
    named: dict[str, Value] = {"operation_id": operation_id, "now": now}
    return [
        _locked("tombstone_until", named),
        *(Statement(f"DELETE FROM {table} WHERE operation_id = :operation_id AND {still}", named) for table in tables),  # noqa: S608 - names above
        Statement(
            "DELETE FROM operations WHERE operation_id = :operation_id AND tombstone_until < :now"
            " AND ended_at IS NOT NULL",
            named,
        ),
    ]


_LEFT_BEHIND = (
    ("findings", "probed_at < :store_ms - :age"),
    ("leases", f"taken_at < :store_ms - :age AND NOT EXISTS (SELECT 1 FROM nodes n WHERE {JOINED})"),  # noqa: S608 - a condition
)


async def _drop_left_behind(store: Store) -> None:
    """Forget proofs that expired long ago, and leases that nobody alive has."""
    age: dict[str, Value] = {"age": LEFT_BEHIND_MS}
    for table, old in _LEFT_BEHIND:
        if await store.fetch(f"SELECT 1 FROM {table} WHERE {old} LIMIT 1", age):  # noqa: S608 - names above
            await store.commit(Statement(f"DELETE FROM {table} WHERE {old}", age))  # noqa: S608 - names above
