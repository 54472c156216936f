"""A schema that an answer is checked against: compiled without the network, or not at all."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gateway.registry.ai.answer_schema import validator_of


def test_a_schema_checks_an_answer() -> None:
    validator = validator_of(
        {
            "type": "object",
            "required": ["a"],
            "$defs": {"n": {"type": "integer"}},
            "properties": {"a": {"$ref": "#/$defs/n"}},
        }
    )
    assert validator is not None
    assert validator.is_valid({"a": 1})
    assert not validator.is_valid({"a": "1"})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nothing"},
        {"minimum": "x"},
        {"$ref": "https://example.com/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "#/$defs/nowhere"},
        {"pattern": "(?<!a)b"},
        {"pattern": "("},
    ],
)
def test_what_cannot_be_checked_has_no_validator(schema: dict[str, Any]) -> None:
    assert validator_of(schema) is None


def test_a_pattern_takes_linear_time() -> None:
    validator = validator_of({"type": "string", "pattern": "^(a+)+$"})
    assert validator is not None
    began = time.process_time()
    assert not validator.is_valid("a" * 50_000 + "b")
    assert time.process_time() - began < 5
