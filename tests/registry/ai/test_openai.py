"""OpenAI's chat completions, by answers as OpenAI, vLLM, llama.cpp, Ollama and OpenRouter give them."""

from __future__ import annotations

from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming

from gateway.registry.ai.adapter import Completion, ModelFailed, Usage
from gateway.registry.ai.openai import MEMBERS, OpenAiAdapter
from gateway.registry.ai.prompt import Prompt, ResponseFormat, Sampling
from gateway.registry.http_call import HttpCall
from gateway.world.ai_formats import OpenAi
from gateway.world.door import Call
from tests.registry.ai.model_answers import ASKED, KEY, PROMPT, answered, bent, json_values, prompts

OPENAI = OpenAiAdapter("https://api.openai.com/v1", "gpt-5.6-luna", KEY)
OLLAMA = OpenAiAdapter("http://127.0.0.1:11434", "llama3.3")
OPENROUTER = OpenAiAdapter("https://openrouter.ai/api/v1", "openai/gpt-5.6-luna", KEY)
SERVERS = (OPENAI, OLLAMA, OPENROUTER)

MESSAGE: dict[str, Any] = {"role": "assistant", "content": "Hello.", "refusal": None, "annotations": []}
ANSWER: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1_783_600_000,
    "model": "gpt-5.6-luna-2026-07-09",
    "choices": [{"index": 0, "message": MESSAGE, "logprobs": None, "finish_reason": "stop"}],
    "usage": {
        "prompt_tokens": 20,
        "completion_tokens": 9,
        "total_tokens": 29,
        "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 7, "audio_tokens": 0},
    },
    "service_tier": "default",
}
LLAMA_CPP: dict[str, Any] = {
    "choices": [{"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "Hello."}}],
    "created": 1_783_600_000,
    "model": "/models/llama3.3.gguf",
    "object": "chat.completion",
    "usage": {"completion_tokens": 3, "prompt_tokens": 11, "total_tokens": 14},
    "id": "chatcmpl-2",
    "timings": {"prompt_n": 11},
}


def with_choice(message: dict[str, Any] | None = None, **choice: Any) -> dict[str, Any]:
    return ANSWER | {"choices": [ANSWER["choices"][0] | {"message": MESSAGE | (message or {})} | choice]}


def read(body: Any, status: int = 200, *, adapter: OpenAiAdapter = OPENAI, prompt: Prompt = PROMPT) -> Completion:
    return adapter.read(prompt, answered(body, status))


def reason(body: Any, status: int = 200, *, adapter: OpenAiAdapter = OPENAI) -> str:
    with pytest.raises(ModelFailed) as failed:
        read(body, status, adapter=adapter)
    return failed.value.reason


def body_of(call: HttpCall) -> dict[str, Any]:
    body: dict[str, Any] = orjson.loads(call.content)
    return body


def asking(**wishes: Any) -> Prompt:
    return attrs.evolve(PROMPT, sampling=Sampling(**wishes))


def test_a_prompt_is_asked_with_the_key_and_in_few_words() -> None:
    call = OPENAI.plan(PROMPT, timeout_s=42.0)
    assert (call.method, call.url, call.timeout_s) == ("POST", "https://api.openai.com/v1/chat/completions", 42.0)
    assert dict(call.headers)["authorization"] == f"Bearer {KEY}"
    assert body_of(call) == {
        "model": "gpt-5.6-luna",
        "messages": [{"role": "user", "content": ASKED}],
        "max_completion_tokens": 64,
    }


def test_a_server_that_asks_for_no_key_is_sent_none() -> None:
    assert "authorization" not in dict(OLLAMA.plan(PROMPT, timeout_s=1).headers)
    assert body_of(OLLAMA.plan(PROMPT, timeout_s=1))["max_tokens"] == 64


def test_an_answer_is_bounded() -> None:
    calls = [OPENAI.plan(PROMPT, timeout_s=1), OPENAI.canary(), *OPENAI.probe_calls()]
    assert {call.max_bytes for call in calls} == {4 * 2**20}


@given(prompts)
def test_a_body_holds_nothing_that_is_not_on_the_list(prompt: Prompt) -> None:
    for adapter in SERVERS:
        body = body_of(adapter.plan(prompt, timeout_s=1))
        assert body.keys() <= MEMBERS
        assert None not in body.values()
        assert "models" not in body
        assert len(body.keys() & {"max_tokens", "max_completion_tokens"}) == 1


def test_the_list_names_parameters_of_openais_api_and_two_of_openrouter() -> None:
    assert MEMBERS - CompletionCreateParamsNonStreaming.__annotations__.keys() == {"provider", "reasoning"}


@given(prompts)
def test_a_strict_server_takes_every_body(prompt: Prompt) -> None:
    adapter = OpenAiAdapter("http://127.0.0.1:1", "gpt-oss-20b")
    call = adapter.plan(prompt, timeout_s=1)
    asked = OpenAi().asked(Call("POST", "/v1/chat/completions", {}, dict(call.headers), call.content), "")
    assert asked.most_tokens == prompt.max_output_tokens


def test_sampling_that_was_asked_for_is_passed_on() -> None:
    wishes: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.25,
        "seed": 7,
        "presence_penalty": 1,
        "frequency_penalty": -1,
    }
    body = body_of(OLLAMA.plan(asking(**wishes, stop=("x", "y")), timeout_s=1))
    assert body.items() >= {**wishes, "stop": ["x", "y"]}.items()


def test_a_reasoning_model_of_openai_is_not_sent_the_defaults_that_it_refuses_by_name() -> None:
    prompt = asking(temperature=1, top_p=1, presence_penalty=0, frequency_penalty=0)
    assert OPENAI.lacks(prompt) is None
    assert body_of(OPENAI.plan(prompt, timeout_s=1)) == body_of(OPENAI.plan(PROMPT, timeout_s=1))


def test_what_a_server_would_refuse_is_lacking() -> None:
    assert OPENAI.lacks(asking(temperature=0.2)) == "temperature_unsupported"
    assert OLLAMA.lacks(asking(reasoning_effort="low")) == "reasoning_effort_unsupported"


def test_an_effort_is_told_in_the_servers_words() -> None:
    prompt = asking(reasoning_effort="low")
    assert body_of(OPENAI.plan(prompt, timeout_s=1))["reasoning_effort"] == "low"
    assert body_of(OPENROUTER.plan(prompt, timeout_s=1))["reasoning"] == {"effort": "low"}


def test_openrouter_is_told_to_fall_back_to_nobody() -> None:
    body = body_of(OPENROUTER.plan(PROMPT, timeout_s=1))
    assert body["provider"] == {"allow_fallbacks": False, "require_parameters": True}
    assert "provider" not in body_of(OPENAI.plan(PROMPT, timeout_s=1))


@pytest.mark.parametrize(
    ("wished", "told"),
    [
        (ResponseFormat(), None),
        (ResponseFormat("json_object"), {"type": "json_object"}),
        (
            ResponseFormat("json_schema", "person", {"type": "object"}, strict=True),
            {"type": "json_schema", "json_schema": {"name": "person", "schema": {"type": "object"}, "strict": True}},
        ),
        (
            ResponseFormat("json_schema", "a", {}, description="A person."),
            {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "description": "A person."}},
        ),
        (
            ResponseFormat("json_schema", "person", {"type": "object"}),
            {"type": "json_schema", "json_schema": {"name": "person", "schema": {"type": "object"}}},
        ),
    ],
)
def test_json_modes_are_passed_on(wished: ResponseFormat, told: Any) -> None:
    prompt = attrs.evolve(PROMPT, response_format=wished)
    assert body_of(OPENAI.plan(prompt, timeout_s=1)).get("response_format") == told


