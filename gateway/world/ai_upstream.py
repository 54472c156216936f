"""A model provider that speaks OpenAI's, Anthropic's and Gemini's format and makes its answers up.

It stands for the providers a node sells from: it asks for its key, takes no member it does not know, counts tokens and
answers the same to the same (source: reference/ai-search, section 2).
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import attrs

from gateway.world import faults
from gateway.world.ai_formats import Anthropic, Format, Gemini, OpenAi, Refused
from gateway.world.ai_text import made_up
from gateway.world.door import Call, Late, Reply, Silence
from gateway.world.faults import Faults

COMPLETIONS = "completions"
LISTINGS = "listings"
ABORTED = "aborted"
CALLS = (COMPLETIONS, LISTINGS, ABORTED)
RETRY_AFTER_S = 1
OPENAI, ANTHROPIC, GEMINI = OpenAi(), Anthropic(), Gemini()


@attrs.frozen
class _Place:
    """What a call is for: a completion or a listing, in one format; `model` where the path names it."""

    format: Format
    model: str
    completion: bool


class AiUpstream:
    """Answers `/v1/...` and `/v1beta/...`.

    `hang`, `http_500` and `http_429` hold for listings as well; what is wrong with completions only leaves the listings
    as they are, as it would with a provider.  The latency in force is that of completions.  `refuse` shuts our door.
    """

    def __init__(self, state: Faults, key: str) -> None:
        """`key` is asked of every call."""
        self._faults = state
        self._key = key

    async def answer(self, call: Call) -> Reply | Silence | Late:
        """Answer one call in the mode in force; a completion whose caller leaves before is counted as aborted."""
        place = _place(call)
        if place is None:
            return Reply.json(OPENAI.error(Refused(f"there is no {call.method} {call.path}", status=404)), 404)
        self._faults.count(faults.AI, COMPLETIONS if place.completion else LISTINGS)
        mode = self._faults.mode(faults.AI)
        if mode == "hang":
            return Silence(self._left) if place.completion else Silence()
        reply = self._reply(call, place, mode)
        latency_s = self._faults.latency_ms(faults.AI) / 1000
        return Late(reply, latency_s, self._left) if place.completion and latency_s else reply

    def _left(self) -> None:
        self._faults.count(faults.AI, ABORTED)

    def _reply(self, call: Call, place: _Place, mode: str) -> Reply:
        try:
            self._admit(place.format.key(call), mode)
            if place.completion:
                return _completion(call, place, mode)
            return Reply.json(_listing(place))
        except Refused as refused:
            late = (("retry-after", str(RETRY_AFTER_S)),) if refused.status == 429 else ()
            return Reply.json(place.format.error(refused), refused.status, late)

    def _admit(self, key: str, mode: str) -> None:
        if mode == "http_500":
            raise Refused("The server had an error while processing your request.", status=500)
        if not hmac.compare_digest(key.encode(), self._key.encode()):
            raise Refused("Incorrect API key provided.", status=401)
        if mode == "http_429":
            raise Refused("Rate limit reached for requests.", status=429)


def _place(call: Call) -> _Place | None:
    """Return what a call is for, None where there is nothing."""
    match call.method, unquote(call.path).strip("/").split("/"):
        case "POST", ["v1", "chat", "completions"]:
            return _Place(OPENAI, "", completion=True)
        case "POST", ["v1", "messages"]:
            return _Place(ANTHROPIC, "", completion=True)
        case "POST", ["v1beta", "models", name] if name.endswith(":generateContent"):
            return _Place(GEMINI, name.removesuffix(":generateContent"), completion=True)
        case "GET", ["v1", "models", *name]:
            return _Place(
                ANTHROPIC if "anthropic-version" in call.headers else OPENAI, "/".join(name), completion=False
            )
        case "GET", ["v1beta", "models", *name]:
            return _Place(GEMINI, "/".join(name), completion=False)
    return None


def _completion(call: Call, place: _Place, mode: str) -> Reply:
    asked = place.format.asked(call, place.model)
    answer = made_up(asked)
    if mode == "empty_choices":
        return Reply.json(place.format.nothing(asked.model, answer))
    model = place.format.other if mode == "wrong_model" else asked.model
    reply = Reply.json(place.format.completion(model, answer))
    return attrs.evolve(reply, body=reply.body[: len(reply.body) // 2]) if mode == "invalid_json" else reply


def _listing(place: _Place) -> Mapping[str, Any]:
    if not place.model:
        return place.format.listing()
    for each in place.format.models:
        if each.name == place.model:
            return place.format.model(each)
    raise Refused(f"The model '{place.model}' does not exist.", "model", status=404)
