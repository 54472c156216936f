"""Google's generateContent, by answers as its API gives them."""

from __future__ import annotations

from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given

from gateway.registry.ai.adapter import Completion, ModelFailed, Usage
from gateway.registry.ai.gemini import CONFIGURATION, MEMBERS, GeminiAdapter
from gateway.registry.ai.prompt import Message, Prompt, ResponseFormat, Sampling
from gateway.registry.call_evidence import Weight
from gateway.registry.http_call import HttpCall
from gateway.world.ai_formats import Gemini
from gateway.world.door import Call
from tests.registry.ai.model_answers import ASKED, JSON_PROMPT, KEY, PROMPT, answered, bent, json_values, prompts

GEMINI = GeminiAdapter("https://generativelanguage.googleapis.com", "gemini-3.1-pro-preview", KEY)
FLASH = attrs.evolve(GEMINI, upstream_model="gemini-2.5-flash-lite")
URL = "https://generativelanguage.googleapis.com/v1beta/models/gemini-3.1-pro-preview"
PARTS = [{"text": "The user greets me.", "thought": True}, {"text": "Hel"}, {"text": "lo.", "thoughtSignature": "c2ln"}]
ANSWER: dict[str, Any] = {
    "candidates": [{"content": {"parts": PARTS, "role": "model"}, "finishReason": "STOP", "index": 0}],
    "usageMetadata": {
        "promptTokenCount": 20,
        "candidatesTokenCount": 3,
        "thoughtsTokenCount": 40,
        "cachedContentTokenCount": 8,
        "totalTokenCount": 63,
    },
    "modelVersion": "gemini-3.1-pro-preview",
    "responseId": "resp-1",
}


def with_candidate(**change: Any) -> dict[str, Any]:
    return ANSWER | {"candidates": [ANSWER["candidates"][0] | change]}


def with_parts(*parts: Any) -> dict[str, Any]:
    return with_candidate(content={"role": "model", "parts": list(parts)})


def read(body: Any, status: int = 200, prompt: Prompt = PROMPT) -> Completion:
    return GEMINI.read(prompt, answered(body, status))


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


def test_a_prompt_is_asked_with_the_key_in_a_header() -> None:
    call = GEMINI.plan(PROMPT, timeout_s=42.0)
    assert (call.method, call.url, call.timeout_s) == ("POST", f"{URL}:generateContent", 42.0)
    assert dict(call.headers)["x-goog-api-key"] == KEY
    assert body_of(call) == {
        "contents": [{"role": "user", "parts": [{"text": ASKED}]}],
        "generationConfig": {"maxOutputTokens": 64},
    }


@pytest.mark.parametrize("base_url", ["https://g.example", "https://g.example/", "https://g.example/v1beta"])
def test_the_address_is_taken_with_or_without_its_version(base_url: str) -> None:
    assert GeminiAdapter(base_url, "m", KEY).probe_calls()[0].url == "https://g.example/v1beta/models/m"


def test_a_name_is_encoded_in_a_path() -> None:
    adapter = GeminiAdapter("https://g.example", "../files?x=y:delete#", KEY)
    assert adapter.plan(PROMPT, timeout_s=1).url == (
        "https://g.example/v1beta/models/..%2Ffiles%3Fx%3Dy%3Adelete%23:generateContent"
    )


def test_system_messages_are_the_system_instruction() -> None:
    body = body_of(GEMINI.plan(chat(("system", "Be kind."), ("system", "Be brief."), ("user", "hi")), timeout_s=1))
    assert body["systemInstruction"] == {"parts": [{"text": "Be kind."}, {"text": "Be brief."}]}
    assert body["contents"] == [{"role": "user", "parts": [{"text": "hi"}]}]


def test_turns_of_one_role_in_a_row_become_the_parts_of_one() -> None:
    turns = [("user", "a"), ("user", "b"), ("assistant", "c"), ("assistant", "d"), ("user", "e")]
    assert GEMINI.lacks(chat(*turns)) is None
    assert body_of(GEMINI.plan(chat(*turns), timeout_s=1))["contents"] == [
        {"role": "user", "parts": [{"text": "a"}, {"text": "b"}]},
        {"role": "model", "parts": [{"text": "c"}, {"text": "d"}]},
        {"role": "user", "parts": [{"text": "e"}]},
    ]


