"""Gemini's format: generateContent."""

from __future__ import annotations

from typing import Any, ClassVar

from gateway.world.ai_formats import fields
from gateway.world.ai_formats.format import Refused, Served
from gateway.world.ai_text import Answer, Asked
from gateway.world.door import Call


class Gemini:
    """`POST /v1beta/models/{id}:generateContent`, `GET /v1beta/models`, `GET /v1beta/models/{id}`."""

    models: ClassVar[tuple[Served, ...]] = (
        Served("gemini-3.1-pro-preview", reasons=True),
        Served("gemini-2.5-flash-lite"),
    )
    other: ClassVar[str] = "gemini-2.5-flash"
    _members: ClassVar[tuple[str, ...]] = ("contents", "systemInstruction", "generationConfig")
    _configuration: ClassVar[tuple[str, ...]] = (
        "maxOutputTokens",
        "temperature",
        "topP",
        "topK",
        "stopSequences",
        "seed",
        "presencePenalty",
        "frequencyPenalty",
        "candidateCount",
        "responseMimeType",
        "responseSchema",
        "responseJsonSchema",
        "thinkingConfig",
    )

    def key(self, call: Call) -> str:
        """Return the key of the header that this format has for it."""
        return call.headers.get("x-goog-api-key", "")

    def asked(self, call: Call, model: str) -> Asked:
        """Read a call for a completion; raises `Refused`."""
        body = fields.body(call, self._members)
        served = fields.served(self.models, model)
        wished = fields.member(body, "generationConfig")
        fields.known(wished, self._configuration, "generationConfig.")
        fields.constant(wished, "candidateCount", 1)
        texts = [self._parts(body["systemInstruction"], "systemInstruction")] if "systemInstruction" in body else []
        for at, content in fields.items(body, "contents"):
            fields.one_of(content, "role", ("user", "model"), f"{at}.")
            texts.append(self._parts(content, at))
        return Asked(
            model=served.name,
            texts=tuple(texts),
            most_tokens=fields.limit(wished, "maxOutputTokens", served),
            reasons=fields.member(wished, "thinkingConfig").get("thinkingBudget") != 0 and served.reasons,
            stop=fields.texts(wished, "stopSequences"),
            json=wished.get("responseMimeType") == "application/json",
            schema=wished.get("responseJsonSchema") or wished.get("responseSchema"),
        )

    def completion(self, model: str, answer: Answer) -> dict[str, Any]:
        """Return a completion by `model`."""
        told = {"stop": "STOP", "length": "MAX_TOKENS"}[answer.finish]
        content = {"role": "model", "parts": [{"text": answer.text}]} if answer.text else {"role": "model"}
        return {"candidates": [{"index": 0, "content": content, "finishReason": told}]} | self.nothing(model, answer)

    def nothing(self, model: str, answer: Answer) -> dict[str, Any]:
        """Return a completion with nothing in it."""
        said = answer.output_tokens - answer.reasoning_tokens
        usage = {"promptTokenCount": answer.input_tokens, "candidatesTokenCount": said}
        if answer.reasoning_tokens:
            usage["thoughtsTokenCount"] = answer.reasoning_tokens
        total = answer.input_tokens + answer.output_tokens
        return {
            "usageMetadata": usage | {"totalTokenCount": total},
            "modelVersion": model,
            "responseId": answer.id,
        }

    def model(self, served: Served) -> dict[str, Any]:
        """Return what is told of one model."""
        return {
            "name": f"models/{served.name}",
            "version": "001",
            "displayName": f"{served.name} (simulated)",
            "inputTokenLimit": 1_048_576,
            "outputTokenLimit": 65_536,
            "supportedGenerationMethods": ["generateContent"],
        }

    def listing(self) -> dict[str, Any]:
        """Return what is told of all models."""
        return {"models": [self.model(each) for each in self.models]}

    def error(self, refused: Refused) -> dict[str, Any]:
        """Return the body of an error."""
        kinds = {401: "UNAUTHENTICATED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED", 500: "INTERNAL"}
        status = kinds.get(refused.status, "INVALID_ARGUMENT")
        return {"error": {"code": refused.status, "message": refused.detail, "status": status}}

    def _parts(self, content: Any, at: str) -> str:
        if not isinstance(content, dict):
            raise Refused(f"{at} is no content", at)
        fields.known(content, ("role", "parts"), f"{at}.")
        texts = []
        for part_at, part in fields.items(content, "parts", f"{at}."):
            fields.known(part, ("text",), f"{part_at}.")
            texts.append(fields.text(part, "text", f"{part_at}."))
        return "".join(texts)
