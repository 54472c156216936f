"""The embedded model as the AI family sees it: OpenAI's API at an address that comes and goes with the worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import attrs
import orjson

from gateway.registry.ai.adapter import Completion, ModelFailed
from gateway.registry.ai.embedded_engine import MODEL
from gateway.registry.ai.openai import OpenAiAdapter
from gateway.registry.ai.prompt import Prompt
from gateway.registry.http_call import HttpAnswer, HttpCall
from gateway.registry.qualification import Finding

SCHEMA_BYTES = 8192
SCHEMA_DEPTH = 32
BUSY = 503


@attrs.frozen
class Endpoint:
    """Where the worker answers, and the key that it asks for."""

    base_url: str
    key: str = attrs.field(repr=False)


@attrs.frozen
class EmbeddedAdapter:
    """Asks the embedded model.

    Attributes:
        endpoint: tells where it answers now, or the machine word for why it does not (`starting`, `crashed`, ...).
    """

    endpoint: Callable[[], Endpoint | str]
    kind: Literal["embedded"] = attrs.field(default="embedded", init=False)
    upstream_model: str = attrs.field(default=MODEL, init=False)

    def lacks(self, prompt: Prompt) -> str | None:
        """Return what it cannot serve: reasoning, and a schema that would hold up the grammar of everybody's slots."""
        if prompt.sampling.reasoning_effort is not None:
            return "reasoning_effort_unsupported"
        schema = prompt.response_format.schema
        return None if schema is None or _is_simple(schema) else "json_schema_too_complex"

    def plan(self, prompt: Prompt, *, timeout_s: float) -> HttpCall:
        """Return the call; raises `ModelFailed` while there is nobody to ask."""
        return self._adapter.plan(prompt, timeout_s=timeout_s)

    def read(self, prompt: Prompt, answer: HttpAnswer) -> Completion:
        """Read the answer; raises `ModelFailed`.  That every slot is taken says nothing against the model."""
        if answer.status == BUSY:
            raise ModelFailed("busy", "all its slots are taken", retry_after=1.0)
        return self._reader.read(prompt, answer)

    def probe_calls(self) -> tuple[HttpCall, ...]:
        """Return the listing, which the worker answers only while its engine does; nothing while there is no worker."""
        there = self.endpoint()
        return () if isinstance(there, str) else _adapter(there).probe_calls()

    def read_probe(self, answers: Sequence[HttpAnswer]) -> Finding:
        """Judge the listing; without a worker, tell why there is none."""
        if answers:
            return self._reader.read_probe(answers)
        there = self.endpoint()
        return Finding(ok=False, reason=there if isinstance(there, str) else "starting")

    def canary(self) -> HttpCall:
        """Return a call of few tokens; raises `ModelFailed` while there is nobody to ask."""
        return self._adapter.canary()

    def read_canary(self, answer: HttpAnswer) -> Finding:
        """Judge its answer as a real one is; a worker that has its hands full is well."""
        return Finding(ok=True) if answer.status == BUSY else self._reader.read_canary(answer)

    @property
    def _adapter(self) -> OpenAiAdapter:
        there = self.endpoint()
        if isinstance(there, str):
            raise ModelFailed(there, "the embedded model does not answer now")
        return _adapter(there)

    @property
    def _reader(self) -> OpenAiAdapter:
        """What reads an answer, which may have come from a worker that is no more."""
        there = self.endpoint()
        return _adapter(Endpoint("http://127.0.0.1", "") if isinstance(there, str) else there)


def _adapter(there: Endpoint) -> OpenAiAdapter:
    return OpenAiAdapter(there.base_url, MODEL, there.key, "embedded")


def _is_simple(schema: Mapping[str, Any]) -> bool:
    """Return True if the grammar of a schema is small: a pattern's counts may ask for any amount of memory."""
    try:
        if len(orjson.dumps(schema)) > SCHEMA_BYTES:
            return False
    except orjson.JSONEncodeError:  # it is nested too deeply
        return False
    stack: list[tuple[Any, int]] = [(schema, 1)]
    while stack:
        value, depth = stack.pop()
        if depth > SCHEMA_DEPTH or (isinstance(value, Mapping) and isinstance(value.get("pattern"), str)):
            return False
        inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
        stack.extend((each, depth + 1) for each in inner if isinstance(each, Mapping | list))
    return True
