"""SearXNG's JSON API: an operator's own metasearch instance (docs.searxng.org, "Search API")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal
from urllib.parse import urlencode

import attrs

from gateway.errors import GatewayError
from gateway.registry.http_call import HttpAnswer, HttpCall
from gateway.registry.qualification import Finding
from gateway.registry.search.adapter import Capabilities, Cost, json_object, written
from gateway.registry.search.page import SearchPage, blocked, collect, failed, names
from gateway.registry.search.plain_query import SEARXNG, plain_query
from gateway.registry.search.request import SearchRequest

FIELDS = {"title": "title", "url": "url", "snippet": "content", "published": "publishedDate"}
LONGEST_TARGET = 7000  # instances read request lines of 8 KiB; longer queries go as a form
CAPABILITIES = Capabilities(languages=None, regions=None)
COST = Cost(basis="self_hosted_no_charge_per_call")


@attrs.frozen
class SearxngAdapter:
    """Asks one instance; `json` must be among its formats, or it answers every search with 403."""

    name: str
    base_url: str
    cost: Cost = COST
    simulated: bool = False
    capabilities: Capabilities = CAPABILITIES
    kind: Literal["searxng"] = attrs.field(default="searxng", init=False)
    coverage: Literal["web"] = attrs.field(default="web", init=False)

    def plan(self, request: SearchRequest) -> HttpCall:
        """Return the search call: the query without commands, the locale language and region in one (`de-AT`)."""
        spoken = self.capabilities.language_of(request) or ""
        language = written(spoken) if "-" in spoken else f"{spoken}-{request.region}"
        query = urlencode(
            {
                "q": plain_query(request.query, SEARXNG),
                "format": "json",
                "language": language,
                "safesearch": "1",
            }
        )
        url = f"{self.base_url.rstrip('/')}/search"
        accept = ("accept", "application/json")
        if len(url) + len(query) < LONGEST_TARGET:
            return HttpCall("GET", f"{url}?{query}", (accept,), target=self.name)
        form = ("content-type", "application/x-www-form-urlencoded")
        return HttpCall("POST", url, (accept, form), query.encode(), target=self.name)

    def read(self, request: SearchRequest, answer: HttpAnswer) -> SearchPage:
        """Read the page.

        No results while engines did not respond means blocked, not empty.  Nor are an error beside an empty list, or
        answers and infoboxes without a link, a page without results.
        """
        body = json_object(self.name, answer)
        silent = body.get("unresponsive_engines", [])
        if not isinstance(silent, list):
            raise failed(self.name, "malformed_answer", "its list of unresponsive engines is not a list")
        hits = collect(self.name, body.get("results"), FIELDS, limit=request.max_results)
        if silent and not hits:
            named = names(silent)
            told = f"no results, and these engines did not respond: {', '.join(named)}"
            raise blocked(self.name, "engines_silent", told, unresponsive=list(named))
        if not hits and body.get("error"):
            raise failed(self.name, "upstream_error", "it answered with an error beside an empty list")
        if not hits and (body.get("answers") or body.get("infoboxes")):
            raise blocked(self.name, "no_results", "it answered without a link to any page")
        return SearchPage(hits, degraded=bool(silent), unresponsive=names(silent))

    def probe_calls(self) -> tuple[HttpCall, ...]:
        """Return the instance's health check and its list of engines; neither searches anything."""
        base = self.base_url.rstrip("/")
        return (
            HttpCall("GET", f"{base}/healthz", target=self.name),
            HttpCall("GET", f"{base}/config", (("accept", "application/json"),), target=self.name, max_bytes=2**22),
        )

    def read_probe(self, answers: Sequence[HttpAnswer]) -> Finding:
        """Judge: healthy, and at least one engine enabled."""
        health, listing = answers
        if health.status != 200:
            return Finding(ok=False, reason=f"health_status_{health.status}")
        try:
            engines: Any = json_object(self.name, listing).get("engines")
        except GatewayError as problem:
            return Finding(ok=False, reason=f"config_{problem.extra['reason']}")
        if not isinstance(engines, list):
            return Finding(ok=False, reason="config_malformed_answer")
        if not any(isinstance(each, dict) and each.get("enabled") is True for each in engines):
            return Finding(ok=False, reason="no_engine_enabled")
        return Finding(ok=True)
