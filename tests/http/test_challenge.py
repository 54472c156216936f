from __future__ import annotations

import base64
import json

import attrs
import pytest

from gateway.errors import PaymentRequired, QuoteExpired
from gateway.http import x402
from gateway.http.challenge import Quoting, own
from gateway.http.validation import BodyValidator
from gateway.registry.payment import Asset, QuoteSecrets, Terms
from gateway.registry.table import OPERATIONS
from tests.http.shop import ASSET, BODY, PAYER, TERMS

NOW_MS = 1_795_816_156_789
OPERATION = OPERATIONS["search.paid"]
VALID = BodyValidator.of(OPERATION).valid(BODY)


def quoting(terms: Terms = TERMS) -> Quoting:
    return Quoting(OPERATION, terms, QuoteSecrets({"1": b"q" * 32}, "1"), "2026-07-25.3", lambda: NOW_MS, lambda: 100)


def test_the_body_says_what_the_header_says() -> None:
    problem = quoting().challenged(PaymentRequired(), quoting().offer(VALID))
    header = json.loads(base64.b64decode(problem.headers["PAYMENT-REQUIRED"]))
    assert {name: problem.extra[name] for name in header} == header
    assert set(header) == {"x402Version", "error", "resource", "accepts", "extensions"}
    assert problem.headers["WWW-Authenticate"].startswith("Payment ")


def test_the_price_and_the_quote_are_readable() -> None:
    offer = quoting().offer(VALID)
    problem = quoting().challenged(PaymentRequired(), offer)
    assert problem.extra["price"] == {
        "amountAtomic": "6000",
        "usd": "0.006000",
        "asset": ASSET.address,
        "network": "eip155:8453",
        "decimals": 6,
        "payTo": TERMS.pay_to,
    }
    assert problem.extra["quote"] == {
        "quoteId": offer.quote.quote_id,
        "requestHash": VALID.request_hash,
        "expiresAt": "2026-11-27T21:51:16.000Z",
    }


def test_a_quote_of_the_example_says_so() -> None:
    problem = quoting().challenged(PaymentRequired(), quoting().offer(VALID, example=True))
    assert problem.extra["quote"]["example"] is True


def test_why_an_earlier_payment_was_refused_is_told_to_the_payers_client() -> None:
    problem = quoting().challenged(QuoteExpired(), quoting().offer(VALID))
    assert (problem.code, problem.extra["error"]) == ("quote_expired", "quote_expired")


def test_a_credential_is_held_against_the_offer_of_its_quote_or_against_one_of_its_own_request() -> None:
    made, other = quoting().offer(VALID), attrs.evolve(VALID, request_hash="sha256:" + "0" * 64)
    paid = PAYER.payment(x402.payment_required(made))
    credential = x402.decode_payment_signature(paid, TERMS)
    assert quoting().offered(VALID, credential, made.quote) == made
    fresh = quoting().offered(other, credential, made.quote)
    assert (fresh.quote.request_hash, fresh.token != made.token) == (other.request_hash, True)


@pytest.mark.parametrize(("decimals", "amount"), [(6, 6_000), (18, 6_000 * 10**12), (8, 600_000), (2, 1), (0, 1)])
def test_the_price_is_the_same_money_in_a_token_of_any_decimals(decimals: int, amount: int) -> None:
    asset: Asset = attrs.evolve(ASSET, decimals=decimals)
    assert quoting(attrs.evolve(TERMS, asset=asset)).offer(VALID).quote.amount == amount


def test_a_challenge_changes_nothing_of_the_failure_that_others_are_told() -> None:
    shared = QuoteExpired("told to many", extra={"a": 1})
    problem = quoting().challenged(shared, quoting().offer(VALID))
    assert (shared.headers, shared.extra) == ({}, {"a": 1})
    assert (problem.detail, problem.extra["a"]) == ("told to many", 1)


def test_an_own_failure_is_equal_and_apart() -> None:
    shared = QuoteExpired("gone", operation_id="op_1", retry_after=2)
    mine = own(shared)
    assert mine is not shared
    assert (type(mine), mine.detail, mine.operation_id, mine.retry_after) == (QuoteExpired, "gone", "op_1", 2)
