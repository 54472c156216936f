"""Strict reading of what stands in a payment credential: a surprise is a `MalformedCredential`, never repaired."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.errors import MalformedCredential


def json_object(raw: bytes) -> dict[str, Any]:
    """Parse one JSON object.

    orjson refuses lone surrogates, NaN, a byte order mark and nesting over 1024, and reads integers over 64 bits as
    floats, which no member of a credential may be; so the cost is linear in the bytes, which the caller has capped.
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise MalformedCredential("the credential is not JSON") from None
    if not isinstance(value, dict):
        raise MalformedCredential("the credential is not a JSON object")
    return value


def text(fields: Mapping[str, Any], name: str) -> str:
    """Read a required string."""
    value = fields.get(name)
    if not isinstance(value, str):
        raise MalformedCredential(f"{name} is not a string")
    return value


def optional_text(fields: Mapping[str, Any], name: str) -> str | None:
    """Read a string that may be absent."""
    return text(fields, name) if name in fields else None


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
