from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from gateway.errors import (
    AmountMismatch,
    AssetMismatch,
    AuthorizationExpiresTooLate,
    AuthorizationExpiresTooSoon,
    AuthorizationNotYetValid,
    ChallengeInvalid,
    ExampleQuote,
    GatewayError,
    NetworkMismatch,
    PaymentRefused,
    QuoteConflict,
    QuoteExpired,
    RecipientMismatch,
    SignatureInvalid,
    TermsMismatch,
)
from gateway.registry.payment import Accepted, Credential, Offer, Quote, check
from gateway.registry.payment.checks import AHEAD_S

Pay = Callable[..., Credential]
OTHER = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"


def test_a_payment_of_the_offer_as_it_stands_passes(pay: Pay, quote: Quote, offer: Offer, now: int) -> None:
    check(pay(), quote, offer, now=now)


def test_what_decoding_found_wrong_is_refused_first(pay: Pay, quote: Quote, offer: Offer, now: int) -> None:
    with pytest.raises(ChallengeInvalid):
        check(attrs.evolve(pay(), fault=ChallengeInvalid()), attrs.evolve(quote, example=True), offer, now=now + 10_000)


def test_the_example_quote_is_never_redeemed(pay: Pay, quote: Quote, offer: Offer, now: int) -> None:
    example = attrs.evolve(quote, example=True)
    with pytest.raises(ExampleQuote):
        check(pay(), example, offer, now=now)
    with pytest.raises(ExampleQuote):
        check(pay(), quote, attrs.evolve(offer, quote=example), now=now)


@pytest.mark.parametrize("change", [{"operation": "scrape"}, {"request_hash": "sha256:" + "00" * 32}])
def test_a_quote_of_another_request_is_a_conflict_even_when_it_has_expired(
    pay: Pay, quote: Quote, offer: Offer, now: int, change: dict[str, Any]
) -> None:
    with pytest.raises(QuoteConflict):
        check(pay(), attrs.evolve(quote, **change), offer, now=now + 10_000)


def test_a_quote_from_the_future_is_not_honoured(pay: Pay, quote: Quote, offer: Offer) -> None:
    """A clock that was a year ahead would have quoted for a year."""
    credential = pay()
    check(credential, quote, offer, now=quote.issued_at - AHEAD_S)
    for early_s in (AHEAD_S + 1, 401 * 24 * 3600):
        with pytest.raises(QuoteExpired):
            check(credential, quote, offer, now=quote.issued_at - early_s)


def test_a_quote_is_honoured_until_the_second_it_expires(pay: Pay, quote: Quote, offer: Offer, now: int) -> None:
    credential = pay(validBefore=str(now + 400))
    check(credential, quote, offer, now=quote.expires_at - 1)
    with pytest.raises(QuoteExpired):
        check(credential, quote, offer, now=quote.expires_at)


def test_a_live_quote_is_honoured_after_a_price_change(pay: Pay, quote: Quote, offer: Offer, now: int) -> None:
    check(pay(), quote, attrs.evolve(offer, quote=attrs.evolve(quote, amount=7000)), now=now)


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"scheme": "upto"}, TermsMismatch),
        ({"network": "eip155:84532"}, NetworkMismatch),
        ({"network": "EIP155:8453"}, NetworkMismatch),
        ({"asset": OTHER}, AssetMismatch),
        ({"asset": "USDC"}, AssetMismatch),
        ({"amount": "06000"}, AmountMismatch),
        ({"amount": "5999"}, AmountMismatch),
        ({"pay_to": OTHER}, RecipientMismatch),
        ({"max_timeout_seconds": 161}, TermsMismatch),
        ({"extra": {}}, TermsMismatch),
        ({"extra": {"name": "USDC", "version": "2"}}, TermsMismatch),
        ({"extra": {"name": "USD Coin", "version": 2}}, TermsMismatch),
    ],
)
def test_accepted_terms_that_were_not_offered_are_refused_by_name(
    pay: Pay, quote: Quote, offer: Offer, now: int, change: dict[str, Any], refusal: type[GatewayError]
) -> None:
    credential = pay()
    assert isinstance(credential.accepted, Accepted)
    with pytest.raises(refusal):
        check(attrs.evolve(credential, accepted=attrs.evolve(credential.accepted, **change)), quote, offer, now=now)


def test_addresses_in_accepted_terms_are_compared_as_bytes(pay: Pay, quote: Quote, offer: Offer, now: int) -> None:
    credential = pay()
    assert credential.accepted is not None
    lower = attrs.evolve(
        credential.accepted, asset=credential.accepted.asset.lower(), pay_to=credential.accepted.pay_to.lower()
    )
    check(attrs.evolve(credential, accepted=lower), quote, offer, now=now)


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"value": "5999"}, AmountMismatch),
        ({"value": "6001"}, AmountMismatch),
        ({"to": OTHER}, RecipientMismatch),
    ],
)
def test_a_signed_transfer_of_other_terms_is_refused_by_name(
    pay: Pay, quote: Quote, offer: Offer, now: int, change: dict[str, str], refusal: type[GatewayError]
) -> None:
    with pytest.raises(refusal):
        check(pay(**change), quote, offer, now=now)