def test_a_completion_is_read_whole() -> None:
    assert read(ANSWER) == Completion(
        content="Hello.",
        finish_reason="stop",
        usage=Usage(20, 9, reasoning_tokens=7, cached_tokens=4),
        upstream_model="gpt-5.6-luna-2026-07-09",
        upstream_id="chatcmpl-1",
    )


def test_a_local_server_may_name_the_model_by_its_file() -> None:
    completion = read(LLAMA_CPP, adapter=OLLAMA)
    assert (completion.content, completion.usage) == ("Hello.", Usage(11, 3))


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        [],
        "20",
        {"prompt_tokens": 20},
        {"prompt_tokens": 20.0, "completion_tokens": 9},
        {"prompt_tokens": -1, "completion_tokens": 9},
        {"prompt_tokens": True, "completion_tokens": 9},
    ],
)
def test_usage_that_was_not_told_is_none_and_never_an_estimate(usage: Any) -> None:
    assert read(ANSWER | {"usage": usage}).usage is None


def test_usage_without_details_has_none() -> None:
    told = {"prompt_tokens": 20, "completion_tokens": 9, "completion_tokens_details": None}
    assert read(ANSWER | {"usage": told}).usage == Usage(20, 9)


@pytest.mark.parametrize("content", ["", None])
def test_a_model_that_spent_its_tokens_on_reasoning_has_answered_nothing(content: str | None) -> None:
    assert reason(with_choice({"content": content}, finish_reason="length")) == "no_text"


