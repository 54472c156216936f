"""Anthropic's Messages, by answers as its API gives them."""

from __future__ import annotations

from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given

from gateway.registry.ai.adapter import Completion, ModelFailed, Usage
from gateway.registry.ai.anthropic import MEMBERS, AnthropicAdapter, takes_sampling
from gateway.registry.ai.prompt import Message, Prompt, ResponseFormat, Sampling
from gateway.registry.call_evidence import Weight
from gateway.registry.http_call import HttpCall
from gateway.world.ai_formats import Anthropic
from gateway.world.door import Call
from tests.registry.ai.model_answers import ASKED, KEY, PROMPT, answered, bent, json_values, prompts

SONNET = AnthropicAdapter("https://api.anthropic.com", "claude-sonnet-4-6", KEY)
OPUS = AnthropicAdapter("https://api.anthropic.com", "claude-opus-4-8", KEY)
ANSWER: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-6-20260217",
    "content": [
        {"type": "thinking", "thinking": "They greet me.", "signature": "c2ln"},
        {"type": "text", "text": "Hel"},
        {"type": "text", "text": "lo."},
    ],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 20,
        "cache_creation_input_tokens": 300,
        "cache_read_input_tokens": 4000,
        "cache_creation": {"ephemeral_5m_input_tokens": 300, "ephemeral_1h_input_tokens": 0},
        "output_tokens": 9,
        "service_tier": "standard",
    },
}


def read(body: Any, status: int = 200) -> Completion:
    return SONNET.read(PROMPT, answered(body, status))


def reason(body: Any, status: int = 200) -> str:
    with pytest.raises(ModelFailed) as failed:
        read(body, status)
    return failed.value.reason


def body_of(call: HttpCall) -> dict[str, Any]:
    body: dict[str, Any] = orjson.loads(call.content)
    return body


def asking(**wishes: Any) -> Prompt:
    return attrs.evolve(PROMPT, sampling=Sampling(**wishes))


def chat(*messages: tuple[str, str]) -> Prompt:
    return attrs.evolve(PROMPT, messages=tuple(Message(role, content) for role, content in messages))  # type: ignore[arg-type]


def test_a_prompt_is_asked_with_the_key_and_the_version() -> None:
    call = SONNET.plan(PROMPT, timeout_s=42.0)
    assert (call.method, call.url, call.timeout_s) == ("POST", "https://api.anthropic.com/v1/messages", 42.0)
    headers = dict(call.headers)
    assert (headers["x-api-key"], headers["anthropic-version"]) == (KEY, "2023-06-01")
    assert body_of(call) == {
        "model": "claude-sonnet-4-6",
        "max_tokens": 64,
        "messages": [{"role": "user", "content": ASKED}],
    }


@pytest.mark.parametrize("base_url", ["https://a.example", "https://a.example/", "https://a.example/v1"])
def test_the_address_is_taken_with_or_without_its_version(base_url: str) -> None:
    adapter = AnthropicAdapter(base_url, "m", KEY)
    assert adapter.plan(PROMPT, timeout_s=1).url == "https://a.example/v1/messages"


def test_system_messages_stand_apart_each_by_itself() -> None:
    body = body_of(SONNET.plan(chat(("system", "Be kind."), ("system", "Be brief."), ("user", "hi")), timeout_s=1))
    assert body["system"] == [{"type": "text", "text": "Be kind."}, {"type": "text", "text": "Be brief."}]
    assert body["messages"] == [{"role": "user", "content": "hi"}]


def test_turns_of_one_role_in_a_row_are_sent_as_they_are() -> None:
    turns = [("user", "a"), ("user", "b"), ("assistant", "c"), ("user", "d")]
    body = body_of(SONNET.plan(chat(*turns), timeout_s=1))
    assert [(each["role"], each["content"]) for each in body["messages"]] == turns
    assert SONNET.lacks(chat(*turns)) is None


@pytest.mark.parametrize("turns", [[("assistant", "a"), ("user", "b")], [("user", "a"), ("assistant", "b")]])
def test_a_chat_that_the_assistant_begins_or_ends_is_left_to_other_routes(turns: list[tuple[str, str]]) -> None:
    assert SONNET.lacks(chat(*turns)) == "turn_order_unsupported"


@given(prompts)
def test_a_body_holds_nothing_that_is_not_on_the_list(prompt: Prompt) -> None:
    for adapter in (SONNET, OPUS):
        body = body_of(adapter.plan(prompt, timeout_s=1))
        assert body.keys() <= MEMBERS
        assert None not in body.values()
        assert body["max_tokens"] == prompt.max_output_tokens


@given(prompts)
def test_a_strict_server_takes_every_body_of_a_prompt_that_nothing_is_lacking_of(prompt: Prompt) -> None:
    if SONNET.lacks(prompt) is None:
        call = SONNET.plan(prompt, timeout_s=1)
        asked = Anthropic().asked(Call("POST", "/v1/messages", {}, dict(call.headers), call.content), "")
        assert asked.most_tokens == prompt.max_output_tokens


