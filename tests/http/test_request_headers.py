from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import (
    IdempotencyKeyInvalid,
    IdempotencyKeyMissing,
    InvalidHeader,
    PaymentHeaderConflict,
    PaymentHeaderObsolete,
)
from gateway.http.request_headers import (
    MAX_WAIT_S,
    CallerAddress,
    funding,
    idempotency_key,
    longest_wait,
    patience,
    payment_header,
)

LONG = "k" * 128


@pytest.mark.parametrize(
    ("sent", "key"),
    [
        ("12345678", "12345678"),
        ('"12345678"', "12345678"),
        ("  12345678\t", "12345678"),
        (r'"1234\"5\\67"', r'1234"5\67'),
        (LONG, LONG),
        (f'"{LONG}"', LONG),
        ("a key with spaces", "a key with spaces"),
        ('" edges kept "', " edges kept "),
    ],
)
def test_the_quoted_and_the_bare_form_name_the_same_key(sent: str, key: str) -> None:
    assert idempotency_key([("idempotency-key", sent)], required=True) == key


@pytest.mark.parametrize(
    "sent",
    [
        "",
        "1234567",
        '"1234567"',
        '"12345678',
        '12345678"x"' + "y" * 128,
        '"1234"5678"',
        r'"12345\678"',
        '"12345678";a=1',
        "k" * 129,
        f'"{LONG}k"',
        "schl\u00fcssel-12345",
        '"schl\u00fcssel-12345"',
        "1234\x005678",
        "1234\x7f5678",
    ],
)
def test_what_is_no_key_is_refused_without_being_repeated(sent: str) -> None:
    with pytest.raises(IdempotencyKeyInvalid) as caught:
        idempotency_key([("idempotency-key", sent)], required=False)
    assert not sent or sent not in f"{caught.value.detail} {caught.value.errors}"


def test_two_keys_are_none() -> None:
    with pytest.raises(IdempotencyKeyInvalid):
        idempotency_key([("idempotency-key", "12345678"), ("idempotency-key", "12345678")], required=True)


def test_a_missing_key_matters_where_it_is_required() -> None:
    assert idempotency_key([], required=False) is None
    with pytest.raises(IdempotencyKeyMissing):
        idempotency_key([], required=True)


@settings(derandomize=True, deadline=None)
@given(key=st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=8, max_size=128))
def test_every_printable_key_has_a_quoted_form(key: str) -> None:
    quoted = '"' + key.replace("\\", r"\\").replace('"', r"\"") + '"'
    assert idempotency_key([("idempotency-key", quoted)], required=True) == key


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [
        ([], MAX_WAIT_S),
        (["wait=7"], 7),
        (["wait=0"], 0),
        (['wait="3"'], 3),
        (["WAIT = 4"], 4),
        (["wait=9999"], MAX_WAIT_S),
        (["respond-async, wait=10"], 0),
        (["return=minimal", "wait=5"], 5),
        (["wait=-1"], MAX_WAIT_S),
        (["wait=1e3"], MAX_WAIT_S),
        (["wait=\u0663"], MAX_WAIT_S),
        (["wait"], MAX_WAIT_S),
        (["x;wait=1"], MAX_WAIT_S),
    ],
)
def test_patience_is_what_prefer_says_and_bounded(prefer: list[str], seconds: float) -> None:
    assert patience([("prefer", line) for line in prefer]) == seconds


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [
        ([], None),
        (["respond-async"], None),
        (["return=minimal", "respond-async, wait=10"], 10),
        (["wait=9999"], 9999),
        (["wait=0"], 0),
        (["wait=-1"], None),
        (["wait=1e3, Wait = 4;x"], 4),
        (["wait=1234567"], None),
    ],
)
def test_the_longest_wait_is_what_prefer_says(prefer: list[str], seconds: int | None) -> None:
    assert longest_wait([("prefer", line) for line in prefer]) == seconds


def test_the_funding_is_what_its_header_says() -> None:
    assert funding([]) is None
    assert funding([("x-gateway-funding", " Paid ")]) == "paid"
    assert funding([("x-gateway-funding", "free"), ("x-gateway-funding", "free")]) == "free"


@pytest.mark.parametrize("said", [["credit"], [""], ["paid", "free"]])
def test_a_funding_that_is_none_is_refused(said: list[str]) -> None:
    with pytest.raises(InvalidHeader):
        funding([("x-gateway-funding", value) for value in said])


