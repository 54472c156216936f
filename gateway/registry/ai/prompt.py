"""What a model is asked, whatever route the request came by and whatever upstream it goes to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import attrs

Role = Literal["system", "user", "assistant"]


@attrs.frozen
class Message:
    """One turn of a chat; `name` is who speaks, told to upstreams that know of it."""

    role: Role
    content: str = attrs.field(repr=False)
    name: str | None = None


@attrs.frozen
class ResponseFormat:
    """How the text of the answer is to be formed: free, any JSON object, or JSON by a schema."""

    kind: Literal["text", "json_object", "json_schema"] = "text"
    name: str = "answer"
    schema: Mapping[str, Any] | None = attrs.field(default=None, repr=False)
    strict: bool | None = None
    description: str | None = attrs.field(default=None, repr=False)

    @property
    def json(self) -> bool:
        """True where only a route that enforces JSON can serve."""
        return self.kind != "text"


@attrs.frozen
class Sampling:
    """What a caller asked of the sampling; None: not asked.  A route that cannot honour one is not used."""

    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    reasoning_effort: str | None = None

    @property
    def asked(self) -> frozenset[str]:
        """The names of the members that were asked for."""
        return frozenset(name for name, value in attrs.asdict(self).items() if value not in (None, ()))


@attrs.frozen
class Prompt:
    """A chat to be answered by `model`, an id or alias of the catalog, in at most `max_output_tokens` tokens."""

    model: str
    messages: tuple[Message, ...] = attrs.field(repr=False)
    max_output_tokens: int
    response_format: ResponseFormat = ResponseFormat()
    sampling: Sampling = Sampling()

    @property
    def characters(self) -> int:
        """The Unicode code points of all messages."""
        return sum(len(each.content) for each in self.messages)


class AiRequest(Protocol):
    """A request of an operation of the AI family."""

    @property
    def prompt(self) -> Prompt:
        """What the model is asked."""
        ...