@pytest.mark.parametrize("turns", [[("assistant", "a"), ("user", "b")], [("user", "a"), ("assistant", "b")]])
def test_a_chat_that_the_assistant_begins_or_ends_is_left_to_other_routes(turns: list[tuple[str, str]]) -> None:
    assert GEMINI.lacks(chat(*turns)) == "turn_order_unsupported"


@given(prompts)
def test_a_body_holds_nothing_that_is_not_on_the_list(prompt: Prompt) -> None:
    body = body_of(GEMINI.plan(prompt, timeout_s=1))
    assert body.keys() <= MEMBERS
    assert body["generationConfig"].keys() <= CONFIGURATION
    assert None not in body["generationConfig"].values()


@given(prompts)
def test_a_strict_server_takes_every_body_of_a_prompt_that_nothing_is_lacking_of(prompt: Prompt) -> None:
    if FLASH.lacks(prompt) is None:
        call = FLASH.plan(prompt, timeout_s=1)
        path = call.url.removeprefix("https://generativelanguage.googleapis.com")
        asked = Gemini().asked(Call("POST", path, {}, dict(call.headers), call.content), FLASH.upstream_model)
        assert asked.json == prompt.response_format.json


@pytest.mark.parametrize(
    ("wish", "word"),
    [
        ({"seed": 2**31 - 1}, None),
        ({"seed": 2**31}, "seed_unsupported"),
        ({"seed": -(2**31) - 1}, "seed_unsupported"),
        ({"presence_penalty": 0.5}, "presence_penalty_unsupported"),
        ({"frequency_penalty": 0.5}, "frequency_penalty_unsupported"),
        ({"presence_penalty": 0, "frequency_penalty": 0}, None),
        ({"reasoning_effort": "low"}, "reasoning_effort_unsupported"),
        ({"temperature": 2, "top_p": 0.5, "stop": ("x",)}, None),
    ],
)
def test_what_the_api_cannot_honour_is_lacking(wish: dict[str, Any], word: str | None) -> None:
    assert GEMINI.lacks(asking(**wish)) == word


def test_sampling_that_was_asked_for_is_passed_on() -> None:
    body = body_of(GEMINI.plan(asking(temperature=0.5, top_p=0.25, seed=7, stop=("x", "y")), timeout_s=1))
    assert body["generationConfig"] == {
        "maxOutputTokens": 64,
        "temperature": 0.5,
        "topP": 0.25,
        "seed": 7,
        "stopSequences": ["x", "y"],
    }


@pytest.mark.parametrize(
    ("schema", "member"),
    [
        ({"type": "object"}, "responseSchema"),
        ({"type": "object", "additionalProperties": False}, "responseJsonSchema"),
    ],
)
def test_a_schema_goes_where_it_is_enforced(schema: dict[str, Any], member: str) -> None:
    prompt = attrs.evolve(PROMPT, response_format=ResponseFormat("json_schema", schema=schema))
    assert GEMINI.lacks(prompt) is None
    configuration = body_of(GEMINI.plan(prompt, timeout_s=1))["generationConfig"]
    assert configuration == {"maxOutputTokens": 64, "responseMimeType": "application/json", member: schema}


def test_what_is_told_of_a_schema_stands_in_it() -> None:
    wished = ResponseFormat("json_schema", schema={"type": "object"}, description="A person.")
    told = body_of(GEMINI.plan(attrs.evolve(PROMPT, response_format=wished), timeout_s=1))["generationConfig"]
    assert told["responseSchema"] == {"type": "object", "description": "A person."}


def test_json_without_a_schema_is_a_media_type() -> None:
    configuration = body_of(GEMINI.plan(JSON_PROMPT, timeout_s=1))["generationConfig"]
    assert configuration == {"maxOutputTokens": 64, "responseMimeType": "application/json"}


def test_a_schema_that_would_not_be_enforced_whole_is_lacking() -> None:
    wished = ResponseFormat("json_schema", schema={"not": {"type": "string"}})
    assert GEMINI.lacks(attrs.evolve(PROMPT, response_format=wished)) == "json_schema_unsupported"


