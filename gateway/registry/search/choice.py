"""Which adapters may serve a request now, in which order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from gateway.errors import CapabilityUnavailable, OperationUnavailable
from gateway.registry.qualification import Evidence
from gateway.registry.search.adapter import Adapter, route_id
from gateway.registry.search.request import SearchRequest


@attrs.frozen
class Choice:
    """The proven and capable adapters in the operator's order, each with its proof.

    `preferred` names the adapter that the operator wants first for such a request, proven or not: whatever else
    serves is a fallback.
    """

    preferred: str
    candidates: tuple[tuple[Adapter, Evidence], ...]


def choose(adapters: Sequence[Adapter], request: SearchRequest, proof: Callable[[str], Evidence]) -> Choice:
    """Return the choice for a request.

    Raises `OperationUnavailable` when no adapter is proven, and `CapabilityUnavailable` when those that are cannot
    serve this request; both carry a machine `reason` and the reason of every route.
    """
    judged = [(adapter, proof(route_id(adapter)), adapter.capabilities.lacks(request)) for adapter in adapters]
    proven = [(adapter, evidence, lack) for adapter, evidence, lack in judged if evidence.open]
    if not proven:
        reasons = {evidence.route_id: evidence.reason for _, evidence, _ in judged}
        raise OperationUnavailable(
            "No search route is proven to work now.",
            extra={"reason": next(iter(reasons.values()), "not_configured"), "routes": reasons},
        )
    candidates = tuple((adapter, evidence) for adapter, evidence, lack in proven if lack is None)
    if not candidates:
        lacks = {evidence.route_id: lack for _, evidence, lack in proven}
        raise CapabilityUnavailable(
            "No proven search route can serve this language, region, query length or number of results.",
            extra={"reason": next(iter(lacks.values())), "routes": lacks},
        )
    preferred = next(adapter.name for adapter, _, lack in judged if lack is None)
    return Choice(preferred, candidates)
