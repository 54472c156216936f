"""Steps 1 to 3 of every POST operation: from the bytes of a request to what it asks for, without any I/O.

All that is wrong with a request is told at once: what its schema finds, its key, its credential.
"""

from __future__ import annotations

from typing import Any

import attrs

from gateway import errors
from gateway.errors import GatewayError, Violation
from gateway.http import mpp, strict_json, x402
from gateway.http.request_headers import (
    CallerAddress,
    Headers,
    PaymentHeader,
    idempotency_key,
    patience,
    payment_header,
    require_json,
    values,
)
from gateway.http.validation import BodyValidator, Valid
from gateway.registry.operation import Operation
from gateway.registry.payment.quote import Quote, QuoteSecrets
from gateway.registry.payment.terms import Credential, Terms


@attrs.frozen
class Incoming:
    """A POST as it arrived: `peer` is the address of the connection."""

    headers: Headers
    content: bytes = attrs.field(repr=False)
    peer: str


@attrs.frozen
class Asked:
    """What a request asks for.

    Attributes:
        valid: the body, or the documented example in its place.
        key: the caller's `Idempotency-Key`.
        network: the network that the caller is known by.
        wait_s: how long the caller waits for an operation in flight.
        credential: the payment that came along, its signer recovered.
        quote: what the credential says it pays, if this node made it.
        refusal: why the credential cannot be taken; told only once the key was looked up.
        example: it was the empty probe of a paid route.
    """

    valid: Valid
    key: str | None = attrs.field(repr=False)
    network: str
    wait_s: float
    credential: Credential | None = attrs.field(default=None, repr=False)
    quote: Quote | None = None
    refusal: errors.PaymentRefused | None = None
    example: bool = False


@attrs.frozen(eq=False)
class Reader:
    """Reads the requests of one operation; `terms` is None where payments are not configured."""

    operation: Operation
    validator: BodyValidator
    callers: CallerAddress
    terms: Terms | None
    secrets: QuoteSecrets

    def read(self, incoming: Incoming) -> Asked:
        """Return what a request asks for; raises the 400 or 415 that tells all that is wrong with it."""
        body = _json_body(incoming)
        network = self.callers.network(incoming.peer, incoming.headers)
        wait_s = patience(incoming.headers)
        header = payment_header(incoming.headers) if self.operation.paid else None
        if self._is_probe(body, header, incoming.headers):
            return Asked(self.validator.valid(self.operation.example), None, network, wait_s, example=True)
        faults: list[GatewayError] = []
        violations = [Violation("", "the body is empty")] if body is None else self.validator.violations(body)
        key = self._key(incoming.headers, faults)
        credential, refusal = self._credential(header, faults)
        quote = self._quote(credential)
        if violations or faults:
            if quote is not None and quote.example:
                raise errors.ExampleQuote
            raise self._refusal(body, violations, faults)
        return Asked(self.validator.valid(body), key, network, wait_s, credential, quote, refusal)

    def _is_probe(self, body: Any, header: PaymentHeader | None, headers: Headers) -> bool:
        """Return True for the empty probe of a paid route, which is quoted for the documented example."""
        empty = body is None or body == {}
        return empty and self.operation.paid and header is None and not values(headers, "idempotency-key")

    def _key(self, headers: Headers, faults: list[GatewayError]) -> str | None:
        try:
            return idempotency_key(headers, required=self.operation.key_required)
        except (errors.IdempotencyKeyMissing, errors.IdempotencyKeyInvalid) as fault:
            faults.append(fault.with_traceback(None))
            return None

    def _credential(
        self, header: PaymentHeader | None, faults: list[GatewayError]
    ) -> tuple[Credential | None, errors.PaymentRefused | None]:
        """Decode the credential and recover its signer; what is no credential at all is a fault of the request."""
        if header is None or self.terms is None:
            return None, None
        try:
            if header.protocol == "x402":
                return x402.decode_payment_signature(header.value, self.terms), None
            return mpp.decode_authorization(header.value, self.terms, self.secrets), None
        except errors.PaymentRefused as refused:
            return None, refused.with_traceback(None)
        except errors.MalformedCredential as fault:
            faults.append(fault.with_traceback(None))
            return None, None

    def _quote(self, credential: Credential | None) -> Quote | None:
        if credential is None or self.terms is None:
            return None
        try:
            return self.secrets.open(credential.quote_token, self.terms)
        except errors.PaymentRefused:
            return None

    def _refusal(self, body: Any, violations: list[Violation], faults: list[GatewayError]) -> GatewayError:
        """Return one problem of everything that is wrong; a lone fault of a header keeps its own code."""
        told = [each for fault in faults for each in (fault.errors or (Violation("", fault.detail),))]
        if not violations and len(faults) == 1:
            faults[0].errors = tuple(told)
            return faults[0]
        return self.validator.refusal(body, [*told, *violations])


def _json_body(incoming: Incoming) -> Any:
    """Return the JSON of the body, or None where there is no body."""
    if not incoming.content:
        return None
    require_json(incoming.headers)
    return strict_json.parse(incoming.content)
