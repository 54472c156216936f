"""The durable steps of an operation as statements.

Each step is one atomic commit; every update is fenced by `operation_id = :operation_id AND epoch = :epoch`, so that a
stale owner writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import orjson

from gateway.actors.operations.life import Event, State
from gateway.actors.store import Row, Statement, Store, Value
from gateway.registry.ledger import Entry

OUTPUT_LIFE_MS = 7 * 24 * 3600 * 1000
TOMBSTONE_LIFE_MS = 400 * 24 * 3600 * 1000
REFUSED_LIFE_MS = 10 * 60 * 1000
"""How long what only had refused payments is kept: its quote has expired by then, and signatures cost nothing."""


@attrs.frozen
class Owner:
    """Who writes: the node and the epoch under which it owns the operation."""

    operation_id: str
    node: str
    epoch: int


# Says IS NULL so that no planner takes the index of what is open for it: the row is found by its key.
_OPEN = "COALESCE(ended_at, 0) = 0"
_NOBODYS = """(node = :node OR NOT EXISTS (
    SELECT 1 FROM nodes n WHERE n.node = operations.node AND n.lease_until >= :store_ms))"""


@attrs.frozen
class Happening:
    """One entry of the operation's history; `at` is milliseconds since 1970."""

    state: State
    at: int
    note: str | None = None


_OPEN_COLUMNS = """operation_id, operation, state, epoch, attempt, request_hash, sealed_request, node_wrap,
    sealed_payment, sealed_output, look_from_block, result_hash, route, executed_at, settlement, transaction_hash,
    block_number, block_hash, released_attempt"""


def take_over(owner: Owner) -> Statement:
    """Return the statement that makes `owner` the owner of an open operation of the epoch before; it returns `OpenRow`.

    It must be the node's own (a crash left it), or its node must have lost its lease.  The last step of that node may
    become durable up to this very statement, so only what it returns may be gone on from, never what was read before.
    """
    return Statement(
        f"""
        UPDATE operations SET epoch = :epoch, node = :node
        WHERE operation_id = :operation_id AND epoch = :epoch - 1 AND {_OPEN} AND {_NOBODYS}
        RETURNING {_OPEN_COLUMNS}
        """,  # noqa: S608 - constants of this module
        {"operation_id": owner.operation_id, "epoch": owner.epoch, "node": owner.node},
        rows=1,
    )


def release(owner: Owner, *, attempt: int) -> Statement:
    """Return the step that says of an attempt, before it begins, that what must never run twice may have begun."""
    return Statement(
        """
        UPDATE operations SET released_attempt = :attempt
        WHERE operation_id = :operation_id AND epoch = :epoch AND attempt = :attempt AND COALESCE(ended_at, 0) = 0
        """,
        {"operation_id": owner.operation_id, "epoch": owner.epoch, "attempt": attempt},
        rows=1,
    )


@attrs.frozen
class Result:
    """What a receipt says of an output: its hash, its route as JSON, and when it was made (ms since 1970)."""

    hash: str
    route: str
    at: int


def keep(owner: Owner, *, sealed_output: bytes, result: Result, look_from_block: int | None) -> Statement:
    """Return the durable step `executed`: the sealed output and the intent to settle."""
    return Statement(
        """
        UPDATE operations SET state = 'executed', sealed_output = :sealed_output, result_hash = :result_hash,
            route = :route, executed_at = :executed_at, look_from_block = :look_from_block, settlement = 'unknown'
        WHERE operation_id = :operation_id AND epoch = :epoch AND COALESCE(ended_at, 0) = 0
        """,
        {
            "operation_id": owner.operation_id,
            "epoch": owner.epoch,
            "sealed_output": sealed_output,
            "result_hash": result.hash,
            "route": result.route,
            "executed_at": result.at,
            "look_from_block": look_from_block,
        },
        rows=1,
    )


@attrs.frozen
class Settled:
    """Where a payment settled."""

    transaction: str
    block_number: int
    block_hash: str


def seen_settled(settlement: Value, transaction: Value, block_number: Value, block_hash: Value) -> Settled | None:
    """Return where a row says that its payment settled, None where it does not."""
    if settlement != "settled" or transaction is None:
        return None
    return Settled(str(transaction), int(block_number or 0), str(block_hash))


