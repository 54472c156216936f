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
    funding,
    idempotency_key,
    longest_wait,
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
        sold: it is to be paid for; else no payment was looked at.
        wait_s: how long the caller waits for an operation in flight.
        longest_s: how long it waits for its own, if it says so.
        credential: the payment that came along, its signer recovered.
        quote: what the credential says it pays, if this node made it.
        refusal: why no payment can be taken; told only once the key was looked up.
        example: it was the empty probe of a paid route.
    """

    valid: Valid
    key: str | None = attrs.field(repr=False)
    network: str
    wait_s: float
    sold: bool = False
    credential: Credential | None = attrs.field(default=None, repr=False)
    quote: Quote | None = None
    refusal: errors.PaymentRequired | None = None
    example: bool = False
    longest_s: int | None = None


@attrs.frozen(eq=False)
class Reader:
    """Reads the requests of one operation; `terms` is None where payments are not configured."""

    operation: Operation
    validator: BodyValidator
    callers: CallerAddress
    terms: Terms | None
    secrets: QuoteSecrets

    def read(self, incoming: Incoming) -> Asked:
        """Return what a request asks for; raises the 400, 413 or 415 that tells all that is wrong with it."""
        body = _json_body(incoming)
        headers = incoming.headers
        network = self.callers.network(incoming.peer, headers)
        wait_s, longest_s = patience(headers), longest_wait(headers)
        if self._is_probe(body, headers):
            example = self.validator.valid(self.operation.example)
            priced = errors.ExamplePriced("This is the price of the documented example. It cannot be paid.")
            return Asked(example, None, network, wait_s, refusal=priced, sold=True, example=True)
        faults: list[GatewayError] = []
        violations = [Violation("", "the body is empty")] if body is None else self.validator.violations(body)
        valid = None if violations else self.validator.valid(body)
        sold = self.operation.paid if valid is None else self.operation.sells(valid.request)
        key = self._key(headers, faults)
        credential, refusal = self._credential(payment_header(headers) if sold else None, faults)
        quote = self._quote(credential)
        problem = None if valid is None else self._problem(valid, len(incoming.content), headers, sold=sold)
        if isinstance(problem, errors.RequestTooLarge) and valid is not None and _was_quoted(valid, quote):
            problem = None  # at a price of then, which holds while the quote does
        if valid is None or faults or problem is not None:
            if quote is not None and quote.example:
                raise errors.ExampleQuote
            raise self._refusal(body, violations, faults, problem)
        return Asked(valid, key, network, wait_s, sold, credential, quote, refusal, longest_s=longest_s)

    def _problem(self, valid: Valid, size: int, headers: Headers, *, sold: bool) -> GatewayError | None:
        """Return what is wrong with a request that the schema accepts."""
        said = funding(headers) if self.operation.funding_header else None
        problem = self.operation.check(valid.request)
        if problem is not None:
            return problem
        cap = self.operation.cap(valid.request)
        if cap is not None and size > cap:
            return errors.ContentTooLarge(f"the body of this request may have {cap} bytes")
        if said is not None and (said == "paid") != sold:
            told = (
                "the model is paid for"
                if sold
                else "the model is free, and a free call is never turned into a paid one"
            )
            return errors.FundingMismatch(f"x-gateway-funding says `{said}`: {told}")
        return None

    def _is_probe(self, body: Any, headers: Headers) -> bool:
        """Return True for the empty probe of a paid route, which is quoted for the documented example."""
        if not self.operation.paid or (body is not None and body != {}) or values(headers, "idempotency-key"):
            return False
        return payment_header(headers) is None

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

    def _refusal(
        self, body: Any, violations: list[Violation], faults: list[GatewayError], problem: GatewayError | None
    ) -> GatewayError:
        """Return one problem of everything that is wrong; a lone fault of a header keeps its own code."""
        told = [each for fault in faults for each in (fault.errors or (Violation("", fault.detail),))]
        if problem is not None and not (faults and problem.status >= 500):  # what is closed is told of a sound request
            problem.errors = (*told, *problem.errors)
            return problem
        if not violations and len(faults) == 1:
            faults[0].errors = tuple(told)
            return faults[0]
        return self.validator.refusal(body, [*told, *violations])


def _was_quoted(valid: Valid, quote: Quote | None) -> bool:
    return quote is not None and quote.request_hash == valid.request_hash and not quote.example


def _json_body(incoming: Incoming) -> Any:
    """Return the JSON of the body, or None where there is no body."""
    if not incoming.content:
        return None
    require_json(incoming.headers)
    return strict_json.parse(incoming.content)
