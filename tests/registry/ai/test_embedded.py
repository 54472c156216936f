from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from gateway.registry.ai.adapter import LEAST_CANARY_TOKENS, ModelAdapter, ModelFailed
from gateway.registry.ai.embedded import SCHEMA_BYTES, SCHEMA_DEPTH, EmbeddedAdapter, Endpoint
from gateway.registry.ai.embedded_engine import MODEL
from gateway.registry.ai.prompt import Message, Prompt, ResponseFormat, Sampling
from gateway.registry.call_evidence import Weight
from gateway.registry.http_call import HttpAnswer
from gateway.registry.qualification import Finding

THERE = Endpoint("http://127.0.0.1:4711", "secret-key")
PROMPT = Prompt("huggingfacetb/smollm2-135m-instruct", (Message("user", "hi"),), 64)
HERE = EmbeddedAdapter(lambda: THERE)
AWAY = EmbeddedAdapter(lambda: "out_of_memory")


def answer(members: Any, status: int = 200) -> HttpAnswer:
    return HttpAnswer(status, {}, json.dumps(members).encode(), 5)


def completion(text: str = "Hello.", model: str = MODEL) -> HttpAnswer:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    return answer({"id": "c-1", "model": model, "choices": [choice], "usage": usage})


def by_schema(schema: dict[str, Any]) -> Prompt:
    return attrs.evolve(PROMPT, response_format=ResponseFormat("json_schema", schema=schema))


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def test_it_asks_the_worker_with_its_key() -> None:
    call = HERE.plan(PROMPT, timeout_s=9.0)
    assert (call.method, call.url) == ("POST", "http://127.0.0.1:4711/v1/chat/completions")
    assert dict(call.headers)["authorization"] == "Bearer secret-key"
    assert (call.timeout_s, call.target) == (9.0, "embedded")
    assert json.loads(call.content) == {
        "model": MODEL,
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 64,
    }


def test_it_asks_wherever_the_worker_is_now() -> None:
    there = [Endpoint("http://127.0.0.1:1", "a"), Endpoint("http://127.0.0.1:2", "b")]
    adapter: ModelAdapter = EmbeddedAdapter(lambda: there.pop(0))
    urls = [adapter.plan(PROMPT, timeout_s=1.0).url for _ in range(2)]
    assert urls == ["http://127.0.0.1:1/v1/chat/completions", "http://127.0.0.1:2/v1/chat/completions"]


def test_every_sampling_but_a_reasoning_effort_is_honoured() -> None:
    all_of_it = Sampling(0.5, 0.9, ("a",), 7, 0.1, 0.2)
    assert HERE.lacks(attrs.evolve(PROMPT, sampling=all_of_it)) is None
    body = json.loads(HERE.plan(attrs.evolve(PROMPT, sampling=all_of_it), timeout_s=1.0).content)
    assert all_of_it.asked <= body.keys()
    thinking = Sampling(reasoning_effort="low")
    assert HERE.lacks(attrs.evolve(PROMPT, sampling=thinking)) == "reasoning_effort_unsupported"


@pytest.mark.parametrize(
    ("schema", "lacking"),
    [
        ({"type": "object", "properties": {"a": {"type": "string"}}}, None),
        ({"enum": ["x" * (SCHEMA_BYTES - 13)]}, None),
        ({"enum": ["x" * SCHEMA_BYTES]}, "json_schema_too_complex"),
        (nested(SCHEMA_DEPTH - 1), None),
        (nested(SCHEMA_DEPTH), "json_schema_too_complex"),
        (nested(500), "json_schema_too_complex"),
        ({"type": "string", "pattern": "^a{2,1}$"}, "json_schema_too_complex"),
        ({"anyOf": [{"items": {"pattern": "a"}}]}, "json_schema_too_complex"),
        ({"properties": {"pattern": {"type": "string"}}}, None),
    ],
)
def test_a_schema_that_would_hold_up_everybody_is_not_served(schema: dict[str, Any], lacking: str | None) -> None:
    assert HERE.lacks(by_schema(schema)) == lacking


def test_json_mode_is_served() -> None:
    assert HERE.lacks(attrs.evolve(PROMPT, response_format=ResponseFormat("json_object"))) is None


def test_it_reads_what_the_worker_answers() -> None:
    read = HERE.read(PROMPT, completion())
    assert (read.content, read.finish_reason, read.upstream_model) == ("Hello.", "stop", MODEL)
    assert read.usage is not None
    assert (read.usage.input_tokens, read.usage.output_tokens) == (3, 2)


def test_another_model_is_not_believed() -> None:
    with pytest.raises(ModelFailed) as failed:
        HERE.read(PROMPT, completion(model="/somewhere/another.gguf"))
    assert failed.value.reason == "wrong_model"


def test_an_answer_can_be_read_after_its_worker_has_ended() -> None:
    assert AWAY.read(PROMPT, completion()).content == "Hello."


def test_that_every_slot_is_taken_says_nothing_against_the_model() -> None:
    busy = answer({"error": {"type": "busy", "code": 503, "message": "every slot is taken"}}, 503)
    with pytest.raises(ModelFailed) as failed:
        HERE.read(PROMPT, busy)
    assert (failed.value.reason, failed.value.weight, failed.value.retry_after) == ("busy", Weight.NOTHING, 1.0)
    assert HERE.read_canary(busy).ok


def test_a_prompt_that_is_too_long_is_the_callers_own() -> None:
    error = {"code": 400, "type": "exceed_context_size_error", "message": "request (5031 tokens) ..."}
    with pytest.raises(ModelFailed) as failed:
        HERE.read(PROMPT, answer({"error": error}, 400))
    assert (failed.value.reason, failed.value.weight) == ("context_length_exceeded", Weight.NOTHING)


def test_it_is_proved_by_the_workers_listing() -> None:
    (call,) = HERE.probe_calls()
    assert (call.method, call.url) == ("GET", "http://127.0.0.1:4711/v1/models")
    assert dict(call.headers)["authorization"] == "Bearer secret-key"
    assert HERE.read_probe([answer({"data": [{"id": MODEL}]})]).ok
    assert HERE.read_probe([answer({"data": []})]) == Finding(ok=False, reason="model_not_listed")
    assert HERE.read_probe([answer({}, 401)]) == Finding(ok=False, reason="status_401")


def test_a_canary_is_small() -> None:
    assert json.loads(HERE.canary().content)["max_tokens"] == LEAST_CANARY_TOKENS
    assert HERE.read_canary(completion()).ok
    assert not HERE.read_canary(completion(model="another")).ok


def test_without_a_worker_nobody_is_asked_and_the_reason_is_told() -> None:
    assert AWAY.probe_calls() == ()
    assert AWAY.read_probe([]) == Finding(ok=False, reason="out_of_memory")
    with pytest.raises(ModelFailed) as failed:
        AWAY.plan(PROMPT, timeout_s=1.0)
    assert failed.value.reason == "out_of_memory"
    with pytest.raises(ModelFailed):
        AWAY.canary()


def test_a_worker_that_came_between_asking_and_judging_is_not_proved_by_nothing() -> None:
    assert HERE.read_probe([]) == Finding(ok=False, reason="starting")


def test_the_key_is_not_shown() -> None:
    assert "secret-key" not in repr(THERE)