def test_a_completion_is_read_without_thoughts_which_are_billed_as_output() -> None:
    assert read(ANSWER) == Completion(
        content="Hello.",
        finish_reason="stop",
        usage=Usage(20, 43, reasoning_tokens=40, cached_tokens=8),
        upstream_model="gemini-3.1-pro-preview",
        upstream_id="resp-1",
    )


def test_a_count_of_zero_which_the_api_leaves_out_is_zero() -> None:
    cut_off = {"promptTokenCount": 20, "thoughtsTokenCount": 16, "totalTokenCount": 36}
    assert read(ANSWER | {"usageMetadata": cut_off}).usage == Usage(20, 16, reasoning_tokens=16)


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        {"candidatesTokenCount": 3},
        {"promptTokenCount": "20"},
        {"promptTokenCount": 1, "candidatesTokenCount": None},
        3,
    ],
)
def test_usage_that_was_not_told_is_none(usage: Any) -> None:
    assert read(ANSWER | {"usageMetadata": usage}).usage is None


@pytest.mark.parametrize(
    ("told", "finish"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("BLOCKLIST", "content_filter"),
        ("PROHIBITED_CONTENT", "content_filter"),
        ("SPII", "content_filter"),
    ],
)
def test_every_end_of_a_completion_is_told_in_openais_words(told: str, finish: str) -> None:
    assert read(with_candidate(finishReason=told)).finish_reason == finish


@pytest.mark.parametrize("told", ["MAX_TOKENS", "SAFETY"])
@pytest.mark.parametrize("content", [None, {"role": "model"}, {"parts": []}])
def test_one_that_ended_before_its_first_word_has_answered_nothing(told: str, content: Any) -> None:
    with pytest.raises(ModelFailed, match="no_text"):
        read(with_candidate(finishReason=told, content=content))


def test_a_prompt_that_was_blocked_is_answered_with_nothing() -> None:
    blocked = {
        "promptFeedback": {"blockReason": "PROHIBITED_CONTENT"},
        "usageMetadata": {"promptTokenCount": 20, "totalTokenCount": 20},
        "modelVersion": "gemini-3.1-pro-preview",
    }
    with pytest.raises(ModelFailed, match="no_text"):
        read(blocked)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (ANSWER | {"candidates": []}, "empty_choices"),
        ({"modelVersion": "gemini-3.1-pro-preview"}, "empty_choices"),
        ({"promptFeedback": {}}, "empty_choices"),
        (ANSWER | {"candidates": {"a": 1}}, "malformed_answer"),
        (ANSWER | {"candidates": ["Hello."]}, "malformed_answer"),
        (with_candidate(finishReason=None), "malformed_answer"),
        (with_candidate(finishReason="OTHER"), "unfinished"),
        (with_candidate(finishReason="LANGUAGE"), "unfinished"),
        (with_candidate(finishReason="MALFORMED_FUNCTION_CALL"), "tool_call"),
        (with_candidate(finishReason="UNEXPECTED_TOOL_CALL"), "tool_call"),
        (with_candidate(finishReason="TOO_MANY_TOOL_CALLS"), "tool_call"),
        (with_parts({"functionCall": {"name": "f", "args": {}}}), "tool_call"),
        (with_parts(), "empty_content"),
        (with_parts({"text": "hm", "thought": True}), "empty_content"),
        (ANSWER | {"modelVersion": "gemini-2.5-flash"}, "wrong_model"),
        (ANSWER | {"modelVersion": "gemini-3.1-pro-preview-customtools"}, "wrong_model"),
        ([ANSWER], "malformed_answer"),
    ],
)
def test_each_cause_of_a_failure_has_its_own_word(body: Any, word: str) -> None:
    assert reason(body) == word


def test_a_stable_version_is_the_model_that_was_asked() -> None:
    adapter = attrs.evolve(GEMINI, upstream_model="gemini-2.0-flash")
    completion = adapter.read(PROMPT, answered(ANSWER | {"modelVersion": "gemini-2.0-flash-001"}))
    assert completion.upstream_model == "gemini-2.0-flash-001"


