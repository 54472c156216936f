"""Exa's search API: `POST /search` with an API key; every call is billed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import attrs

from gateway.registry.http_call import HttpAnswer, HttpCall
from gateway.registry.qualification import Finding
from gateway.registry.search.adapter import Capabilities, Cost, json_object, keyed_finding
from gateway.registry.search.page import SNIPPET_CHARS, SearchPage, collect
from gateway.registry.search.request import SearchRequest

BASE_URL = "https://api.exa.ai"
FIELDS = {"title": "title", "url": "url", "snippet": "snippet", "published": "publishedDate"}
CAPABILITIES = Capabilities(languages=frozenset({"en"}), regions=None)


@attrs.frozen
class ExaAdapter:
    """Asks Exa with the operator's key.  It has no language parameter, so it is declared for English only."""

    name: str
    key: str = attrs.field(repr=False)
    cost: Cost
    base_url: str = BASE_URL
    simulated: bool = False
    capabilities: Capabilities = CAPABILITIES
    kind: Literal["exa"] = attrs.field(default="exa", init=False)
    coverage: Literal["web"] = attrs.field(default="web", init=False)

    def plan(self, request: SearchRequest) -> HttpCall:
        """Return the search call, with enough of each page's text for a snippet."""
        body = {
            "query": request.query,
            "numResults": request.max_results,
            "userLocation": request.region,
            "contents": {"text": {"maxCharacters": SNIPPET_CHARS}},
        }
        headers = (("accept", "application/json"), ("content-type", "application/json"), ("x-api-key", self.key))
        return HttpCall(
            "POST", f"{self.base_url.rstrip('/')}/search", headers, json.dumps(body).encode(), target=self.name
        )

    def read(self, request: SearchRequest, answer: HttpAnswer) -> SearchPage:
        """Read `results`; the snippet is the first highlight, or else the start of the text."""
        results = json_object(self.name, answer).get("results")
        items = [_with_snippet(each) for each in results] if isinstance(results, list) else results
        return SearchPage(collect(self.name, items, FIELDS, limit=request.max_results, engine="exa"))

    def probe_calls(self) -> tuple[HttpCall, ...]:
        """Return nothing: a search is the only proof, and it is billed."""
        return ()

    def read_probe(self, answers: Sequence[HttpAnswer]) -> Finding:  # noqa: ARG002 - there are none
        """Judge by the configuration alone."""
        return keyed_finding(self.key)


def _with_snippet(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    highlights = item.get("highlights")
    first = highlights[0] if isinstance(highlights, list) and highlights else item.get("text")
    return {**item, "snippet": first}
