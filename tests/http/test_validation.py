from __future__ import annotations

from typing import Any

import attrs
import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import GatewayError, InvalidRequest, SynthesisUnavailable
from gateway.http.validation import BodyValidator, converter, pointer
from gateway.registry.table import OPERATIONS

VALIDATOR = BodyValidator.of(OPERATIONS["search.paid"])
VALID: dict[str, Any] = {"query": "tides", "synthesize": False}
CANARY = "kanarienvogel"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_documented_example_is_valid(operation: str) -> None:
    BodyValidator.of(OPERATIONS[operation]).validate(OPERATIONS[operation].example)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_published_schema_is_a_schema(operation: str) -> None:
    jsonschema_rs.meta.validate(
        {"$schema": "https://json-schema.org/draft/2020-12/schema", **OPERATIONS[operation].schema}
    )


def test_defaults_are_filled_in_and_the_caller_s_object_is_left_alone() -> None:
    body = dict(VALID)
    valid = VALIDATOR.validate(body)
    assert valid.body == VALID | {"maxResults": 3, "language": "en", "region": "US"}
    assert body == VALID


@pytest.mark.parametrize("number", [3, 3.0])
def test_an_integral_double_is_an_integer(number: float) -> None:
    valid = VALIDATOR.validate(VALID | {"maxResults": number})
    assert type(valid.request.max_results) is int
    assert valid.request_hash == VALIDATOR.validate(VALID).request_hash


@pytest.mark.parametrize("number", ["3", True, 3.5, None, [3], 1e300])
def test_nothing_is_coerced(number: Any) -> None:
    assert [each.pointer for each in VALIDATOR.violations(VALID | {"maxResults": number})][:1] == ["/maxResults"]


@pytest.mark.parametrize(("query", "valid"), [("\U0001f600" * 2000, True), ("\U0001f600" * 2001, False), ("", False)])
def test_lengths_count_characters(query: str, valid: bool) -> None:
    assert (VALIDATOR.violations(VALID | {"query": query}) == []) is valid


@pytest.mark.parametrize("region", ["US\n", "us", "USA", "U\u0405"])
def test_patterns_hold_for_the_whole_text(region: str) -> None:
    assert [each.pointer for each in VALIDATOR.violations(VALID | {"region": region})] == ["/region"]


def test_every_missing_and_every_unknown_member_is_pointed_at() -> None:
    body = {"a": 1, "b/c": 2, "d~e": 3, "": 4}
    assert [each.pointer for each in VALIDATOR.violations(body)] == [
        "/",
        "/a",
        "/b~1c",
        "/d~0e",
        "/query",
        "/synthesize",
    ]


def test_synthesis_is_refused_by_name() -> None:
    with pytest.raises(SynthesisUnavailable) as caught:
        VALIDATOR.validate(VALID | {"synthesize": True})
    assert [each.pointer for each in caught.value.errors] == ["/synthesize"]


def test_a_pointer_escapes_what_rfc_6901_escapes() -> None:
    assert pointer(["a/b", 0, "~"]) == "/a~1b/0/~0"


STRICT = {
    "type": "object",
    "properties": {
        "choice": {"enum": ["x", "y"]},
        "one": {"oneOf": [{"const": 1}, {"const": 2}]},
        "some": {"anyOf": [{"const": 1}]},
        "never": {"not": {}},
        "list": {"type": "array", "uniqueItems": True, "maxItems": 1, "items": {"type": "integer"}},
        "names": {"propertyNames": {"maxLength": 2}},
        "pair": {"dependentRequired": {"a": ["b"]}},
        "text": {"maxLength": 3, "pattern": "^a"},
        "even": {"multipleOf": 2},
        "closed": False,
        "inner": {"type": "object", "additionalProperties": False, "required": ["z"]},
        "has": {"contains": {"const": 1}},
    },
}


@settings(max_examples=200, derandomize=True, deadline=None)
@given(
    body=st.dictionaries(
        st.sampled_from(list(STRICT["properties"])),
        st.recursive(
            st.sampled_from([CANARY, 7, None]),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", CANARY]), inner),
            max_leaves=4,
        ),
    )
)
def test_no_keyword_s_message_repeats_what_the_caller_sent(body: dict[str, Any]) -> None:
    validator = BodyValidator.of(attrs.evolve(OPERATIONS["search.paid"], schema=STRICT))
    assert not any(CANARY in each.detail for each in validator.violations(body))


def test_a_refusal_is_an_invalid_request_unless_the_operation_knows_better() -> None:
    refusal: GatewayError = VALIDATOR.refusal([], VALIDATOR.violations([]))
    assert type(refusal) is InvalidRequest
    assert refusal.detail == "The request has one fault, told in `errors`."


@attrs.frozen
class Inner:
    some_text: str


@attrs.frozen
class Outer:
    the_inner: Inner
    numbers: tuple[int, ...] = ()
    maybe: float | None = None


def test_members_are_camel_case_in_json_and_strict() -> None:
    made = converter()
    structured = made.structure({"theInner": {"someText": "a"}, "numbers": [1], "maybe": 0.5}, Outer)
    assert structured == Outer(Inner("a"), (1,), 0.5)
    for wrong in (
        {"theInner": {"someText": 1}},
        {"theInner": {"someText": "a"}, "numbers": [True]},
        {"theInner": {"someText": "a"}, "numbers": ["1"]},
        {"theInner": {"someText": "a"}, "more": 1},
        {"the_inner": {"someText": "a"}},
    ):
        with pytest.raises(Exception, match=r".+"):
            made.structure(wrong, Outer)
