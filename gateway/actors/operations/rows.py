"""The durable steps of an operation as statements.

Each step is one atomic commit; every update is fenced by `operation_id = :operation_id AND epoch = :epoch`, so that a
stale owner writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import orjson

from gateway.actors.operations.life import State
from gateway.actors.operations.order import Order
from gateway.actors.payment import Payment
from gateway.actors.store import Row, Statement
from gateway.registry.ledger import Entry

OUTPUT_LIFE_MS = 7 * 24 * 3600 * 1000
TOMBSTONE_LIFE_MS = 400 * 24 * 3600 * 1000


@attrs.frozen
class Owner:
    """Who writes: the node and the epoch under which it owns the operation."""

    operation_id: str
    node: str
    epoch: int


@attrs.frozen
class Happening:
    """One entry of the operation's history; `at` is milliseconds since 1970."""

    state: State
    at: int
    note: str | None = None


@attrs.frozen
class Sealed:
    """What is kept of a fresh claim, sealed."""

    request: bytes
    payment: bytes | None
    node_wrap: bytes
    key_wraps: Sequence[bytes]


def claim(owner: Owner, order: Order, sealed: Sealed, *, now: int, lease_until: int) -> list[tuple[str, Statement]]:
    """Return the statements of a first claim, each with what its conflict means: operation, key, caller or payment."""
    payment = order.payment
    steps = [("operation", _insert_operation(owner, order, sealed, now, lease_until))]
    for name, wrap in zip(order.names, sealed.key_wraps, strict=True):
        steps.append(("key", _insert_key(name[0].hmac, order.request_hash, owner, name[0].pepper, wrap, rows=1)))
        steps += [("caller", _insert_caller(name[0].hmac, caller, owner, rows=1)) for caller in order.callers]
    if payment is not None:
        steps.append(("payment", _insert_authorization(payment, owner, now)))
    steps += [("event", each) for each in happenings(owner, 1, [Happening(State.CLAIMED, now)])]
    return steps


def reclaim(
    owner: Owner, order: Order, sealed: Sealed, *, now: int, lease_until: int, attempt: int, step: int
) -> list[tuple[str, Statement]]:
    """Return the statements that take a failed operation on again; `owner.epoch` is the new epoch."""
    payment = order.payment
    update = Statement(
        """
        UPDATE operations SET state = 'claimed', epoch = :epoch, attempt = :attempt, node = :node,
            lease_until = :lease_until, node_wrap = :node_wrap, quote_id = :quote_id, price_version = :price_version,
            amount = :amount, protocol = :protocol, payer = :payer, nonce = :nonce, valid_before = :valid_before,
            challenge_id = :challenge_id, sealed_payment = :sealed_payment, settlement = :settlement, failure_code = NULL,
            failure_detail = NULL, ended_at = NULL, output_until = NULL, tombstone_until = NULL
        WHERE operation_id = :operation_id AND state = 'failed' AND epoch = :epoch - 1
        """,
        {
            "operation_id": owner.operation_id,
            "epoch": owner.epoch,
            "attempt": attempt,
            "node": owner.node,
            "lease_until": lease_until,
            "node_wrap": sealed.node_wrap,
            "settlement": "none" if payment is None else "not_settled",
            **_payment_columns(payment, sealed),
        },
        rows=1,
    )
    steps = [("operation", update)]
    for name, wrap in zip(order.names, sealed.key_wraps, strict=True):
        steps.append(("name", _insert_key(name[0].hmac, order.request_hash, owner, name[0].pepper, wrap, rows=None)))
        steps += [("name", _insert_caller(name[0].hmac, caller, owner, rows=None)) for caller in order.callers]
    if payment is not None:
        steps.append(("payment", _insert_authorization(payment, owner, now)))
    steps += [
        ("event", each) for each in happenings(owner, step, [Happening(State.CLAIMED, now, f"attempt {attempt}")])
    ]
    return steps


def take_over(owner: Owner, *, lease_until: int) -> Statement:
    """Return the statement that makes `owner` the owner of an open operation of the epoch before."""
    return Statement(
        """
        UPDATE operations SET epoch = :epoch, node = :node, lease_until = :lease_until
        WHERE operation_id = :operation_id AND epoch = :epoch - 1 AND ended_at IS NULL
        """,
        {"operation_id": owner.operation_id, "epoch": owner.epoch, "node": owner.node, "lease_until": lease_until},
        rows=1,
    )