@pytest.mark.parametrize(
    ("wish", "sonnet", "opus"),
    [
        ({"seed": 7}, "seed_unsupported", "seed_unsupported"),
        ({"presence_penalty": 1}, "presence_penalty_unsupported", "presence_penalty_unsupported"),
        ({"frequency_penalty": 1}, "frequency_penalty_unsupported", "frequency_penalty_unsupported"),
        ({"presence_penalty": 0, "frequency_penalty": 0}, None, None),
        ({"reasoning_effort": "low"}, "reasoning_effort_unsupported", "reasoning_effort_unsupported"),
        ({"temperature": 0.5}, None, "temperature_unsupported"),
        ({"temperature": 1}, None, None),
        ({"temperature": 1.5}, "temperature_unsupported", "temperature_unsupported"),
        ({"top_p": 0.5}, None, "top_p_unsupported"),
        ({"top_p": 1}, None, None),
        ({"temperature": 0.5, "top_p": 0.5}, "top_p_unsupported", "temperature_unsupported"),
        ({"temperature": 0.5, "top_p": 1}, None, "temperature_unsupported"),
        ({"stop": ("x",)}, None, None),
        ({"stop": ("\n",)}, "stop_unsupported", "stop_unsupported"),
    ],
)
def test_what_the_api_or_the_model_cannot_honour_is_lacking(
    wish: dict[str, Any], sonnet: str | None, opus: str | None
) -> None:
    assert SONNET.lacks(asking(**wish)) == sonnet
    assert OPUS.lacks(asking(**wish)) == opus


def test_json_modes_are_left_to_other_routes() -> None:
    for wished in (ResponseFormat("json_object"), ResponseFormat("json_schema", schema={})):
        assert SONNET.lacks(attrs.evolve(PROMPT, response_format=wished)) == "json_unsupported"


def test_a_message_of_blanks_which_the_api_refuses_is_lacking() -> None:
    assert SONNET.lacks(chat(("user", " \n"))) == "blank_message_unsupported"


@pytest.mark.parametrize(
    ("model", "takes"),
    [
        ("claude-3-5-sonnet-20241022", True),
        ("claude-2.1", True),
        ("claude-sonnet-4-20250514", True),
        ("claude-sonnet-4-6", True),
        ("claude-haiku-4-5-20251001", True),
        ("claude-opus-4-6", True),
        ("claude-opus-4-20250514", True),
        ("claude-opus-4-7", False),
        ("claude-opus-4-8", False),
        ("claude-opus-5", False),
        ("claude-sonnet-5", False),
        ("claude-something-new", False),
        ("another-model", False),
    ],
)
def test_which_models_take_a_temperature_is_told_by_their_version(model: str, takes: bool) -> None:
    assert takes_sampling(model) is takes


def test_sampling_that_was_asked_for_is_passed_on() -> None:
    body = body_of(SONNET.plan(asking(temperature=0.5, stop=("x", "y")), timeout_s=1))
    assert (body["temperature"], body["stop_sequences"]) == (0.5, ["x", "y"])
    assert body_of(SONNET.plan(asking(top_p=0.5), timeout_s=1))["top_p"] == 0.5


def test_the_neutral_values_are_not_sent_to_a_model_that_refuses_them_by_name() -> None:
    assert body_of(OPUS.plan(asking(temperature=1, top_p=1), timeout_s=1)).keys() == {"model", "max_tokens", "messages"}


def test_a_completion_is_read_without_its_thinking_and_its_prompt_is_the_sum_of_three() -> None:
    assert read(ANSWER) == Completion(
        content="Hello.",
        finish_reason="stop",
        usage=Usage(4320, 9, reasoning_tokens=None, cached_tokens=4000),
        upstream_model="claude-sonnet-4-6-20260217",
        upstream_id="msg_1",
    )


def test_tokens_of_thinking_are_part_of_the_output() -> None:
    usage = {"input_tokens": 5, "output_tokens": 90, "output_tokens_details": {"thinking_tokens": 80}}
    assert read(ANSWER | {"usage": usage}).usage == Usage(5, 90, reasoning_tokens=80)


@pytest.mark.parametrize("usage", [None, {}, {"input_tokens": 5}, {"input_tokens": "5", "output_tokens": 9}, 3])
def test_usage_that_was_not_told_is_none(usage: Any) -> None:
    assert read(ANSWER | {"usage": usage}).usage is None


@pytest.mark.parametrize(
    ("stop", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
    ],
)
def test_every_end_of_a_completion_is_told_in_openais_words(stop: str, finish: str) -> None:
    assert read(ANSWER | {"stop_reason": stop}).finish_reason == finish


