from __future__ import annotations

from typing import Any

import attrs

from gateway.http.asked import Asked
from gateway.http.call import Call
from gateway.http.validation import Valid
from gateway.registry.payment import Asset, Quote
from gateway.registry.payment.authorization import Authorization
from gateway.registry.payment.terms import Credential
from gateway.registry.sealing import Naming

ASSET = Asset("eip155:8453", 8453, "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913", "USD Coin", "2", 6)
PAYER = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
CREDENTIAL = Credential("x402", ASSET, Authorization(PAYER, PAYER, 6000, 0, 9, b"n" * 32, b"s" * 65), PAYER, None, 60)
NAMING = Naming({1: b"1" * 32, 2: b"2" * 32})
NETWORK = "192.0.2.1"
KEY = "0123456789abcdef"
QUOTE = Quote(
    quote_id="qt_01JDQ0000000000000000000AB",
    operation="search.paid",
    request_hash="sha256:" + "ab" * 32,
    amount=6000,
    price_version="v1",
    issued_at=1,
    expires_at=2,
)


def asked(**changes: Any) -> Asked:
    return attrs.evolve(Asked(Valid({}, None, "sha256:0"), KEY, NETWORK, 25.0), **changes)


def test_a_call_goes_by_the_caller_s_key_under_every_pepper() -> None:
    call = Call.of(asked(), NAMING, made_key=None)
    assert call.names == (NAMING.names(KEY, NETWORK),)
    assert call.lane == [(NAMING.names(KEY, NETWORK)[0].hmac, "sha256:0")]
    assert (call.told_key, call.more_headers) == (None, {})


def test_a_caller_without_a_payer_is_its_network_under_the_current_pepper() -> None:
    call = Call.of(asked(), NAMING, made_key=None)
    assert call.callers == (NAMING.network_names(NETWORK),)
    assert (call.payer_names, call.authorization) == ((), None)


def test_a_free_call_without_a_key_is_told_the_one_that_is_made_for_it() -> None:
    call = Call.of(asked(key=None), NAMING, made_key=lambda: "made for this call")
    assert call.names == (NAMING.names("made for this call", NETWORK),)
    assert call.more_headers == {"Idempotency-Key": "made for this call"}
    assert Call.of(asked(), NAMING, made_key=lambda: "unused").told_key is None


def test_only_a_call_whose_one_key_was_made_for_it_is_fresh() -> None:
    assert Call.of(asked(key=None), NAMING, made_key=lambda: "made for this call").fresh
    assert not Call.of(asked(), NAMING, made_key=lambda: "unused").fresh
    assert not Call.of(asked(key=None), NAMING, made_key=None).fresh
    assert not Call.of(asked(key=None, quote=QUOTE), NAMING, made_key=None).fresh
    assert not Call.of(asked(key=None, credential=CREDENTIAL), NAMING, made_key=lambda: "made for this call").fresh


def test_a_paid_call_without_a_key_goes_by_its_quote_under_every_pepper() -> None:
    call = Call.of(asked(key=None, quote=QUOTE), NAMING, made_key=None)
    generated = NAMING.generated_keys(QUOTE.quote_id)
    assert call.told_key == generated[0]
    assert call.names == tuple(NAMING.names(key, NETWORK) for key in generated)


def test_the_example_s_quote_names_nothing() -> None:
    call = Call.of(asked(key=None, quote=attrs.evolve(QUOTE, example=True)), NAMING, made_key=None)
    assert (call.names, call.told_key) == ((), None)


def test_a_payment_without_a_key_reads_what_its_payer_paid_only() -> None:
    assert Call.of(asked(key=None, credential=CREDENTIAL), NAMING, made_key=None).reader == PAYER.lower()
    unproven = attrs.evolve(CREDENTIAL, signer="0x" + "00" * 20)
    assert Call.of(asked(key=None, credential=unproven), NAMING, made_key=None).reader == ""
    assert Call.of(asked(credential=unproven), NAMING, made_key=None).reader is None
    assert Call.of(asked(key=None), NAMING, made_key=None).reader is None
