from __future__ import annotations

from typing import Any

import jsonschema_rs
import orjson
import pytest

from gateway.registry.payment.extensions import BAZAAR, PAYMENT_IDENTIFIER, declare, thin

SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Search",
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 1, "description": "what to look for"},
        "title": {"type": "string", "title": "a member that is called title", "default": ""},
        "synthesize": {"const": False},
    },
    "required": ["query", "synthesize"],
    "additionalProperties": False,
}
EXAMPLE = {"query": "x402", "synthesize": False}


def test_the_declared_input_is_valid_under_the_declared_schema() -> None:
    declared = declare(EXAMPLE, SCHEMA)[BAZAAR]
    jsonschema_rs.validator_for(declared["schema"]).validate(declared["info"])


def test_indexers_find_the_method_the_body_and_the_input_schema() -> None:
    declared = declare(EXAMPLE, SCHEMA)[BAZAAR]
    assert declared["info"]["input"] == {"type": "http", "method": "POST", "bodyType": "json", "body": EXAMPLE}
    assert declared["schema"]["properties"]["input"]["properties"]["body"]["required"] == ["query", "synthesize"]


def test_annotations_go_but_members_of_the_same_names_stay() -> None:
    assert thin(SCHEMA, 400) == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "minLength": 1},
            "title": {"type": "string"},
            "synthesize": {"const": False},
        },
        "required": ["query", "synthesize"],
        "additionalProperties": False,
    }


def test_a_const_or_enum_is_never_taken_apart() -> None:
    schema = {"enum": [{"title": "kept"}], "const": {"default": 1}, "allOf": [{"title": "dropped", "type": "object"}]}
    assert thin(schema, 400) == {**schema, "allOf": [{"type": "object"}]}


@pytest.mark.parametrize(("members", "kept"), [(6, 6), (40, 0)])
def test_a_schema_over_the_cap_is_thinned_to_types_then_to_an_object(members: int, kept: int) -> None:
    rules = {f"member{n}": {"type": "string", "pattern": "^[a-z]{2,3}(?:-[A-Za-z0-9]{2,8})*$"} for n in range(members)}
    schema = {"type": "object", "properties": rules, "required": ["member0"]}
    thinned = thin(schema, 400)
    assert len(orjson.dumps(thinned)) <= 400
    assert len(thinned.get("properties", {})) == kept
    jsonschema_rs.validator_for(thinned).validate({"member0": "en"})


def test_an_example_over_the_cap_leaves_only_the_payment_identifier() -> None:
    assert list(declare({"query": "x" * 300}, SCHEMA)) == [PAYMENT_IDENTIFIER]


def test_an_operation_is_declared_once() -> None:
    assert declare(EXAMPLE, SCHEMA) is declare(dict(EXAMPLE), dict(SCHEMA))
