from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import EngineBlocked, ExecutorFailed
from gateway.registry.http_call import HttpAnswer
from gateway.registry.search.adapter import Cost
from gateway.registry.search.exa import ExaAdapter
from gateway.registry.search.page import SearchPage
from gateway.registry.search.request import SearchRequest

ADAPTER = ExaAdapter("exa", "exa-secret", Cost(5000, "configured_per_call"))
REQUEST = SearchRequest("trio", max_results=5, region="DE")
RESULT = {
    "id": "https://trio.example/",
    "title": "Trio",
    "url": "https://trio.example/",
    "publishedDate": "2026-01-05T10:00:00.123Z",
    "text": "The whole text of the page",
    "highlights": ["A telling sentence"],
}


def read(body: Any, status: int = 200) -> SearchPage:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return ADAPTER.read(REQUEST, HttpAnswer(status, {}, content, 9))


def test_the_call_carries_the_key_and_the_requests_terms() -> None:
    call = ADAPTER.plan(REQUEST)
    assert (call.method, call.url) == ("POST", "https://api.exa.ai/search")
    assert dict(call.headers)["x-api-key"] == "exa-secret"
    body = json.loads(call.content)
    assert (body["query"], body["numResults"], body["userLocation"]) == ("trio", 5, "DE")


def test_the_key_is_not_in_the_adapters_text() -> None:
    assert "exa-secret" not in repr(ADAPTER)


def test_a_result_is_read_with_its_highlight() -> None:
    (hit,) = read({"results": [RESULT]}).hits
    assert (hit.title, hit.snippet, hit.published_at) == ("Trio", "A telling sentence", "2026-01-05T10:00:00.123Z")


def test_without_highlights_the_snippet_is_the_start_of_the_text() -> None:
    (hit,) = read({"results": [RESULT | {"highlights": []}]}).hits
    assert hit.snippet == "The whole text of the page"


def test_nothing_found_is_an_empty_page() -> None:
    assert read({"results": []}) == SearchPage(())


def test_a_turned_away_call_is_blocked() -> None:
    with pytest.raises(EngineBlocked):
        read({}, 429)


@pytest.mark.parametrize(
    ("body", "status"),
    [({}, 200), ({"results": "x"}, 200), ({"results": [[], 1]}, 200), (b"", 200), ({}, 400), ({}, 402), ({}, 503)],
)
def test_anything_else_is_a_failure(body: Any, status: int) -> None:
    with pytest.raises(ExecutorFailed):
        read(body, status)


def test_english_of_any_region_is_served() -> None:
    assert ADAPTER.capabilities.lacks(REQUEST) is None
    assert ADAPTER.capabilities.lacks(SearchRequest("a", language="de", region="DE")) == "language_unsupported"


def test_it_has_no_free_proof_and_says_so() -> None:
    assert ADAPTER.probe_calls() == ()
    assert ADAPTER.read_probe(()).basis == "configuration"
