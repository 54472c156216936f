"""What a request would cost, and the 402 that says so: one exact, request-bound challenge of both protocols."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import attrs
from ulid import ULID

from gateway.errors import GatewayError, PaymentRequired
from gateway.http import mpp, x402
from gateway.http.validation import Valid
from gateway.registry.operation import Operation
from gateway.registry.payment.quote import Quote, QuoteSecrets
from gateway.registry.payment.terms import Credential, Offer, Terms
from gateway.registry.receipts import timestamp

E = TypeVar("E", bound=GatewayError)


@attrs.frozen(eq=False)
class Quoting:
    """Quotes the requests of one operation on the seller's standing terms."""

    operation: Operation
    terms: Terms
    secrets: QuoteSecrets
    price_version: str
    clock_ms: Callable[[], int]
    head: Callable[[], int | None]

    def offer(self, valid: Valid, *, example: bool = False) -> Offer:
        """Return a fresh offer of a request; raises what the operation's price raises."""
        operation, terms = self.operation, self.terms
        now_ms = self.clock_ms()
        issued_at = now_ms // 1000
        quote = Quote(
            quote_id=f"qt_{ULID.from_timestamp(now_ms / 1000)}",
            operation=operation.id,
            request_hash=valid.request_hash,
            amount=operation.amount(valid.request, terms.asset.decimals),
            price_version=self.price_version,
            issued_at=issued_at,
            expires_at=issued_at + terms.quote_ttl_s,
            example=example,
            head=None if example else self.head(),
        )
        return self._offer(valid, quote, self.secrets.seal(quote, terms))

    def offered(self, valid: Valid, credential: Credential, quote: Quote) -> Offer:
        """Return what a credential is held against: the offer that its quote was made in, if that was of this request.

        Else a fresh one of this request, which the quote is not for.
        """
        if (quote.operation, quote.request_hash) != (self.operation.id, valid.request_hash):
            return self.offer(valid)
        return self._offer(valid, quote, credential.quote_token or "")

    def _offer(self, valid: Valid, quote: Quote, token: str) -> Offer:
        operation = self.operation
        return Offer(
            quote=quote,
            token=token,
            terms=self.terms,
            path=operation.path,
            title=operation.title,
            summary=operation.summary,
            deadline_s=operation.time_for(valid.request),
            body_example=operation.example,
            input_schema=operation.schema,
        )

    def challenged(self, reason: PaymentRequired, offer: Offer) -> PaymentRequired:
        """Return a 402 for `reason` that carries the offer in headers and, readable, in its body."""
        challenge = x402.payment_required(offer, None if reason.code == PaymentRequired.code else reason.code)
        quote, asset = offer.quote, offer.terms.asset
        problem = own(reason)
        problem.headers |= {
            "PAYMENT-REQUIRED": x402.encode(challenge),
            "WWW-Authenticate": mpp.challenge(offer, self.secrets),
        }
        problem.extra |= challenge
        problem.extra["price"] = {
            "amountAtomic": str(quote.amount),
            "usd": offer.usd,
            "asset": asset.address,
            "network": asset.network,
            "decimals": asset.decimals,
            "payTo": offer.terms.pay_to,
        }
        told: dict[str, Any] = {
            "quoteId": quote.quote_id,
            "requestHash": quote.request_hash,
            "expiresAt": timestamp(quote.expires_at * 1000),
        }
        problem.extra["quote"] = told | {"example": True} if quote.example else told
        return problem


def own(failure: E) -> E:
    """Return a failure of one's own, for one that others are answered with as well."""
    copied = copy.copy(failure)
    copied.headers, copied.extra = dict(failure.headers), dict(failure.extra)
    return copied
