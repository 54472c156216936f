"""The chat completions API of OpenAI, and of vLLM, llama.cpp, Ollama, OpenRouter and others that speak it.

OpenRouter may fall back to other providers, or from a free model to its paid one.  It is told not to, and to route only
to a provider that honours every parameter; a list of fallback models is never sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import attrs

from gateway.registry.ai import reading
from gateway.registry.ai.adapter import Completion, FinishReason, ModelFailed, Usage, text_member
from gateway.registry.ai.dialect import Dialect, dialect_of, same_name
from gateway.registry.ai.prompt import Message, Prompt
from gateway.registry.http_call import HttpAnswer, HttpCall
from gateway.registry.qualification import Finding

BASE_URL = "https://api.openai.com/v1"
FINISH_REASONS: Mapping[str, FinishReason] = {"stop": "stop", "length": "length", "content_filter": "content_filter"}
OPENROUTER_TERMS = {"allow_fallbacks": False, "require_parameters": True}

MEMBERS = frozenset(
    {
        "model",
        "messages",
        "max_tokens",
        "max_completion_tokens",
        "response_format",
        "temperature",
        "top_p",
        "stop",
        "seed",
        "presence_penalty",
        "frequency_penalty",
        "reasoning_effort",
        "reasoning",
        "provider",
    }
)
"""All that a body may hold, the last two for OpenRouter only: strict servers refuse the rest."""


@attrs.frozen
class OpenAiAdapter:
    """Asks one model of a server that speaks OpenAI's chat completions.

    Attributes:
        base_url: the server's address, with or without the `/v1` at its end.
        upstream_model: the server's own name of the model.
        key: the operator's key; empty where the server asks for none.
        target: labels its calls in logs.
    """

    base_url: str
    upstream_model: str
    key: str = attrs.field(default="", repr=False)
    target: str = "openai"
    kind: Literal["openai"] = attrs.field(default="openai", init=False)
    _dialect: Dialect = attrs.field(
        default=attrs.Factory(lambda self: dialect_of(self.base_url, self.upstream_model), takes_self=True),
        init=False,
        repr=False,
        eq=False,
    )

    def lacks(self, prompt: Prompt) -> str | None:
        """Return what OpenAI's own reasoning models refuse, or an effort that the model's family does not know."""
        return self._dialect.lacks(prompt)

    def plan(self, prompt: Prompt, *, timeout_s: float) -> HttpCall:
        """Return the call of `/chat/completions`."""
        return self._completions(self._body(prompt), timeout_s)

    def read(self, prompt: Prompt, answer: HttpAnswer) -> Completion:
        """Read the first choice; raises `ModelFailed`."""
        members = reading.json_body(answer, self.key)
        model = reading.reported_model(members.get("model"), self.upstream_model, same=same_name)
        choice = _choice(members)
        if choice.get("error"):
            raise reading.error_within(choice["error"], answer, self.key)
        message = choice.get("message")
        if not isinstance(message, dict):
            raise ModelFailed("malformed_answer", "its choice has no message")
        finish = text_member(choice, "finish_reason")
        if message.get("tool_calls") or message.get("function_call") or finish in {"tool_calls", "function_call"}:
            raise ModelFailed("tool_call", "it called a tool that nobody offered")
        refused = text_member(message, "refusal")
        return reading.completion(
            prompt,
            content=refused or _content(message),
            finish_reason="content_filter" if refused else reading.finish_reason(FINISH_REASONS, finish),
            usage=_usage(members.get("usage")),
            upstream_model=model,
            upstream_id=text_member(members, "id"),
        )

    def probe_calls(self) -> tuple[HttpCall, ...]:
        """Return the listing of models; OpenRouter, whose listing is public, is asked about the key as well."""
        paths = ("/models", "/key") if self._dialect.openrouter else ("/models",)
        return tuple(reading.question(f"{self._dialect.root}{path}", self._headers, self.target) for path in paths)

    def read_probe(self, answers: Sequence[HttpAnswer]) -> Finding:
        """Judge: every call is answered with 200, and the listing has the model."""
        return reading.finding(partial(self._prove, answers))

    def canary(self) -> HttpCall:
        """Return a call of few tokens, with the least reasoning that the model's family has a word for."""
        body = self._body(reading.shortest(self.upstream_model))
        least = next((each for each in ("none", "minimal") if each in self._dialect.efforts), None)
        if least is not None and not self._dialect.openrouter:
            body["reasoning_effort"] = least
        return self._completions(body, reading.CANARY_S)

    def read_canary(self, answer: HttpAnswer) -> Finding:
        """Judge: any completion of this model is health, also one that was cut off before its first word."""
        return reading.finding(partial(self.read, reading.shortest(self.upstream_model), answer))

    @property
    def _headers(self) -> tuple[tuple[str, str], ...]:
        accept = ("accept", "application/json")
        return (accept, ("authorization", f"Bearer {self.key}")) if self.key else (accept,)

    def _body(self, prompt: Prompt) -> dict[str, Any]:
        sampling = prompt.sampling
        fixed = self._dialect.openai and self._dialect.reasons
        body: dict[str, Any] = {
            "model": self.upstream_model,
            "messages": [_message(each) for each in prompt.messages],
            self._dialect.limit: prompt.max_output_tokens,
            "response_format": _response_format(prompt),
            "stop": list(sampling.stop) or None,
            "seed": sampling.seed,
        }
        if not fixed:
            body |= {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "presence_penalty": sampling.presence_penalty,
                "frequency_penalty": sampling.frequency_penalty,
            }
        if self._dialect.openrouter:
            body["provider"] = OPENROUTER_TERMS
            body["reasoning"] = {"effort": sampling.reasoning_effort} if sampling.reasoning_effort else None
        else:
            body["reasoning_effort"] = sampling.reasoning_effort
        return {name: value for name, value in body.items() if value is not None}

    def _completions(self, body: dict[str, Any], timeout_s: float) -> HttpCall:
        return reading.request(f"{self._dialect.root}/chat/completions", self._headers, body, self.target, timeout_s)

    def _prove(self, answers: Sequence[HttpAnswer]) -> None:
        listing = reading.bodies(answers, len(self.probe_calls()), self.key)[0]
        names = [text_member(each, "id") for each in reading.objects(listing.get("data"))]
        if not any(name and same_name(name, self.upstream_model) for name in names):
            raise ModelFailed("model_not_listed", f"its listing of {len(names)} models does not have this one")