def block_columns(settled: Settled | None) -> dict[str, Value]:
    """Return the columns that tell where a payment settled."""
    return {
        "transaction_hash": settled.transaction if settled else None,
        "block_number": settled.block_number if settled else None,
        "block_hash": settled.block_hash if settled else None,
    }


def receipt(
    owner: Owner, *, receipt_json: str, settled: Settled | None, sealed_output: bytes | None, result: Result, now: int
) -> Statement:
    """Return the durable step `receipted`; the data key leaves the node with it, and the request, which is done with.

    `sealed_output` is None where it was kept before.
    """
    return Statement(
        """
        UPDATE operations SET state = 'receipted', receipt = :receipt, settlement = :settlement,
            transaction_hash = :transaction_hash, block_number = :block_number, block_hash = :block_hash,
            sealed_output = COALESCE(:sealed_output, sealed_output), result_hash = :result_hash, route = :route,
            executed_at = :executed_at, node_wrap = NULL, sealed_request = :nothing,
            failure_code = NULL, failure_detail = NULL,
            ended_at = :now, output_until = :output_until, tombstone_until = :tombstone_until
        WHERE operation_id = :operation_id AND epoch = :epoch AND COALESCE(ended_at, 0) = 0
        """,
        {
            "operation_id": owner.operation_id,
            "epoch": owner.epoch,
            "receipt": receipt_json,
            "settlement": "none" if settled is None else "settled",
            **block_columns(settled),
            "sealed_output": sealed_output,
            "result_hash": result.hash,
            "route": result.route,
            "executed_at": result.at,
            "nothing": b"",
            "now": now,
            "output_until": now + OUTPUT_LIFE_MS,
            "tombstone_until": now + TOMBSTONE_LIFE_MS,
        },
        rows=1,
    )


# Its history is claims that were refused, and nothing else.
_ONLY_REFUSED = """sealed_output IS NULL AND executed_at IS NULL AND released_attempt IS NULL AND NOT EXISTS (
    SELECT 1 FROM operation_events e WHERE e.operation_id = operations.operation_id AND e.state <> 'claimed'
        AND (e.state <> 'failed' OR COALESCE(e.note, '') <> :refusal))"""


def end(
    owner: Owner,
    *,
    state: State,
    settlement: str,
    settled: Settled | None,
    failure_code: str,
    failure_detail: str,
    refused: bool = False,
    now: int,
) -> Statement:
    """Return the durable end of an attempt that charged nothing, or that waits for the operator.

    What waits for the operator keeps all that it has until the decision.  Else the request is forgotten, for who takes
    the operation on again brings it: requests of megabytes that failed would fill the store for nothing.

    `refused` says that its payment was refused and has paid nothing, and that nothing ran for it.  That payment is
    forgotten as well, and after minutes the whole operation, if all its attempts ended so.  A payment that is presented
    again later makes a fresh claim, which is verified anew.
    """
    return Statement(
        f"""
        UPDATE operations SET state = :state, settlement = :settlement, transaction_hash = :transaction_hash,
            block_number = :block_number, block_hash = :block_hash, failure_code = :failure_code,
            failure_detail = :failure_detail, ended_at = :now,
            node_wrap = CASE WHEN :waits = 1 THEN node_wrap ELSE NULL END,
            sealed_request = CASE WHEN :waits = 1 THEN sealed_request ELSE :nothing END,
            sealed_payment = CASE WHEN :refused = 1 THEN NULL ELSE sealed_payment END,
            output_until = CASE WHEN :waits = 1 OR sealed_output IS NULL THEN NULL ELSE :output_until END,
            tombstone_until = CASE WHEN :waits = 1 THEN NULL
                WHEN :refused = 1 AND {_ONLY_REFUSED} THEN :refused_until ELSE :tombstone_until END
        WHERE operation_id = :operation_id AND epoch = :epoch AND COALESCE(ended_at, 0) = 0
        """,  # noqa: S608 - a constant of this module
        {
            "operation_id": owner.operation_id,
            "epoch": owner.epoch,
            "state": state.value,
            "settlement": settlement,
            **block_columns(settled),
            "failure_code": failure_code,
            "failure_detail": failure_detail,
            "now": now,
            "waits": int(state is State.NEEDS_OPERATOR),
            "refused": int(refused),
            "refusal": Event.REFUSED.value,
            "nothing": b"",
            "output_until": now + OUTPUT_LIFE_MS,
            "refused_until": now + REFUSED_LIFE_MS,
            "tombstone_until": now + TOMBSTONE_LIFE_MS,
        },
        rows=1,
    )


