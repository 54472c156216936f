"""A few routes with a clock of their own: what the list of models is made from, without a prober."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs

from gateway.registry import qualification, route_calls
from gateway.registry.ai.adapter import ModelRoute
from gateway.registry.ai.catalog import CATALOG
from gateway.registry.ai.choice import Standing, standing
from gateway.registry.ai.openai import OpenAiAdapter
from gateway.registry.qualification import Evidence, Finding, Outcome, Proofs, Record, Rules

LUNA = "openai/gpt-5.6-luna"
SMOLLM2 = "huggingfacetb/smollm2-135m-instruct"
GLM = "zai/glm-5.1"
BEGAN = datetime(2026, 7, 26, 12, 0, 0, 500_000, tzinfo=UTC)
RULES = Rules(failures_to_close=1)


def route(model: str, **more: Any) -> ModelRoute:
    """Return a route to a model that nobody asks."""
    adapter = OpenAiAdapter("http://127.0.0.1:9", model.partition("/")[2])
    return ModelRoute(f"ai/{model}", model, adapter, billed=False, canary=False, **more)


@attrs.define(eq=False)
class Shelf:
    """Routes, and the records that their probes and calls have made."""

    routes: Sequence[ModelRoute] = ()
    now: float = 0.0
    records: dict[str, Record] = attrs.field(factory=dict)
    proofs: Proofs = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.proofs = Proofs(lambda: self.now)

    def probe(self, model: str, finding: Finding | None = None, ms: int = 40) -> None:
        """Let a probe of the route to a model end now, well unless told otherwise."""
        name = f"ai/{model}"
        wall = BEGAN + timedelta(seconds=self.now)
        self._keep(
            qualification.probed(
                self.records.get(name, Record(name)),
                finding or Finding(ok=True),
                now=self.now,
                wall=wall,
                ms=ms,
                rules=RULES,
            )
        )

    def call(self, model: str, *, ok: bool, ms: int = 900) -> None:
        """Let a call over the route to a model end now."""
        name = f"ai/{model}"
        self._keep(route_calls.called(self.records[name], Outcome(name, ok, None, ms), now=self.now, rules=RULES))

    def standing(self, model_id: str) -> Standing:
        """Return what can be said of an id now."""
        return standing(CATALOG, self.routes, self.proofs.of, model_id)

    def standings(self) -> tuple[Standing, ...]:
        """Return what can be said of every id now."""
        return tuple(self.standing(each) for each in CATALOG.models)

    def _keep(self, record: Record) -> None:
        self.records[record.route_id] = record
        proved: dict[str, Evidence] = {
            name: qualification.evidence(each, rules=RULES) for name, each in self.records.items()
        }
        self.proofs.publish(proved)
