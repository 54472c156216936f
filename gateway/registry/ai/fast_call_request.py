"""The request of `agent.fast-call` (interface.md 4.13), a preview that cannot be called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from gateway.registry.ai.chat_request import RESPONSE_FORMAT, messages_schema

BODY_CAP = 32_768
DEADLINE_S = 30.0
PRICE = 149_000
"""0.149 USD in millionths: what it will cost."""

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["messages"],
    "properties": {
        "messages": messages_schema(10_000),
        "max_output_tokens": {"type": "integer", "minimum": 1, "maximum": 1024},
        "response_format": RESPONSE_FORMAT,
    },
}

EXAMPLE: Mapping[str, Any] = {"messages": [{"role": "user", "content": "Say hello in one word."}]}


@attrs.frozen
class FastCallMessage:
    """One turn."""

    role: str
    content: str = attrs.field(repr=False)


@attrs.frozen
class FastCallRequest:
    """A valid `agent.fast-call` request."""

    messages: tuple[FastCallMessage, ...]
    max_output_tokens: Any = attrs.field(default=None, metadata={"json": "max_output_tokens"})
    response_format: Any = attrs.field(default=None, metadata={"json": "response_format"})
