"""Facts about strict JSON."""

from __future__ import annotations

import json
import time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidJson
from gateway.http.strict_json import LARGEST_INTEGER, parse

MIB = 2**20


def refusal(data: bytes, **bounds: int) -> list[tuple[str, str]]:
    """Return the violations that a body is refused for."""
    with pytest.raises(InvalidJson) as caught:
        parse(data, **bounds)
    orjson.dumps([violation.pointer for violation in caught.value.errors])  # can be told on the wire
    return [(violation.pointer, violation.detail) for violation in caught.value.errors]


@pytest.mark.parametrize(
    "text",
    [
        '{"a": [1, 2.5, -0.0, 3.0, 1e5, 1E-5, true, false, null, "x"]}',
        '  {"a": {"a": {"a": 1}}}\r\n\t',
        "{}",
        "[]",
        '""',
        "0",
        '{"": 1, " ": 2}',
        '"\\ud83d\\ude00 \\u0000 \\" \\\\ \\/ é"',
        '{"a\\\\": 1, "a\\"": 2, "a\\\\\\"": 3}',
        '{"a:b,c[{": "d:e,f]}"}',
        '{"a": "\\\\", "b": ":"}',
        "0.12345678901234567890123",
        "1e300",
        str(LARGEST_INTEGER),
        str(-LARGEST_INTEGER),
    ],
)
def test_strict_json_is_parsed(text: str) -> None:
    assert parse(text.encode()) == json.loads(text)


def test_integers_stay_integers_and_floats_floats() -> None:
    value = parse(b"[3, 3.0, -0]")
    assert [type(item) for item in value] == [int, float, int]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"   ",
        b"{",
        b"[1,]",
        b'{"a":1,}',
        b"{'a':1}",
        b"{a:1}",
        b"01",
        b"+1",
        b".5",
        b"1.",
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"[NaN]",
        b"undefined",
        b"True",
        b"1 2",
        b"{} {}",
        b"[1] // comment",
        b'"tab\tinside"',
        b'"\\x41"',
        b'"unterminated',
        b'"\\',
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        b'{"\\ud800": 1}',
        b"\xef\xbb\xbf{}",
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b'"\xc0\xaf"',
        "{}".encode("utf-16"),
        b"\x00",
        b"{}\x00",
    ],
)
def test_what_is_not_json_is_refused(data: bytes) -> None:
    [(pointer, detail)] = refusal(data)
    assert pointer == ""
    assert "at character" in detail


def test_a_syntax_error_is_placed() -> None:
    assert refusal(b'{"a": 1,, "b": 2}')[0][1].endswith("at character 8")


@pytest.mark.parametrize(
    ("data", "pointers"),
    [
        (b'{"a":1,"a":2}', ["/a"]),
        (b'{"a":1,"a":1,"a":1}', ["/a", "/a"]),
        (b'{"a":1,"\\u0061":2}', ["/a"]),
        (b'[{"x":1},{"x":{"y":1,"y":2}}]', ["/1/x/y"]),
        (b'{"a/b":1,"a/b":2,"~":1,"~":2}', ["/a~1b", "/~0"]),
        (b'{"":1,"":2}', ["/"]),
        (b'{"a":{"b":1},"a":{"b":1,"b":2}}', ["/a", "/a/b"]),
        (b'{"a":{"b":1,"b":2},"a":null}', ["/a/b", "/a"]),
    ],
)
def test_every_duplicate_name_is_pointed_at(data: bytes, pointers: list[str]) -> None:
    assert [pointer for pointer, _ in refusal(data)] == pointers


@pytest.mark.parametrize(
    ("data", "pointers"),
    [
        (b"9007199254740992", [""]),
        (b"-9007199254740992", [""]),
        (b'{"a":[1,18446744073709551615,18446744073709551616]}', ["/a/1", "/a/2"]),
        (b'{"a":1e400,"b":-1e400}', ["/a", "/b"]),
        (b"[" + b"9" * 400 + b"]", ["/0"]),
        (b'{"a":1e999,"a":1}', ["/a", "/a"]),
    ],
)
def test_every_number_that_a_double_cannot_carry_is_pointed_at(data: bytes, pointers: list[str]) -> None:
    assert [pointer for pointer, _ in refusal(data)] == pointers


def test_a_name_in_a_pointer_is_short_and_sound() -> None:
    [(pointer, _), *_] = refusal(b'{"\\ud800": 1e999}')
    assert pointer == "/?"
    [(pointer, _)] = refusal(b'{"%b": 1e999}' % (b"x" * 1000))
    assert len(pointer) < 200


def test_depth_is_bounded_exactly() -> None:
    assert parse(b"[" * 32 + b"]" * 32)
    assert "deeper" in refusal(b"[" * 33 + b"]" * 33)[0][1]
    assert parse(b'{"a":' * 32 + b"1" + b"}" * 32)
    assert "deeper" in refusal(b'{"a":' * 33 + b"1" + b"}" * 33)[0][1]


def test_values_are_bounded_exactly() -> None:
    assert len(parse(b"[" + b"1," * 19_998 + b"1]")) == 19_999
    assert "values" in refusal(b"[" + b"1," * 19_999 + b"1]")[0][1]
    assert len(parse(b'{"a":["","",""]}', max_nodes=5)["a"]) == 3
    assert "values" in refusal(b'{"a":["","","",""]}', max_nodes=5)[0][1]
    assert "values" in refusal(b"[[],[],[],[],[]]", max_nodes=5)[0][1]


@pytest.mark.parametrize(
    "data",
    [
        b"[" * (64 * MIB),
        b'{"":' * (4 * MIB),
        b"[" + b"[]," * (5 * MIB) + b"[]]",
        b"[" + b'"",' * (5 * MIB) + b'""]',
        b"1" * (16 * MIB),
        b"1e" + b"1" * (16 * MIB),
        b'"' + b'\\"' * (8 * MIB),
        b'"' + b"\\" * (16 * MIB + 1),
        b'"\\"' * (5 * MIB),
        b'"a",' * (4 * MIB) + b'"',
        b"[" + (b"1" * 800 + b",") * 19_000 + b"1]",
        b"{" + b'"a":1,' * 19_000 + b'"a":1}',
        b"{" * 1000 + b"1e5",
        b"[" * 20_000 + b"1e999" + b"]" * 20_000,
    ],
    ids=lambda data: f"{data[:6].decode()}... {len(data)} bytes",
)
def test_hostile_bodies_are_refused_quickly(data: bytes) -> None:
    start = time.process_time()
    violations = refusal(data)
    assert time.process_time() - start < 2  # typically 0.1 s; a quadratic way would take hours
    assert 1 <= len(violations) <= 64
    assert sum(len(pointer) + len(detail) for pointer, detail in violations) < 20_000


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-LARGEST_INTEGER, LARGEST_INTEGER)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_categories=["Cs"])),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
        max_leaves=20,
    ),
    st.sampled_from([None, 2]),
    st.booleans(),
)
def test_what_json_writes_is_read_back(value: Any, indent: int | None, ascii_only: bool) -> None:
    assert parse(json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode(), max_depth=64) == value


@given(st.text('{}[]":,\\ue10aN.- ', max_size=40))
def test_whatever_is_accepted_means_the_same_to_another_parser(text: str) -> None:
    try:
        value = parse(text.encode())
    except InvalidJson:
        return
    assert json.loads(text, object_pairs_hook=_unique) == value


def _unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(members)
    assert len(value) == len(members)
    return value