@pytest.mark.parametrize("content", ["", None, []])
def test_a_model_that_stopped_without_a_word_is_a_failure(content: Any) -> None:
    assert reason(with_choice({"content": content})) == "empty_content"


def test_text_parts_are_joined_without_thinking() -> None:
    parts = [{"type": "thinking", "thinking": []}, {"type": "text", "text": "Hel"}, {"type": "text", "text": "lo."}]
    assert read(with_choice({"content": parts})).content == "Hello."


def test_a_refusal_of_the_model_is_filtered_text() -> None:
    completion = read(with_choice({"content": None, "refusal": "I cannot."}))
    assert (completion.content, completion.finish_reason) == ("I cannot.", "content_filter")


def test_a_filtered_answer_is_told_as_such() -> None:
    assert read(with_choice({"content": "Well,"}, finish_reason="content_filter")).finish_reason == "content_filter"
    assert reason(with_choice({"content": None}, finish_reason="content_filter")) == "no_text"


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (ANSWER | {"choices": []}, "empty_choices"),
        (ANSWER | {"choices": None}, "malformed_answer"),
        (ANSWER | {"choices": {}}, "malformed_answer"),
        (ANSWER | {"choices": ["Hello."]}, "malformed_answer"),
        (ANSWER | {"choices": [{"finish_reason": "stop"}]}, "malformed_answer"),
        (with_choice({"content": 3}), "malformed_answer"),
        (with_choice(finish_reason=None), "malformed_answer"),
        (with_choice(finish_reason="abort"), "unfinished"),
        (with_choice(finish_reason="tool_calls"), "tool_call"),
        (with_choice(finish_reason="function_call"), "tool_call"),
        (with_choice({"tool_calls": [{"id": "call_1", "type": "function"}]}), "tool_call"),
        (with_choice({"function_call": {"name": "f"}}), "tool_call"),
        (ANSWER | {"model": "gpt-4o-mini-2024-07-18"}, "wrong_model"),
        (ANSWER | {"model": "gpt-5.6-luna-pro"}, "wrong_model"),
        (ANSWER | {"model": 3}, "malformed_answer"),
        (b"<html>502</html>", "malformed_answer"),
        (b"", "malformed_answer"),
        ([], "malformed_answer"),
    ],
)
def test_each_cause_of_a_failure_has_its_own_word(body: Any, word: str) -> None:
    assert reason(body) == word


def test_a_model_may_go_unnamed() -> None:
    assert read(with_choice() | {"model": None}).upstream_model is None


def test_another_models_answer_is_not_read_as_this_ones_whatever_it_says() -> None:
    assert reason(with_choice({"tool_calls": [{}]}) | {"model": "gpt-4o"}) == "wrong_model"


def test_the_paid_twin_of_a_free_model_is_another_model() -> None:
    adapter = OpenAiAdapter("https://openrouter.ai/api/v1", "deepseek/deepseek-r1:free", KEY)
    assert reason(ANSWER | {"model": "deepseek/deepseek-r1"}, adapter=adapter) == "wrong_model"
    assert read(ANSWER | {"model": "deepseek/deepseek-r1:free"}, adapter=adapter).content == "Hello."


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({"error": {"message": "Rate limit", "type": "requests", "code": "rate_limit_exceeded"}}, 429, "status_429"),
        ({"error": {"code": 402, "message": "Insufficient credits"}}, 402, "status_402"),
        ({"error": {"message": "x", "type": "server_error"}}, 500, "status_500"),
        ({"error": "model is loading"}, 503, "status_503"),
        (b"upstream connect error", 503, "status_503"),
        ({"error": {"code": 502, "message": "Provider returned error"}}, 200, "status_502"),
        (with_choice(error={"code": 504, "message": "x"}, finish_reason="error"), 200, "status_504"),
        (with_choice(finish_reason="error"), 200, "unfinished"),
    ],
)
def test_refusals_of_openai_and_openrouter_are_told_apart(body: Any, status: int, word: str) -> None:
    assert reason(body, status) == word


@given(json_values)
def test_json_at_random_is_a_model_failure(body: Any) -> None:
    assert reason(body).isidentifier()


