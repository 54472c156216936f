"""Google's Gemini API, generateContent.

It wants user and model to alternate.  Several turns of one role in a row become the parts of one content: no text is
joined or changed, and the order stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Literal
from urllib.parse import quote

import attrs

from gateway.registry.ai import reading
from gateway.registry.ai.adapter import Completion, FinishReason, ModelFailed, Usage, text_member
from gateway.registry.ai.gemini_schema import schema_member
from gateway.registry.ai.prompt import Prompt, Sampling
from gateway.registry.ai.turns import disorder, instructions, spoken
from gateway.registry.http_call import HttpAnswer, HttpCall
from gateway.registry.qualification import Finding

BASE_URL = "https://generativelanguage.googleapis.com"
FINISH_REASONS: Mapping[str, FinishReason] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "BLOCKLIST": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "SPII": "content_filter",
}
TOOL_REASONS = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS"})
MEMBERS = frozenset({"contents", "systemInstruction", "generationConfig"})
CONFIGURATION = frozenset(
    {
        "maxOutputTokens",
        "temperature",
        "topP",
        "stopSequences",
        "seed",
        "responseMimeType",
        "responseSchema",
        "responseJsonSchema",
        "thinkingConfig",
    }
)
"""All that a body and its `generationConfig` may hold."""

SEEDS = range(-(2**31), 2**31)
STABLE_VERSION = re.compile(r"-\d{3}")
"""What Google adds to the name of a model for a stable version of it: `gemini-2.0-flash-001`."""
THINKS_BY_LEVEL = re.compile(r"gemini-(?:[3-9]|\d\d)[^\n]*")


@attrs.frozen
class GeminiAdapter:
    """Asks one of Google's models with the operator's key.

    Attributes:
        base_url: the API's address, with or without the `/v1beta` at its end.
        upstream_model: the API's own name of the model, without `models/`.
        key: the operator's key.
        target: labels its calls in logs.
    """

    base_url: str
    upstream_model: str
    key: str = attrs.field(default="", repr=False)
    target: str = "gemini"
    kind: Literal["gemini"] = attrs.field(default="gemini", init=False)

    def lacks(self, prompt: Prompt) -> str | None:
        """Return what the API has no member for: efforts, penalties (its models refuse them), some schemas, seeds."""
        wished = prompt.response_format
        if wished.kind == "json_schema" and schema_member(wished.schema or {}) is None:
            return "json_schema_unsupported"
        return disorder(prompt) or _beyond(prompt.sampling)

    def plan(self, prompt: Prompt, *, timeout_s: float) -> HttpCall:
        """Return the call of `:generateContent`."""
        return self._generate(self._body(prompt), timeout_s)

    def read(self, prompt: Prompt, answer: HttpAnswer) -> Completion:
        """Read the first candidate's parts, without thoughts; raises `ModelFailed`.

        A prompt that was blocked has no candidate, and is a completion that was filtered.
        """
        members = reading.json_body(answer, self.key)
        model = reading.reported_model(members.get("modelVersion"), self.upstream_model, same=_same_version)
        content, finish = _first(members)
        return reading.completion(
            prompt,
            content=content,
            finish_reason=finish,
            usage=_usage(members.get("usageMetadata")),
            upstream_model=model,
            upstream_id=text_member(members, "responseId"),
        )

    def probe_calls(self) -> tuple[HttpCall, ...]:
        """Return the question about this one model, which is not billed."""
        return (reading.question(self._url, self._headers, self.target),)

    def read_probe(self, answers: Sequence[HttpAnswer]) -> Finding:
        """Judge: the model is there for this key and generates content."""
        return reading.finding(partial(self._prove, answers))

    def canary(self) -> HttpCall:
        """Return a call of few tokens, with the least thinking that the model's family is known to take."""
        body = self._body(reading.shortest(self.upstream_model))
        if self.upstream_model.startswith("gemini-2.5-flash"):
            body["generationConfig"]["thinkingConfig"] = {"thinkingBudget": 0}
        elif THINKS_BY_LEVEL.fullmatch(self.upstream_model):
            body["generationConfig"]["thinkingConfig"] = {"thinkingLevel": "low"}
        return self._generate(body, reading.CANARY_S)

    def read_canary(self, answer: HttpAnswer) -> Finding:
        """Judge: any completion of this model is health, also one that was cut off before its first word."""
        return reading.finding(partial(self.read, reading.shortest(self.upstream_model), answer))

    @property
    def _url(self) -> str:
        root = self.base_url.rstrip("/").removesuffix("/v1beta")
        return f"{root}/v1beta/models/{quote(self.upstream_model, safe='')}"

    @property
    def _headers(self) -> tuple[tuple[str, str], ...]:
        accept = ("accept", "application/json")
        return (accept, ("x-goog-api-key", self.key)) if self.key else (accept,)

    def _body(self, prompt: Prompt) -> dict[str, Any]:
        sampling, wished = prompt.sampling, prompt.response_format
        configuration: dict[str, Any] = {
            "maxOutputTokens": prompt.max_output_tokens,
            "temperature": sampling.temperature,
            "topP": sampling.top_p,
            "stopSequences": list(sampling.stop) or None,
            "seed": sampling.seed,
            "responseMimeType": "application/json" if wished.json else None,
        }
        if wished.kind == "json_schema":
            described = {} if wished.description is None else {"description": wished.description}
            schema = described | dict(wished.schema or {})  # the one place that the API has for it
            configuration[schema_member(schema) or "responseJsonSchema"] = schema
        body: dict[str, Any] = {
            "contents": [
                {
                    "role": "model" if role == "assistant" else "user",
                    "parts": [{"text": each.content} for each in turns],
                }
                for role, turns in groupby(spoken(prompt), lambda each: each.role)
            ],
            "generationConfig": {name: value for name, value in configuration.items() if value is not None},
        }
        told = [{"text": text} for text in instructions(prompt)]
        return {"systemInstruction": {"parts": told}, **body} if told else body

    def _generate(self, body: dict[str, Any], timeout_s: float) -> HttpCall:
        return reading.request(f"{self._url}:generateContent", self._headers, body, self.target, timeout_s)

    def _prove(self, answers: Sequence[HttpAnswer]) -> None:
        (told,) = reading.bodies(answers, 1, self.key)
        name = (text_member(told, "name") or "").removeprefix("models/")
        if reading.reported_model(name, self.upstream_model, same=_same_version) is None:
            raise ModelFailed("malformed_answer", "it does not tell of a model")
        methods = told.get("supportedGenerationMethods")
        if isinstance(methods, list) and "generateContent" not in methods:
            raise ModelFailed("model_without_chat", "the model does not generate content")


