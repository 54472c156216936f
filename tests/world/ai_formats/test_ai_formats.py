from __future__ import annotations

from functools import partial
from typing import Any

import orjson
import pytest

from gateway.world.ai_formats import Anthropic, Format, Gemini, OpenAi, Refused
from gateway.world.ai_text import Answer, Asked
from gateway.world.door import Call

VERSION = {"anthropic-version": "2023-06-01"}
MESSAGES = [{"role": "user", "content": "hello"}]
CONTENTS = [{"role": "user", "parts": [{"text": "hel"}, {"text": "lo"}]}]
ANSWER = Answer("ab12", "a text", "stop", 7, 20, 12)
CUT = Answer("ab12", "", "length", 7, 16, 12)


def read(format_: Format, body: Any, *, model: str = "", headers: dict[str, str] = VERSION) -> Asked:
    return format_.asked(Call("POST", "/", {}, headers, orjson.dumps(body)), model)


def openai(**members: Any) -> Asked:
    return read(OpenAi(), {"model": "gpt-5.6-luna", "messages": MESSAGES} | members)


def anthropic(**members: Any) -> Asked:
    return read(Anthropic(), {"model": "claude-sonnet-4-6", "messages": MESSAGES, "max_tokens": 9} | members)


def gemini(model: str = "gemini-2.5-flash-lite", contents: Any = CONTENTS, **configuration: Any) -> Asked:
    return read(Gemini(), {"contents": contents, "generationConfig": configuration}, model=model)


def test_a_chat_of_openai_is_read() -> None:
    system = {"role": "system", "content": "be brief"}
    asked = openai(
        messages=[system, *MESSAGES], max_completion_tokens=5, stop="x", temperature=0.5, n=1, stream=False, seed=1
    )
    assert asked == Asked("gpt-5.6-luna", ("be brief", "hello"), 5, stop=("x",))


def test_a_chat_of_anthropic_is_read() -> None:
    blocks = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    asked = anthropic(system="be brief", messages=[{"role": "user", "content": blocks}], stop_sequences=["x", "y"])
    assert asked == Asked("claude-sonnet-4-6", ("be brief", "hello"), 9, stop=("x", "y"))


def test_a_chat_of_gemini_is_read() -> None:
    body = {
        "systemInstruction": {"parts": [{"text": "be brief"}]},
        "contents": CONTENTS,
        "generationConfig": {"maxOutputTokens": 9, "stopSequences": ["x"]},
    }
    asked = read(Gemini(), body, model="gemini-2.5-flash-lite")
    assert asked == Asked("gemini-2.5-flash-lite", ("be brief", "hello"), 9, stop=("x",))


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize(
    ("asked", "schema"),
    [
        (openai(response_format={"type": "json_object"}), None),
        (openai(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}), SCHEMA),
        (anthropic(output_config={"format": {"type": "json_schema", "schema": SCHEMA}}), SCHEMA),
        (gemini(responseMimeType="application/json"), None),
        (gemini(responseMimeType="application/json", responseSchema=SCHEMA), SCHEMA),
        (gemini(responseMimeType="application/json", responseJsonSchema=SCHEMA), SCHEMA),
    ],
)
def test_json_is_asked_for_in_each_format(asked: Asked, schema: object) -> None:
    assert (asked.json, asked.schema) == (True, schema)


def test_text_is_what_is_asked_for_else() -> None:
    assert not openai(response_format={"type": "text"}).json
    assert not any(asked.json for asked in (openai(), anthropic(), gemini()))


def test_reasoning_can_be_switched_off_in_each_format() -> None:
    for on, off in (
        (openai(model="gpt-5-nano"), openai(model="gpt-5-nano", reasoning_effort="none")),
        (
            anthropic(model="claude-opus-4-8", max_tokens=16),
            anthropic(model="claude-opus-4-8", max_tokens=16, thinking={"type": "disabled"}),
        ),
        (gemini("gemini-3.1-pro-preview"), gemini("gemini-3.1-pro-preview", thinkingConfig={"thinkingBudget": 0})),
    ):
        assert (on.reasons, off.reasons) == (True, False)


@pytest.mark.parametrize("most", [1, 15])
def test_a_model_that_reasons_refuses_less_room_than_16_tokens(most: int) -> None:
    assert openai(max_completion_tokens=most).most_tokens == most
    for ask in (
        partial(openai, model="gpt-5-nano", max_completion_tokens=most),
        partial(anthropic, model="claude-opus-4-8", max_tokens=most),
        partial(gemini, "gemini-3.1-pro-preview", maxOutputTokens=most),
    ):
        with pytest.raises(Refused, match="value >= 16"):
            ask()
    assert openai(model="gpt-5-nano", max_completion_tokens=16).most_tokens == 16