@given(bent(ANSWER))
def test_a_bent_answer_is_a_completion_or_a_model_failure(body: Any) -> None:
    for adapter in SERVERS:
        try:
            completion = read(body, adapter=adapter)
        except ModelFailed:
            continue
        assert completion.content or completion.finish_reason != "stop"
        assert adapter.read_canary(answered(body)).ok


def test_a_listing_that_has_the_model_proves_the_route() -> None:
    (call,) = OPENAI.probe_calls()
    assert (call.method, call.url) == ("GET", "https://api.openai.com/v1/models")
    assert dict(call.headers)["authorization"] == f"Bearer {KEY}"
    listing = {"object": "list", "data": [{"id": "gpt-4o", "object": "model"}, {"id": "gpt-5.6-luna"}]}
    assert OPENAI.read_probe([answered(listing)]).ok


@pytest.mark.parametrize("name", ["llama3.3", "llama3.3:latest", "/models/llama3.3.gguf"])
def test_a_local_servers_listing_may_name_the_model_its_own_way(name: str) -> None:
    assert OLLAMA.read_probe([answered({"object": "list", "data": [{"id": name}]})]).ok


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({"data": []}, 200, "model_not_listed"),
        ({"data": [{"id": "gpt-5.6-luna-pro"}, {"id": None}, 3]}, 200, "model_not_listed"),
        ({"data": "gpt-5.6-luna"}, 200, "model_not_listed"),
        ({}, 200, "model_not_listed"),
        (b"ok", 200, "malformed_answer"),
        ({"error": {}}, 400, "status_400"),
        ({"error": {}}, 401, "status_401"),
        ({"error": {}}, 403, "status_403"),
        ({"error": {}}, 404, "status_404"),
        ({"error": {"code": 503, "message": "Loading model"}}, 503, "status_503"),
    ],
)
def test_nothing_else_is_health(body: Any, status: int, word: str) -> None:
    finding = OPENAI.read_probe([answered(body, status)])
    assert (finding.ok, finding.reason) == (False, word)


def test_openrouters_listing_is_public_so_its_key_is_proved_as_well() -> None:
    listing = answered({"data": [{"id": "openai/gpt-5.6-luna"}]})
    urls = [call.url for call in OPENROUTER.probe_calls()]
    assert urls == ["https://openrouter.ai/api/v1/models", "https://openrouter.ai/api/v1/key"]
    assert OPENROUTER.read_probe([listing, answered({"data": {"label": "x"}})]).ok
    assert OPENROUTER.read_probe([listing, answered({"error": {"code": 401}}, 401)]).reason == "status_401"
    assert not OPENROUTER.read_probe([listing]).ok


@given(json_values)
def test_any_listing_is_judged(body: Any) -> None:
    assert not OPENAI.read_probe([answered(body)]).ok or "gpt-5.6-luna" in str(body)


def test_a_canary_asks_for_sixteen_tokens_without_reasoning_where_that_can_be_said() -> None:
    assert body_of(OPENAI.canary()).items() >= {"max_completion_tokens": 16, "reasoning_effort": "none"}.items()
    nano = OpenAiAdapter("https://api.openai.com", "gpt-5-nano", KEY)
    assert body_of(nano.canary())["reasoning_effort"] == "minimal"
    assert body_of(OLLAMA.canary()).keys() == {"model", "messages", "max_tokens"}


def test_a_canary_that_was_cut_off_before_its_first_word_is_health() -> None:
    assert OPENAI.read_canary(answered(with_choice({"content": None}, finish_reason="length"))).ok


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({"error": {"code": "invalid_request_error"}}, 400, "status_400"),
        ({"error": {}}, 401, "status_401"),
        (ANSWER | {"choices": []}, 200, "empty_choices"),
        (ANSWER | {"model": "gpt-4o"}, 200, "wrong_model"),
    ],
)
def test_a_canary_is_judged_as_a_call_is(body: Any, status: int, word: str) -> None:
    assert OPENAI.read_canary(answered(body, status)).reason == word


def test_the_key_shows_nowhere_but_in_its_header() -> None:
    call = OPENAI.plan(PROMPT, timeout_s=1)
    assert KEY not in repr(OPENAI)
    assert KEY not in call.url
    assert KEY.encode() not in call.content
    with pytest.raises(ModelFailed) as failed:
        read({"error": {"message": KEY, "code": KEY, "type": KEY}}, 401)
    assert KEY not in repr(failed.value)
    assert KEY not in failed.value.detail
