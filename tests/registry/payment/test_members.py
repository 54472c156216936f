from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from gateway.errors import MalformedCredential
from gateway.registry.payment.members import (
    integer,
    json_object,
    members,
    optional_members,
    optional_text,
    present,
    text,
    unbase64,
)

RAW = bytes(range(256)) + b"\xff\xfe\xfb"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"null",
        b'"x"',
        b"{",
        b'{"a":NaN}',
        b'{"a":1e999}',
        b'{"a":"\\ud800"}',
        b'{"a":"\xff"}',
        b"\xef\xbb\xbf{}",
        b'{"a":' + b"[" * 4000 + b"]" * 4000 + b"}",
    ],
)
def test_what_is_no_plain_json_object_is_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedCredential):
        json_object(raw)


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (text, 1),
        (text, None),
        (optional_text, 1),
        (integer, "1"),
        (integer, True),
        (integer, 1.0),
        (members, []),
        (members, None),
        (optional_members, "{}"),
    ],
)
def test_a_member_of_another_type_is_malformed_and_never_converted(
    read: Callable[[dict[str, Any], str], Any], value: object
) -> None:
    with pytest.raises(MalformedCredential, match="m is not"):
        read({"m": value}, "m")


def test_an_integer_over_64_bits_is_no_integer() -> None:
    with pytest.raises(MalformedCredential):
        integer(json_object(b'{"m":' + b"9" * 30 + b"}"), "m")


def test_absent_is_none_where_a_member_is_optional() -> None:
    assert optional_text({}, "m") is None
    assert optional_text({"m": None}, "m") is None
    assert optional_members({}, "m") is None
    assert optional_members({"m": None}, "m") is None


@pytest.mark.parametrize("cut", [0, 1, 2])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_both_alphabets_are_read_padded_or_not(encode: Callable[[bytes], bytes], cut: int) -> None:
    raw = RAW[cut:]
    spelled = encode(raw).decode()
    assert unbase64(spelled, "it") == unbase64(spelled.rstrip("="), "it") == raw


@pytest.mark.parametrize(
    "text", ["", "=", "A", "AAAAA", "AA=A", "AA===", "A A=", "AAAA\n", "%%%%", "é", "\ud800", "AAA.", "٣٣٣٣"]
)
def test_what_is_neither_alphabet_is_malformed_by_name(text: str) -> None:
    with pytest.raises(MalformedCredential, match="PAYMENT-SIGNATURE is neither base64 nor base64url"):
        unbase64(text, "PAYMENT-SIGNATURE")


def test_what_is_null_is_absent() -> None:
    assert present({"a": None, "b": 0, "c": ""}) == {"b": 0, "c": ""}
