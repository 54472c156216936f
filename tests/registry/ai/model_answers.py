"""What model upstreams are asked and answer, made at random: prompts, any JSON, true answers with one part bent."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import orjson
from hypothesis import strategies as st

from gateway.registry.ai.prompt import Message, Prompt, ResponseFormat, Sampling
from gateway.registry.http_call import HttpAnswer

KEY = "sk-a-key-that-must-not-show"
ASKED = "what the caller asked, in words that must not show"
PROMPT = Prompt("openai/gpt-5.6-luna", (Message("user", ASKED),), 64)
JSON_PROMPT = Prompt("openai/gpt-5.6-luna", (Message("user", "as JSON"),), 64, ResponseFormat("json_object"))

texts = st.text(min_size=1, max_size=20)
schemas = st.dictionaries(
    st.sampled_from(["type", "properties", "required", "additionalProperties", "title", "pattern"]),
    st.sampled_from(["object", "string", False, {}, {"a": {"type": "string"}}, ["a"]]),
)
formats = st.one_of(
    st.just(ResponseFormat()),
    st.just(ResponseFormat("json_object")),
    st.builds(
        lambda schema, strict: ResponseFormat("json_schema", "answer", schema, strict),
        schemas,
        st.none() | st.booleans(),
    ),
)
samplings = st.builds(
    Sampling,
    temperature=st.none() | st.floats(0, 2),
    top_p=st.none() | st.floats(0, 1),
    stop=st.lists(texts, max_size=4).map(tuple),
    seed=st.none() | st.integers(-(2**53), 2**53),
    presence_penalty=st.none() | st.floats(-2, 2),
    frequency_penalty=st.none() | st.floats(-2, 2),
    reasoning_effort=st.none() | st.sampled_from(["none", "minimal", "low", "medium", "high", "xhigh", "max"]),
)
messages = st.lists(st.builds(Message, st.sampled_from(["system", "user", "assistant"]), texts), min_size=1, max_size=5)
prompts = st.builds(Prompt, st.just("a/model"), messages.map(tuple), st.integers(1, 16_384), formats, samplings)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


def answered(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpAnswer:
    """Return an answer; bytes are sent as they are, anything else as JSON."""
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    return HttpAnswer(status, dict(headers or {}), content, 12)


@st.composite
def bent(draw: st.DrawFn, true: Any) -> Any:
    """Return a true answer in which one part, at any depth, is any JSON or is not there."""
    answer = copy.deepcopy(true)
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            places.append((value, key))
            walk(value[key])

    walk(answer)
    holder, key = draw(st.sampled_from(places))
    if draw(st.booleans()):
        holder[key] = draw(json_values)
    else:
        del holder[key]
    return answer
