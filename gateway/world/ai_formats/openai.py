"""OpenAI's format: chat completions."""

from __future__ import annotations

from typing import Any, ClassVar

from gateway.world.ai_formats import fields
from gateway.world.ai_formats.format import MADE, Refused, Served
from gateway.world.ai_text import Answer, Asked
from gateway.world.door import Call


class OpenAi:
    """`POST /v1/chat/completions`, `GET /v1/models`, `GET /v1/models/{id}`."""

    models: ClassVar[tuple[Served, ...]] = (
        Served("gpt-5.6-luna"),
        Served("gpt-5-nano", reasons=True),
        Served("gpt-oss-20b"),
    )
    other: ClassVar[str] = "gpt-4o-mini-2024-07-18"
    _members: ClassVar[tuple[str, ...]] = (
        "model",
        "messages",
        "max_completion_tokens",
        "max_tokens",
        "response_format",
        "temperature",
        "top_p",
        "stop",
        "seed",
        "presence_penalty",
        "frequency_penalty",
        "reasoning_effort",
        "n",
        "stream",
        "store",
    )

    def key(self, call: Call) -> str:
        """Return the key of the header that this format has for it."""
        return call.headers.get("authorization", "").removeprefix("Bearer ")

    def asked(self, call: Call, model: str) -> Asked:
        """Read a call for a completion; raises `Refused`."""
        body = fields.body(call, self._members)
        served = fields.served(self.models, model or fields.text(body, "model"))
        fields.constant(body, "n", 1)
        fields.constant(body, "stream", expected=False)
        if "max_tokens" in body and "max_completion_tokens" in body:
            raise Refused("max_tokens and max_completion_tokens cannot be sent together", "max_tokens")
        limit = "max_tokens" if "max_tokens" in body else "max_completion_tokens"
        texts = []
        for at, message in fields.items(body, "messages"):
            fields.known(message, ("role", "content", "name"), f"{at}.")
            fields.one_of(message, "role", ("system", "developer", "user", "assistant"), f"{at}.")
            texts.append(fields.text(message, "content", f"{at}."))
        wished = body.get("response_format") or {}
        kind = (
            fields.one_of(wished, "type", ("text", "json_object", "json_schema"), "response_format.")
            if wished
            else "text"
        )
        return Asked(
            model=served.name,
            texts=tuple(texts),
            most_tokens=fields.limit(body, limit, served),
            reasons=served.reasons and body.get("reasoning_effort") != "none",
            stop=fields.texts(body, "stop"),
            json=kind != "text",
            schema=fields.member(wished, "json_schema").get("schema") if kind == "json_schema" else None,
        )

    def completion(self, model: str, answer: Answer) -> dict[str, Any]:
        """Return a completion by `model`."""
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None, "annotations": []}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": answer.finish}
        return self.nothing(model, answer) | {"choices": [choice]}

    def nothing(self, model: str, answer: Answer) -> dict[str, Any]:
        """Return a completion with nothing in it."""
        return {
            "id": f"chatcmpl-{answer.id}",
            "object": "chat.completion",
            "created": MADE,
            "model": model,
            "choices": [],
            "usage": {
                "prompt_tokens": answer.input_tokens,
                "completion_tokens": answer.output_tokens,
                "total_tokens": answer.input_tokens + answer.output_tokens,
                "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": answer.reasoning_tokens, "audio_tokens": 0},
            },
            "service_tier": "default",
            "system_fingerprint": "fp_simulated",
        }

    def model(self, served: Served) -> dict[str, Any]:
        """Return what is told of one model."""
        return {"id": served.name, "object": "model", "created": MADE, "owned_by": "simulated"}

    def listing(self) -> dict[str, Any]:
        """Return what is told of all models."""
        return {"object": "list", "data": [self.model(each) for each in self.models]}

    def error(self, refused: Refused) -> dict[str, Any]:
        """Return the body of an error."""
        kinds = {401: "invalid_request_error", 404: "invalid_request_error", 429: "requests", 500: "server_error"}
        codes = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}
        told = {
            "message": refused.detail,
            "type": kinds.get(refused.status, "invalid_request_error"),
            "param": refused.parameter or None,
            "code": codes.get(refused.status),
        }
        return {"error": told}