def _first(members: Mapping[str, Any]) -> tuple[str, FinishReason]:
    """Return the text of the first candidate and why it ended."""
    candidates = members.get("candidates")
    if not candidates:
        if text_member(reading.members_of(members.get("promptFeedback")), "blockReason"):
            return "", "content_filter"
        raise ModelFailed("empty_choices", "its answer has no candidate")
    if not isinstance(candidates, list) or not isinstance(candidates[0], dict):
        raise ModelFailed("malformed_answer", "its candidates are no list of objects")
    parts = reading.objects(reading.members_of(candidates[0].get("content")).get("parts"))
    finish = text_member(candidates[0], "finishReason")
    if finish in TOOL_REASONS or any("functionCall" in each for each in parts):
        raise ModelFailed("tool_call", "it called a tool that nobody offered")
    content = "".join(text_member(each, "text") or "" for each in parts if each.get("thought") is not True)
    return content, reading.finish_reason(FINISH_REASONS, finish)


def _same_version(told: str, asked: str) -> bool:
    name = told.removeprefix("models/")
    return name == asked or (name.startswith(asked) and STABLE_VERSION.fullmatch(name, len(asked)) is not None)


def _beyond(sampling: Sampling) -> str | None:
    """Return what cannot be honoured; penalties of 0 are no wish."""
    wishes = (
        ("seed", sampling.seed is not None and sampling.seed not in SEEDS),
        ("presence_penalty", bool(sampling.presence_penalty)),
        ("frequency_penalty", bool(sampling.frequency_penalty)),
        ("reasoning_effort", sampling.reasoning_effort is not None),
    )
    return next((f"{name}_unsupported" for name, wished in wishes if wished), None)


def _usage(told: Any) -> Usage | None:
    """Return the counts; thoughts are billed as output.  A count of 0 is left out of the API's JSON."""
    members = reading.members_of(told)
    prompt, thoughts = reading.tokens(members, "promptTokenCount"), reading.tokens(members, "thoughtsTokenCount")
    said = reading.tokens({"candidatesTokenCount": 0, **members}, "candidatesTokenCount")
    if prompt is None or said is None:
        return None
    return Usage(
        input_tokens=prompt,
        output_tokens=said + (thoughts or 0),
        reasoning_tokens=thoughts,
        cached_tokens=reading.tokens(members, "cachedContentTokenCount"),
    )
