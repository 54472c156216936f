from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.http import strict_json
from gateway.http.validation import BodyValidator
from gateway.registry.canonical import canonical_json, canonical_request, request_hash, sha256_hash, with_defaults
from gateway.registry.table import OPERATIONS

VECTORS: list[dict[str, str]] = json.loads(
    (Path(__file__).parents[2] / "gateway" / "registry" / "request_hash_vectors.json").read_text()
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["what"])
def test_the_published_vectors_hold(vector: dict[str, str]) -> None:
    valid = BodyValidator.of(OPERATIONS[vector["operation"]]).validate(strict_json.parse(vector["body"].encode()))
    assert canonical_request(vector["operation"], valid.body).decode() == vector["canonical"]
    assert valid.request_hash == vector["requestHash"]
    assert sha256_hash(vector["canonical"].encode()) == vector["requestHash"]


def test_the_vectors_tell_every_operation_apart_and_equal_requests_alike() -> None:
    first, spelled_out, doubled, other = (vector["requestHash"] for vector in VECTORS[:4])
    assert first == spelled_out == doubled != other
    assert {vector["operation"] for vector in VECTORS} == set(OPERATIONS)


@settings(max_examples=500, derandomize=True, deadline=None)
@given(value=JSON)
def test_the_canonical_form_is_that_of_rfc_8785_whichever_way_it_is_made(value: Any) -> None:
    assert canonical_json(value) == rfc8785.dumps(value)


@pytest.mark.parametrize(
    "value",
    [
        {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\x80": 6, "\u00f6": 7},
        [333333333.33333329, 1e30, 4.50, 2e-3, 1e-27, -0.0, 1e21, 1e20],
        '\u20ac$\x0f\nA\'B"\\\\"/\x7f\u2028',
        {"b": {"z": 1, "a": [True, None]}, "a": ""},
    ],
)
def test_the_examples_of_rfc_8785_are_written_as_it_says(value: Any) -> None:
    assert canonical_json(value) == rfc8785.dumps(value)


@pytest.mark.parametrize("value", [2**53, -(2**53), float("nan"), float("inf"), "\ud800", {"a": "\udfff"}, {1: 2}])
def test_what_i_json_cannot_hold_has_no_canonical_form(value: Any) -> None:
    with pytest.raises(rfc8785.CanonicalizationError):
        canonical_json(value)


@pytest.mark.parametrize("levels", [300, 5000])
def test_what_is_nested_too_deep_is_a_recursion_error(levels: int) -> None:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    with pytest.raises(RecursionError):
        canonical_json(value)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(value=st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_the_order_of_members_does_not_count(value: dict[str, Any]) -> None:
    shuffled = dict(reversed(list(value.items())))
    assert request_hash("search.paid", shuffled) == request_hash("search.paid", value)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(value=JSON)
def test_filling_in_defaults_twice_changes_nothing_and_keeps_the_value(value: Any) -> None:
    schema = OPERATIONS["search.paid"].schema
    once = with_defaults(schema, value)
    assert with_defaults(schema, once) == once
    assert not isinstance(value, dict) or once.items() >= {k: v for k, v in value.items() if not _nests(v)}.items()


def _nests(value: Any) -> bool:
    return isinstance(value, dict | list)


@pytest.mark.parametrize(
    ("number", "kept"), [(3.0, 3), (-0.0, 0), (2.5, 2.5), (1e20, 1e20), (9007199254740991.0, 2**53 - 1), (True, True)]
)
def test_integral_doubles_become_integers_where_every_reader_keeps_them(number: Any, kept: Any) -> None:
    filled = with_defaults({}, [number])[0]
    assert (filled, type(filled)) == (kept, type(kept))
    canonical_json([filled])


def test_nested_defaults_are_filled_in_where_the_object_is_there() -> None:
    schema = {
        "properties": {
            "limits": {"properties": {"a": {"default": 1}, "b": {"default": 2}}},
            "items": {"items": {"properties": {"c": {"default": 3}}}},
            "whole": {"default": {"d": 4}},
        }
    }
    assert with_defaults(schema, {"limits": {"b": 5.0}, "items": [{}, {"c": 0}]}) == {
        "limits": {"a": 1, "b": 5},
        "items": [{"c": 3}, {"c": 0}],
        "whole": {"d": 4},
    }
    assert with_defaults(schema, {}) == {"whole": {"d": 4}}


def test_a_hash_is_a_name_and_sixty_four_digits() -> None:
    assert sha256_hash(b"") == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert orjson.loads(canonical_request("search.free", {"b": 1, "a": 2})) == {
        "operation": "search.free",
        "request": {"a": 2, "b": 1},
    }
