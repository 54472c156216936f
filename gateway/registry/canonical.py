"""The canonical form of a request and its hash: what a quote, a key and a receipt are bound to.

`requestHash` = `sha256:` + hex of SHA-256 over the RFC 8785 form of `{"operation": id, "request": body}`, the body
with its defaults filled in (spec/readings).  Test vectors: `gateway/registry/request_hash_vectors.json`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson
import rfc8785

LARGEST_INTEGER = 2**53 - 1
"""The largest integer that every JSON reader keeps exact (RFC 7493 section 2.2)."""


def canonical_json(value: Any) -> bytes:
    """Return the RFC 8785 form of a JSON value.

    Raises `rfc8785.CanonicalizationError` on what I-JSON cannot hold, `RecursionError` on what is nested too deep.
    """
    if _is_plain(value):
        try:
            return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        except orjson.JSONEncodeError as error:  # more than 254 levels
            raise RecursionError(str(error)) from error
    return rfc8785.dumps(value)


def _is_plain(value: Any) -> bool:
    """Return True where orjson's sorted form is the canonical one, at a tenth of the price.

    The two differ in how they write doubles, in the order of member names beyond ASCII and in what they refuse.
    """
    kind = type(value)  # told apart by identity: patterns over classes take twice as long
    if kind is str:
        return value.isascii() or _is_encodable(value)
    if kind is dict:
        return _has_plain_members(value)
    if kind is list:
        return all(map(_is_plain, value))
    return value is None or kind is bool or (kind is int and -LARGEST_INTEGER <= value <= LARGEST_INTEGER)


def _has_plain_members(members: dict[Any, Any]) -> bool:
    for name, each in members.items():
        if type(name) is not str or not name.isascii() or not _is_plain(each):
            return False
    return True


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def sha256_hash(data: bytes) -> str:
    """Return `sha256:` and 64 lower-case hex digits."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def canonical_request(operation: str, body: Mapping[str, Any]) -> bytes:
    """Return what the `requestHash` of a body, its defaults filled in, is the hash of."""
    return canonical_json({"operation": operation, "request": dict(body)})


def request_hash(operation: str, body: Mapping[str, Any]) -> str:
    """Return the `requestHash` of a body whose defaults are filled in."""
    return sha256_hash(canonical_request(operation, body))


def result_hash(output: Mapping[str, Any]) -> str:
    """Return the `resultHash` of an output: SHA-256 over its RFC 8785 form."""
    return sha256_hash(canonical_json(dict(output)))


def with_defaults(schema: Mapping[str, Any], value: Any) -> Any:
    """Return `value` in the form that is hashed: defaults of `schema` filled in, integral numbers as integers.

    `3.0` is the integer 3 to JSON Schema, so it is hashed and structured as 3; a double beyond the integers that every
    reader keeps exact stays a double.  Walks `properties` and `items`; an absent member with a `default` gets it, an
    absent object member whose own members have defaults stays absent.
    """
    if isinstance(value, dict):
        properties: Mapping[str, Any] = schema.get("properties", {})
        filled = {name: with_defaults(properties.get(name, {}), member) for name, member in value.items()}
        for name, member in properties.items():
            if name not in filled and "default" in member:
                filled[name] = member["default"]
        return filled
    if isinstance(value, list):
        items = schema.get("items", {})
        return [with_defaults(items, item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) <= LARGEST_INTEGER:
        return int(value)
    return value
