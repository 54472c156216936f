"""The chat request: what is accepted, what is refused and by which name, and what the model is asked."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import GatewayError, InvalidRequest, ModelNotFound, ModelUnavailable, UnsupportedParameter
from gateway.http.validation import BodyValidator
from gateway.registry.ai.catalog import CATALOG
from gateway.registry.ai.chat_request import FREE_BODY_CAP, ChatRequest, body_cap, check, price
from gateway.registry.ai.prompt import ResponseFormat
from gateway.registry.table import CHAT_COMPLETIONS

FREE, PAID, DEAR = "gateway/fast", "openai/gpt-5.6-luna", "openai/gpt-5.4"
VALIDATOR = BodyValidator.of(CHAT_COMPLETIONS)
HELLO = [{"role": "user", "content": "hello"}]


def chat(**members: Any) -> dict[str, Any]:
    return {"model": FREE, "messages": HELLO} | members


def request(**members: Any) -> ChatRequest:
    valid: ChatRequest = VALIDATOR.validate(chat(**members)).request
    return valid


def refused(body: dict[str, Any]) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        VALIDATOR.validate(body)
    return caught.value


def test_the_least_request_asks_for_the_usual_number_of_tokens() -> None:
    asked = request().prompt
    assert (asked.model, asked.max_output_tokens, asked.messages[0].content) == (FREE, 1024, "hello")
    assert asked.sampling.asked == frozenset()


@pytest.mark.parametrize("name", ["max_completion_tokens", "max_output_tokens", "max_tokens"])
def test_each_name_of_the_token_limit_is_the_limit(name: str) -> None:
    assert request(**{name: 7}).prompt.max_output_tokens == 7


def test_token_limits_that_differ_are_refused_at_each_of_them() -> None:
    problem = check(request(max_tokens=5, max_completion_tokens=6))
    assert isinstance(problem, InvalidRequest)
    assert {each.pointer for each in problem.errors} == {"/max_tokens", "/max_completion_tokens"}
    assert check(request(max_tokens=5, max_completion_tokens=5, max_output_tokens=5)) is None


@pytest.mark.parametrize(("model", "most"), [(FREE, 1024), (PAID, 1024), (DEAR, 4096)])
def test_the_token_limit_is_the_models(model: str, most: int) -> None:
    assert check(request(model=model, max_tokens=most)) is None
    if most < 4096:
        problem = check(request(model=model, max_tokens=most + 1))
        assert problem is not None
        assert [each.pointer for each in problem.errors] == ["/max_tokens"]
    else:
        assert refused(chat(model=model, max_tokens=most + 1)).status == 400


def test_a_paid_model_takes_20000_characters_in_all_messages() -> None:
    half = {"role": "user", "content": "a" * 10_000}
    assert check(request(model=PAID, messages=[half, half])) is None
    problem = check(request(model=PAID, messages=[half, half, *HELLO]))
    assert problem is not None
    assert [each.pointer for each in problem.errors] == ["/messages"]


def test_a_free_model_takes_24000_characters_in_a_message_and_65536_bytes_in_all() -> None:
    longest = {"role": "user", "content": "a" * 24_000}
    assert check(request(messages=[longest, longest])) is None
    assert refused(chat(messages=[{"role": "user", "content": "a" * 24_001}])).code == "invalid_request"
    assert (body_cap(request()), body_cap(request(model=PAID))) == (FREE_BODY_CAP, None)


def test_an_unknown_model_is_not_found_and_one_without_a_price_is_not_offered() -> None:
    unknown = check(request(model="openai/gpt-1"))
    assert isinstance(unknown, ModelNotFound)
    assert unknown.extra == {"param": "model"}
    unpriced = next(each for each in CATALOG.models.values() if each.billing is None)
    problem = check(request(model=unpriced.id))
    assert isinstance(problem, ModelUnavailable)
    assert (problem.status, problem.extra["reason"]) == (503, "not_offered")


def test_the_price_is_the_flat_price_of_the_row() -> None:
    assert (price(request()), price(request(model=PAID)), price(request(model=DEAR))) == (0, 7_000, 84_000)
    assert not CHAT_COMPLETIONS.sells(request())
    assert CHAT_COMPLETIONS.sells(request(model=PAID))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stream", True),
        ("tools", [{"type": "function"}]),
        ("tool_choice", {"type": "function"}),
        ("functions", [{}]),
        ("n", 2),
        ("logprobs", True),
        ("logit_bias", {"1": 2}),
        ("audio", {}),
        ("modalities", ["text", "audio"]),
        ("store", True),
        ("service_tier", "flex"),
        ("stream_options", {"include_usage": True}),
    ],
)
def test_what_would_change_the_result_is_refused_by_name(name: str, value: Any) -> None:
    problem = refused(chat(**{name: value}))
    assert isinstance(problem, UnsupportedParameter)
    assert problem.extra["param"] == name
    assert any(each.pointer.startswith(f"/{name}") for each in problem.errors)


@pytest.mark.parametrize(
    "members",
    [
        {"stream": False},
        {"n": 1},
        {"tools": []},
        {"tool_choice": "none"},
        {"logprobs": False},
        {"store": False},
        {"user": "u", "metadata": {"a": "b"}},
        {"modalities": ["text"]},
        {"temperature": None, "max_tokens": None, "stop": None, "response_format": None},
    ],
)
def test_what_has_no_effect_is_accepted(members: dict[str, Any]) -> None:
    asked = request(**members)
    assert check(asked) is None
    assert asked.prompt == request().prompt


def test_an_unknown_member_is_refused_with_its_pointer() -> None:
    problem = refused(chat(banana=1))
    assert problem.code == "invalid_request"
    assert [each.pointer for each in problem.errors] == ["/banana"]


def test_sampling_is_passed_on_as_it_was_asked() -> None:
    sampling = request(temperature=0, top_p=0.5, stop="\n", seed=7, reasoning_effort="low").prompt.sampling
    assert (sampling.temperature, sampling.top_p, sampling.stop, sampling.seed) == (0, 0.5, ("\n",), 7)
    assert sampling.asked == {"temperature", "top_p", "stop", "seed", "reasoning_effort"}
    assert request(stop=["a", "b"]).prompt.sampling.stop == ("a", "b")


@pytest.mark.parametrize(
    ("member", "value"),
    [("temperature", 2.1), ("top_p", -0.1), ("seed", 1.5), ("stop", ["a"] * 5), ("max_tokens", 0), ("n", "1")],
)
def test_a_value_out_of_range_is_refused(member: str, value: Any) -> None:
    assert refused(chat(**{member: value})).status == 400


def test_json_mode_is_told_with_or_without_a_schema() -> None:
    shape = {"type": "object"}
    assert request(response_format={"type": "text"}).prompt.response_format == ResponseFormat()
    assert request(response_format={"type": "json_object"}).prompt.response_format.json
    described = {"type": "json_schema", "json_schema": {"name": "city", "schema": shape, "strict": True}}
    assert request(response_format=described).prompt.response_format == ResponseFormat(
        "json_schema", "city", shape, strict=True
    )
    told = {"type": "json_schema", "json_schema": {"schema": shape, "description": "A city."}}
    assert request(response_format=told).prompt.response_format.description == "A city."
    assert refused(chat(response_format={"type": "json_schema"})).status == 400
    for kind in ("text", "json_object"):
        assert refused(chat(response_format={"type": kind, "json_schema": {"schema": shape}})).status == 400
    assert refused(chat(response_format={"type": "xml"})).status == 400


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "text alone"),
        ({"role": "tool", "content": "hi"}, "Tools are unsupported"),
    ],
)
def test_what_clients_commonly_send_is_refused_with_what_to_do(message: dict[str, Any], hint: str) -> None:
    problem = refused(chat(messages=[message]))
    assert problem.code == "invalid_request"
    assert hint in problem.detail
    assert problem.errors[0].pointer.startswith("/messages/0")


@pytest.mark.parametrize("body", [{}, {"model": FREE}, {"messages": HELLO}, chat(messages=[]), chat(model=1)])
def test_what_is_missing_or_empty_is_refused(body: dict[str, Any]) -> None:
    assert refused(body).status == 400


# -- messages as stock clients send them -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([{"role": "developer", "content": "Be brief."}, *HELLO], [("system", "Be brief."), ("user", "hello")]),
        ([{"role": "user", "content": [{"type": "text", "text": "one"}]}], [("user", "one")]),
        (
            [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}],
            [("user", "one\ntwo")],
        ),
        ([*HELLO, {"role": "assistant", "content": ""}, *HELLO], [("user", "hello"), ("user", "hello")]),
        ([*HELLO, {"role": "assistant", "content": None}, *HELLO], [("user", "hello"), ("user", "hello")]),
        ([*HELLO, {"role": "assistant", "content": []}, *HELLO], [("user", "hello"), ("user", "hello")]),
        ([*HELLO, {"role": "assistant", "content": "hi", "name": None}], [("user", "hello"), ("assistant", "hi")]),
    ],
)
def test_what_loses_nothing_is_accepted(messages: list[dict[str, Any]], told: list[tuple[str, str]]) -> None:
    asked = request(messages=messages)
    assert check(asked) is None
    assert [(each.role, each.content) for each in asked.prompt.messages] == told


def test_who_speaks_is_told_to_upstreams_that_know_names() -> None:
    asked = request(messages=[{"role": "user", "content": "hello", "name": "ada"}])
    assert [each.name for each in asked.prompt.messages] == ["ada"]


@pytest.mark.parametrize(
    ("message", "pointer"),
    [
        ({"role": "user", "content": ""}, "/messages/0/content"),
        ({"role": "user", "content": None}, "/messages/0/content"),
        ({"role": "user", "content": []}, "/messages/0/content"),
        ({"role": "system", "content": ""}, "/messages/0/content"),
        ({"role": "user", "content": 5}, "/messages/0/content"),
        ({"role": "assistant", "content": 5}, "/messages/0/content"),
        ({"role": "user", "content": ["hello"]}, "/messages/0/content/0"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "/messages/0/content/0/text"),
        ({"role": "user", "content": [{"type": "text"}]}, "/messages/0/content/0/text"),
        ({"role": "tool", "content": "x", "tool_call_id": "y"}, "/messages/0/role"),
        ({"role": "user"}, "/messages/0/content"),
        ({"role": "user", "content": "x", "audio": {}}, "/messages/0/audio"),
        ({"role": "user", "content": "x" * 24_001}, "/messages/0/content"),
        ({"role": "user", "content": "x", "name": "n" * 65}, "/messages/0/name"),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_a_message_that_cannot_be_honoured_is_refused_where_it_stands(message: dict[str, Any], pointer: str) -> None:
    assert pointer in [each.pointer for each in refused(chat(messages=[message])).errors]


@pytest.mark.parametrize(
    ("messages", "pointer"),
    [
        ([{"role": "user", "content": [{"type": "text", "text": ""}]}], "/messages/0/content"),
        ([{"role": "user", "content": [{"type": "text", "text": "x" * 12_001}] * 2}], "/messages/0/content"),
        ([{"role": "assistant", "content": ""}], "/messages"),
    ],
)
def test_what_only_the_joined_text_shows_is_refused_as_well(messages: list[dict[str, Any]], pointer: str) -> None:
    problem = check(request(messages=messages))
    assert isinstance(problem, InvalidRequest)
    assert pointer in [each.pointer for each in problem.errors]


@pytest.mark.parametrize("schema", [{"type": "nothing"}, {"$ref": "https://example.com/a.json"}, {"pattern": "(?=a)b"}])
def test_a_schema_that_cannot_be_checked_is_refused_by_name(schema: dict[str, Any]) -> None:
    asked = request(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}})
    problem = check(asked)
    assert isinstance(problem, InvalidRequest)
    assert [each.pointer for each in problem.errors] == ["/response_format/json_schema/schema"]
