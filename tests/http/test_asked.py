"""Steps 1 to 3: what a request asks for, and all that is wrong with it at once."""

from __future__ import annotations

import base64
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import GatewayError, PaymentRequired
from gateway.http import problems
from gateway.http.asked import Asked, Incoming, Reader
from gateway.http.challenge import Quoting
from gateway.http.request_headers import CallerAddress
from gateway.http.validation import LISTED, BodyValidator
from gateway.registry.payment import QuoteSecrets
from gateway.registry.table import OPERATIONS
from tests.http.shop import BODY, PAYER, TERMS, Answer

KEY = ("idempotency-key", "0123456789abcdef")
JSON = ("content-type", "application/json")
SECRETS = QuoteSecrets({"1": b"q" * 32}, "1")
CANARY = "kanarienvogel"


def reader(operation: str = "search.paid", **changes: Any) -> Reader:
    chosen = attrs.evolve(OPERATIONS[operation], **changes)
    return Reader(chosen, BodyValidator.of(chosen), CallerAddress(()), TERMS, SECRETS)


def read(body: Any, *headers: tuple[str, str], operation: str = "search.paid") -> Asked:
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    return reader(operation).read(Incoming(headers or (JSON, KEY), content, "192.0.2.1"))


def refused(body: Any, *headers: tuple[str, str], operation: str = "search.paid") -> Answer:
    with pytest.raises(GatewayError) as caught:
        read(body, *headers, operation=operation)
    return Answer(*problems.render(caught.value, base_url="https://gateway.example", instance="/v1"))


def what_is_wrong(content: bytes, *headers: tuple[str, str]) -> GatewayError | None:
    try:
        read(content, *headers)
    except GatewayError as failure:
        return failure
    return None


def quoted(*, example: bool = False) -> Answer:
    operation = OPERATIONS["search.paid"]
    quoting = Quoting(operation, TERMS, SECRETS, "v1", lambda: 1_795_816_156_000, lambda: 100)
    valid = BodyValidator.of(operation).valid(BODY)
    problem = quoting.challenged(PaymentRequired(), quoting.offer(valid, example=example))
    return Answer(402, problem.headers, b"")


def paying(answer: Answer) -> tuple[str, str]:
    return ("payment-signature", PAYER.x402(answer)["PAYMENT-SIGNATURE"])


# -- 1: transport ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "declared",
    [
        "application/json",
        "Application/JSON",
        "application/json; charset=utf-8",
        'application/json;charset="UTF-8"',
        "application/json;",
    ],
)
def test_json_in_utf_8_is_read_however_it_is_declared(declared: str) -> None:
    assert read(BODY, ("content-type", declared), KEY).valid.request.query == "what is a tide"


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("content-type", "application/problem+json"),),
        (("content-type", "text/plain"),),
        (("content-type", "application/json; charset=iso-8859-1"),),
        (("content-type", "application/json"), ("content-type", "application/json")),
        (("content-type", "application/json, application/json"),),
        (("content-type", "application/json"), ("content-encoding", "gzip")),
    ],
)
def test_a_body_declared_otherwise_is_an_unsupported_media_type(headers: tuple[tuple[str, str], ...]) -> None:
    answer = refused(BODY, *headers, KEY)
    assert (answer.status, answer.code) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    "content",
    [
        b'\xef\xbb\xbf{"query":"a","synthesize":false}',
        b'{"query":"a","query":"b","synthesize":false}',
        b"[" * 40 + b"]" * 40,
        b'{"query":"a","synthesize":false,"maxResults":123456789012345678901234567890}',
        b'{"query":"a","synthesize":false,"maxResults":NaN}',
        b'{"query":"\\ud800","synthesize":false}',
        b'{"query":"\xff","synthesize":false}',
        b"{",
        b" ",
    ],
)
def test_what_is_no_strict_json_is_refused_before_anything_else(content: bytes) -> None:
    two_payments = (("payment-signature", "x"), ("payment-signature", "y"))
    answer = refused(content, JSON, *two_payments)
    assert (answer.status, answer.code) == (400, "invalid_json")


