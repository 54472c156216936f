"""Which routes may answer for a model of the catalog now, and what can be said of it.

A canonical id is answered by routes to that very id and by no others.  An alias is a promise of capabilities: the
routes that the operator configured for the alias itself come first, then those to the ids behind it, of which the first
with a route that is open and can serve the prompt answers.  One call never goes from one id to another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs

from gateway.errors import CapabilityUnavailable, ModelNotFound, ModelUnavailable
from gateway.registry.ai.adapter import ModelRoute
from gateway.registry.ai.catalog import Catalog, Model
from gateway.registry.ai.prompt import Prompt
from gateway.registry.qualification import Evidence, State

ProofsOf = Callable[[str], Evidence]

NO_ROUTE = "no_route"
RETRY_S = 2.0
"""When to ask again for a model whose routes are closed: they are probed that soon after a failure."""


@attrs.frozen
class Standing:
    """What can be said of an id of the catalog now.

    Attributes:
        model: its row.
        state: that of the route which would be asked first; `unavailable` where none is configured.
        reason: a machine word for why it is closed or degraded; `no_route`: nothing is configured.
        route: the first open route, else the first one.
        evidence: the proof of `route`.
        target: of an alias, the canonical id that answers for it now; None also where the operator configured a route
            for the alias itself.
    """

    model: Model
    state: State
    reason: str | None
    route: ModelRoute | None
    evidence: Evidence | None
    target: str | None

    @property
    def open(self) -> bool:
        """True while a call of it would be tried."""
        return self.evidence is not None and self.evidence.open


@attrs.frozen
class Choice:
    """The open and capable routes to one id, in the operator's order, each with its proof.

    `preferred` is the id of the route that such a prompt goes to first when all are open: whatever else serves is a
    fallback.
    """

    preferred: str
    candidates: tuple[tuple[ModelRoute, Evidence], ...]


def standing(catalog: Catalog, routes: Sequence[ModelRoute], proofs_of: ProofsOf, model_id: str) -> Standing:
    """Return what can be said of an id; raises `ModelNotFound`."""
    model = _row(catalog, model_id)
    judged = [(route, proofs_of(route.route_id)) for group in _groups(routes, model) for route in group]
    if not judged:
        return Standing(model, State.UNAVAILABLE, NO_ROUTE, None, None, None)
    route, evidence = next((each for each in judged if each[1].open), judged[0])
    target = route.model if evidence.open and route.model != model.id else None
    return Standing(model, evidence.state, evidence.reason, route, evidence, target)


def choose(catalog: Catalog, routes: Sequence[ModelRoute], prompt: Prompt, proofs_of: ProofsOf) -> Choice:
    """Return the choice for a prompt.

    Raises `ModelUnavailable` when no route to its model is open, `CapabilityUnavailable` when those that are cannot
    serve this prompt, both with a machine `reason` and that of every route, and `ModelNotFound`.
    """
    model = _row(catalog, prompt.model)
    closed: dict[str, str | None] = {}
    lacking: dict[str, str] = {}
    preferred = ""
    for group in _groups(routes, model):
        candidates: list[tuple[ModelRoute, Evidence]] = []
        for route in group:
            evidence, lack = proofs_of(route.route_id), route.adapter.lacks(prompt)
            if lack is None:
                preferred = preferred or route.route_id
            if not evidence.open:
                closed[route.route_id] = evidence.reason
            elif lack is not None:
                lacking[route.route_id] = lack
            else:
                candidates.append((route, evidence))
        if candidates:
            return Choice(preferred, tuple(candidates))
    raise _unservable(model, closed, lacking)


def _unservable(
    model: Model, closed: dict[str, str | None], lacking: dict[str, str]
) -> ModelUnavailable | CapabilityUnavailable:
    if lacking:
        word = next(iter(lacking.values()))
        return CapabilityUnavailable(
            f"No open route to {model.id} can serve this prompt as it stands ({word.replace('_', ' ')}).",
            extra={"reason": word, "routes": lacking},
        )
    if closed:
        return ModelUnavailable(
            f"No route to {model.id} is proven to work now.",
            retry_after=RETRY_S,
            extra={"reason": next(iter(closed.values())) or "unproven", "routes": closed},
        )
    return ModelUnavailable(f"This node has no route to {model.id}.", extra={"reason": NO_ROUTE, "routes": {}})


def _row(catalog: Catalog, model_id: str) -> Model:
    model = catalog.get(model_id)
    if model is None:
        raise ModelNotFound("The catalog has no model of that id.")
    return model


def _groups(routes: Sequence[ModelRoute], model: Model) -> Iterator[list[ModelRoute]]:
    """Yield the routes that may answer for a model, those to one id at a time.

    That the candidates of an alias keep its capabilities and are billed as it is, the catalog sees to.
    """
    for model_id in (model.id, *model.candidates):
        yield [route for route in routes if route.model == model_id]