def free_authorizations(owner: Owner) -> Statement:
    """Return the statement that lets the payments of a burned key buy something else."""
    return Statement(
        "DELETE FROM authorizations WHERE operation_id = :operation_id", {"operation_id": owner.operation_id}
    )


def free_authorization(owner: Owner, key: tuple[int, str, str, str]) -> Statement:
    """Return the statement that lets go of one payment, known by its `key`, that does not pay for this operation."""
    chain_id, asset, authorizer, nonce = key
    return Statement(
        """
        DELETE FROM authorizations WHERE operation_id = :operation_id
            AND chain_id = :chain_id AND asset = :asset AND authorizer = :authorizer AND nonce = :nonce
        """,
        {
            "operation_id": owner.operation_id,
            "chain_id": chain_id,
            "asset": asset,
            "authorizer": authorizer,
            "nonce": nonce,
        },
    )


def resettle(owner: Owner, *, receipt_json: str, settled: Settled) -> Statement:
    """Return the statement that records another transaction for a receipted operation, after a reorganisation.

    One that the operator has written off stays so: the books have taken its revenue back.
    """
    return Statement(
        """
        UPDATE operations SET receipt = :receipt, transaction_hash = :transaction_hash, block_number = :block_number,
            block_hash = :block_hash, settlement = 'settled', failure_code = NULL, failure_detail = NULL
        WHERE operation_id = :operation_id AND epoch = :epoch AND state = 'receipted' AND settlement <> 'not_settled'
        """,
        {"operation_id": owner.operation_id, "epoch": owner.epoch, "receipt": receipt_json, **block_columns(settled)},
        rows=1,
    )


def alarm(owner: Owner, *, failure_code: str, failure_detail: str) -> Statement:
    """Return the statement that hands a receipted operation to the operator; its result still replays."""
    return Statement(
        """
        UPDATE operations SET failure_code = :failure_code, failure_detail = :failure_detail, settlement = 'unknown'
        WHERE operation_id = :operation_id AND epoch = :epoch AND state = 'receipted' AND settlement = 'settled'
        """,
        {
            "operation_id": owner.operation_id,
            "epoch": owner.epoch,
            "failure_code": failure_code,
            "failure_detail": failure_detail,
        },
        rows=1,
    )


def unpaid(owner: Owner, *, state: State, settlement: str, why: str, now: int) -> Statement:
    """Return the statement that ends an operation which waits for the operator as unpaid.

    One that waits in `needs_operator` becomes `failed`; a receipted one stays, its result was released.
    """
    return Statement(
        """
        UPDATE operations SET state = :state, settlement = :settlement, failure_code = 'settlement_failed',
            failure_detail = :why, node_wrap = NULL,
            output_until = CASE WHEN sealed_output IS NULL THEN NULL ELSE COALESCE(output_until, :output_until) END,
            tombstone_until = COALESCE(tombstone_until, :tombstone_until)
        WHERE operation_id = :operation_id AND epoch = :epoch AND failure_code = 'operator_needed'
        """,
        {
            "operation_id": owner.operation_id,
            "epoch": owner.epoch,
            "state": state.value,
            "settlement": settlement,
            "why": why,
            "output_until": now + OUTPUT_LIFE_MS,
            "tombstone_until": now + TOMBSTONE_LIFE_MS,
        },
        rows=1,
    )


def reopen(owner: Owner) -> Statement:
    """Return the statement that takes an operation back from the operator, to be ended anew in the same step."""
    return Statement(
        """
        UPDATE operations SET ended_at = NULL
        WHERE operation_id = :operation_id AND epoch = :epoch AND state = 'needs_operator'
        """,
        {"operation_id": owner.operation_id, "epoch": owner.epoch},
        rows=1,
    )


def hold_payer(payer: str, owner: Owner, *, until: int) -> Statement:
    """Return the statement that keeps a payer from being served on trust until then."""
    return Statement(
        """
        INSERT INTO payer_holds (payer, hold_until, operation_id) VALUES (:payer, :hold_until, :operation_id)
        ON CONFLICT (payer) DO UPDATE SET hold_until = excluded.hold_until, operation_id = excluded.operation_id
        """,
        {"payer": payer.lower(), "hold_until": until, "operation_id": owner.operation_id},
    )