@pytest.mark.parametrize("stop", ["max_tokens", "refusal"])
def test_one_that_ended_before_its_first_word_has_answered_nothing(stop: str) -> None:
    with pytest.raises(ModelFailed, match="no_text"):
        read(ANSWER | {"content": [], "stop_reason": stop})


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"content": []}, "empty_content"),
        ({"content": [{"type": "thinking", "thinking": "hm"}]}, "empty_content"),
        ({"content": None}, "malformed_answer"),
        ({"content": "Hello."}, "malformed_answer"),
        ({"stop_reason": None}, "malformed_answer"),
        ({"stop_reason": "pause_turn"}, "unfinished"),
        ({"stop_reason": "something_new"}, "unfinished"),
        ({"stop_reason": "tool_use"}, "tool_call"),
        ({"content": [{"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}]}, "tool_call"),
        ({"model": "claude-haiku-4-5-20251001"}, "wrong_model"),
        ({"model": "claude-sonnet-4-6-fast"}, "wrong_model"),
    ],
)
def test_each_cause_of_a_failure_has_its_own_word(change: dict[str, Any], word: str) -> None:
    assert reason(ANSWER | change) == word


@pytest.mark.parametrize(
    ("kind", "status", "counts"),
    [
        ("authentication_error", 401, True),
        ("billing_error", 402, True),
        ("permission_error", 403, True),
        ("not_found_error", 404, True),
        ("rate_limit_error", 429, True),
        ("api_error", 500, True),
        ("overloaded_error", 529, True),
        ("invalid_request_error", 400, False),
        ("request_too_large", 413, False),
    ],
)
def test_refusals_are_told_apart(kind: str, status: int, counts: bool) -> None:
    body = {"type": "error", "error": {"type": kind, "message": "x"}, "request_id": "req_1"}
    with pytest.raises(ModelFailed) as failed:
        read(body, status)
    assert (failed.value.reason, failed.value.weight is not Weight.NOTHING) == (f"status_{status}", counts)
    assert failed.value.detail == f"answered {status} ({kind})"


@given(json_values)
def test_json_at_random_is_a_model_failure(body: Any) -> None:
    assert reason(body).isidentifier()


@given(bent(ANSWER))
def test_a_bent_answer_is_a_completion_or_a_model_failure(body: Any) -> None:
    try:
        completion = read(body)
    except ModelFailed:
        return
    assert completion.content or completion.finish_reason != "stop"
    assert SONNET.read_canary(answered(body)).ok


def test_the_question_about_the_model_proves_the_route() -> None:
    (call,) = SONNET.probe_calls()
    assert (call.method, call.url) == ("GET", "https://api.anthropic.com/v1/models/claude-sonnet-4-6")
    assert dict(call.headers)["x-api-key"] == KEY
    told = {"type": "model", "id": "claude-sonnet-4-6", "display_name": "Claude Sonnet 4.6", "lifecycle": "active"}
    assert SONNET.read_probe([answered(told)]).ok
    assert SONNET.read_probe([answered(told | {"id": "claude-sonnet-4-6-20260217"})]).ok


def test_a_name_is_encoded_in_a_path() -> None:
    (call,) = AnthropicAdapter("https://a.example", "a/../b?c", KEY).probe_calls()
    assert call.url == "https://a.example/v1/models/a%2F..%2Fb%3Fc"


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({"type": "model", "id": "claude-opus-4-8"}, 200, "wrong_model"),
        ({"type": "model", "id": "claude-sonnet-4-6", "lifecycle": "retired"}, 200, "model_retired"),
        ({}, 200, "malformed_answer"),
        ([], 200, "malformed_answer"),
        ({"type": "error", "error": {"type": "invalid_request_error"}}, 400, "status_400"),
        ({"type": "error", "error": {"type": "authentication_error"}}, 401, "status_401"),
        ({"type": "error", "error": {"type": "not_found_error"}}, 404, "status_404"),
    ],
)
def test_nothing_else_is_health(body: Any, status: int, word: str) -> None:
    finding = SONNET.read_probe([answered(body, status)])
    assert (finding.ok, finding.reason) == (False, word)
    assert not SONNET.read_probe([]).ok


def test_a_canary_asks_for_sixteen_tokens_and_may_be_cut_off() -> None:
    assert body_of(OPUS.canary())["max_tokens"] == 16
    assert OPUS.lacks(Prompt("m", (Message("user", body_of(OPUS.canary())["messages"][0]["content"]),), 16)) is None
    assert SONNET.read_canary(answered(ANSWER | {"content": [], "stop_reason": "max_tokens"})).ok
    assert SONNET.read_canary(answered(ANSWER | {"content": []})).reason == "empty_content"


def test_the_key_shows_nowhere_but_in_its_header() -> None:
    call = SONNET.plan(PROMPT, timeout_s=1)
    assert KEY not in repr(SONNET)
    assert KEY not in call.url
    assert KEY.encode() not in call.content
