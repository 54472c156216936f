"""The `output` of a search: the results, what they cover, and the route they came over (interface.md 2.1, 2.2)."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

import attrs

from gateway.registry.search.adapter import Adapter, route_id, written
from gateway.registry.search.link import hostname
from gateway.registry.search.page import SearchPage, plausible, rfc3339
from gateway.registry.search.request import SearchRequest


@attrs.frozen
class Asset:
    """What the node accounts its costs in: a symbol and the number of decimals of its atomic unit."""

    symbol: str = "USD"
    decimals: int = 6

    def usd(self, atomic: int) -> str:
        """Return an amount of a dollar asset as decimal text with at least six decimals."""
        return f"{Decimal(atomic).scaleb(-self.decimals):.{max(self.decimals, 6)}f}"


@attrs.frozen
class Spent:
    """What the calls of one search cost the node together; None where that is not known."""

    atomic: int | None
    basis: str


def output(
    request: SearchRequest, page: SearchPage, adapter: Adapter, route: dict[str, Any], *, retrieved_at: datetime
) -> dict[str, Any]:
    """Return the output object."""
    seen = rfc3339(retrieved_at)
    return {
        "query": request.query,
        "results": [
            {
                "rank": rank,
                "title": hit.title,
                "url": hit.url,
                "hostname": hostname(hit.url),
                "snippet": hit.snippet,
                "publishedAt": plausible(hit.published_at, retrieved_at),
                "retrievedAt": seen,
                "source": adapter.name,
                "engine": hit.engine,
            }
            for rank, hit in enumerate(page.hits, 1)
        ],
        "coverage": adapter.coverage,
        "language": _language(request, adapter),
        "region": request.region,
        "synthesized": False,
        "unresponsive": list(page.unresponsive),
        "freshness": {"retrievedAt": seen, "cached": False, "ageMs": 0},
        "route": route,
    }


def _language(request: SearchRequest, adapter: Adapter) -> str:
    """Return the language that was searched in: the one asked for, or the narrowest that the engine knows of it."""
    used = adapter.capabilities.language_of(request)
    return request.language if used in {None, request.language.lower()} else written(used or "")


def route(
    adapter: Adapter, qualification: str, page: SearchPage, spent: Spent, asset: Asset, *, fallback: bool
) -> dict[str, Any]:
    """Return the route object; `simulated` stands in it only when the engine is a stand-in of the local world."""
    told: dict[str, Any] = {
        "routeId": route_id(adapter),
        "qualificationId": qualification,
        "servingAdapters": [adapter.name],
        "degraded": page.degraded,
        "fallback": fallback,
        "cost": {
            "asset": asset.symbol,
            "amountAtomic": None if spent.atomic is None else str(spent.atomic),
            "usd": None if spent.atomic is None else asset.usd(spent.atomic),
            "basis": spent.basis,
        },
    }
    if adapter.simulated:
        told["simulated"] = True
    return told