# -- 2: the probe ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"{}", b" { } "])
def test_an_empty_probe_of_a_paid_route_asks_for_the_documented_example(content: bytes) -> None:
    asked = read(content, JSON)
    assert asked.example
    assert asked.valid.request.query == OPERATIONS["search.paid"].example["query"]


def test_a_probe_without_body_needs_no_content_type() -> None:
    assert read(b"", ("accept", "*/*")).example


@pytest.mark.parametrize(("content", "pointers"), [(b"", [""]), (b"{}", ["/query", "/synthesize"])])
def test_an_empty_body_with_a_key_is_no_probe(content: bytes, pointers: list[str]) -> None:
    answer = refused(content, JSON, KEY)
    assert (answer.code, answer.pointers) == ("invalid_request", pointers)


@pytest.mark.parametrize(("content", "pointers"), [(b"", ["", ""]), (b"{}", ["", "/query", "/synthesize"])])
def test_a_free_route_knows_no_probe(content: bytes, pointers: list[str]) -> None:
    answer = refused(content, JSON, operation="search.free")
    assert (answer.status, answer.code, answer.pointers) == (400, "invalid_request", pointers)


@pytest.mark.parametrize("content", [b"", b"{}"])
def test_a_payment_of_the_example_is_refused_as_such(content: bytes) -> None:
    answer = refused(content, JSON, paying(quoted(example=True)))
    assert (answer.status, answer.code) == (400, "example_quote")


@pytest.mark.parametrize("content", [b"", b"{}"])
def test_an_empty_body_with_a_real_payment_is_an_invalid_request(content: bytes) -> None:
    answer = refused(content, JSON, paying(quoted()), KEY)
    assert (answer.status, answer.code) == (400, "invalid_request")


# -- 3: schema, key, credential ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [[], [{}], 3, 3.5, "text", True, None])
def test_a_body_that_is_no_object_is_refused_at_the_root(body: Any) -> None:
    answer = refused(body, JSON, KEY)
    assert (answer.code, answer.pointers) == ("invalid_request", [""])


def test_everything_wrong_is_told_at_once() -> None:
    body = {"query": "", "maxResults": 11, "language": "ENGLISH!", "a/b~c": 1}
    answer = refused(body, JSON, ("payment-signature", "no base64"))
    assert answer.code == "invalid_request"
    assert answer.pointers == ["", "", "/a~1b~0c", "/language", "/maxResults", "/query", "/synthesize"]
    assert [each["detail"] for each in answer.json["errors"][:2]] == [
        "the header Idempotency-Key is required",
        "PAYMENT-SIGNATURE is neither base64 nor base64url",
    ]


def test_a_missing_key_alone_is_told_by_its_own_code() -> None:
    answer = refused(BODY, JSON)
    assert (answer.status, answer.code, answer.pointers) == (400, "idempotency_key_missing", [""])


def test_a_malformed_key_alone_is_told_by_its_own_code() -> None:
    answer = refused(BODY, JSON, ("idempotency-key", "short"))
    assert (answer.status, answer.code) == (400, "idempotency_key_invalid")


def test_a_malformed_credential_alone_is_told_by_its_own_code() -> None:
    answer = refused(BODY, JSON, KEY, ("payment-signature", "e30="))
    assert (answer.status, answer.code) == (400, "malformed_credential")


def test_an_operation_names_its_own_problem_and_the_list_is_whole_all_the_same() -> None:
    answer = refused({"synthesize": True, "maxResults": 0}, JSON)
    assert answer.code == "synthesis_unavailable"
    assert answer.pointers == ["", "/maxResults", "/query", "/synthesize"]


