from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.errors import MalformedCredential
from gateway.registry.payment.members import integer, json_object, members, optional_members, optional_text, text


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
        (optional_text, None),
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
    assert optional_members({}, "m") is None
    assert optional_members({"m": None}, "m") is None