def test_the_payment_header_of_either_protocol_is_found() -> None:
    assert payment_header([]) is None
    assert payment_header([("authorization", "Basic x")]) is None
    x402 = payment_header([("payment-signature", " abc ")])
    assert x402 is not None
    assert (x402.protocol, x402.value) == ("x402", "abc")
    mpp = payment_header([("authorization", "PAYMENT abc"), ("authorization", "Bearer x")])
    assert mpp is not None
    assert mpp.protocol == "mpp"


@pytest.mark.parametrize(
    "headers",
    [
        [("payment-signature", "a"), ("payment-signature", "b")],
        [("payment-signature", "a"), ("authorization", "Payment b")],
        [("authorization", "Payment a"), ("authorization", "Payment b")],
        [("authorization", "Payment a"), ("payment-authorization", "Payment b")],
    ],
)
def test_more_than_one_credential_is_a_conflict(headers: list[tuple[str, str]]) -> None:
    with pytest.raises(PaymentHeaderConflict):
        payment_header(headers)


@pytest.mark.parametrize("name", ["x-payment", "x-402-payment", "x-402-receipt"])
def test_headers_of_older_protocols_are_named(name: str) -> None:
    with pytest.raises(PaymentHeaderObsolete, match=name):
        payment_header([(name, "whatever")])


@pytest.mark.parametrize("name", ["x-payment", "x-402-payment", "x-402-receipt"])
@pytest.mark.parametrize("current", ["payment-signature", "authorization", "payment-authorization"])
def test_a_header_of_an_older_protocol_is_ignored_beside_a_current_one_that_says_the_same(
    name: str, current: str
) -> None:
    value = "abc" if current == "payment-signature" else "Payment abc"
    header = payment_header([(name, f" {value} "), (current, value)])
    assert header is not None
    assert header.value == value


@pytest.mark.parametrize(
    "headers",
    [
        [("x-402-payment", "a"), ("payment-signature", "b")],
        [("x-402-receipt", "b"), ("payment-signature", "b"), ("x-402-receipt", "a")],
        [("x-402-receipt", "b"), ("payment-signature", "b"), ("x-402-payment", "a")],
        [("x-402-payment", "abc"), ("authorization", "Payment abc")],
        [("x-payment", "a"), ("authorization", "Payment b")],
        [("x-payment", "a"), ("authorization", "Basic a")],
        [("x-payment", "a"), ("x-402-payment", "a")],
    ],
)
def test_a_header_of_an_older_protocol_is_named_where_it_says_something_else(headers: list[tuple[str, str]]) -> None:
    with pytest.raises(PaymentHeaderObsolete):
        payment_header(headers)


def test_the_proof_of_version_1_is_ignored_beside_one_of_version_2() -> None:
    header = payment_header([("x-payment", "v1"), ("payment-signature", "v2"), ("x-payment", "again")])
    assert header is not None
    assert (header.protocol, header.value) == ("x402", "v2")


def test_a_credential_is_never_shown() -> None:
    assert "secret" not in repr(payment_header([("payment-signature", "secret")]))


PROXIES = CallerAddress.of(["10.0.0.0/8", "2001:db8:ffff::/48"])


@pytest.mark.parametrize(
    ("peer", "forwarded", "network"),
    [
        ("192.0.2.1", [], "192.0.2.1"),
        ("192.0.2.1", ["203.0.113.9"], "192.0.2.1"),
        ("10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["6.6.6.6, 203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["6.6.6.6, 203.0.113.9, 10.0.0.2"], "203.0.113.9"),
        ("10.0.0.1", ["6.6.6.6", "203.0.113.9", "10.0.0.2"], "203.0.113.9"),
        ("10.0.0.1", ["203.0.113.9:4711"], "203.0.113.9"),
        ("10.0.0.1", ["[2001:db8::1]:4711"], "2001:db8::/64"),
        ("10.0.0.1", ["2001:db8::1"], "2001:db8::/64"),
        ("10.0.0.1", ["garbage"], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.9, garbage"], "10.0.0.1"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("10.0.0.1", ["10.0.0.3"], "10.0.0.3"),
        ("::ffff:10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("2001:db8:ffff::1", ["203.0.113.9"], "203.0.113.9"),
        ("2001:db8:0:1::1%eth0", [], "2001:db8:0:1::/64"),
    ],
)
def test_the_callers_network_is_read_from_the_right_past_trusted_proxies(
    peer: str, forwarded: list[str], network: str
) -> None:
    assert PROXIES.network(peer, [("x-forwarded-for", line) for line in forwarded]) == network


def test_nobody_is_trusted_unless_configured() -> None:
    assert CallerAddress.of([]).network("10.0.0.1", [("x-forwarded-for", "203.0.113.9")]) == "10.0.0.1"
