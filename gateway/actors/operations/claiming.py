"""Claiming an order: one durable step before any foreign effect, decided by the store's unique rows.

A free order whose only key was made for it has no rival, and nobody could ask for what a crash leaves of it: its claim
becomes durable together with its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import attrs
import orjson

from gateway.actors.failpoints import failpoint
from gateway.actors.operations import rows
from gateway.actors.operations.in_hand import RETRY_AFTER_S, Life, Surroundings, open_output
from gateway.actors.operations.life import State
from gateway.actors.operations.order import Earlier, Order, Overtaken
from gateway.actors.payment import Payment
from gateway.actors.store import Conflict, Statement, StoreUncertain, Value
from gateway.errors import (
    GatewayError,
    IdempotencyKeyReused,
    OperatorNeeded,
    PayerOnHold,
    PaymentAlreadyBound,
    PaymentRequired,
)
from gateway.registry.execution import Served
from gateway.registry.sealing import KeyName, SealBroken, new_data_key, seal


async def claim(order: Order, operation_id: str, around: Surroundings) -> Life:
    """Commit the claim; raises the `GatewayError` that a lost race, a payer on hold or a store at fault means.

    The claim of an order without rivals is left to its first durable step (`Life.claim`).
    """
    now, earlier = around.clock_ms(), order.earlier
    payment, kept, credit, undecided = order.payment, None, None, False
    if earlier is not None:
        payment, kept, credit, undecided = await _taken_up(order, earlier, around)
    if payment is None and order.operation.sells(order.request):
        raise PaymentRequired
    if payment is None and earlier is None and order.fresh and around.store.health.writable:
        return _claimed_later(order, rows.Owner(operation_id, around.node, 1), around, now)
    if payment is not None and kept is None:
        await _refuse_held_payer(payment, around, now)
    data_key = earlier.data_key if earlier else new_data_key()
    owner = rows.Owner(operation_id, around.node, earlier.epoch + 1 if earlier else 1)
    sealed = Sealed(
        request=seal(data_key, operation_id, "request", orjson.dumps(dict(order.body))),
        payment=around.seal.wrap(operation_id, payment.dump()) if payment else None,
        node_wrap=around.seal.wrap(operation_id, data_key),
        key_wraps=_key_wraps(order, operation_id, data_key),
    )
    told, attempt, note = 0, 1, None
    if earlier is None:
        steps = first_claim(owner, order, payment, sealed, now=now)
    else:
        told, _ = await rows.history(around.store, operation_id)
        attempt = earlier.attempt + 1
        note = f"attempt {attempt}"
        steps = next_claim(owner, order, payment, sealed, now=now, attempt=attempt, credit=credit, undecided=undecided)
    happened = rows.happenings(owner, told + 1, [rows.Happening(State.CLAIMED, now, note)])
    failpoint("claim.before")
    try:
        # A first claim that a power loss takes back runs anew; nothing is settled before a step that flushes it, too.
        await around.store.commit(*(statement for _, statement in steps), *happened, relaxed=earlier is None)
    except Conflict as conflict:
        raise _lost(steps[conflict.index][0]) from conflict
    except StoreUncertain as error:
        error.operation_id = operation_id
        raise
    failpoint("claim.after")
    return Life(
        owner,
        order.operation.id,
        order.operation,
        order.request,
        order.request_hash,
        payment,
        data_key,
        attempt,
        next_step=told + 2,
        served=kept.served if kept else None,
        result=kept.result if kept else None,
        credit=credit,
        undecided=undecided,
        budget=order.budget,
        cleared=order.cleared,
        network=order.network,
    )


def _claimed_later(order: Order, owner: rows.Owner, around: Surroundings, now: int) -> Life:
    data_key = new_data_key()
    life = Life(
        owner,
        order.operation.id,
        order.operation,
        order.request,
        order.request_hash,
        None,
        data_key,
        attempt=1,
        next_step=1,
        budget=order.budget,
        network=order.network,
        claim=partial(_late_claim, order, owner, around, data_key, now),
    )
    life.told.append(rows.Happening(State.CLAIMED, now))
    return life


def _late_claim(
    order: Order, owner: rows.Owner, around: Surroundings, data_key: bytes, now: int, *, over: bool
) -> list[Statement]:
    """Return the statements of a first claim that comes with a later step; `over` if nothing is left open by that."""
    sealed = Sealed(
        request=b"" if over else seal(data_key, owner.operation_id, "request", orjson.dumps(dict(order.body))),
        payment=None,
        node_wrap=None if over else around.seal.wrap(owner.operation_id, data_key),
        key_wraps=_key_wraps(order, owner.operation_id, data_key),
    )
    return [statement for _, statement in first_claim(owner, order, None, sealed, now=now)]


def _key_wraps(order: Order, operation_id: str, data_key: bytes) -> list[list[bytes]]:
    return [[each.wrap(operation_id, data_key) for each in versions] for versions in order.names]


@attrs.frozen
class _Kept:
    """The output of an earlier attempt, so that nothing runs again."""

    served: Served
    result: rows.Result


async def _taken_up(
    order: Order, earlier: Earlier, around: Surroundings
) -> tuple[Payment | None, _Kept | None, rows.Settled | None, bool]:
    """Return what pays for the next attempt, what is there already, and where the chain showed that payment made.

    The last is True where that payment may have been made and the chain could not tell.

    A payment that the chain showed made is used up before any other is taken, and one that may have been made is taken
    up where the order brings none.  Raises `Overtaken` where another node has taken the attempt on since it was looked
    up.
    """
    found = await around.store.fetch(
        "SELECT settlement, transaction_hash, block_number, block_hash, sealed_payment, result_hash, route, executed_at"
        " FROM operations WHERE operation_id = :operation_id AND state = 'failed' AND epoch = :epoch",
        {"operation_id": earlier.operation_id, "epoch": earlier.epoch},
    )
    if not found:
        raise Overtaken(operation_id=earlier.operation_id, retry_after=RETRY_AFTER_S)
    *settled, sealed_payment, result_hash, route, executed_at = found[0]
    payment, kept, credit = order.payment, None, rows.seen_settled(*settled)
    undecided = settled[0] == "unknown"
    try:
        if not isinstance(sealed_payment, bytes):
            credit = None
        elif credit is not None or (undecided and payment is None):
            payment = Payment.load(around.seal.unwrap(earlier.operation_id, sealed_payment))
        if payment is not None and earlier.sealed_output is not None and result_hash is not None:
            served = open_output(earlier.data_key, earlier.operation_id, earlier.sealed_output)
            kept = _Kept(served, rows.Result(str(result_hash), str(route), int(executed_at or 0)))
    except SealBroken as error:
        raise OperatorNeeded(str(error), operation_id=earlier.operation_id) from error
    return payment, kept, credit, undecided and payment is not None


async def _refuse_held_payer(payment: Payment, around: Surroundings, now: int) -> None:
    """Refuse a payer whose payment failed to settle a while ago, unless the result is there and nothing is at risk."""
    held = "SELECT hold_until FROM payer_holds WHERE payer = :payer AND hold_until > :now"
    (found,) = await around.store.look_up([(held, {"payer": payment.payer.lower(), "now": now})])
    for (hold_until,) in found:
        raise PayerOnHold(
            "an earlier payment of this payer failed to settle after its result was made",
            retry_after=(int(hold_until or now) - now) / 1000,
        )


def _lost(what: str) -> GatewayError:
    """Return what a conflict in the claim means."""
    if what == "payment":
        return PaymentAlreadyBound()
    if what == "caller":
        return IdempotencyKeyReused()
    return Overtaken(retry_after=RETRY_AFTER_S)


# -- statements --------------------------------------------------------------------------------------------------------


@attrs.frozen
class Sealed:
    """What is kept of a claim, sealed."""

    request: bytes
    payment: bytes | None
    node_wrap: bytes | None
    key_wraps: Sequence[Sequence[bytes]]


Steps = list[tuple[str, Statement]]
"""Statements of a claim, each with what its conflict means: operation, key, caller or payment."""


def first_claim(owner: rows.Owner, order: Order, payment: Payment | None, sealed: Sealed, *, now: int) -> Steps:
    """Return the statements of a first claim."""
    steps = [("operation", _insert_operation(owner, order, payment, sealed, now))]
    steps += _names(owner, order, sealed, first=True)
    if payment is not None:
        steps.append(("payment", _insert_authorization(payment, owner, now)))
    return steps


def next_claim(
    owner: rows.Owner,
    order: Order,
    payment: Payment | None,
    sealed: Sealed,
    *,
    now: int,
    attempt: int,
    credit: rows.Settled | None,
    undecided: bool = False,
) -> Steps:
    """Return the statements that take a failed operation on again; `owner.epoch` is the new epoch.

    A payment that the chain showed made, in `credit`, stays known as such until it has bought something, and one that
    is `undecided` until the chain has told.  What a sweep
    may have dropped since the look-up, the request and the wrapped key, is there again.
    """
    update = Statement(
        """
        UPDATE operations SET state = 'claimed', epoch = :epoch, attempt = :attempt, node = :node,
            sealed_request = :sealed_request, node_wrap = :node_wrap,
            quote_id = :quote_id, price_version = :price_version,
            network = :network, asset = :asset, amount = :amount, pay_to = :pay_to, protocol = :protocol,
            payer = :payer, nonce = :nonce, valid_before = :valid_before, challenge_id = :challenge_id,
            sealed_payment = :sealed_payment, settlement = :settlement, transaction_hash = :transaction_hash,
            block_number = :block_number, block_hash = :block_hash, failure_code = NULL, failure_detail = NULL,
            ended_at = NULL, output_until = NULL, tombstone_until = NULL
        WHERE operation_id = :operation_id AND state = 'failed' AND epoch = :epoch - 1
        """,
        {
            "operation_id": owner.operation_id,
            "epoch": owner.epoch,
            "attempt": attempt,
            "node": owner.node,
            "sealed_request": sealed.request,
            "node_wrap": sealed.node_wrap,
            **_payment_columns(payment, sealed),
            **rows.block_columns(credit),
            **({"settlement": "settled"} if credit else {"settlement": "unknown"} if undecided else {}),
        },
        rows=1,
    )
    steps = [("operation", update)]
    steps += _names(owner, order, sealed, first=False)
    if payment is not None:
        steps.append(("payment", _insert_authorization(payment, owner, now)))
    return steps


def _names(owner: rows.Owner, order: Order, sealed: Sealed, *, first: bool) -> Steps:
    """Return the statements that bind every name of the operation and of its caller, under every pepper.

    While a new pepper is brought to one node after another, those that do not have it yet know the older name.
    """
    steps: Steps = []
    for versions, wraps in zip(order.names, sealed.key_wraps, strict=True):
        for number, (name, wrap) in enumerate(zip(versions, wraps, strict=True)):
            steps.append(("key", _insert_key(name, order.request_hash, owner, wrap, first=first)))
            steps += [("caller", _insert_caller(name, each[number], owner, first=first)) for each in order.callers]
    return steps


def _insert_operation(owner: rows.Owner, order: Order, payment: Payment | None, sealed: Sealed, now: int) -> Statement:
    return Statement(
        """
        INSERT INTO operations (operation_id, operation, state, epoch, attempt, node, funding,
            request_hash, sealed_request, node_wrap, quote_id, price_version, network, asset, amount, pay_to,
            protocol, payer, nonce, valid_before, challenge_id, sealed_payment, settlement, claimed_at)
        VALUES (:operation_id, :operation, 'claimed', :epoch, 1, :node, :funding, :request_hash,
            :sealed_request, :node_wrap, :quote_id, :price_version, :network, :asset, :amount, :pay_to, :protocol,
            :payer, :nonce, :valid_before, :challenge_id, :sealed_payment, :settlement, :now)
        ON CONFLICT (operation_id) DO NOTHING
        """,
        {
            "operation_id": owner.operation_id,
            "operation": order.operation.id,
            "epoch": owner.epoch,
            "node": owner.node,
            "funding": "free" if payment is None else "paid",
            "request_hash": order.request_hash,
            "sealed_request": sealed.request,
            "node_wrap": sealed.node_wrap,
            "now": now,
            **_payment_columns(payment, sealed),
        },
        rows=1,
    )


def _payment_columns(payment: Payment | None, sealed: Sealed) -> dict[str, Value]:
    return {
        "settlement": "not_settled" if payment else "none",
        "quote_id": payment.quote_id if payment else None,
        "price_version": payment.price_version if payment else None,
        "network": payment.network if payment else None,
        "asset": payment.asset if payment else None,
        "amount": payment.amount if payment else 0,
        "pay_to": payment.pay_to if payment else None,
        "protocol": payment.protocol if payment else None,
        "payer": payment.payer if payment else None,
        "nonce": payment.nonce if payment else None,
        "valid_before": payment.valid_before if payment else None,
        "challenge_id": payment.challenge_id if payment else None,
        "sealed_payment": sealed.payment,
    }


_ONCE = "ON CONFLICT DO NOTHING"
_AGAIN = """
    ON CONFLICT (key_hmac, request_hash) DO UPDATE SET key_wrap = excluded.key_wrap
    WHERE idempotency_keys.operation_id = excluded.operation_id
"""


def _insert_key(name: KeyName, request_hash: str, owner: rows.Owner, wrap: bytes, *, first: bool) -> Statement:
    return Statement(
        f"""
        INSERT INTO idempotency_keys (key_hmac, request_hash, operation_id, pepper, key_wrap)
        VALUES (:key_hmac, :request_hash, :operation_id, :pepper, :key_wrap) {_ONCE if first else _AGAIN}
        """,  # noqa: S608 - constants from above
        {
            "key_hmac": name.hmac,
            "request_hash": request_hash,
            "operation_id": owner.operation_id,
            "pepper": name.pepper,
            "key_wrap": wrap,
        },
        rows=1 if first else None,
    )


def _insert_caller(name: KeyName, caller: str, owner: rows.Owner, *, first: bool) -> Statement:
    return Statement(
        """
        INSERT INTO idempotency_callers (key_hmac, caller, operation_id)
        VALUES (:key_hmac, :caller, :operation_id) ON CONFLICT DO NOTHING
        """,
        {"key_hmac": name.hmac, "caller": caller, "operation_id": owner.operation_id},
        rows=1 if first else None,
    )


def _insert_authorization(payment: Payment, owner: rows.Owner, now: int) -> Statement:
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