def test_a_signature_that_is_not_the_authorizers_is_refused(pay: Pay, quote: Quote, offer: Offer, now: int) -> None:
    with pytest.raises(SignatureInvalid):
        check(attrs.evolve(pay(), signer=OTHER), quote, offer, now=now)


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"validAfter": -1}, None),
        ({"validAfter": 0}, AuthorizationNotYetValid),
        ({"validAfter": 1}, AuthorizationNotYetValid),
        ({"validBefore": 12 + 15}, None),
        ({"validBefore": 12 + 14}, AuthorizationExpiresTooSoon),
        ({"validBefore": -1}, AuthorizationExpiresTooSoon),
        ({"validBefore": 162 + 300}, None),
        ({"validBefore": 162 + 301}, AuthorizationExpiresTooLate),
    ],
)
def test_an_authorization_must_be_valid_now_through_the_run_and_not_for_ever(
    pay: Pay, quote: Quote, offer: Offer, now: int, change: dict[str, int], refusal: type[GatewayError] | None
) -> None:
    credential = pay(**{name: str(now + seconds) for name, seconds in change.items()})
    if refusal is None:
        check(credential, quote, offer, now=now)
    else:
        with pytest.raises(refusal):
            check(credential, quote, offer, now=now)


def test_the_authorization_that_a_stock_client_signs_for_the_longest_run_is_not_too_late(
    pay: Pay, quote: Quote, offer: Offer, now: int
) -> None:
    longest = attrs.evolve(offer, deadline_s=7200)
    credential = pay(validBefore=str(now + longest.max_timeout_seconds))
    check(attrs.evolve(credential, accepted=None), quote, longest, now=now)


@pytest.mark.parametrize(
    "resource",
    [
        {"url": "https://gateway.example/v1/other"},
        {"url": "https://gateway.example/v1/search/paid/"},
        {"url": "http://gateway.example/v1/search/paid"},
        {"url": None},
        {"iconUrl": "https://gateway.example/icon"},
        {"tags": []},
        {"tags": [["search"]]},
    ],
)
def test_an_echoed_resource_other_than_the_offered_one_is_refused(
    pay: Pay, quote: Quote, offer: Offer, now: int, resource: dict[str, Any]
) -> None:
    with pytest.raises(TermsMismatch):
        check(attrs.evolve(pay(), resource={**offer.resource, **resource}), quote, offer, now=now)


@pytest.mark.parametrize("kept", [(), ("url",), ("url", "description")])
def test_a_payer_may_leave_members_of_the_resource_out(
    pay: Pay, quote: Quote, offer: Offer, now: int, kept: tuple[str, ...]
) -> None:
    check(attrs.evolve(pay(), resource={name: offer.resource[name] for name in kept}), quote, offer, now=now)
    check(attrs.evolve(pay(), resource=None), quote, offer, now=now)


def test_a_payer_may_leave_extensions_out_and_name_the_payment(pay: Pay, quote: Quote, offer: Offer, now: int) -> None:
    check(attrs.evolve(pay(), extensions={}), quote, offer, now=now)
    named = {"payment-identifier": {"info": {"required": False, "id": "pay_0123456789abcdef"}}}
    check(attrs.evolve(pay(), extensions=named), quote, offer, now=now)


@pytest.mark.parametrize(
    "extensions",
    [
        {"payment-identifier": {}},
        {"payment-identifier": []},
        {"payment-identifier": {"info": None}},
        {"payment-identifier": {"info": {"id": "pay_0123456789abcdef"}}},
        {"payment-identifier": {"info": {"required": True}}},
        {"payment-identifier": {"info": {"required": 0}}},
        {"bazaar": {}},
        {"bazaar": "x"},
    ],
)
def test_an_extension_that_is_no_echo_is_refused(
    pay: Pay, quote: Quote, offer: Offer, now: int, extensions: dict[str, Any]
) -> None:
    with pytest.raises(TermsMismatch):
        check(attrs.evolve(pay(), extensions=extensions), quote, offer, now=now)


def test_a_bazaar_echo_that_would_list_another_route_is_refused(pay: Pay, quote: Quote, offer: Offer, now: int) -> None:
    poisoned = {"bazaar": {**offer.extensions["bazaar"], "routeTemplate": "/v1/:anything"}}
    with pytest.raises(TermsMismatch):
        check(attrs.evolve(pay(), extensions=poisoned), quote, offer, now=now)


def test_a_deeply_nested_echo_is_refused_without_a_stack_overflow(
    pay: Pay, quote: Quote, offer: Offer, now: int
) -> None:
    deep: dict[str, Any] = {}
    for _ in range(1000):
        deep = {"info": deep}
    with pytest.raises(PaymentRefused):
        check(attrs.evolve(pay(), extensions={"bazaar": deep}), quote, offer, now=now)
    with pytest.raises(PaymentRefused):
        check(attrs.evolve(pay(), resource={"url": deep}), quote, offer, now=now)
