"""The one road of every POST operation, in the order of spec/readings "Order of checks"; no route re-orders it.

1 transport, 2 probe rule, 3 schema, key and credential, 4 requestHash and key, 5 free quota, 6 availability, 7 quote
or payment. Everything up to the claim writes nothing but quota counters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import attrs
import orjson
import structlog
from ulid import ULID

from gateway import errors
from gateway.actors import idempotency as keys
from gateway.actors import operations as ops
from gateway.actors import quota as quotas
from gateway.actors.operations.actor import Message as OperationsMessage
from gateway.actors.payment import Payment
from gateway.actors.runtime import ActorDown, ActorError, Overloaded, Ref
from gateway.actors.settlement import SettlementPath
from gateway.errors import GatewayError
from gateway.http import mpp, strict_json, x402
from gateway.http.request_headers import (
    CallerAddress,
    Headers,
    PaymentHeader,
    idempotency_key,
    patience,
    payment_header,
    values,
)
from gateway.http.validation import BodyValidator, Valid
from gateway.registry.execution import Family
from gateway.registry.operation import Operation
from gateway.registry.payment.checks import check
from gateway.registry.payment.quote import Quote, QuoteSecrets
from gateway.registry.payment.terms import Credential, Offer, Terms
from gateway.registry.receipts import timestamp
from gateway.registry.sealing import KeyName, Naming

log = structlog.get_logger(__name__)

SETTLEMENT_SLACK_S = 60.0
RETRY_AFTER_S = 2.0


@attrs.frozen
class Incoming:
    """A POST as it arrived: `peer` is the address of the connection."""

    headers: Headers
    content: bytes = attrs.field(repr=False)
    peer: str


@attrs.frozen
class Outgoing:
    """A 200: the envelope of interface.md 2.1 and its headers."""

    body: bytes = attrs.field(repr=False)
    headers: Mapping[str, str]


@attrs.frozen(eq=False)
class Node:
    """What the pipeline asks of the node."""

    terms: Terms | None
    secrets: QuoteSecrets
    naming: Naming
    callers: CallerAddress
    price_version: str
    families: Mapping[str, Family]
    path: SettlementPath
    want_path: Callable[[], None]
    idempotency: Ref[keys.Message]
    quota: Ref[quotas.Message]
    operations: Ref[OperationsMessage]
    clock_ms: Callable[[], int]


@attrs.frozen
class Caller:
    """Who calls: its network, the names under every pepper, those under the current one, the proven payer."""

    network: str
    payer: str | None
    names: tuple[str, ...]
    current: tuple[str, ...]

    @property
    def spends_as(self) -> str:
        """The name that quotas count."""
        return self.current[-1]


@attrs.frozen(eq=False)
class Pipeline:
    """The road of one operation."""

    operation: Operation
    validator: BodyValidator
    node: Node

    @classmethod
    def of(cls, operation: Operation, node: Node) -> Pipeline:
        """Make the road of an operation."""
        return cls(operation, BodyValidator.of(operation), node)

    async def call(self, incoming: Incoming) -> Outgoing:
        """Take a request down the road; raises the `GatewayError` that is the answer where it is no 200."""
        header = payment_header(incoming.headers) if self.operation.paid else None
        body = _json_body(incoming)
        example = self._is_probe(body, incoming, header)
        valid = self.validator.validate(self.operation.example if example else body)
        key = None if example else idempotency_key(incoming.headers, required=self.operation.key_required)
        credential, fault = self._credential(header)
        caller = self._caller(incoming, credential)
        names = self._names(key, credential, caller)
        finding = await self._look_up(names, valid, caller)
        wait_s = patience(incoming.headers)
        if isinstance(finding, ops.Ended):
            return outgoing(finding)
        if isinstance(finding, keys.Open):
            return outgoing(await self._operations(ops.Join(finding.operation_id, wait_s), wait_s))
        earlier = finding if isinstance(finding, ops.Earlier) else None
        if not self.operation.paid:
            return await self._serve_free(valid, names, caller, earlier, wait_s)
        self._admit(valid)
        if fault is not None:
            raise await self._challenged(fault, valid, caller, example=example)
        if credential is None:
            raise await self._challenged(errors.PaymentRequired(), valid, caller, example=example)
        return await self._serve_paid(credential, valid, names, caller, earlier, wait_s, example=example)

    # -- 2 to 4 --------------------------------------------------------------------------------------------------------

    def _is_probe(self, body: Any, incoming: Incoming, header: PaymentHeader | None) -> bool:
        """Return True for the empty probe of a paid route, which is quoted for the documented example."""
        empty = body is None or body == {}
        if body is None and not (self.operation.paid and header is None):
            raise errors.InvalidJson("the body is empty")
        return empty and self.operation.paid and header is None and not values(incoming.headers, "idempotency-key")

    def _credential(self, header: PaymentHeader | None) -> tuple[Credential | None, errors.PaymentRefused | None]:
        """Decode the credential and recover its signer, without I/O; a refusal waits until the key was looked up."""
        terms = self.node.terms
        if header is None or terms is None:
            return None, None
        try:
            if header.protocol == "x402":
                return x402.decode_payment_signature(header.value, terms), None
            return mpp.decode_authorization(header.value, terms, self.node.secrets), None
        except errors.PaymentRefused as refused:
            return None, refused

    def _caller(self, incoming: Incoming, credential: Credential | None) -> Caller:
        network = self.node.callers.network(incoming.peer, incoming.headers)
        payer = credential.payer if credential else None
        names = self.node.naming.callers(network, payer)
        return Caller(network, payer, names, names[: 2 if payer else 1])

    def _names(self, key: str | None, credential: Credential | None, caller: Caller) -> tuple[tuple[KeyName, ...], ...]:
        """Return the names that the caller gives the operation: its key, and the payment-identifier of x402."""
        spoken = [key, credential.payment_id if credential else None]
        return tuple(self.node.naming.names(each, caller.network) for each in dict.fromkeys(spoken) if each)

    async def _look_up(self, names: tuple[tuple[KeyName, ...], ...], valid: Valid, caller: Caller) -> keys.Finding:
        if not names:
            return keys.Fresh()
        message = keys.LookUp(names, valid.request_hash, caller.names)
        try:
            return await self.node.idempotency.ask(message, within=10)
        except ActorError as error:
            raise errors.StoreUnavailable(
                f"keys cannot be looked up ({type(error).__name__})", retry_after=1
            ) from error

    # -- 5 and 6 -------------------------------------------------------------------------------------------------------

    def _admit(self, valid: Valid) -> None:
        """Refuse what cannot run or be settled now, before anything is quoted."""
        self.node.families[self.operation.family].admit(self.operation.id, valid.request)
        if not self.operation.paid:
            return
        closed = "payment_not_configured" if self.node.terms is None else self.node.path.closed
        if closed is not None:
            self.node.want_path()
            raise errors.SettlementUnavailable(
                f"no settlement path is open ({closed})", extra={"reason": closed}, retry_after=RETRY_AFTER_S
            )

    async def _spend(self, policy: str, caller: str) -> quotas.Allowance:
        try:
            allowance = await self.node.quota.ask(quotas.Spend(policy, caller), within=5)
        except ActorError as error:
            raise errors.CapacityExhausted(
                f"quotas cannot be counted ({type(error).__name__})", retry_after=1
            ) from error
        if not allowance.granted:
            raise errors.QuotaExceeded(
                f"over {allowance.policy.limit} calls in {allowance.policy.window_s} s",
                retry_after=allowance.reset_s,
                headers=allowance.headers,
                extra={"quota": policy},
            )
        return allowance

    async def _serve_free(
        self,
        valid: Valid,
        names: tuple[tuple[KeyName, ...], ...],
        caller: Caller,
        earlier: ops.Earlier | None,
        wait_s: float,
    ) -> Outgoing:
        allowance = await self._spend(self.operation.quota, caller.spends_as)
        try:
            self._admit(valid)
        except GatewayError as failure:
            self._give_back(self.operation.quota, caller.spends_as)
            failure.headers = dict(allowance.headers) | failure.headers
            raise
        order = ops.Order(
            self.operation, valid.body, valid.request, valid.request_hash, names, caller.current, None, earlier
        )
        ended = await self._submit(order, wait_s)
        return outgoing(ended, allowance.headers)

    def _give_back(self, policy: str, caller: str) -> None:
        try:
            self.node.quota.tell(quotas.GiveBack(policy, caller))
        except ActorError as error:
            log.info("quota_not_given_back", policy=policy, error=type(error).__name__)

    # -- 7 -------------------------------------------------------------------------------------------------------------

    def _offer(self, valid: Valid, *, example: bool) -> Offer:
        terms, operation = self._terms(), self.operation
        now = self.node.clock_ms() // 1000
        quote = Quote(
            quote_id=f"qt_{ULID()}",
            operation=operation.id,
            request_hash=valid.request_hash,
            amount=operation.price(valid.request),
            price_version=self.node.price_version,
            issued_at=now,
            expires_at=now + terms.quote_ttl_s,
            example=example,
        )
        return Offer(
            quote,
            self.node.secrets.seal(quote, terms),
            terms,
            operation.path,
            operation.title,
            operation.summary,
            operation.deadline_s,
            operation.example,
            operation.schema,
        )

    async def _challenged(
        self, refusal: errors.PaymentRequired, valid: Valid, caller: Caller, *, example: bool
    ) -> errors.PaymentRequired:
        """Return the 402 with a fresh, exact, request-bound challenge of both protocols."""
        allowance = await self._spend("unpaid_quotes", self.node.naming.callers(caller.network, None)[0])
        offer = self._offer(valid, example=example)
        challenge = x402.payment_required(offer, None if type(refusal) is errors.PaymentRequired else refusal.code)
        quote, asset = offer.quote, offer.terms.asset
        refusal.headers |= allowance.headers | {
            "PAYMENT-REQUIRED": x402.encode(challenge),
            "WWW-Authenticate": mpp.challenge(offer, self.node.secrets),
        }
        refusal.extra |= challenge | {
            "price": {
                "amountAtomic": str(quote.amount),
                "usd": offer.usd,
                "asset": asset.address,
                "network": asset.network,
                "decimals": asset.decimals,
                "payTo": offer.terms.pay_to,
            },
            "quote": {
                "quoteId": quote.quote_id,
                "requestHash": quote.request_hash,
                "expiresAt": timestamp(quote.expires_at * 1000),
            }
            | ({"example": True} if example else {}),
        }
        return refusal

    async def _serve_paid(
        self,
        credential: Credential,
        valid: Valid,
        names: tuple[tuple[KeyName, ...], ...],
        caller: Caller,
        earlier: ops.Earlier | None,
        wait_s: float,
        *,
        example: bool,
    ) -> Outgoing:
        try:
            if credential.fault is not None:
                raise credential.fault
            quote = self.node.secrets.open(credential.quote_token, self._terms())
            check(credential, quote, self._offer(valid, example=example), now=self.node.clock_ms() // 1000)
        except errors.PaymentRefused as refused:
            raise await self._challenged(refused, valid, caller, example=example) from None
        await self._spend("paid", caller.spends_as)
        payment = payment_of(credential, quote)
        order = ops.Order(
            self.operation, valid.body, valid.request, valid.request_hash, names, caller.current, payment, earlier
        )
        try:
            ended = await self._submit(order, wait_s)
        except errors.PaymentRefused as refused:
            raise await self._challenged(refused, valid, caller, example=False) from None
        self._give_back("unpaid_quotes", self.node.naming.callers(caller.network, None)[0])
        return outgoing(ended)

    def _terms(self) -> Terms:
        if self.node.terms is None:
            raise errors.SettlementUnavailable("payments are not configured")
        return self.node.terms

    async def _submit(self, order: ops.Order, wait_s: float) -> ops.Ended:
        return await self._operations(ops.Submit(order, wait_s), self.operation.deadline_s + SETTLEMENT_SLACK_S)

    async def _operations(self, message: ops.Submit | ops.Join, within: float) -> ops.Ended:
        """Ask the operations actor; what it never saw is retryable, what it saw goes on without us."""
        try:
            return await self.node.operations.ask(message, within=within + 5)
        except (Overloaded, ActorDown) as error:
            raise errors.CapacityExhausted(
                "the node takes no more operations now", retry_after=RETRY_AFTER_S
            ) from error
        except ActorError as error:
            paid = isinstance(message, ops.Join) or message.order.payment is not None
            kind = errors.SettlementPending if paid else errors.OperationInProgress
            raise kind("the operation goes on without this request", retry_after=RETRY_AFTER_S) from error


def payment_of(credential: Credential, quote: Quote) -> Payment:
    """Return a checked credential as the actors know it."""
    chain_id, _, _, nonce = credential.authorization_key()
    return Payment(
        protocol=credential.protocol,
        chain_id=chain_id,
        network=credential.asset.network,
        asset=credential.asset.address,
        payer=credential.authorization.authorizer,
        pay_to=credential.authorization.to,
        amount=quote.amount,
        nonce=nonce,
        valid_before=credential.authorization.valid_before,
        quote_id=quote.quote_id,
        price_version=quote.price_version,
        challenge_id=credential.challenge_id,
        body=credential.facilitator_body(),
    )


def outgoing(ended: ops.Ended, more: Mapping[str, str] | None = None) -> Outgoing:
    """Return the 200 of a receipted operation, the same for the first answer and every replay."""
    envelope = {
        "operationId": ended.operation_id,
        "state": "RECEIPTED",
        "replayed": ended.replayed,
        "requestHash": ended.request_hash,
        "receipt": dict(ended.receipt),
        "output": dict(ended.output),
        "execution": dict(ended.execution),
    }
    headers = {"Content-Type": "application/json", "Cache-Control": "private"} | dict(more or {})
    if ended.replayed:
        headers["Idempotency-Replayed"] = "true"
    headers |= receipt_headers(ended)
    return Outgoing(orjson.dumps(envelope), headers)


def receipt_headers(ended: ops.Ended) -> dict[str, str]:
    """Return the payment headers of the protocol that paid, from the stored receipt."""
    receipt = ended.receipt
    if ended.protocol is None:
        return {}
    settlement, charge = receipt["settlement"], receipt["charge"]
    if ended.protocol == "x402":
        response = x402.payment_response(
            payer=receipt["payer"],
            transaction=settlement["transaction"],
            network=settlement["network"],
            amount=int(charge["amountAtomic"]),
        )
        return {"PAYMENT-RESPONSE": response}
    issued = _seconds(receipt["issuedAt"])
    chain_id = int(settlement["network"].partition(":")[2])
    return {"Payment-Receipt": mpp.receipt(settlement["transaction"], issued, ended.challenge_id or "", chain_id)}


def _seconds(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp())


def _json_body(incoming: Incoming) -> Any:
    """Return the JSON of the body, or None where there is no body."""
    if not incoming.content:
        return None
    media = [value.partition(";")[0].strip().lower() for value in values(incoming.headers, "content-type")]
    if media != ["application/json"]:
        raise errors.UnsupportedMediaType("send the body as application/json")
    return strict_json.parse(incoming.content)
