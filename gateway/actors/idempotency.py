"""The idempotency actor: what a key names, replays, and how long anything is kept.

A key is a bearer secret; the store knows its HMAC only.  A hit needs the HMAC and an equal request hash; anything
else answers as for a fresh key, except that the same caller's reuse of a key for another request is a conflict
(spec/readings, "Idempotency without accounts").  Look-ups that wait together are read in one snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import orjson
import structlog
import trio

from gateway.actors.leases import Hold, alone
from gateway.actors.operations.life import State
from gateway.actors.operations.live import open_output
from gateway.actors.operations.order import Earlier, Ended, Failure
from gateway.actors.retention import LEASE as RETENTION
from gateway.actors.retention import keep_sweeping
from gateway.actors.runtime import Ask, Inbox, Letter
from gateway.actors.store import InLoop, Row, Store, Value
from gateway.errors import (
    ExecutionReconciliation,
    GatewayError,
    IdempotencyKeyReused,
    InternalError,
    OperationNotFound,
    OperatorNeeded,
    QuoteConflict,
    ResultExpired,
    StoreUnavailable,
)
from gateway.registry.receipts import timestamp
from gateway.registry.sealing import KeyName, SealBroken

log = structlog.get_logger(__name__)

BATCH = 64


@attrs.frozen
class Open:
    """The operation they name is still running, here or elsewhere; `settling` once its payment may be on chain."""

    operation_id: str
    settling: bool = False


@attrs.frozen
class Known:
    """What a caller's names stand for: an operation that ended or runs, a failed one to take on again, or nothing.

    `payment_bound` is True where the authorization that came along is bound to another operation than that, `paid`
    where the chain showed a failed attempt paid, so that it goes on without another payment.  `undecided` is True where
    a failed attempt's payment may have been made and the chain could not tell: no other is asked for before it does.
    """

    operation: Open | Ended | Earlier | None = None
    payment_bound: bool = False
    paid: bool = False
    undecided: bool = False


@attrs.frozen
class LookUp(Ask[Known]):
    """Find what a caller's names stand for; refused with the `GatewayError` that is the answer where there is one.

    Attributes:
        names: for each name that the caller gives the operation, the name under every pepper, newest first.
        request_hash: of the request at hand.
        network: the name of the caller's network under every pepper, newest first.
        payer: the same of its payer's address, where a signature tells it.
        authorization: what the authorization of its payment is known by.  Once that is bound, a signature proves
            nothing more, since anybody may have copied it from the chain.
        reader: the only payer, in lower case, whose call may be read or awaited; "" where none is proven, None where
            the names are the caller's secret and so whoever has them may.
    """

    names: tuple[tuple[KeyName, ...], ...]
    request_hash: str
    network: tuple[str, ...]
    payer: tuple[str, ...] = ()
    authorization: tuple[int, str, str, str] | None = None
    reader: str | None = None


@attrs.frozen
class Shown:
    """An operation as anybody may see it; `output` only for who has the key.  `kept` says whether there is one."""

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
    kept: bool
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
        o.protocol, o.challenge_id, o.failure_code, o.failure_detail, o.nonce, o.settlement, o.payer, k.key_hmac,
        k.key_wrap
    FROM idempotency_keys k JOIN operations o ON o.operation_id = k.operation_id
    WHERE k.key_hmac = :key_hmac AND k.request_hash = :request_hash
"""
BY_CALLER = "SELECT operation_id FROM idempotency_callers WHERE key_hmac = :key_hmac AND caller = :caller"
BY_AUTHORIZATION = """
    SELECT operation_id FROM authorizations
    WHERE chain_id = :chain_id AND asset = :asset AND authorizer = :authorizer AND nonce = :nonce
"""
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
    failure_detail: str | None
    nonce: str | None
    settlement: str
    payer: str | None
    key_hmac: str
    key_wrap: bytes | None

    def hidden_from(self, reader: str | None) -> bool:
        """Return True if it is another payer's; a failed attempt that neither kept nor paid anything is nobody's."""
        if reader is None or self.payer is None or self.payer.lower() == reader:
            return False
        burned = self.failure_code == ExecutionReconciliation.code
        return (
            self.state is not State.FAILED
            or burned
            or self.sealed_output is not None
            or self.settlement != "not_settled"
        )


def _hit(row: Row) -> _Hit:
    return _Hit(row[0], row[1], State(str(row[2])), *row[3:])  # type: ignore[arg-type]  # the schema's types


def _unconfirmed() -> None:
    """Return that no chain tells the time."""
    return


