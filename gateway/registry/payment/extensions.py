"""The two x402 extensions that every offer declares, kept small because clients echo them back, schemas included.

`payment-identifier` lets a client name its payment; `bazaar` tells indexers how to call the resource (they list only
offers whose `schema.properties.input` and `info.input.method` are there).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import orjson

PAYMENT_IDENTIFIER: Final = "payment-identifier"
BAZAAR: Final = "bazaar"

MAX_EXAMPLE: Final = 200
MAX_BODY: Final = 500
"""Most bytes of JSON for the example of the body and its schema together."""

_IDENTIFIER: Final[dict[str, Any]] = {
    "info": {"required": False},
    "schema": {
        "type": "object",
        "properties": {
            "required": {"type": "boolean"},
            "id": {"type": "string", "minLength": 16, "maxLength": 128, "pattern": "^[a-zA-Z0-9_-]+$"},
        },
        "required": ["required"],
    },
}
_ANNOTATIONS: Final = frozenset(
    {"$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated"}
)


def declare(body_example: Mapping[str, Any], input_schema: Mapping[str, Any]) -> dict[str, Any]:
    """Declare the extensions of an operation with this example and body schema.

    An example over `MAX_EXAMPLE` bytes of JSON leaves `bazaar` out; a schema that takes the two over `MAX_BODY` is
    thinned to its members' types, or to `{"type": "object"}`.

    Returns:
        A value shared between calls: read it, never change it.
    """
    return _declare(orjson.dumps(body_example), orjson.dumps(input_schema))


@lru_cache(maxsize=256)
def _declare(example: bytes, schema: bytes) -> dict[str, Any]:
    if len(example) > MAX_EXAMPLE:
        return {PAYMENT_IDENTIFIER: _IDENTIFIER}
    body = thin(orjson.loads(schema), MAX_BODY - len(example))
    return {PAYMENT_IDENTIFIER: _IDENTIFIER, BAZAAR: _bazaar(orjson.loads(example), body)}


def _bazaar(example: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    called = {"type": "http", "method": "POST", "bodyType": "json"}
    properties: dict[str, Any] = {name: {"const": value} for name, value in called.items()}
    return {
        "info": {"input": {**called, "body": example}},
        "schema": {
            "type": "object",
            "properties": {
                "input": {
                    "type": "object",
                    "properties": {**properties, "body": body},
                    "required": [*called, "body"],
                }
            },
            "required": ["input"],
        },
    }


def thin(schema: dict[str, Any], size: int) -> dict[str, Any]:
    """Reduce the JSON Schema of an object to `size` bytes that still accept whatever the whole schema accepts."""
    bare: dict[str, Any] = _without_annotations(schema)
    if len(orjson.dumps(bare)) <= size:
        return bare
    types: dict[str, Any] = {"type": "object"}
    if isinstance(schema.get("properties"), dict):
        types["properties"] = {
            name: {key: rule[key] for key in ("type", "const") if key in rule} if isinstance(rule, dict) else rule
            for name, rule in schema["properties"].items()
        }
        types["required"] = schema.get("required", [])
    return types if len(orjson.dumps(types)) <= size else {"type": "object"}


def _without_annotations(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_annotations(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    bare: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in _ANNOTATIONS:
            continue
        if keyword in {"properties", "$defs", "patternProperties", "dependentSchemas"} and isinstance(value, dict):
            bare[keyword] = {name: _without_annotations(rule) for name, rule in value.items()}
        elif keyword in {"const", "enum", "required"}:
            bare[keyword] = value
        else:
            bare[keyword] = _without_annotations(value)
    return bare
