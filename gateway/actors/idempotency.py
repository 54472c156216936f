"""The idempotency actor: what a key names, replays, and how long anything is kept.

A key is a bearer secret; the store knows its HMAC only.  A hit needs the HMAC and an equal request hash; anything
else answers as for a fresh key, except that the same caller's reuse of a key for another request is a conflict
(spec/readings, "Idempotency without accounts").  Look-ups that wait together are read in one snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import orjson
import structlog
import trio

from gateway.actors.operations.life import State
from gateway.actors.operations.live import open_output
from gateway.actors.operations.order import Earlier, Ended
from gateway.actors.runtime import Ask, Inbox, Letter
from gateway.actors.store import Row, Statement, Store, Value
from gateway.errors import (
    ExecutionReconciliation,
    GatewayError,
    IdempotencyKeyReused,
    OperationNotFound,
    OperatorNeeded,
    ResultExpired,
    StoreUnavailable,
)
from gateway.registry.receipts import timestamp
from gateway.registry.sealing import KeyName, SealBroken

log = structlog.get_logger(__name__)

SWEEP_EVERY_S = 600.0
SWEEP_AT_ONCE = 500
BATCH = 64


@attrs.frozen
class Fresh:
    """No operation has these names."""


@attrs.frozen
class Open:
    """The operation they name is still running."""

    operation_id: str


Finding = Fresh | Open | Ended | Earlier


@attrs.frozen
class LookUp(Ask[Finding]):
    """Find what a caller's names stand for; refused with the `GatewayError` that is the answer where there is one.

    `callers` are the names of the caller under every pepper.
    """

    names: tuple[tuple[KeyName, ...], ...]
    request_hash: str
    callers: tuple[str, ...]


@attrs.frozen
class Shown:
    """An operation as anybody may see it; `output` only for who has the key."""

    operation_id: str
    operation: str
    state: State
    funding: str
    attempt: int
    request_hash: str
    settlement: str
    transaction: str | None
    network: str | None
    failure_code: str | None
    receipt: Mapping[str, Any] | None
    transitions: Sequence[Mapping[str, Any]]
    output: Mapping[str, Any] | None
    execution: Mapping[str, Any] | None


@attrs.frozen
class Show(Ask[Shown]):
    """Show an operation; `names` are those of the key that came with the question.

    Refused with `OperationNotFound`.
    """

    operation_id: str
    names: tuple[KeyName, ...] = ()


Message = LookUp | Show

BY_KEY = """
    SELECT o.operation_id, o.operation, o.state, o.epoch, o.attempt, o.request_hash, o.sealed_output, o.receipt,
        o.protocol, o.challenge_id, o.failure_code, k.key_hmac, k.key_wrap
    FROM idempotency_keys k JOIN operations o ON o.operation_id = k.operation_id
    WHERE k.key_hmac = :key_hmac AND k.request_hash = :request_hash
"""
BY_CALLER = "SELECT operation_id FROM idempotency_callers WHERE key_hmac = :key_hmac AND caller = :caller"
BY_ID = """
    SELECT operation_id, operation, state, funding, attempt, request_hash, settlement, transaction_hash, network,
        failure_code, receipt, sealed_output
    FROM operations WHERE operation_id = :operation_id
"""
HISTORY = "SELECT state, at, note FROM operation_events WHERE operation_id = :operation_id ORDER BY step"
WRAP = "SELECT key_wrap FROM idempotency_keys WHERE key_hmac = :key_hmac AND operation_id = :operation_id"

Query = tuple[str, Mapping[str, Value]]


@attrs.frozen
class _Hit:
    operation_id: str
    operation: str
    state: State
    epoch: int
    attempt: int
    request_hash: str
    sealed_output: bytes | None
    receipt: str | None
    protocol: str | None
    challenge_id: str | None
    failure_code: str | None
    key_hmac: str
    key_wrap: bytes | None


def _hit(row: Row) -> _Hit:
    return _Hit(row[0], row[1], State(str(row[2])), *row[3:])  # type: ignore[arg-type]  # the schema's types


async def idempotency(inbox: Inbox[Message], *, store: Store, clock_ms: Callable[[], int]) -> None:
    """Serve look-ups, a snapshot for all that wait; sweep what is past its life."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_sweeping, store, clock_ms)
        inbox.ready()
        while True:
            try:
                letters = await inbox.batch(BATCH)
            except StopAsyncIteration:
                break
            await _serve(letters, store)
        nursery.cancel_scope.cancel()


async def _serve(letters: Sequence[Letter[Message]], store: Store) -> None:
    queries: list[Query] = []
    spans: list[int] = []
    for letter in letters:
        asked = _queries(letter.message)
        queries += asked
        spans.append(len(asked))
    try:
        found = await store.fetch_many(queries)
    except StoreUnavailable as error:
        for letter in letters:
            letter.refuse(type(error)(error.detail, extra=error.extra, retry_after=error.retry_after))
        return
    start = 0
    for letter, span in zip(letters, spans, strict=True):
        rows = found[start : start + span]
        start += span
        message = letter.message
        try:
            if isinstance(message, LookUp):
                letter.answer(message, _find(message, rows))
            else:
                letter.answer(message, _show(message, rows))
        except GatewayError as failure:
            letter.refuse(failure)


def _queries(message: Message) -> list[Query]:
    if isinstance(message, Show):
        by_id = {"operation_id": message.operation_id}
        return [
            (BY_ID, by_id),
            (HISTORY, by_id),
            *((WRAP, {"key_hmac": name.hmac, "operation_id": message.operation_id}) for name in message.names),
        ]
    hmacs = [name.hmac for versions in message.names for name in versions]
    return [
        *((BY_KEY, {"key_hmac": each, "request_hash": message.request_hash}) for each in hmacs),
        *((BY_CALLER, {"key_hmac": each, "caller": caller}) for each in hmacs for caller in message.callers),
    ]