def lift_hold(payer: str, owner: Owner) -> Statement:
    """Return the statement that lifts the hold which an operation put on its payer."""
    return Statement(
        "DELETE FROM payer_holds WHERE payer = :payer AND operation_id = :operation_id",
        {"payer": payer.lower(), "operation_id": owner.operation_id},
    )


def happenings(owner: Owner, first: int, entries: Sequence[Happening]) -> list[Statement]:
    """Return the history entries from step number `first` on; a step told twice is told once."""
    return [
        Statement(
            """
            INSERT INTO operation_events (operation_id, step, state, at, epoch, note)
            VALUES (:operation_id, :step, :state, :at, :epoch, :note) ON CONFLICT DO NOTHING
            """,
            {
                "operation_id": owner.operation_id,
                "step": first + index,
                "state": entry.state.value,
                "at": entry.at,
                "epoch": owner.epoch,
                "note": entry.note,
            },
        )
        for index, entry in enumerate(entries)
    ]


def postings(entries: Sequence[Entry]) -> list[Statement]:
    """Return the ledger entries; one whose id stands already posts nothing."""
    return [
        Statement(
            """
            INSERT INTO ledger_entries
                (entry_id, operation_id, step, account, network, asset, amount, posted_at, entry_hash)
            VALUES (:entry_id, :operation_id, :step, :account, :network, :asset, :amount, :posted_at, :entry_hash)
            ON CONFLICT DO NOTHING
            """,
            attrs.asdict(entry) | {"entry_id": entry.entry_id, "entry_hash": entry.entry_hash},
        )
        for entry in entries
    ]


OPEN = f"""
    SELECT operation_id FROM operations WHERE ended_at IS NULL AND {_NOBODYS}
        AND (funding = 'free' OR (network = :network AND asset = :asset))
    ORDER BY operation_id LIMIT :limit
"""  # noqa: S608 - a constant of this module
"""Open operations that this node may take on: its own and those of nobody; paid ones on the chain that it is on."""

OPEN_ROW = f"SELECT {_OPEN_COLUMNS} FROM operations WHERE operation_id = :operation_id AND ended_at IS NULL"  # noqa: S608 - a constant of this module


@attrs.frozen
class OpenRow:
    """What is read of an open operation to take it on."""

    operation_id: str
    operation: str
    state: str
    epoch: int
    attempt: int
    request_hash: str
    sealed_request: bytes
    node_wrap: bytes | None
    sealed_payment: bytes | None
    sealed_output: bytes | None
    look_from_block: int | None
    result_hash: str | None
    route: str | None
    executed_at: int | None
    settlement: str
    transaction_hash: str | None
    block_number: int | None
    block_hash: str | None
    released_attempt: int | None

    @property
    def released(self) -> bool:
        """Whether what must never run twice may have begun in this attempt."""
        return self.released_attempt == self.attempt

    @property
    def credit(self) -> Settled | None:
        """Where the chain showed the payment made, while it has bought nothing yet."""
        return seen_settled(self.settlement, self.transaction_hash, self.block_number, self.block_hash)

    @property
    def result(self) -> Result | None:
        """What a receipt says of the kept output."""
        if self.sealed_output is None or self.result_hash is None or self.route is None or self.executed_at is None:
            return None
        return Result(self.result_hash, self.route, self.executed_at)


def open_row(row: Row) -> OpenRow:
    """Return a row of `OPEN_ROW` or of `take_over`."""
    return OpenRow(*row)  # type: ignore[arg-type]  # the schema's types


HISTORY = """
    SELECT COALESCE(MAX(step), 0),
        COALESCE(MAX(CASE WHEN state = 'claimed' AND note LIKE 'attempt %' THEN epoch END), 1)
    FROM operation_events WHERE operation_id = :operation_id
"""
"""How far an operation's history goes, and the epoch in which its present attempt was claimed."""


async def history(store: Store, operation_id: str) -> tuple[int, int]:
    """Return what `HISTORY` tells."""
    ((step, epoch),) = await store.fetch(HISTORY, {"operation_id": operation_id})
    return int(step or 0), int(epoch or 1)


def route_json(route: object) -> str:
    """Return the part of a route that the receipt names."""
    members = route if isinstance(route, dict) else {}
    return orjson.dumps({name: members.get(name) for name in ("routeId", "qualificationId")}).decode()