def _choice(members: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = members.get("choices")
    if not isinstance(choices, list):
        raise ModelFailed("malformed_answer", "its answer has no list of choices")
    if not choices:
        raise ModelFailed("empty_choices", "its answer has no choice")
    if not isinstance(choices[0], dict):
        raise ModelFailed("malformed_answer", "its choice is not an object")
    return choices[0]


def _content(message: Mapping[str, Any]) -> str:
    """Return the text: null is none, and of typed parts (Mistral) those of type text."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        return reading.joined_texts(content)
    raise ModelFailed("malformed_answer", "the content of its message is not text")


def _message(turn: Message) -> dict[str, str]:
    told = {"role": turn.role, "content": turn.content}
    return told | {"name": turn.name} if turn.name else told


def _response_format(prompt: Prompt) -> dict[str, Any] | None:
    wished = prompt.response_format
    if wished.kind == "json_schema":
        named: dict[str, Any] = {"name": wished.name, "schema": wished.schema or {}}
        told = {"description": wished.description, "strict": wished.strict}
        return {
            "type": "json_schema",
            "json_schema": named | {name: value for name, value in told.items() if value is not None},
        }
    return {"type": "json_object"} if wished.kind == "json_object" else None


def _usage(told: Any) -> Usage | None:
    members = reading.members_of(told)
    prompt, output = reading.tokens(members, "prompt_tokens"), reading.tokens(members, "completion_tokens")
    if prompt is None or output is None:
        return None
    return Usage(
        input_tokens=prompt,
        output_tokens=output,
        reasoning_tokens=reading.tokens(
            reading.members_of(members.get("completion_tokens_details")), "reasoning_tokens"
        ),
        cached_tokens=reading.tokens(reading.members_of(members.get("prompt_tokens_details")), "cached_tokens"),
    )
