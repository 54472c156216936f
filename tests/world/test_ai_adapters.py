"""The adapters of the registry against the simulated upstream: what the one sends the other takes, and the reverse."""

from __future__ import annotations

import json
from itertools import product
from typing import Any
from urllib.parse import unquote, urlsplit

import attrs
import pytest

from gateway.registry.ai.adapter import LEAST_CANARY_TOKENS, ModelAdapter, ModelFailed
from gateway.registry.ai.anthropic import AnthropicAdapter
from gateway.registry.ai.gemini import GeminiAdapter
from gateway.registry.ai.openai import OpenAiAdapter
from gateway.registry.ai.prompt import Message, Prompt, ResponseFormat, Sampling
from gateway.registry.call_evidence import Weight
from gateway.registry.http_call import HttpAnswer, HttpCall
from gateway.world.ai_upstream import CALLS, AiUpstream
from gateway.world.door import Call, Reply
from gateway.world.faults import AI_MODES, Faults

URL, KEY = "http://127.0.0.1:1/ai", "sk-simulated"
ADAPTERS: dict[str, ModelAdapter] = {
    "luna": OpenAiAdapter(URL, "gpt-5.6-luna", KEY),
    "nano": OpenAiAdapter(f"{URL}/v1", "gpt-5-nano", KEY),
    "gpt-oss": OpenAiAdapter(URL, "gpt-oss-20b", KEY),
    "sonnet": AnthropicAdapter(URL, "claude-sonnet-4-6", KEY),
    "opus": AnthropicAdapter(URL, "claude-opus-4-8", KEY),
    "gemini": GeminiAdapter(URL, "gemini-3.1-pro-preview", KEY),
    "flash": GeminiAdapter(URL, "gemini-2.5-flash-lite", KEY),
}
PROMPT = Prompt(
    "openai/gpt-5.6-luna",
    (
        Message("system", "Be brief."),
        Message("user", "Why is the sky blue?"),
        Message("assistant", "Light."),
        Message("user", "And red at dusk?"),
    ),
    200,
)
each_adapter = pytest.mark.parametrize("name", list(ADAPTERS))


async def ask(upstream: AiUpstream, call: HttpCall) -> HttpAnswer:
    parts = urlsplit(call.url)
    path = unquote(parts.path).removeprefix("/ai")
    reply = await upstream.answer(Call(call.method, path, {}, dict(call.headers), call.content))
    assert isinstance(reply, Reply)
    return HttpAnswer(reply.status, dict(reply.headers), reply.body, 1)


def upstream(mode: str = "ok") -> tuple[AiUpstream, Faults]:
    faults = Faults({"ai": AI_MODES}, {"ai": CALLS})
    faults.set("ai", mode)
    return AiUpstream(faults, KEY), faults


@each_adapter
async def test_a_chat_is_served_with_its_usage(name: str) -> None:
    adapter = ADAPTERS[name]
    completion = adapter.read(PROMPT, await ask(upstream()[0], adapter.plan(PROMPT, timeout_s=5)))
    assert "And red at dusk?" in completion.content
    assert completion.finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.input_tokens > 10
    assert 0 < completion.usage.output_tokens <= PROMPT.max_output_tokens
    assert completion.upstream_model == adapter.upstream_model


@each_adapter
async def test_a_chat_is_cut_where_its_tokens_end(name: str) -> None:
    adapter, prompt = ADAPTERS[name], attrs.evolve(PROMPT, max_output_tokens=20)
    completion = adapter.read(prompt, await ask(upstream()[0], adapter.plan(prompt, timeout_s=5)))
    assert (completion.finish_reason, completion.usage and completion.usage.output_tokens) == ("length", 20)


SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.5),
    Sampling(top_p=0.5, stop=("zebra",)),
    Sampling(seed=7),
    Sampling(presence_penalty=0.5, frequency_penalty=0.5),
    Sampling(reasoning_effort="low"),
]
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
FORMATS = [ResponseFormat(), ResponseFormat("json_object"), ResponseFormat("json_schema", schema=SCHEMA)]


@each_adapter
async def test_whatever_an_adapter_does_not_lack_is_taken(name: str) -> None:
    adapter = ADAPTERS[name]
    served = 0
    for sampling, form in product(SAMPLINGS, FORMATS):
        prompt = attrs.evolve(PROMPT, sampling=sampling, response_format=form)
        if adapter.lacks(prompt) is not None:
            continue
        completion = adapter.read(prompt, await ask(upstream()[0], adapter.plan(prompt, timeout_s=5)))
        served += 1
        if form.json:
            assert isinstance(json.loads(completion.content), dict)
    assert served


@each_adapter
async def test_a_probe_is_unbilled_and_proves_the_model(name: str) -> None:
    adapter, (asked, faults) = ADAPTERS[name], upstream()
    answers = [await ask(asked, call) for call in adapter.probe_calls()]
    assert adapter.read_probe(answers).ok
    assert faults.state()["ai"] == {"completions": 0, "listings": len(answers), "aborted": 0}


@each_adapter
async def test_a_canary_of_few_tokens_proves_also_a_model_that_reasons(name: str) -> None:
    adapter, (asked, _) = ADAPTERS[name], upstream()
    answer = await ask(asked, adapter.canary())
    assert str(LEAST_CANARY_TOKENS).encode() in adapter.canary().content
    assert adapter.read_canary(answer).ok


@each_adapter
async def test_a_key_that_is_refused_is_no_health(name: str) -> None:
    adapter = ADAPTERS[name]
    asked = AiUpstream(Faults({"ai": AI_MODES}, {}), "another key")
    answers = [await ask(asked, call) for call in adapter.probe_calls()]
    assert (adapter.read_probe(answers).ok, adapter.read_probe(answers).reason) == (False, "status_401")


@each_adapter
@pytest.mark.parametrize(
    ("mode", "reasons", "listed"),
    [
        ("http_500", {"status_500"}, False),
        ("http_429", {"status_429"}, False),
        ("empty_choices", {"empty_choices", "empty_content"}, True),
        ("wrong_model", {"wrong_model"}, True),
        ("invalid_json", {"malformed_answer"}, True),
    ],
)
async def test_every_fault_is_told_apart_and_says_something_of_the_route(
    name: str, mode: str, reasons: set[str], listed: bool
) -> None:
    adapter, (asked, _) = ADAPTERS[name], upstream(mode)
    with pytest.raises(ModelFailed) as failed:
        adapter.read(PROMPT, await ask(asked, adapter.plan(PROMPT, timeout_s=5)))
    assert failed.value.reason in reasons
    assert failed.value.weight is not Weight.NOTHING
    assert failed.value.retry_after == (1.0 if mode == "http_429" else None)
    assert adapter.read_probe([await ask(asked, call) for call in adapter.probe_calls()]).ok is listed