def _find(message: LookUp, rows: Sequence[Sequence[Row]]) -> Finding:
    count = sum(len(versions) for versions in message.names)
    hits = [_hit(row) for found in rows[:count] for row in found]
    if len({hit.operation_id for hit in hits}) > 1:
        raise IdempotencyKeyReused("the Idempotency-Key and the payment identifier name two different operations")
    if hits:
        return _stands(hits[0], message)
    for found in rows[count:]:
        for row in found:
            raise IdempotencyKeyReused(operation_id=str(row[0]))
    return Fresh()


def _stands(hit: _Hit, message: LookUp) -> Finding:
    """Say what a hit means for the same request sent again."""
    if not hit.state.ended:
        return Open(hit.operation_id)
    if hit.state is State.NEEDS_OPERATOR:
        raise OperatorNeeded(operation_id=hit.operation_id)
    if hit.failure_code == ExecutionReconciliation.code:
        raise ExecutionReconciliation(operation_id=hit.operation_id)
    receipt = orjson.loads(hit.receipt) if hit.receipt else None
    name = next(name for versions in message.names for name in versions if name.hmac == hit.key_hmac)
    if hit.state is State.RECEIPTED and (hit.sealed_output is None or hit.key_wrap is None):
        raise ResultExpired(operation_id=hit.operation_id, extra={"receipt": receipt})
    if hit.key_wrap is None:
        raise ResultExpired("the failed attempt is too old to be taken on again", operation_id=hit.operation_id)
    try:
        data_key = name.unwrap(hit.operation_id, hit.key_wrap)
        if hit.state is not State.RECEIPTED:
            return Earlier(hit.operation_id, hit.epoch, hit.attempt, data_key, hit.sealed_output)
        served = open_output(data_key, hit.operation_id, hit.sealed_output or b"")
    except SealBroken as error:
        raise OperatorNeeded(str(error), operation_id=hit.operation_id) from error
    return Ended(
        hit.operation_id,
        hit.operation,
        hit.request_hash,
        served.output,
        served.execution,
        receipt or {},
        hit.protocol,
        hit.challenge_id,
        replayed=True,
    )


def _show(message: Show, rows: Sequence[Sequence[Row]]) -> Shown:
    if not rows[0]:
        raise OperationNotFound(operation_id=message.operation_id)
    operation = rows[0][0]
    output = execution = None
    for name, found in zip(message.names, rows[2:], strict=True):
        wrap, sealed = (found[0][0] if found else None), operation[11]
        if isinstance(wrap, bytes) and isinstance(sealed, bytes) and operation[2] == State.RECEIPTED:
            served = open_output(name.unwrap(message.operation_id, wrap), message.operation_id, sealed)
            output, execution = served.output, served.execution
    transitions = [
        {"state": str(state).upper(), "at": timestamp(int(at or 0))} | ({"note": note} if note else {})
        for state, at, note in rows[1]
    ]
    return Shown(
        str(operation[0]),
        str(operation[1]),
        State(str(operation[2])),
        str(operation[3]),
        int(operation[4] or 0),
        str(operation[5]),
        str(operation[6]),
        operation[7] if isinstance(operation[7], str) else None,
        operation[8] if isinstance(operation[8], str) else None,
        operation[9] if isinstance(operation[9], str) else None,
        orjson.loads(operation[10]) if isinstance(operation[10], str) else None,
        transitions,
        output,
        execution,
    )


# -- what is past its life ---------------------------------------------------------------------------------------------


async def keep_sweeping(store: Store, clock_ms: Callable[[], int]) -> None:
    """Sweep again and again; a store that is away is swept later."""
    while True:
        try:
            await sweep(store, clock_ms())
        except StoreUnavailable as error:
            log.warning("sweep_failed", reason=error.detail)
        await trio.sleep(SWEEP_EVERY_S)


async def sweep(store: Store, now: int) -> None:
    """Drop outputs past their life and, much later, whole tombstones; a bounded number at a time."""
    while True:
        due = await store.fetch(
            "SELECT operation_id FROM operations WHERE output_until < :now AND output_until IS NOT NULL LIMIT :limit",
            {"now": now, "limit": SWEEP_AT_ONCE},
        )
        for (operation_id,) in due:
            by_id = {"operation_id": operation_id}
            await store.commit(
                Statement(
                    "UPDATE operations SET sealed_output = NULL, sealed_request = :empty, sealed_payment = NULL,"
                    " output_until = NULL WHERE operation_id = :operation_id AND ended_at IS NOT NULL",
                    by_id | {"empty": b""},
                ),
                Statement("UPDATE idempotency_keys SET key_wrap = NULL WHERE operation_id = :operation_id", by_id),
            )
        if len(due) < SWEEP_AT_ONCE:
            break
    dead = await store.fetch(
        "SELECT operation_id FROM operations WHERE tombstone_until < :now AND tombstone_until IS NOT NULL LIMIT :limit",
        {"now": now, "limit": SWEEP_AT_ONCE},
    )
    for (operation_id,) in dead:
        by_id = {"operation_id": operation_id}
        tables = ("idempotency_keys", "idempotency_callers", "operation_events", "operations")
        await store.commit(
            *(Statement(f"DELETE FROM {table} WHERE operation_id = :operation_id", by_id) for table in tables)  # noqa: S608 - names above
        )