@pytest.mark.parametrize(
    ("error", "reason", "weight"),
    [
        ({"code": 400, "message": "Invalid JSON", "status": "INVALID_ARGUMENT"}, "status_400", Weight.NOTHING),
        ({"code": 400, "message": "API key not valid.", "status": "INVALID_ARGUMENT"}, "route_refused", Weight.PROOF),
        ({"code": 403, "message": "x", "status": "PERMISSION_DENIED"}, "status_403", Weight.FAULT),
        ({"code": 404, "message": "x", "status": "NOT_FOUND"}, "status_404", Weight.PROOF),
        ({"code": 429, "message": "x", "status": "RESOURCE_EXHAUSTED"}, "status_429", Weight.PROOF),
        ({"code": 503, "message": "x", "status": "UNAVAILABLE"}, "status_503", Weight.FAULT),
    ],
)
def test_refusals_are_told_apart(error: dict[str, Any], reason: str, weight: Weight) -> None:
    with pytest.raises(ModelFailed) as failed:
        read({"error": error}, error["code"])
    assert (failed.value.reason, failed.value.weight) == (reason, weight)
    assert failed.value.detail == f"answered {error['code']} ({error['status']})"


def test_the_wait_that_the_quota_asks_for_is_told() -> None:
    told = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "13s"}
    with pytest.raises(ModelFailed) as failed:
        read({"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": [told]}}, 429)
    assert failed.value.retry_after == 13.0


@given(json_values)
def test_json_at_random_is_a_model_failure(body: Any) -> None:
    assert reason(body).isidentifier()


@given(bent(ANSWER))
def test_a_bent_answer_is_a_completion_or_a_model_failure(body: Any) -> None:
    try:
        completion = read(body)
    except ModelFailed:
        return
    assert completion.content.strip()
    assert GEMINI.read_canary(answered(body)).reason in {None, "limit_ignored"}  # it asks for fewer tokens


def test_the_question_about_the_model_proves_the_route() -> None:
    (call,) = GEMINI.probe_calls()
    assert (call.method, call.url) == ("GET", URL)
    told = {"name": "models/gemini-3.1-pro-preview", "supportedGenerationMethods": ["generateContent", "countTokens"]}
    assert GEMINI.read_probe([answered(told)]).ok


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({"name": "models/gemini-2.5-flash"}, 200, "wrong_model"),
        ({"name": "models/gemini-3.1-pro-preview", "supportedGenerationMethods": ["x"]}, 200, "model_without_chat"),
        ({}, 200, "malformed_answer"),
        ({"error": {"code": 400, "message": "API key not valid.", "status": "INVALID_ARGUMENT"}}, 400, "route_refused"),
        ({"error": {"code": 404, "status": "NOT_FOUND"}}, 404, "status_404"),
    ],
)
def test_nothing_else_is_health(body: Any, status: int, word: str) -> None:
    finding = GEMINI.read_probe([answered(body, status)])
    assert (finding.ok, finding.reason) == (False, word)
    assert not GEMINI.read_probe([]).ok


@pytest.mark.parametrize(
    ("model", "thinking"),
    [
        ("gemini-2.5-flash-lite", {"thinkingBudget": 0}),
        ("gemini-2.5-pro", None),
        ("gemini-3.1-pro-preview", {"thinkingLevel": "low"}),
        ("gemini-2.0-flash", None),
        ("gemma-4-31b-it", None),
    ],
)
def test_a_canary_asks_for_sixteen_tokens_with_the_least_thinking_that_the_family_takes(
    model: str, thinking: dict[str, Any] | None
) -> None:
    configuration = body_of(attrs.evolve(GEMINI, upstream_model=model).canary())["generationConfig"]
    assert configuration == {"maxOutputTokens": 16} | ({"thinkingConfig": thinking} if thinking else {})
    assert configuration.keys() <= CONFIGURATION


def test_a_canary_that_spent_its_tokens_on_thoughts_is_health() -> None:
    assert GEMINI.read_canary(answered(with_candidate(content={"role": "model"}, finishReason="MAX_TOKENS"))).ok
    assert GEMINI.read_canary(answered(ANSWER | {"candidates": []})).reason == "empty_choices"


def test_the_key_shows_nowhere_but_in_its_header() -> None:
    call = GEMINI.plan(PROMPT, timeout_s=1)
    assert KEY not in repr(GEMINI)
    assert KEY not in call.url
    assert KEY.encode() not in call.content
