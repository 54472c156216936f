from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import EngineBlocked, ExecutorFailed
from gateway.registry.http_call import HttpAnswer
from gateway.registry.search.adapter import Cost
from gateway.registry.search.page import SearchPage
from gateway.registry.search.request import SearchRequest
from gateway.registry.search.tavily import COUNTRIES, TavilyAdapter

ADAPTER = TavilyAdapter("tavily", "tvly-secret", Cost(8000, "configured_per_call"))
REQUEST = SearchRequest("trio", max_results=5, region="GB")
PAGE = {
    "query": "trio",
    "answer": "A synthesized answer that nobody asked for",
    "results": [
        {"title": "Trio", "url": "https://trio.example/", "content": "Friendly concurrency", "score": 0.9},
    ],
}


def read(body: Any, status: int = 200) -> SearchPage:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return ADAPTER.read(REQUEST, HttpAnswer(status, {}, content, 9))


def test_the_call_carries_the_key_and_the_requests_terms() -> None:
    call = ADAPTER.plan(REQUEST)
    assert (call.method, call.url) == ("POST", "https://api.tavily.com/search")
    assert dict(call.headers)["authorization"] == "Bearer tvly-secret"
    body = json.loads(call.content)
    assert (body["query"], body["max_results"], body["country"]) == ("trio", 10, "united kingdom")
    assert body["include_answer"] is False


def test_the_key_is_not_in_the_adapters_text() -> None:
    assert "tvly-secret" not in repr(ADAPTER)


def test_a_result_is_read_and_an_answer_is_left_alone() -> None:
    page = read(PAGE)
    (hit,) = page.hits
    assert (hit.title, hit.snippet, hit.published_at, hit.engine) == ("Trio", "Friendly concurrency", None, "tavily")


def test_nothing_found_is_an_empty_page() -> None:
    assert read(PAGE | {"results": []}) == SearchPage(())


def test_a_turned_away_call_is_blocked() -> None:
    with pytest.raises(EngineBlocked):
        read({"detail": {"error": "too many requests"}}, 429)


@pytest.mark.parametrize(
    ("body", "status"),
    [({}, 200), ({"results": 3}, 200), ({"results": [None]}, 200), (b"oops", 200), ({}, 401), ({}, 432), ({}, 500)],
)
def test_anything_else_is_a_failure(body: Any, status: int) -> None:
    with pytest.raises(ExecutorFailed):
        read(body, status)


def test_only_english_short_queries_and_known_countries_are_served() -> None:
    lacks = ADAPTER.capabilities.lacks
    assert lacks(REQUEST) is None
    assert lacks(SearchRequest("a", language="de", region="DE")) == "language_unsupported"
    assert lacks(SearchRequest("a", region="XX")) == "region_unsupported"
    assert lacks(SearchRequest("x" * 401)) == "query_too_long"


def test_every_known_country_can_be_planned() -> None:
    assert all(ADAPTER.plan(SearchRequest("a", region=region)).content for region in COUNTRIES)


def test_it_has_no_free_proof_and_says_so() -> None:
    assert ADAPTER.probe_calls() == ()
    assert ADAPTER.read_probe(()).basis == "configuration"
