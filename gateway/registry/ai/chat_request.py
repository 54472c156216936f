"""The request of `chat.completions` (interface.md 4.9): the OpenAI form, as far as it can be honoured.

What standard clients send and a route can honour is accepted (sampling), what has no effect is accepted as such
(`n: 1`, `tools: []`, `stream: false`), what would change the result is refused by name, never dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs

from gateway.errors import (
    GatewayError,
    InvalidRequest,
    ModelNotFound,
    ModelUnavailable,
    UnsupportedParameter,
    Violation,
)
from gateway.registry.ai.answer_schema import validator_of
from gateway.registry.ai.catalog import CATALOG, Catalog, Model
from gateway.registry.ai.prompt import Message, Prompt, ResponseFormat, Role, Sampling

OPERATION = "chat.completions"
FREE_BODY_CAP = 65_536
LONGEST_TEXT = 24_000
USUAL_OUTPUT_TOKENS = 1024
MOST_OUTPUT_TOKENS = 4096
TOKEN_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
LARGEST_SEED = 2**53 - 1


ROLES: Mapping[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def _limit(what: str) -> dict[str, Any]:
    return {
        "type": ["integer", "null"],
        "minimum": 1,
        "maximum": MOST_OUTPUT_TOKENS,
        "description": f"{what} At most the model's own maximum: 1024 tokens, or 4096 where the catalog says so.",
    }


def _number(low: float, high: float, what: str) -> dict[str, Any]:
    return {"type": ["number", "null"], "minimum": low, "maximum": high, "description": what}


def _without_effect(values: Sequence[Any]) -> dict[str, Any]:
    return {"enum": [*values, None], "description": "Accepted where it has no effect."}


def messages_schema(longest: int) -> dict[str, Any]:
    """Return the schema of a list of messages whose contents have at most `longest` characters.

    What stock clients send and loses nothing is accepted: `developer` for `system`, text in parts, the name of who
    speaks, and turns of the assistant without text.
    """
    text = {"type": "string", "minLength": 1, "maxLength": longest}
    part = {
        "type": "object",
        "additionalProperties": False,
        "required": ["type", "text"],
        "properties": {"type": {"const": "text"}, "text": {"type": "string", "maxLength": longest}},
    }
    parts = {"type": "array", "minItems": 1, "items": part}
    return {
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "additionalProperties": False,
            "required": ["role", "content"],
            "properties": {
                "role": {"type": "string", "enum": ["system", "user", "assistant", "developer"]},
                "content": {
                    "type": ["string", "array", "null"],
                    "description": "A text, or a list of text parts, which are joined by line ends.",
                },
                "name": {"type": ["string", "null"], "maxLength": 64, "description": "Told where the route knows it."},
            },
            "if": {"properties": {"role": {"const": "assistant"}}, "required": ["role"]},
            "then": {
                "properties": {
                    "content": {
                        "if": {"type": "array"},
                        "then": {"items": part},
                        "else": {"type": ["string", "null"], "maxLength": longest},
                    }
                }
            },
            "else": {"properties": {"content": {"if": {"type": "array"}, "then": parts, "else": text}}},
        },
    }


RESPONSE_FORMAT: Mapping[str, Any] = {
    "type": ["object", "null"],
    "additionalProperties": False,
    "required": ["type"],
    "properties": {
        "type": {"type": "string", "enum": ["text", "json_object", "json_schema"]},
        "json_schema": {
            "type": "object",
            "additionalProperties": False,
            "required": ["schema"],
            "properties": {
                "name": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
                "description": {"type": "string", "maxLength": 1024},
                "schema": {"type": "object"},
                "strict": {"type": ["boolean", "null"]},
            },
        },
    },
    "if": {"type": "object", "properties": {"type": {"const": "json_schema"}}, "required": ["type"]},
    "then": {"required": ["json_schema"]},
    "else": {"properties": {"json_schema": False}},
    "description": "JSON mode: `json_object`, or `json_schema` with a schema.",
}

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["model", "messages"],
    "properties": {
        "model": {"type": "string", "description": "An id of `GET /v1/models`; it is never replaced by another model."},
        "messages": messages_schema(LONGEST_TEXT),
        "max_completion_tokens": _limit("The most tokens of output."),
        "max_output_tokens": _limit("Another name of `max_completion_tokens`."),
        "max_tokens": _limit("An older name of `max_completion_tokens`."),
        "response_format": RESPONSE_FORMAT,
        "stream": {
            "type": ["boolean", "null"],
            "enum": [False, None],
            "default": False,
            "description": "Streaming is unavailable.",
        },
        "temperature": _number(0, 2, "Sampling temperature, where the route honours it."),
        "top_p": _number(0, 1, "Nucleus sampling, where the route honours it."),
        "stop": {
            "anyOf": [
                {"type": ["string", "null"], "minLength": 1, "maxLength": 256},
                {"type": "array", "maxItems": 4, "items": {"type": "string", "minLength": 1, "maxLength": 256}},
            ],
            "description": "At most four texts that end the answer, where the route honours them.",
        },
        "seed": {"type": ["integer", "null"], "minimum": -LARGEST_SEED, "maximum": LARGEST_SEED},
        "presence_penalty": _number(-2, 2, "Where the route honours it."),
        "frequency_penalty": _number(-2, 2, "Where the route honours it."),
        "reasoning_effort": {"enum": ["none", "minimal", "low", "medium", "high", "xhigh", "max", None]},
        "user": {"type": ["string", "null"], "maxLength": 512, "description": "Read by nobody and not passed on."},
        "metadata": {"type": ["object", "null"], "description": "Read by nobody and not passed on."},
        "n": _without_effect([1]),
        "store": _without_effect([False]),
        "logprobs": _without_effect([False]),
        "top_logprobs": _without_effect([0]),
        "logit_bias": {"type": ["object", "null"], "maxProperties": 0},
        "stream_options": {"type": "null"},
        "tools": {"type": ["array", "null"], "maxItems": 0},
        "tool_choice": _without_effect(["none", "auto"]),
        "parallel_tool_calls": {"type": ["boolean", "null"], "description": "Accepted where it has no effect."},
        "functions": {"type": ["array", "null"], "maxItems": 0},
        "function_call": _without_effect(["none", "auto"]),
        "modalities": _without_effect([["text"]]),
    },
}

UNSUPPORTED = (
    "stream",
    "stream_options",
    "tools",
    "tool_choice",
    "functions",
    "function_call",
    "n",
    "store",
    "logprobs",
    "top_logprobs",
    "logit_bias",
    "modalities",
    "audio",
    "prediction",
    "web_search_options",
    "service_tier",
    "verbosity",
    "prompt_cache_key",
    "safety_identifier",
)
"""Parameters of the OpenAI API whose refusal is named, in the order in which one is named first."""

EXAMPLE: Mapping[str, Any] = {
    "model": "openai/gpt-5.6-luna",
    "messages": [{"role": "user", "content": "Say hello in one word."}],
    "max_completion_tokens": 16,
}


@attrs.frozen
class ChatMessage:
    """One turn."""

    role: str
    content: Any = attrs.field(repr=False)
    name: Any = None

    @property
    def text(self) -> str:
        """Its text, parts joined by line ends."""
        if isinstance(self.content, list):
            return "\n".join(part["text"] for part in self.content)
        return self.content or ""


def _as_on_the_wire(_: type, fields: list[attrs.Attribute[Any]]) -> list[attrs.Attribute[Any]]:
    return [field.evolve(metadata={"json": field.name}) for field in fields]


@attrs.frozen(field_transformer=_as_on_the_wire)
class ChatRequest:
    """A valid `chat.completions` request, its members named as on the wire; None: not asked."""

    model: str
    messages: tuple[ChatMessage, ...]
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    max_tokens: Any = None
    response_format: Any = None
    stream: Any = False
    temperature: Any = None
    top_p: Any = None
    stop: Any = None
    seed: Any = None
    presence_penalty: Any = None
    frequency_penalty: Any = None
    reasoning_effort: Any = None
    user: Any = None
    metadata: Any = None
    n: Any = None
    store: Any = None
    logprobs: Any = None
    top_logprobs: Any = None
    logit_bias: Any = None
    stream_options: Any = None
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: Any = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None

    @property
    def token_limits(self) -> dict[str, int]:
        """The limits that were given, by the name they were given under."""
        return {name: limit for name in TOKEN_LIMITS if (limit := getattr(self, name)) is not None}

    @cached_property
    def prompt(self) -> Prompt:
        """What the model is asked: without a limit of tokens, what is usual or the model's maximum if that is less."""
        model = CATALOG.get(self.model)
        most = model.max_output_tokens if model is not None and model.max_output_tokens else USUAL_OUTPUT_TOKENS
        limit = next(iter(self.token_limits.values()), min(USUAL_OUTPUT_TOKENS, most))
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return Prompt(
            self.model,
            self._turns,
            limit,
            response_format(self.response_format),
            Sampling(
                temperature=self.temperature,
                top_p=self.top_p,
                stop=stop,
                seed=self.seed,
                presence_penalty=self.presence_penalty,
                frequency_penalty=self.frequency_penalty,
                reasoning_effort=self.reasoning_effort,
            ),
        )

    @property
    def _turns(self) -> tuple[Message, ...]:
        """The messages as upstreams take them: turns of the assistant without text are left out, they said nothing."""
        said = [each for each in self.messages if each.text or each.role != "assistant"]
        return tuple(Message(ROLES[each.role], each.text, each.name or None) for each in said)


