"""Strict JSON: one value, one meaning, in bounded time and memory.

The same bytes must mean the same request to every reader, because the request hash is made of them: RFC 8259 text in
UTF-8 without a byte order mark, no duplicate member names, no lone surrogates, and numbers that an IEEE double carries
(I-JSON, RFC 7493).  orjson makes the value; what it lets pass is counted in the bytes, so a hostile body costs no more
than an honest one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

import attrs
import orjson

from gateway.errors import InvalidJson, Violation

LARGEST_INTEGER = 2**53 - 1
"""The largest integer that every JSON reader keeps exact (RFC 7493 section 2.2)."""

_BRACKETS = re.compile(rb"[\[\]{}]")
_DIGITS = bytes.maketrans(b"123456789E", b"000000000e")
_LISTED = 64  # violations listed at most
_LONGEST_TOKEN = 128  # characters of a member name in a pointer


def parse(data: bytes, *, max_depth: int = 32, max_nodes: int = 20_000) -> Any:
    """Parse one strict JSON value.

    Depth counts nested arrays and objects, nodes count every value (member names are no values).  `3.0` stays a float.

    Raises:
        InvalidJson: `errors` names each duplicate name, number out of range or place of the syntax error.
    """
    frame = _frame(data, max_nodes)
    if frame.count(b"[") + frame.count(b"{") > max_nodes or frame.count(b",") >= max_nodes:
        raise _too_many(max_nodes)
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if _is_deeper(frame, max_depth):
            raise _too_deep(max_depth) from None
        if _has_suspect_number(frame):
            _inspect(data)
        raise _invalid([Violation("", f"{error.msg}, at character {error.pos}")]) from None
    members, sound = _measure(value, max_depth, max_nodes)
    if members != frame.count(b":") or not sound or _has_suspect_number(frame):
        _inspect(data)
    return value


def _frame(data: bytes, max_nodes: int) -> bytes:
    """Return the bytes outside of strings: brackets, colons, commas, numbers and literals.

    Exact up to the first syntax error, since backslashes occur in strings only.  No regular expressions, so that a body
    of millions of tiny strings is refused before anything is made of them.
    """
    plain = data.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in data else data
    if plain.count(b'"') > 4 * max_nodes:  # two a string, and at most one name a value
        raise _too_many(max_nodes)
    return b"".join(plain.split(b'"')[::2])


def _has_suspect_number(frame: bytes) -> bool:
    """Whether a number may be one that orjson rounds to a double, or refuses without saying where."""
    shape = frame.translate(_DIGITS)
    return b"0" * 20 in shape or b"0e" in shape


def _is_deeper(frame: bytes, max_depth: int) -> bool:
    """Whether brackets nest deeper than that before they end, told without any reader's recursion."""
    depth = 0
    for bracket in _BRACKETS.finditer(frame):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > max_depth or depth < 0:
            break
    return depth > max_depth


def _measure(value: Any, max_depth: int, max_nodes: int) -> tuple[int, bool]:
    """Walk the value level by level: how many members its objects have, and whether all integers are in range."""
    members, nodes, depth, sound = 0, 0, 0, True
    level = [value]
    while level:
        nodes += len(level)
        if nodes > max_nodes:
            raise _too_many(max_nodes)
        below: list[Any] = []
        deeper = False
        for item in level:
            kind = type(item)
            if kind is dict:
                members += len(item)
                below.extend(item.values())
                deeper = True
            elif kind is list:
                below.extend(item)
                deeper = True
            elif kind is int and not -LARGEST_INTEGER <= item <= LARGEST_INTEGER:
                sound = False
        depth += deeper
        if depth > max_depth:
            raise _too_deep(max_depth)
        level = below
    return members, sound


class _Members(list[tuple[str, Any]]):
    """An object as its list of members, so that no duplicate is lost."""


@attrs.frozen
class _OutOfRange:
    """Stands for a number that no double carries."""

    detail: str


def _integer(digits: str) -> int | _OutOfRange:
    if len(digits) > 17 or abs(int(digits)) > LARGEST_INTEGER:
        return _OutOfRange(f"integers are limited to {LARGEST_INTEGER} either way; send larger ones as strings")
    return int(digits)


def _double(digits: str) -> float | _OutOfRange:
    number = float(digits)
    return number if math.isfinite(number) else _OutOfRange("the number is too large for a double")


def _inspect(data: bytes) -> None:
    """Read again, slowly, and raise with a pointer to every duplicate name and number out of range."""
    try:
        value = json.loads(
            data.decode(), object_pairs_hook=_Members, parse_int=_integer, parse_float=_double, parse_constant=str
        )
        errors = list(islice(_violations(value, ""), _LISTED))
    except (ValueError, RecursionError):
        return
    if errors:
        raise _invalid(errors)


def _violations(value: Any, pointer: str) -> Iterator[Violation]:
    if isinstance(value, _OutOfRange):
        yield Violation(pointer, value.detail)
    elif isinstance(value, _Members):
        seen: set[str] = set()
        for name, item in value:
            at = f"{pointer}/{_token(name)}"
            if name in seen:
                yield Violation(at, "the member name occurs more than once")
            seen.add(name)
            yield from _violations(item, at)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _violations(item, f"{pointer}/{index}")


def _token(name: str) -> str:
    """Return a member name as an RFC 6901 token: no lone surrogates, and cut where it is overly long."""
    token = name[:_LONGEST_TOKEN].encode(errors="replace").decode().replace("~", "~0").replace("/", "~1")
    return token if len(name) <= _LONGEST_TOKEN else f"{token}…"


def _too_deep(max_depth: int) -> InvalidJson:
    return _invalid([Violation("", f"nested deeper than {max_depth}")])


def _too_many(max_nodes: int) -> InvalidJson:
    return _invalid([Violation("", f"more than {max_nodes} values")])


def _invalid(errors: list[Violation]) -> InvalidJson:
    return InvalidJson(f"The body is not strict JSON: {errors[0].detail}.", errors=errors)
