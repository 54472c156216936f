"""Brave's web search API: `GET /res/v1/web/search` with a subscription token; every call is billed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from urllib.parse import urlencode

import attrs

from gateway.registry.http_call import HttpAnswer, HttpCall
from gateway.registry.qualification import Finding
from gateway.registry.search.adapter import Capabilities, Cost, json_object, keyed_finding
from gateway.registry.search.page import SearchPage, collect, failed
from gateway.registry.search.plain_query import BANGS, plain_query
from gateway.registry.search.request import SearchRequest

MOST_RESULTS = 20
BASE_URL = "https://api.search.brave.com"
FIELDS = {"title": "title", "url": "url", "snippet": "description", "published": "page_age"}

# The API's codes for `search_lang` and `country`.  Japanese is left out: its code differs between lists.
LANGUAGES = frozenset({
    "ar", "bg", "bn", "ca", "cs", "da", "de", "en", "en-gb", "es", "et", "eu", "fi", "fr", "gl", "gu", "he", "hi",
    "hr", "hu", "is", "it", "kn", "ko", "lt", "lv", "ml", "mr", "ms", "nb", "nl", "pa", "pl", "pt-br", "pt-pt",
    "ro", "ru", "sk", "sl", "sr", "sv", "ta", "te", "th", "tr", "uk", "vi", "zh-hans", "zh-hant",
})  # fmt: skip
REGIONS = frozenset({
    "AR", "AT", "AU", "BE", "BR", "CA", "CH", "CL", "CN", "DE", "DK", "ES", "FI", "FR", "GB", "HK", "ID", "IN",
    "IT", "JP", "KR", "MX", "MY", "NL", "NO", "NZ", "PH", "PL", "PT", "RU", "SA", "SE", "TR", "TW", "US", "ZA",
})  # fmt: skip
CAPABILITIES = Capabilities(languages=LANGUAGES, regions=REGIONS, max_query_chars=400, max_query_words=50)


@attrs.frozen
class BraveAdapter:
    """Asks Brave with the operator's key."""

    name: str
    key: str = attrs.field(repr=False)
    cost: Cost
    base_url: str = BASE_URL
    simulated: bool = False
    capabilities: Capabilities = CAPABILITIES
    kind: Literal["brave"] = attrs.field(default="brave", init=False)
    coverage: Literal["web"] = attrs.field(default="web", init=False)

    def plan(self, request: SearchRequest) -> HttpCall:
        """Return the search call: web results only, without the highlighting markup."""
        query = urlencode(
            {
                "q": plain_query(request.query, BANGS),
                "count": min(2 * request.max_results, MOST_RESULTS),  # some are one page
                "search_lang": self.capabilities.language_of(request),
                "country": request.region,
                "result_filter": "web",
                "text_decorations": "false",
            }
        )
        headers = (("accept", "application/json"), ("x-subscription-token", self.key))
        return HttpCall("GET", f"{self.base_url.rstrip('/')}/res/v1/web/search?{query}", headers, target=self.name)

    def read(self, request: SearchRequest, answer: HttpAnswer) -> SearchPage:
        """Read `web.results`; a search answer without `web` found nothing."""
        body = json_object(self.name, answer)
        if "web" not in body and body.get("type") == "search":
            return SearchPage(())
        web = body.get("web")
        if not isinstance(web, dict):
            raise failed(self.name, "malformed_answer", "it has no web results")
        hits = collect(self.name, web.get("results"), FIELDS, limit=request.max_results, engine="brave", kind="html")
        return SearchPage(hits)

    def probe_calls(self) -> tuple[HttpCall, ...]:
        """Return nothing: Brave has no call that is not billed."""
        return ()

    def read_probe(self, answers: Sequence[HttpAnswer]) -> Finding:  # noqa: ARG002 - there are none
        """Judge by the configuration alone."""
        return keyed_finding(self.key)
