"""Anthropic's format: Messages."""

from __future__ import annotations

from typing import Any, ClassVar

from gateway.world.ai_formats import fields
from gateway.world.ai_formats.format import Refused, Served
from gateway.world.ai_text import Answer, Asked
from gateway.world.door import Call


class Anthropic:
    """`POST /v1/messages`, `GET /v1/models`, `GET /v1/models/{id}`, told from OpenAI's by `anthropic-version`."""

    models: ClassVar[tuple[Served, ...]] = (Served("claude-sonnet-4-6"), Served("claude-opus-4-8", reasons=True))
    other: ClassVar[str] = "claude-haiku-4-5-20251001"
    _members: ClassVar[tuple[str, ...]] = (
        "model",
        "messages",
        "max_tokens",
        "system",
        "temperature",
        "top_p",
        "top_k",
        "stop_sequences",
        "thinking",
        "output_config",
        "stream",
    )

    def key(self, call: Call) -> str:
        """Return the key of the header that this format has for it."""
        return call.headers.get("x-api-key", "")

    def asked(self, call: Call, model: str) -> Asked:
        """Read a call for a completion; raises `Refused`."""
        if call.headers.get("anthropic-version") != "2023-06-01":
            raise Refused("anthropic-version: header is required", "anthropic-version")
        body = fields.body(call, self._members)
        served = fields.served(self.models, model or fields.text(body, "model"))
        fields.constant(body, "stream", expected=False)
        if "max_tokens" not in body:
            raise Refused("max_tokens: Field required", "max_tokens")
        texts = [fields.joined(body["system"], "system")] if "system" in body else []
        for at, message in fields.items(body, "messages"):
            fields.known(message, ("role", "content"), f"{at}.")
            fields.one_of(message, "role", ("user", "assistant"), f"{at}.")
            texts.append(fields.joined(message.get("content"), f"{at}.content"))
        form = fields.member(fields.member(body, "output_config"), "format")
        if form:
            fields.one_of(form, "type", ("json_schema",), "output_config.format.")
        return Asked(
            model=served.name,
            texts=tuple(texts),
            most_tokens=fields.limit(body, "max_tokens", served),
            reasons=fields.member(body, "thinking").get("type") != "disabled" and served.reasons,
            stop=fields.texts(body, "stop_sequences"),
            json=bool(form),
            schema=form.get("schema"),
        )

    def completion(self, model: str, answer: Answer) -> dict[str, Any]:
        """Return a completion by `model`."""
        told = {"stop": "end_turn", "length": "max_tokens"}[answer.finish]
        return self.nothing(model, answer) | {
            "content": [{"type": "text", "text": answer.text}] if answer.text else [],
            "stop_reason": told,
        }

    def nothing(self, model: str, answer: Answer) -> dict[str, Any]:
        """Return a completion with nothing in it."""
        return {
            "id": f"msg_{answer.id}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {
                "input_tokens": answer.input_tokens,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "output_tokens": answer.output_tokens,
            },
        }

    def model(self, served: Served) -> dict[str, Any]:
        """Return what is told of one model."""
        return {
            "type": "model",
            "id": served.name,
            "display_name": f"{served.name} (simulated)",
            "created_at": "2026-01-01T00:00:00Z",
        }

    def listing(self) -> dict[str, Any]:
        """Return what is told of all models."""
        told = [self.model(each) for each in self.models]
        return {"data": told, "has_more": False, "first_id": told[0]["id"], "last_id": told[-1]["id"]}

    def error(self, refused: Refused) -> dict[str, Any]:
        """Return the body of an error."""
        kinds = {
            401: "authentication_error",
            404: "not_found_error",
            429: "rate_limit_error",
            500: "api_error",
        }
        told = {"type": kinds.get(refused.status, "invalid_request_error"), "message": refused.detail}
        return {"type": "error", "error": told, "request_id": "req_simulated"}