def test_a_refused_credential_is_held_until_the_key_was_looked_up() -> None:
    signature = base64.b64encode(
        orjson.dumps(
            {
                "x402Version": 2,
                "payload": {"permit2Authorization": {}},
                "accepted": {
                    "scheme": "exact",
                    "network": "eip155:8453",
                    "asset": "0x",
                    "amount": "1",
                    "payTo": "0x",
                    "maxTimeoutSeconds": 1,
                    "extra": {"assetTransferMethod": "permit2"},
                },
            }
        )
    ).decode()
    asked = read(BODY, JSON, KEY, ("payment-signature", signature))
    assert asked.credential is None
    assert asked.refusal is not None
    assert asked.refusal.code == "permit2_unsupported"


def test_a_credential_brings_its_signer_and_its_quote() -> None:
    asked = read(BODY, JSON, KEY, paying(quoted()))
    assert asked.credential is not None
    assert asked.credential.payer == PAYER.address
    assert asked.quote is not None
    assert asked.quote.request_hash == asked.valid.request_hash


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ((("payment-signature", "x"), ("authorization", "Payment y")), "payment_header_conflict"),
        ((("payment-signature", "x"), ("payment-signature", "x")), "payment_header_conflict"),
        ((("x-payment", "x"),), "payment_header_obsolete"),
        ((("x-402-payment", "x"),), "payment_header_obsolete"),
        ((("x-402-receipt", "x"),), "payment_header_obsolete"),
    ],
)
def test_payment_headers_that_cannot_be_meant_are_refused(headers: tuple[tuple[str, str], ...], code: str) -> None:
    answer = refused(BODY, JSON, KEY, *headers)
    assert (answer.status, answer.code) == (400, code)


@pytest.mark.parametrize(
    "headers",
    [
        (("payment-signature", "x"), ("payment-signature", "y")),
        (("authorization", "Payment y"),),
        (("x-402-payment", "x"),),
    ],
)
def test_a_payment_on_a_free_route_is_not_even_read(headers: tuple[tuple[str, str], ...]) -> None:
    asked = read(BODY, JSON, KEY, *headers, operation="search.free")
    assert (asked.credential, asked.refusal) == (None, None)


def test_other_authorization_schemes_are_no_payment() -> None:
    assert read(BODY, JSON, KEY, ("authorization", "Bearer abc")).credential is None


def test_no_more_than_a_hundred_faults_are_listed_and_the_rest_is_counted() -> None:
    answer = refused({f"m{number}": 1 for number in range(5000)}, JSON, KEY)
    assert len(answer.json["errors"]) == LISTED
    assert answer.json["errorsOmitted"] == 5002 - LISTED
    assert answer.json["detail"] == "The request has 5002 faults, told in `errors`."


def test_a_long_member_name_is_cut_in_its_pointer() -> None:
    answer = refused(BODY | {"n" * 5000: 1}, JSON, KEY)
    assert len(answer.body) < 1000


HOSTILE = st.recursive(
    st.sampled_from([CANARY, "", 0, 3.0, -1, 1e300, 2**53, None, True, False, "en", "US", CANARY * 2000]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*OPERATIONS["search.paid"].schema["properties"], "x", "~", "/"]), inner)
    ),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(body=HOSTILE)
def test_no_fault_repeats_a_value_of_the_body(body: Any) -> None:
    failure = what_is_wrong(orjson.dumps(body), JSON, KEY)
    if failure is not None:
        told = [failure.detail, *(each.detail for each in failure.errors)]
        assert not any(CANARY in text for text in told)
        assert failure.status == 400
        assert all(each.pointer == "" or each.pointer.startswith("/") for each in failure.errors)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(content=st.binary(max_size=60) | st.text(max_size=60).map(str.encode), value=st.text(max_size=40))
def test_whatever_comes_is_read_or_refused_with_a_problem(content: bytes, value: str) -> None:
    failure = what_is_wrong(content, JSON, ("idempotency-key", value), ("payment-signature", value), ("prefer", value))
    assert failure is None or failure.status == 400
