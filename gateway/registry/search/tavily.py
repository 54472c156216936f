"""Tavily's search API: `POST /search` with a bearer key; every call is billed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

import attrs

from gateway.registry.http_call import HttpAnswer, HttpCall
from gateway.registry.qualification import Finding
from gateway.registry.search.adapter import Capabilities, Cost, json_object, keyed_finding
from gateway.registry.search.page import SearchPage, collect
from gateway.registry.search.request import SearchRequest

MOST_RESULTS = 20
BASE_URL = "https://api.tavily.com"
FIELDS = {"title": "title", "url": "url", "snippet": "content", "published": "published_date"}

COUNTRIES = {
    "AR": "argentina", "AT": "austria", "AU": "australia", "BE": "belgium", "BR": "brazil", "CA": "canada",
    "CH": "switzerland", "CL": "chile", "CO": "colombia", "DE": "germany", "DK": "denmark", "EG": "egypt",
    "ES": "spain", "FI": "finland", "FR": "france", "GB": "united kingdom", "GR": "greece", "HU": "hungary",
    "ID": "indonesia", "IE": "ireland", "IL": "israel", "IN": "india", "IT": "italy", "JP": "japan", "KE": "kenya",
    "KR": "south korea", "MX": "mexico", "MY": "malaysia", "NG": "nigeria", "NL": "netherlands", "NO": "norway",
    "NZ": "new zealand", "PE": "peru", "PH": "philippines", "PL": "poland", "PT": "portugal", "RO": "romania",
    "SE": "sweden", "SG": "singapore", "TH": "thailand", "TR": "turkey", "UA": "ukraine", "US": "united states",
    "VN": "vietnam", "ZA": "south africa",
}  # fmt: skip
CAPABILITIES = Capabilities(languages=frozenset({"en"}), regions=frozenset(COUNTRIES), max_query_chars=400)


@attrs.frozen
class TavilyAdapter:
    """Asks Tavily with the operator's key.  It has no language parameter, so it is declared for English only."""

    name: str
    key: str = attrs.field(repr=False)
    cost: Cost
    base_url: str = BASE_URL
    simulated: bool = False
    capabilities: Capabilities = CAPABILITIES
    kind: Literal["tavily"] = attrs.field(default="tavily", init=False)
    coverage: Literal["web"] = attrs.field(default="web", init=False)

    def plan(self, request: SearchRequest) -> HttpCall:
        """Return the search call: raw results of the general topic, no synthesized answer."""
        body = {
            "query": request.query,
            "max_results": min(2 * request.max_results, MOST_RESULTS),  # some are one page
            "topic": "general",
            "search_depth": "basic",
            "include_answer": False,
            "country": COUNTRIES[request.region],
        }
        headers = (
            ("accept", "application/json"),
            ("content-type", "application/json"),
            ("authorization", f"Bearer {self.key}"),
        )
        return HttpCall(
            "POST", f"{self.base_url.rstrip('/')}/search", headers, json.dumps(body).encode(), target=self.name
        )

    def read(self, request: SearchRequest, answer: HttpAnswer) -> SearchPage:
        """Read `results`."""
        body = json_object(self.name, answer)
        return SearchPage(collect(self.name, body.get("results"), FIELDS, limit=request.max_results, engine="tavily"))

    def probe_calls(self) -> tuple[HttpCall, ...]:
        """Return nothing: a search is the only proof, and it is billed."""
        return ()

    def read_probe(self, answers: Sequence[HttpAnswer]) -> Finding:  # noqa: ARG002 - there are none
        """Judge by the configuration alone."""
        return keyed_finding(self.key)
