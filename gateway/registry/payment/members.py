"""Strict reading of what stands in a payment credential: a surprise is a `MalformedCredential`, never repaired.

A member that is null counts as absent: stock clients write every member that they know of.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from gateway.errors import MalformedCredential

_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]+={0,2}")
_TO_STANDARD: Final = str.maketrans("-_", "+/")


def unbase64(encoded: str, what: str) -> bytes:
    """Decode base64 or base64url, padded or not; `what` is named where it is neither."""
    bare = encoded.rstrip("=").translate(_TO_STANDARD)
    try:
        if _BASE64.fullmatch(encoded) is None:
            raise ValueError
        return binascii.a2b_base64(bare + "=" * (-len(bare) % 4), strict_mode=True)
    except ValueError:
        raise MalformedCredential(f"{what} is neither base64 nor base64url") from None


def present(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that are not null."""
    return {name: value for name, value in fields.items() if value is not None}


def json_object(raw: bytes, what: str = "the credential") -> dict[str, Any]:
    """Parse one JSON object; `what` is named where it is none.

    orjson refuses lone surrogates, NaN, a byte order mark and nesting over 1024, and reads integers over 64 bits as
    floats, which no member of a credential may be; so the cost is linear in the bytes, which the caller has capped.
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise MalformedCredential(f"{what} is not JSON") from None
    if not isinstance(value, dict):
        raise MalformedCredential(f"{what} is not a JSON object")
    return value


def text(fields: Mapping[str, Any], name: str) -> str:
    """Read a required string."""
    value = fields.get(name)
    if not isinstance(value, str):
        raise MalformedCredential(f"{name} is not a string")
    return value


def optional_text(fields: Mapping[str, Any], name: str) -> str | None:
    """Read a string that may be absent or null."""
    return None if fields.get(name) is None else text(fields, name)


def integer(fields: Mapping[str, Any], name: str) -> int:
    """Read a required JSON integer."""
    value = fields.get(name)
    if type(value) is not int:
        raise MalformedCredential(f"{name} is not an integer")
    return value


def members(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Read a required object."""
    value = fields.get(name)
    if not isinstance(value, dict):
        raise MalformedCredential(f"{name} is not an object")
    return value


def optional_members(fields: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Read an object that may be absent or null."""
    return None if fields.get(name) is None else members(fields, name)
