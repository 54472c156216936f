from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from gateway.registry.ai.gemini_schema import schema_member
from tests.registry.ai.model_answers import json_values

PERSON = {
    "title": "Person",
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 9, "pattern": "^[a-z]+$", "default": "me"},
        "age": {"type": "integer", "format": "int32", "minimum": 0, "maximum": 150, "nullable": True},
        "tags": {"type": "array", "minItems": 1, "maxItems": 3, "items": {"enum": ["a"], "description": "a tag"}},
        "home": {"anyOf": [{"type": "string"}, {"type": "object", "minProperties": 1, "maxProperties": 2}]},
    },
    "required": ["name"],
    "propertyOrdering": ["name", "age"],
    "example": {"name": "me"},
}
STRICT = {
    "$id": "person",
    "$anchor": "person",
    "$comment": "as clients of OpenAI write it",
    "type": "object",
    "properties": {"tags": {"type": "array", "minItems": 1, "maxItems": 3}, "age": {"minimum": 0, "maximum": 150}},
    "required": ["tags"],
    "additionalProperties": False,
}


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def test_the_openapi_subset_goes_into_the_schema_that_every_model_knows() -> None:
    assert schema_member(PERSON) == "responseSchema"
    assert schema_member({}) == "responseSchema"


@pytest.mark.parametrize(
    "schema",
    [
        STRICT,
        {"type": "object", "properties": {}, "additionalProperties": False},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"},
        {"type": ["string", "null"]},
        {"$defs": {"a": {"type": "string"}}, "$ref": "#/$defs/a"},
        {"type": "array", "prefixItems": [{"type": "string"}]},
        {"oneOf": [{"type": "string"}, {"type": "object", "additionalProperties": {"type": "integer"}}]},
    ],
)
def test_json_schema_beyond_it_goes_into_the_member_for_json_schema(schema: dict[str, Any]) -> None:
    assert schema_member(schema) == "responseJsonSchema"


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {"type": "string"}},
        {"type": "object", "properties": {"a": {"type": "object", "patternProperties": {}}}},
        {"$defs": {"a": {"const": 1}}},
        {"anyOf": [{"type": "array", "items": {"if": {}}}]},
        {"additionalProperties": False, "properties": {"a": {"type": "string", "pattern": "^x$"}}},
        deep(40),
    ],
)
def test_a_schema_that_no_member_enforces_whole_has_none(schema: dict[str, Any]) -> None:
    assert schema_member(schema) is None


@given(json_values)
def test_any_schema_can_be_judged(value: Any) -> None:
    assert schema_member({"properties": value, "items": value, "anyOf": value}) in {
        "responseSchema",
        "responseJsonSchema",
        None,
    }