def keep(
    owner: Owner, *, sealed_output: bytes, result_hash: str, route: str, executed_at: int, look_from_block: int | None
) -> Statement:
    """Return the durable step `executed`: the sealed output and the intent to settle."""
    return Statement(
        """
        UPDATE operations SET state = 'executed', sealed_output = :sealed_output, result_hash = :result_hash,
            route = :route, executed_at = :executed_at, look_from_block = :look_from_block, settlement = 'unknown'
        WHERE operation_id = :operation_id AND epoch = :epoch AND ended_at IS NULL
        """,
        {
            "operation_id": owner.operation_id,
            "epoch": owner.epoch,
            "sealed_output": sealed_output,
            "result_hash": result_hash,
            "route": route,
            "executed_at": executed_at,
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


def receipt(
    owner: Owner,
    *,
    receipt_json: str,
    settled: Settled | None,
    sealed_output: bytes,
    result_hash: str,
    route: str,
    executed_at: int,
    now: int,
) -> Statement:
    """Return the durable step `receipted`; the data key leaves the node with it."""
    return Statement(
        """
        UPDATE operations SET state = 'receipted', receipt = :receipt, settlement = :settlement,
            transaction_hash = :transaction_hash, block_number = :block_number, block_hash = :block_hash,
            sealed_output = :sealed_output, result_hash = :result_hash, route = :route, executed_at = :executed_at,
            node_wrap = NULL, ended_at = :now, output_until = :output_until, tombstone_until = :tombstone_until
        WHERE operation_id = :operation_id AND epoch = :epoch AND ended_at IS NULL
        """,
        {
            "operation_id": owner.operation_id,
            "epoch": owner.epoch,
            "receipt": receipt_json,
            "settlement": "none" if settled is None else "settled",
            "transaction_hash": settled.transaction if settled else None,
            "block_number": settled.block_number if settled else None,
            "block_hash": settled.block_hash if settled else None,
            "sealed_output": sealed_output,
            "result_hash": result_hash,
            "route": route,
            "executed_at": executed_at,
            "now": now,
            "output_until": now + OUTPUT_LIFE_MS,
            "tombstone_until": now + TOMBSTONE_LIFE_MS,
        },
        rows=1,
    )


def end(owner: Owner, *, state: State, settlement: str, failure_code: str, failure_detail: str, now: int) -> Statement:
    """Return the durable end of an attempt that charged nothing, or that waits for the operator."""
    return Statement(
        """
        UPDATE operations SET state = :state, settlement = :settlement, failure_code = :failure_code,
            failure_detail = :failure_detail, node_wrap = NULL, ended_at = :now,
            output_until = CASE WHEN sealed_output IS NULL THEN NULL ELSE :output_until END,
            tombstone_until = :tombstone_until
        WHERE operation_id = :operation_id AND epoch = :epoch AND ended_at IS NULL
        """,
        {
            "operation_id": owner.operation_id,
            "epoch": owner.epoch,
            "state": state.value,
            "settlement": settlement,
            "failure_code": failure_code,
            "failure_detail": failure_detail,
            "now": now,
            "output_until": now + OUTPUT_LIFE_MS,
            "tombstone_until": now + TOMBSTONE_LIFE_MS,
        },
        rows=1,
    )


def resettle(owner: Owner, *, receipt_json: str, settled: Settled) -> Statement:
    """Return the statement that records another transaction for a receipted operation, after a reorganisation."""
    return Statement(
        """
        UPDATE operations SET receipt = :receipt, transaction_hash = :transaction_hash, block_number = :block_number,
            block_hash = :block_hash
        WHERE operation_id = :operation_id AND epoch = :epoch AND state = 'receipted'
        """,
        {
            "operation_id": owner.operation_id,
            "epoch": owner.epoch,
            "receipt": receipt_json,
            "transaction_hash": settled.transaction,
            "block_number": settled.block_number,
            "block_hash": settled.block_hash,
        },
        rows=1,
    )


def alarm(owner: Owner, *, failure_code: str, failure_detail: str) -> Statement:
    """Return the statement that hands a receipted operation to the operator; its result still replays."""
    return Statement(
        """
        UPDATE operations SET failure_code = :failure_code, failure_detail = :failure_detail, settlement = 'unknown'
        WHERE operation_id = :operation_id AND epoch = :epoch AND state = 'receipted'
        """,
        {
            "operation_id": owner.operation_id,
            "epoch": owner.epoch,
            "failure_code": failure_code,
            "failure_detail": failure_detail,
        },
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


def _insert_operation(owner: Owner, order: Order, sealed: Sealed, now: int, lease_until: int) -> Statement:
    payment = order.payment
    return Statement(
        """
        INSERT INTO operations (operation_id, operation, state, epoch, attempt, node, lease_until, funding,
            request_hash, sealed_request, node_wrap, quote_id, price_version, network, asset, amount, pay_to,
            protocol, payer, nonce, valid_before, challenge_id, sealed_payment, settlement, claimed_at)
        VALUES (:operation_id, :operation, 'claimed', :epoch, 1, :node, :lease_until, :funding, :request_hash,
            :sealed_request, :node_wrap, :quote_id, :price_version, :network, :asset, :amount, :pay_to, :protocol,
            :payer, :nonce, :valid_before, :challenge_id, :sealed_payment, :settlement, :now)
        """,
        {
            "operation_id": owner.operation_id,
            "operation": order.operation.id,
            "epoch": owner.epoch,
            "node": owner.node,
            "lease_until": lease_until,
            "funding": "free" if payment is None else "paid",
            "request_hash": order.request_hash,
            "sealed_request": sealed.request,
            "node_wrap": sealed.node_wrap,
            "network": payment.network if payment else None,
            "asset": payment.asset if payment else None,
            "pay_to": payment.pay_to if payment else None,
            "settlement": "none" if payment is None else "not_settled",
            "now": now,
            **_payment_columns(payment, sealed),
        },
        rows=1,
    )


def _payment_columns(payment: Payment | None, sealed: Sealed) -> dict[str, str | int | bytes | None]:
    return {
        "quote_id": payment.quote_id if payment else None,
        "price_version": payment.price_version if payment else None,
        "amount": payment.amount if payment else 0,
        "protocol": payment.protocol if payment else None,
        "payer": payment.payer if payment else None,
        "nonce": payment.nonce if payment else None,
        "valid_before": payment.valid_before if payment else None,
        "challenge_id": payment.challenge_id if payment else None,
        "sealed_payment": sealed.payment,
    }


def _insert_key(
    key_hmac: str, request_hash: str, owner: Owner, pepper: int, wrap: bytes, *, rows: int | None
) -> Statement:
    return Statement(
        """
        INSERT INTO idempotency_keys (key_hmac, request_hash, operation_id, pepper, key_wrap)
        VALUES (:key_hmac, :request_hash, :operation_id, :pepper, :key_wrap) ON CONFLICT DO NOTHING
        """,
        {
            "key_hmac": key_hmac,
            "request_hash": request_hash,
            "operation_id": owner.operation_id,
            "pepper": pepper,
            "key_wrap": wrap,
        },
        rows=rows,
    )


def _insert_caller(key_hmac: str, caller: str, owner: Owner, *, rows: int | None) -> Statement:
    return Statement(
        """
        INSERT INTO idempotency_callers (key_hmac, caller, operation_id)
        VALUES (:key_hmac, :caller, :operation_id) ON CONFLICT DO NOTHING
        """,
        {"key_hmac": key_hmac, "caller": caller, "operation_id": owner.operation_id},
        rows=rows,
    )


def _insert_authorization(payment: Payment, owner: Owner, now: int) -> Statement:
    """One authorization, one operation: a conflict unless it is bound to this operation already."""
    chain_id, asset, authorizer, nonce = payment.key
    return Statement(
        """
        INSERT INTO authorizations (chain_id, asset, authorizer, nonce, operation_id, claimed_at, valid_before)
        VALUES (:chain_id, :asset, :authorizer, :nonce, :operation_id, :claimed_at, :valid_before)
        ON CONFLICT (chain_id, asset, authorizer, nonce) DO UPDATE SET claimed_at = excluded.claimed_at
        WHERE authorizations.operation_id = excluded.operation_id
        """,
        {
            "chain_id": chain_id,
            "asset": asset,
            "authorizer": authorizer,
            "nonce": nonce,
            "operation_id": owner.operation_id,
            "claimed_at": now,
            "valid_before": payment.valid_before,
        },
        rows=1,
    )


OPEN = """
    SELECT operation_id, operation, state, epoch, attempt, request_hash, sealed_request, node_wrap, sealed_payment,
        sealed_output, look_from_block, executed_at, amount
    FROM operations WHERE ended_at IS NULL AND (lease_until < :now OR node = :node) ORDER BY lease_until LIMIT :limit
"""


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
    executed_at: int | None
    amount: int


def open_row(row: Row) -> OpenRow:
    """Return a row of `OPEN`."""
    return OpenRow(*row)  # type: ignore[arg-type]  # the schema's types


def route_json(route: object) -> str:
    """Return the part of a route that the receipt names."""
    members = route if isinstance(route, dict) else {}
    return orjson.dumps({name: members.get(name) for name in ("routeId", "qualificationId")}).decode()