def response_format(given: Mapping[str, Any] | None) -> ResponseFormat:
    """Return the form of the answer that a valid `response_format` asks for."""
    if given is None or given["type"] == "text":
        return ResponseFormat()
    if given["type"] == "json_object":
        return ResponseFormat("json_object")
    described = given["json_schema"]
    return ResponseFormat(
        "json_schema",
        described.get("name", "answer"),
        described["schema"],
        described.get("strict"),
        described.get("description"),
    )


def price(request: ChatRequest, *, catalog: Catalog = CATALOG) -> int:
    """Return the flat price of the catalog row in millionths of a USD, 0 for a free model."""
    model = catalog.get(request.model)
    return 0 if model is None else model.price or 0


def body_cap(request: ChatRequest, *, catalog: Catalog = CATALOG) -> int | None:
    """Return the bytes that a body may have where the model is free; None: the operation's cap."""
    model = catalog.get(request.model)
    return None if model is not None and model.billing == "paid" else FREE_BODY_CAP


def refine(body: Mapping[str, Any]) -> GatewayError | None:
    """Return the particular problem of a body that the schema refuses, where it has a name."""
    for name in UNSUPPORTED:
        if name in body and not _fits(name, body[name]):
            return UnsupportedParameter(f"`{name}` is not supported here as it was sent", extra={"param": name})
    hint = next(_hints(body), None)
    return None if hint is None else InvalidRequest(hint)


