"""The request of `ai.execute` (interface.md 4.4): schema, example, frozen class, and what the schema cannot say."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import attrs

from gateway.errors import (
    ContextLengthExceeded,
    GatewayError,
    InvalidRequest,
    ModelNotFound,
    RequestTooLarge,
    Violation,
)
from gateway.registry.ai.catalog import CATALOG, Catalog, Model
from gateway.registry.ai.pricing import MOST, execute_price, prompt_tokens
from gateway.registry.ai.prompt import Message, Prompt

OPERATION = "ai.execute"
LUNA = "openai/gpt-5.6-luna"
MOST_OUTPUT_TOKENS = 16_384


def schema(catalog: Catalog = CATALOG) -> Mapping[str, Any]:
    """Return the JSON Schema of the body, the models that the catalog offers here in its `enum`."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["model", "input", "maximumOutputTokens"],
        "properties": {
            "model": {
                "type": "string",
                "enum": [model.id for model in catalog.on(OPERATION)],
                "default": LUNA,
                "description": "An id of `GET /v1/models`; it is never replaced by another model.",
            },
            "input": {
                "type": "object",
                "additionalProperties": False,
                "required": ["kind", "messages", "responseFormat", "stream"],
                "properties": {
                    "kind": {"type": "string", "const": "chat", "default": "chat"},
                    "messages": {
                        "type": "array",
                        "minItems": 1,
                        "maxItems": 128,
                        "items": {
                            "type": "object",
                            "additionalProperties": False,
                            "required": ["role", "content"],
                            "properties": {
                                "role": {"type": "string", "enum": ["user"], "default": "user"},
                                "content": {"type": "string", "minLength": 1, "maxLength": 100_000},
                            },
                        },
                    },
                    "responseFormat": {"type": "string", "enum": ["text"], "default": "text"},
                    "stream": {
                        "type": "boolean",
                        "const": False,
                        "default": False,
                        "description": "Streaming is unavailable.",
                    },
                },
            },
            "maximumOutputTokens": {
                "type": "integer",
                "minimum": 1,
                "maximum": MOST_OUTPUT_TOKENS,
                "default": 16,
                "description": "The most tokens of output, at most the model's own maximum; all are priced.",
            },
        },
    }


EXAMPLE: Mapping[str, Any] = {
    "model": LUNA,
    "input": {
        "kind": "chat",
        "messages": [{"role": "user", "content": "Say hello in one word."}],
        "responseFormat": "text",
        "stream": False,
    },
    "maximumOutputTokens": 16,
}


@attrs.frozen
class ExecuteMessage:
    """One user message."""

    role: str
    content: str = attrs.field(repr=False)


@attrs.frozen
class ExecuteInput:
    """The chat of an `ai.execute` request."""

    kind: str
    messages: tuple[ExecuteMessage, ...]
    response_format: str
    stream: bool


@attrs.frozen
class ExecuteRequest:
    """A valid `ai.execute` request."""

    model: str
    input: ExecuteInput
    maximum_output_tokens: int

    @cached_property
    def prompt(self) -> Prompt:
        """What the model is asked."""
        messages = tuple(Message("user", each.content) for each in self.input.messages)
        return Prompt(self.model, messages, self.maximum_output_tokens)


def price(request: ExecuteRequest, *, margin_percent: int = 100, catalog: Catalog = CATALOG) -> int:
    """Return the price in millionths of a USD, 0 for a free model."""
    model = catalog.get(request.model)
    return 0 if model is None else execute_price(model, request.prompt, margin_percent=margin_percent)


def refine(body: Mapping[str, Any]) -> GatewayError | None:
    """Return the particular problem of a body that the schema refuses, where it names a model not offered here."""
    model = body.get("model")
    if isinstance(model, str) and all(model != each.id for each in CATALOG.on(OPERATION)):
        return ModelNotFound(f"{model[:128]!r} is not offered on this operation", extra={"param": "model"})
    return None


def check(request: ExecuteRequest, *, margin_percent: int = 100, catalog: Catalog = CATALOG) -> GatewayError | None:
    """Return what is wrong with a request that the schema accepts: the model's limits, its context, the price."""
    model = catalog.get(request.model)
    if model is None:
        return ModelNotFound(extra={"param": "model"})
    asked, most = request.maximum_output_tokens, most_output_tokens(model)
    if asked > most:
        told = f"{model.id} answers with at most {most} tokens"
        return InvalidRequest(told, errors=[Violation("/maximumOutputTokens", told)])
    if model.billing != "paid":
        return None  # an upstream that counts exactly decides: nothing is quoted on an estimate
    needed = prompt_tokens(request.prompt) + asked
    if model.context_window is not None and needed > model.context_window:
        return ContextLengthExceeded(
            f"messages and answer may take {needed} tokens (UTF-8 bytes and 16 a message), "
            f"and the context of {model.id} is {model.context_window}",
            errors=[Violation("/input/messages", "too long for the model's context")],
        )
    asked_price = price(request, margin_percent=margin_percent, catalog=catalog)
    if asked_price > MOST:
        return RequestTooLarge(f"it would cost {asked_price} millionths of a USD, and {MOST} is the most")
    return None


def most_output_tokens(model: Model) -> int:
    """Return the most output tokens that may be asked of a model on this operation."""
    own = model.max_output_tokens if model.billing != "paid" else model.upstream_max_output
    return MOST_OUTPUT_TOKENS if own is None else min(own, MOST_OUTPUT_TOKENS)