@pytest.mark.parametrize(
    ("members", "parameter"),
    [
        ({"tools": []}, "tools"),
        ({"stream": True}, "stream"),
        ({"n": 2}, "n"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens"),
        ({"max_completion_tokens": "5"}, "max_completion_tokens"),
        ({"max_completion_tokens": True}, "max_completion_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": ["hello"]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": "x", "names": "me"}]}, "messages[0].names"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": "json"}, "response_format.type"),
        ({"stop": [1]}, "stop"),
    ],
)
def test_openai_refuses_what_it_does_not_know_and_names_it(members: dict[str, Any], parameter: str) -> None:
    with pytest.raises(Refused) as refused:
        openai(**members)
    assert refused.value.parameter == parameter
    assert OpenAi().error(refused.value)["error"]["param"] == parameter


def test_anthropic_refuses_what_it_does_not_know() -> None:
    for members in (
        {"response_format": {"type": "json_object"}},
        {"messages": [{"role": "system", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
        {"output_config": {"format": {"type": "json_object"}}},
        {"thinking": "off"},
    ):
        with pytest.raises(Refused):
            anthropic(**members)
    body = {"model": "claude-sonnet-4-6", "messages": MESSAGES}
    with pytest.raises(Refused, match="max_tokens"):
        read(Anthropic(), body)
    with pytest.raises(Refused, match="anthropic-version"):
        read(Anthropic(), body | {"max_tokens": 5}, headers={})


def test_gemini_refuses_what_it_does_not_know() -> None:
    for contents in ([{"role": "assistant", "parts": [{"text": "x"}]}], [{"role": "user", "parts": [{"data": "x"}]}]):
        with pytest.raises(Refused):
            gemini(contents=contents)
    for ask in (partial(gemini, candidateCount=2), partial(gemini, max_tokens=5)):
        with pytest.raises(Refused):
            ask()
    with pytest.raises(Refused, match="model"):
        read(Gemini(), {"contents": CONTENTS, "model": "x"}, model="gemini-2.5-flash-lite")


def test_usage_is_told_in_the_words_of_each_format() -> None:
    told = OpenAi().completion("m", ANSWER)["usage"]
    assert (told["prompt_tokens"], told["completion_tokens"], told["total_tokens"]) == (7, 20, 27)
    assert told["completion_tokens_details"]["reasoning_tokens"] == 12
    told = Anthropic().completion("m", ANSWER)["usage"]
    assert (told["input_tokens"], told["output_tokens"]) == (7, 20)
    told = Gemini().completion("m", ANSWER)["usageMetadata"]
    assert (told["promptTokenCount"], told["candidatesTokenCount"], told["thoughtsTokenCount"]) == (7, 8, 12)


def test_the_end_of_an_answer_is_told_in_the_words_of_each_format() -> None:
    def ends(answer: Answer) -> tuple[str, ...]:
        return (
            OpenAi().completion("m", answer)["choices"][0]["finish_reason"],
            Anthropic().completion("m", answer)["stop_reason"],
            Gemini().completion("m", answer)["candidates"][0]["finishReason"],
        )

    assert ends(ANSWER) == ("stop", "end_turn", "STOP")
    assert ends(CUT) == ("length", "max_tokens", "MAX_TOKENS")


def test_an_answer_without_text_is_as_empty_as_each_provider_makes_it() -> None:
    assert OpenAi().completion("m", CUT)["choices"][0]["message"]["content"] == ""
    assert Anthropic().completion("m", CUT)["content"] == []
    assert "parts" not in Gemini().completion("m", CUT)["candidates"][0]["content"]


@pytest.mark.parametrize(
    ("status", "kinds"),
    [
        (400, ("invalid_request_error", "invalid_request_error", "INVALID_ARGUMENT")),
        (401, ("invalid_request_error", "authentication_error", "UNAUTHENTICATED")),
        (404, ("invalid_request_error", "not_found_error", "NOT_FOUND")),
        (429, ("requests", "rate_limit_error", "RESOURCE_EXHAUSTED")),
        (500, ("server_error", "api_error", "INTERNAL")),
    ],
)
def test_errors_are_told_in_the_words_of_each_format(status: int, kinds: tuple[str, str, str]) -> None:
    refused = Refused("no", status=status)
    assert (
        OpenAi().error(refused)["error"]["type"],
        Anthropic().error(refused)["error"]["type"],
        Gemini().error(refused)["error"]["status"],
    ) == kinds
