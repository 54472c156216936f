"""How long anything is kept: outputs seven days, then tombstones four hundred, then nothing (spec/readings).

What only had refused payments is kept minutes (`rows.REFUSED_LIFE_MS`).

An output that is past its life takes the request, the payment and the wrapped key along; what stays answers
`result_expired` with the receipt.  What routes and nodes that are gone left behind goes after a month.

What is dropped too early is charged twice.  So sweeps go by the mark of the store (`gateway.actors.store_time`), never
by a clock alone, each run drops a bounded number, and one that would take more than half of a life's worth at once
waits until the chain has confirmed the time.  What was paid is not old before its authorization is: that time is the
payer's and the chain's, and stands also where the node wrote its own by a clock that was behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs
import structlog
import trio

from gateway.actors.leases import JOINED, Held
from gateway.actors.operations.rows import OUTPUT_LIFE_MS, TOMBSTONE_LIFE_MS
from gateway.actors.store import Conflict, Statement, Store, Value
from gateway.actors.store_time import Reached, StoreTime
from gateway.errors import StoreUnavailable

log = structlog.get_logger(__name__)

SWEEP_EVERY_S = 600.0
SWEEP_AT_ONCE = 100
SWEEP_A_RUN = 20_000
"""Operations that one run drops something of, at most, in each kind: the rest waits for the next run."""
FARTHEST_EXPIRY_S = 3600
"""How long after its settlement an authorization may have expired, at most."""
LEFT_BEHIND_MS = 30 * 24 * 3600 * 1000
LEASE = "retention"


async def keep_sweeping(store: Store, chain_ms: Callable[[], int | None], held: Held) -> None:
    """Sweep again and again while the lease is held; a store that is away is swept later.

    `chain_ms` returns the time of the chain's latest block where one was seen lately.
    """
    time = StoreTime(store, chain_ms)
    while True:
        try:
            await sweep(store, await time.advance(held))
        except (StoreUnavailable, Conflict) as error:
            log.warning("sweep_failed", reason=str(error))
        await trio.sleep(SWEEP_EVERY_S)


async def sweep(store: Store, reached: Reached) -> None:
    """Drop outputs past their life and, much later, whole tombstones; a bounded number in one step and in all."""
    for kind in KINDS:
        await _sweep_kind(store, kind, reached)
    await _drop_left_behind(store, reached.ms)


@attrs.frozen
class _Kind:
    """What is dropped: by the column `until`, `life_ms` after the end of its operation at the latest."""

    name: str
    until: str
    life_ms: int
    drop: Callable[[str, int], list[Statement]]

    @property
    def due(self) -> str:
        """The query for what is past its life, oldest first."""
        return f"""
            SELECT operation_id, {self.until} FROM operations
            WHERE {self.until} < :now AND {self.until} IS NOT NULL AND ended_at IS NOT NULL
                AND NOT (settlement = 'settled' AND COALESCE(valid_before, 0) > :young)
            ORDER BY {self.until} LIMIT :limit
        """  # noqa: S608 - a column's name

    def named(self, now: int) -> dict[str, Value]:
        """Return the parameters of that query."""
        return {"now": now, "young": (now - self.life_ms) // 1000 + FARTHEST_EXPIRY_S, "limit": SWEEP_AT_ONCE}


async def _sweep_kind(store: Store, kind: _Kind, reached: Reached) -> None:
    now = reached.ms
    due = await store.fetch(kind.due, kind.named(now))
    overdue_ms = now - int(due[0][1] or 0) if due else 0
    if overdue_ms > kind.life_ms // 2 and not reached.confirmed:
        log.error("sweep_refused", kind=kind.name, overdue_ms=overdue_ms, until="the chain confirms the time")
        return
    dropped = 0
    while due and dropped < SWEEP_A_RUN:
        await store.commit(*(statement for operation_id, _ in due for statement in kind.drop(str(operation_id), now)))
        dropped += len(due)
        left = await store.fetch(kind.due, kind.named(now))
        due = left if left != due else []


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


KINDS = (
    _Kind("outputs", "output_until", OUTPUT_LIFE_MS, _drop_output),
    _Kind("tombstones", "tombstone_until", TOMBSTONE_LIFE_MS, _drop_tombstone),
)
_LEFT_BEHIND = (
    ("findings", "probed_at < :before"),
    ("leases", f"taken_at < :before AND NOT EXISTS (SELECT 1 FROM nodes n WHERE {JOINED})"),  # noqa: S608 - a condition
)


async def _drop_left_behind(store: Store, now: int) -> None:
    """Forget proofs that expired long ago, and leases that nobody alive has."""
    before: dict[str, Value] = {"before": now - LEFT_BEHIND_MS}
    for table, old in _LEFT_BEHIND:
        if await store.fetch(f"SELECT 1 FROM {table} WHERE {old} LIMIT 1", before):  # noqa: S608 - names above
            await store.commit(Statement(f"DELETE FROM {table} WHERE {old}", before))  # noqa: S608 - names above
