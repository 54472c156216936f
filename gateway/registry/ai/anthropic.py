"""Anthropic's Messages API.

Several turns of one role in a row are sent as they are: the API makes one turn of them itself.  It has no mode for
any JSON, so JSON modes are left to other routes.  Nothing is said of thinking, which is then off on the models that
take a temperature, and its tokens are part of the output's count on those that think.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal
from urllib.parse import quote

import attrs

from gateway.registry.ai import reading
from gateway.registry.ai.adapter import Completion, FinishReason, ModelFailed, Usage, text_member
from gateway.registry.ai.dialect import without_sampling
from gateway.registry.ai.prompt import Prompt, Sampling
from gateway.registry.ai.turns import disorder, instructions, spoken
from gateway.registry.http_call import HttpAnswer, HttpCall
from gateway.registry.qualification import Finding

BASE_URL = "https://api.anthropic.com"
VERSION = "2023-06-01"
FINISH_REASONS: Mapping[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
MEMBERS = frozenset({"model", "messages", "max_tokens", "system", "stop_sequences", "temperature", "top_p"})
"""All that a body may hold."""

OLDER_MODEL = re.compile(r"claude-(?:[123][.-][^\n]*|instant[^\n]*)")
MODEL = re.compile(r"claude-(?P<line>[a-z]+)-(?P<major>\d{1,2})(?:[.-](?P<minor>\d{1,2}))?(?!\d)[^\n]*")


@attrs.frozen
class AnthropicAdapter:
    """Asks one of Anthropic's models with the operator's key.

    Attributes:
        base_url: the API's address, with or without the `/v1` at its end.
        upstream_model: the API's own name of the model.
        key: the operator's key.
        target: labels its calls in logs.
    """

    base_url: str
    upstream_model: str
    key: str = attrs.field(default="", repr=False)
    target: str = "anthropic"
    kind: Literal["anthropic"] = attrs.field(default="anthropic", init=False)

    def lacks(self, prompt: Prompt) -> str | None:
        """Return what the API has no member for, or what this model refuses in it."""
        sampling = prompt.sampling
        if prompt.response_format.json:
            return "json_unsupported"
        if any(not each.content.strip() for each in prompt.messages):
            return "blank_message_unsupported"
        if not takes_sampling(self.upstream_model):
            return disorder(prompt) or _beyond(sampling) or without_sampling(attrs.evolve(sampling, stop=()))
        return disorder(prompt) or _beyond(sampling) or _ill_matched(sampling)

    def plan(self, prompt: Prompt, *, timeout_s: float) -> HttpCall:
        """Return the call of `/v1/messages`."""
        return reading.request(f"{self._root}/messages", self._headers, self._body(prompt), self.target, timeout_s)

    def read(self, prompt: Prompt, answer: HttpAnswer) -> Completion:
        """Read the text blocks, without those of thinking; raises `ModelFailed`."""
        members = reading.json_body(answer, self.key)
        model = reading.reported_model(members.get("model"), self.upstream_model)
        blocks = members.get("content")
        if not isinstance(blocks, list):
            raise ModelFailed("malformed_answer", "its answer has no list of content blocks")
        stop = text_member(members, "stop_reason")
        if stop == "tool_use" or any(each.get("type") == "tool_use" for each in reading.objects(blocks)):
            raise ModelFailed("tool_call", "it called a tool that nobody offered")
        return reading.completion(
            prompt,
            content=reading.joined_texts(blocks),
            finish_reason=reading.finish_reason(FINISH_REASONS, stop),
            usage=_usage(members.get("usage")),
            upstream_model=model,
            upstream_id=text_member(members, "id"),
        )

    def probe_calls(self) -> tuple[HttpCall, ...]:
        """Return the question about this one model, which is not billed."""
        url = f"{self._root}/models/{quote(self.upstream_model, safe='')}"
        return (reading.question(url, self._headers, self.target),)

    def read_probe(self, answers: Sequence[HttpAnswer]) -> Finding:
        """Judge: the model is there for this key, and not retired."""
        return reading.finding(partial(self._prove, answers))

    def canary(self) -> HttpCall:
        """Return a call of few tokens."""
        return self.plan(reading.shortest(self.upstream_model), timeout_s=reading.CANARY_S)

    def read_canary(self, answer: HttpAnswer) -> Finding:
        """Judge: any completion of this model is health, also one that was cut off before its first word."""
        return reading.finding(partial(self.read, reading.shortest(self.upstream_model), answer))

    @property
    def _root(self) -> str:
        return f"{self.base_url.rstrip('/').removesuffix('/v1')}/v1"

    @property
    def _headers(self) -> tuple[tuple[str, str], ...]:
        version = (("accept", "application/json"), ("anthropic-version", VERSION))
        return (*version, ("x-api-key", self.key)) if self.key else version

    def _body(self, prompt: Prompt) -> dict[str, Any]:
        sampling = prompt.sampling
        body: dict[str, Any] = {
            "model": self.upstream_model,
            "max_tokens": prompt.max_output_tokens,
            "system": [{"type": "text", "text": text} for text in instructions(prompt)] or None,
            "messages": [{"role": each.role, "content": each.content} for each in spoken(prompt)],
            "stop_sequences": list(sampling.stop) or None,
        }
        if takes_sampling(self.upstream_model):
            body |= {"temperature": sampling.temperature, "top_p": None if sampling.top_p == 1 else sampling.top_p}
        return {name: value for name, value in body.items() if value is not None}

    def _prove(self, answers: Sequence[HttpAnswer]) -> None:
        (told,) = reading.bodies(answers, 1, self.key)
        if reading.reported_model(told.get("id"), self.upstream_model) is None:
            raise ModelFailed("malformed_answer", "it does not tell of a model")
        if told.get("lifecycle") == "retired":
            raise ModelFailed("model_retired", "the model answers no more")


def takes_sampling(model: str) -> bool:
    """Return True if a model takes `temperature` and `top_p`: those before Opus 4.7 and the fifth generation do."""
    if OLDER_MODEL.fullmatch(model):
        return True
    named = MODEL.fullmatch(model)
    if named is None:
        return False
    version = (int(named["major"]), int(named["minor"] or 0))
    return version < ((4, 7) if named["line"] == "opus" else (5, 0))


def _beyond(sampling: Sampling) -> str | None:
    """Return what the API has no member for; penalties of 0 are no wish."""
    wishes = (
        ("seed", sampling.seed is not None),
        ("presence_penalty", bool(sampling.presence_penalty)),
        ("frequency_penalty", bool(sampling.frequency_penalty)),
        ("reasoning_effort", sampling.reasoning_effort is not None),
        ("stop", any(not each.strip() for each in sampling.stop)),
    )
    return next((f"{name}_unsupported" for name, wished in wishes if wished), None)


def _ill_matched(sampling: Sampling) -> str | None:
    """Return what is out of range: a temperature over 1, and `top_p` beside one."""
    if sampling.temperature is not None and sampling.temperature > 1:
        return "temperature_unsupported"
    both = sampling.temperature is not None and sampling.top_p not in (None, 1)
    return "top_p_unsupported" if both else None


def _usage(told: Any) -> Usage | None:
    """Return the counts: the prompt is what was read afresh, written to the cache and read from it, together."""
    members = reading.members_of(told)
    fresh, output = reading.tokens(members, "input_tokens"), reading.tokens(members, "output_tokens")
    if fresh is None or output is None:
        return None
    cached = reading.tokens(members, "cache_read_input_tokens")
    return Usage(
        input_tokens=fresh + (reading.tokens(members, "cache_creation_input_tokens") or 0) + (cached or 0),
        output_tokens=output,
        reasoning_tokens=reading.tokens(reading.members_of(members.get("output_tokens_details")), "thinking_tokens"),
        cached_tokens=cached,
    )