def _fits(name: str, value: Any) -> bool:
    """Return True if a parameter is accepted, because it has no effect."""
    from jsonschema_rs import Draft202012Validator

    properties: Mapping[str, Any] = SCHEMA["properties"]
    return name in properties and Draft202012Validator(dict(properties[name])).is_valid(value)


def _hints(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield what to do where clients of the OpenAI API commonly send what is refused here."""
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict):
            continue
        content = message.get("content")
        if isinstance(content, list) and any(
            not isinstance(each, dict) or each.get("type") != "text" for each in content
        ):
            yield "A message holds text alone: a string, or parts of `type` `text`. Images and audio are unsupported."
        if message.get("role") in {"tool", "function"}:
            yield "Tools are unsupported: messages are of the roles `system`, `user` and `assistant`."


def check(request: ChatRequest, *, catalog: Catalog = CATALOG) -> GatewayError | None:
    """Return what is wrong with a request that the schema accepts: the model, and its limits."""
    model = catalog.get(request.model)
    if model is None:
        return ModelNotFound(f"the catalog has no {request.model[:128]!r}", extra={"param": "model"})
    violations = list(_violations(request, model))
    if violations:
        return InvalidRequest(violations[0].detail, errors=violations)
    if OPERATION not in model.operations:
        return ModelUnavailable(f"{model.id} is not sold here", extra={"param": "model", "reason": "not_offered"})
    return None


def _violations(request: ChatRequest, model: Model) -> Iterator[Violation]:
    limits = request.token_limits
    if len(set(limits.values())) > 1:
        told = f"{' and '.join(f'`{name}`' for name in limits)} are one limit and must be equal"
        yield from (Violation(f"/{name}", told) for name in limits)
    for number, each in enumerate(request.messages):
        if isinstance(each.content, list) and (length := len(each.text)) > LONGEST_TEXT:
            yield Violation(f"/messages/{number}/content", f"has {length} characters; {LONGEST_TEXT} is the most")
        if not each.text and each.role != "assistant":
            yield Violation(f"/messages/{number}/content", "has no text")
    if not request.prompt.messages:
        yield Violation("/messages", "have no text")
    schema = request.prompt.response_format.schema
    if schema is not None and validator_of(schema) is None:
        told = "is no JSON Schema that an answer can be checked against: no other documents, no look-around in patterns"
        yield Violation("/response_format/json_schema/schema", told)
    most = model.max_output_tokens or USUAL_OUTPUT_TOKENS
    for name, limit in limits.items():
        if limit > most:
            yield Violation(f"/{name}", f"{model.id} answers with at most {most} tokens")
    if model.max_input_characters is not None and request.prompt.characters > model.max_input_characters:
        yield Violation(
            "/messages", f"{model.id} takes at most {model.max_input_characters} characters in all messages"
        )
