"""What an adapter of a model upstream is: what it can serve, what it asks, how it reads the answer.

Adapters do no I/O: they plan an `HttpCall` and read the `HttpAnswer`.  What is sent is built from a fixed set of
members, never passed through.  An adapter that cannot serve a prompt as it stands says so and is skipped: nothing is
bent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import attrs

from gateway.registry.ai.prompt import Prompt
from gateway.registry.call_evidence import Weight, weight_of
from gateway.registry.http_call import HttpAnswer, HttpCall
from gateway.registry.qualification import Finding

FinishReason = Literal["stop", "length", "content_filter"]
LEAST_CANARY_TOKENS = 16
"""A canary asks for this many output tokens: fewer break reasoning models, more cost more."""


@attrs.frozen
class Usage:
    """The upstream's own count of tokens: prompt (cached ones among them), output (reasoning ones among them)."""

    input_tokens: int
    output_tokens: int
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None


@attrs.frozen
class Completion:
    """What a model answered; `usage` is None where the upstream did not tell, never an estimate."""

    content: str = attrs.field(repr=False)
    finish_reason: FinishReason
    usage: Usage | None
    upstream_model: str | None = None
    upstream_id: str | None = None


class ModelFailed(Exception):
    """An upstream answered, and not with a completion that can be sold.

    Attributes:
        reason: a machine word: `status_429`, `wrong_model`, `empty_choices`, `malformed_answer`, `tool_call`, ...
        detail: for a person, without anything of the prompt or the key.
        weight: what it says of the route, `call_evidence.weight_of` the reason unless given.
        retry_after: seconds that the upstream asked for, if any.
    """

    def __init__(
        self, reason: str, detail: str, *, weight: Weight | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.weight = weight or weight_of(reason)
        self.retry_after = retry_after


class ModelAdapter(Protocol):
    """One upstream model in the words of its API."""

    @property
    def kind(self) -> str:
        """`openai`, `anthropic`, `gemini` or `embedded`."""
        ...

    @property
    def upstream_model(self) -> str:
        """The upstream's own name of the model."""
        ...

    def lacks(self, prompt: Prompt) -> str | None:
        """Return the machine word for the first thing it cannot serve of `prompt` as it stands; None: it can."""
        ...

    def plan(self, prompt: Prompt, *, timeout_s: float) -> HttpCall:
        """Return the one call that serves `prompt`."""
        ...

    def read(self, prompt: Prompt, answer: HttpAnswer) -> Completion:
        """Read the answer; raises `ModelFailed`, also where the upstream says that another model answered."""
        ...

    def probe_calls(self) -> tuple[HttpCall, ...]:
        """Return the unbilled calls (a listing) that prove the route; none: there is no free proof of it."""
        ...

    def read_probe(self, answers: Sequence[HttpAnswer]) -> Finding:
        """Judge the answers of `probe_calls`: 400, 401, 403 and 404 are no health; with none, the configuration."""
        ...

    def canary(self) -> HttpCall:
        """Return a real call of `LEAST_CANARY_TOKENS` output tokens, reasoning off where that can be said."""
        ...

    def read_canary(self, answer: HttpAnswer) -> Finding:
        """Judge its answer as a real one is: any completion of the right model is health."""
        ...


@attrs.frozen
class RouteSettings:
    """One configured way to a model of the catalog, secrets read; see `[[ai.route]]`."""

    model: str
    kind: str
    base_url: str = ""
    upstream_model: str = ""
    key: str = attrs.field(default="", repr=False)
    name: str = ""
    billed: bool | None = None
    canary: bool | None = None
    rates: tuple[int, int] | None = None
    simulated: bool = False


@attrs.frozen
class ModelRoute:
    """A way to a model of the catalog.

    Attributes:
        route_id: `ai/` and the route's name, which is the model's id unless configured, `-2` for its second route.
        model: the id or alias of the catalog that it serves.
        billed: each call of it costs the operator.
        canary: it may be proved by a call of `LEAST_CANARY_TOKENS`.
        rates: what the upstream charges, USD micro-units per million (input, output) tokens; None: not known.
        simulated: it is a stand-in of the local world.
    """

    route_id: str
    model: str
    adapter: ModelAdapter
    billed: bool
    canary: bool
    rates: tuple[int, int] | None = None
    simulated: bool = False

    @property
    def budget(self) -> str | None:
        """The name of the daily budget of free calls over a billed route; else None."""
        return f"billed:{self.route_id}" if self.billed else None


def text_member(members: Mapping[str, Any], name: str) -> str | None:
    """Return a member that is text, else None."""
    value = members.get(name)
    return value if isinstance(value, str) else None
