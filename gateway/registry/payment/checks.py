"""Local verification: all that can be refused about a payment without asking a facilitator or a chain."""

from __future__ import annotations

from typing import Any

from gateway.errors import (
    AmountMismatch,
    AssetMismatch,
    AuthorizationExpiresTooLate,
    AuthorizationExpiresTooSoon,
    AuthorizationNotYetValid,
    ExampleQuote,
    NetworkMismatch,
    QuoteConflict,
    QuoteExpired,
    RecipientMismatch,
    SignatureInvalid,
    TermsMismatch,
)
from gateway.registry.payment.authorization import Authorization
from gateway.registry.payment.extensions import BAZAAR, PAYMENT_IDENTIFIER
from gateway.registry.payment.quote import Quote
from gateway.registry.payment.terms import Accepted, Credential, Offer

RUN_MARGIN_S = 15
"""Seconds that an authorization must live beyond the operation's deadline: the time to settle in."""
AHEAD_S = 60
"""How many seconds in the future a quote may have been issued: one of a wrong clock would be good for long."""
EXPIRY_SLACK_S = 300
"""How many seconds an authorization may live beyond `maxTimeoutSeconds`: for payers whose clock runs ahead of ours.

A longer life serves the payer alone: as long as it lasts, a payment that was served on trust may stay unsettled."""


def check(credential: Credential, quote: Quote, offer: Offer, *, now: int) -> None:
    """Hold a credential, and the quote that it brought back, against an offer of the request at hand.

    What was promised counts by `quote` (its amount is honoured until it expires), what is asked for by `offer`
    (operation, request hash, resource, terms, deadline).  Addresses are compared as bytes, everything else exactly.

    Args:
        credential: decoded, from the request.
        quote: opened from the credential's token.
        offer: of the request at hand, on the terms of now.
        now: Unix seconds.

    Raises:
        ExampleQuote: the quote, or the request, is the documented example (400).
        QuoteConflict: the quote belongs to another request (409).
        PaymentRefused: the one of its kinds that names what is wrong (402).
    """
    if credential.fault is not None:
        raise credential.fault
    if quote.example or offer.quote.example:
        raise ExampleQuote
    if (quote.operation, quote.request_hash) != (offer.quote.operation, offer.quote.request_hash):
        raise QuoteConflict
    if now >= quote.expires_at:
        raise QuoteExpired
    if quote.issued_at > now + AHEAD_S:
        raise QuoteExpired("the quote was issued by a clock that ran ahead")
    if credential.accepted is not None:
        _check_accepted(credential.accepted, quote, offer)
    _check_resource(credential, offer)
    _check_extensions(credential, offer)
    _check_transfer(credential.authorization, quote, offer)
    _check_times(credential.authorization, offer, now)
    if credential.payer is None:
        raise SignatureInvalid


def _check_accepted(accepted: Accepted, quote: Quote, offer: Offer) -> None:
    asset = offer.terms.asset
    if accepted.scheme != "exact":
        raise TermsMismatch("the only scheme on offer is exact")
    if accepted.network != asset.network:
        raise NetworkMismatch
    if accepted.asset.lower() != asset.address.lower():
        raise AssetMismatch
    if accepted.amount != str(quote.amount):
        raise AmountMismatch("accepted.amount is not the quoted amount")
    if accepted.pay_to.lower() != offer.terms.pay_to.lower():
        raise RecipientMismatch("accepted.payTo is not the payee")
    if accepted.max_timeout_seconds != offer.max_timeout_seconds:
        raise TermsMismatch("accepted.maxTimeoutSeconds is not the offered one")
    if accepted.extra.get("name") != asset.name or accepted.extra.get("version") != asset.version:
        raise TermsMismatch("accepted.extra names another EIP-712 domain")


def _check_resource(credential: Credential, offer: Offer) -> None:
    """A payer may leave the resource out, or members of it, but not change one: it is what facilitators list."""
    if credential.resource is None:
        return
    for name, value in credential.resource.items():
        if name not in offer.resource or value != offer.resource[name]:
            raise TermsMismatch("resource is not an echo of the offered one")


def _check_extensions(credential: Credential, offer: Offer) -> None:
    identifier = credential.extensions.get(PAYMENT_IDENTIFIER)
    if identifier is not None and _info(identifier).get("required") is not False:
        raise TermsMismatch("extensions.payment-identifier is not an echo of the offered one")
    bazaar = credential.extensions.get(BAZAAR)
    if bazaar is not None and bazaar != offer.extensions.get(BAZAAR):
        raise TermsMismatch("extensions.bazaar is not an echo of the offered one")


def _info(extension: Any) -> dict[str, Any]:
    info = extension.get("info") if isinstance(extension, dict) else None
    return info if isinstance(info, dict) else {}


def _check_transfer(authorization: Authorization, quote: Quote, offer: Offer) -> None:
    if authorization.value != quote.amount:
        raise AmountMismatch
    if authorization.to != offer.terms.pay_to:
        raise RecipientMismatch


def _check_times(authorization: Authorization, offer: Offer, now: int) -> None:
    if authorization.valid_after >= now:  # the chain takes it only in a block that is later than this
        raise AuthorizationNotYetValid
    if authorization.valid_before < now + offer.deadline_s + RUN_MARGIN_S:
        raise AuthorizationExpiresTooSoon
    if authorization.valid_before > now + offer.max_timeout_seconds + EXPIRY_SLACK_S:
        raise AuthorizationExpiresTooLate