async def idempotency(
    inbox: Inbox[Message], *, store: Store, chain_ms: Callable[[], int | None] = _unconfirmed, hold: Hold = alone
) -> None:
    """Serve look-ups, a snapshot for all that wait; sweep what is past its life.

    `chain_ms` returns the time of the chain's latest block where one was seen lately.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, RETENTION, partial(keep_sweeping, store, chain_ms))
        inbox.ready(at_once=partial(_serve_at_once, store) if isinstance(store, InLoop) else None)
        async for letters in inbox.batches(BATCH):
            await _serve(letters, store)
        nursery.cancel_scope.cancel()


def _serve_at_once(store: InLoop, letter: Letter[Message]) -> bool:
    """Answer a letter, or return False where it had better wait with others."""
    if not store.at_hand:
        return False
    try:
        found = store.look_up_at_once(_queries(letter.message))
    except StoreUnavailable as error:
        letter.refuse(error)
    else:
        _reply(letter, found)
    return True


async def _serve(letters: Sequence[Letter[Message]], store: Store) -> None:
    queries: list[Query] = []
    spans: list[int] = []
    for letter in letters:
        asked = _queries(letter.message)
        queries += asked
        spans.append(len(asked))
    try:
        found = await store.look_up(queries)
    except StoreUnavailable as error:
        for letter in letters:
            letter.refuse(StoreUnavailable(error.detail, extra=error.extra, retry_after=error.retry_after))
        return
    start = 0
    for letter, span in zip(letters, spans, strict=True):
        _reply(letter, found[start : start + span])
        start += span


def _reply(letter: Letter[Message], rows: Sequence[Sequence[Row]]) -> None:
    """Answer one letter; a row that cannot be read costs its own asker an answer, not the others."""
    message = letter.message
    try:
        if isinstance(message, LookUp):
            letter.answer(message, _known(message, rows))
        else:
            letter.answer(message, _show(message, rows))
    except GatewayError as failure:
        letter.refuse(failure)
    except Exception as error:
        log.exception("row_unreadable", asked=type(message).__name__, error=type(error).__name__)
        letter.refuse(InternalError())


def _queries(message: Message) -> list[Query]:
    if isinstance(message, Show):
        by_id = {"operation_id": message.operation_id}
        return [
            (BY_ID, by_id),
            (HISTORY, by_id),
            *((WRAP, {"key_hmac": name.hmac, "operation_id": message.operation_id}) for name in message.names),
        ]
    queries: list[Query] = []
    for versions in message.names:
        queries += [(BY_KEY, {"key_hmac": each.hmac, "request_hash": message.request_hash}) for each in versions]
        for callers in (message.network, message.payer):
            queries += [
                (BY_CALLER, {"key_hmac": each.hmac, "caller": caller})
                for each, caller in zip(versions, callers, strict=bool(callers))
            ]
    if message.authorization is not None:
        chain_id, asset, authorizer, nonce = message.authorization
        named: dict[str, Value] = {"chain_id": chain_id, "asset": asset, "authorizer": authorizer, "nonce": nonce}
        queries.append((BY_AUTHORIZATION, named))
    return queries


def _known(message: LookUp, rows: Sequence[Sequence[Row]]) -> Known:
    """Say what all names of a request mean together."""
    left = iter(rows)
    hits: dict[str, _Hit] = {}
    by_network: list[Row] = []
    by_payer: list[Row] = []
    for versions in message.names:
        found = [_hit(row) for _ in versions for row in next(left)]
        networks = [row for _ in message.network for row in next(left)]
        payers = [row for _ in message.payer for row in next(left)]
        if found:
            hits[found[0].operation_id] = found[0]
        else:
            by_network += networks
            by_payer += payers
    bound_to = [str(row[0]) for row in next(left)] if message.authorization is not None else []
    bound = any(each not in hits for each in bound_to)
    if len(hits) > 1 or (hits and (by_network or (by_payer and not bound))):
        raise IdempotencyKeyReused("the Idempotency-Key and the payment identifier name two different operations")
    if by_network or (by_payer and not bound):
        raise IdempotencyKeyReused
    for hit in hits.values():
        if hit.hidden_from(message.reader):
            raise QuoteConflict("another payer has paid this quote")
        standing = _stands(hit, message)
        failed = isinstance(standing, Earlier)
        paid, undecided = failed and hit.settlement == "settled", failed and hit.settlement == "unknown"
        return Known(standing, bound, paid=paid, undecided=undecided)
    return Known(None, bound)


def _stands(hit: _Hit, message: LookUp) -> Open | Ended | Earlier:
    """Say what a hit means for the same request sent again."""
    if not hit.state.ended:
        return Open(hit.operation_id, settling=hit.state is State.EXECUTED)
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
            failure = Failure(hit.failure_code or "", hit.failure_detail or "", hit.nonce)
            return Earlier(hit.operation_id, hit.epoch, hit.attempt, data_key, hit.sealed_output, failure)
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
    sealed = operation[11] if operation[2] == State.RECEIPTED else None
    for name, found in zip(message.names, rows[2:], strict=True):
        wrap = found[0][0] if found else None
        if isinstance(wrap, bytes) and isinstance(sealed, bytes):
            try:
                served = open_output(name.unwrap(message.operation_id, wrap), message.operation_id, sealed)
            except SealBroken as error:
                raise OperatorNeeded(str(error), operation_id=message.operation_id) from error
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
        isinstance(sealed, bytes),
        output,
        execution,
    )
