from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from gateway.errors import EngineBlocked, ExecutorFailed
from gateway.registry.http_call import HttpAnswer
from gateway.registry.search.adapter import Cost
from gateway.registry.search.brave import BraveAdapter
from gateway.registry.search.page import SearchPage
from gateway.registry.search.request import SearchRequest

ADAPTER = BraveAdapter("brave", "secret-key", Cost(5000, "configured_per_call"))
REQUEST = SearchRequest("trio", max_results=4, language="pt", region="BR")
RESULT = {
    "type": "search_result",
    "title": "Trio",
    "url": "https://trio.example/",
    "description": "A <strong>friendly</strong> library",
    "page_age": "2026-01-05T10:00:00",
    "age": "January 5, 2026",
}


def read(body: Any, status: int = 200) -> SearchPage:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return ADAPTER.read(REQUEST, HttpAnswer(status, {}, content, 9))


def test_the_call_carries_the_key_and_the_requests_terms() -> None:
    call = ADAPTER.plan(REQUEST)
    url = urlsplit(call.url)
    assert (call.method, url.netloc, url.path) == ("GET", "api.search.brave.com", "/res/v1/web/search")
    assert dict(call.headers)["x-subscription-token"] == "secret-key"
    query = parse_qs(url.query)
    assert (query["q"], query["count"], query["country"], query["search_lang"]) == (["trio"], ["8"], ["BR"], ["pt-br"])


def test_the_key_is_not_in_the_adapters_text() -> None:
    assert "secret-key" not in repr(ADAPTER)


def test_a_result_is_read_whole() -> None:
    (hit,) = read({"type": "search", "web": {"results": [RESULT]}}).hits
    assert (hit.title, hit.url, hit.snippet) == ("Trio", "https://trio.example/", "A friendly library")
    assert (hit.published_at, hit.engine) == ("2026-01-05T10:00:00.000Z", "brave")


@pytest.mark.parametrize("body", [{"type": "search"}, {"type": "search", "web": {"results": []}}])
def test_a_search_that_found_nothing_is_an_empty_page(body: Any) -> None:
    assert read(body) == SearchPage(())


@pytest.mark.parametrize("status", [403, 429])
def test_a_turned_away_call_is_blocked(status: int) -> None:
    with pytest.raises(EngineBlocked):
        read({"error": {"code": "RATE_LIMITED"}}, status)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 200),
        ({"type": "ErrorResponse"}, 200),
        ({"web": None}, 200),
        ({"web": {"results": "x"}}, 200),
        ({"web": {"results": [{"url": 1}]}}, 200),
        (b"<html>", 200),
        ({"error": {}}, 401),
        ({"error": {}}, 422),
        ({"error": {}}, 500),
    ],
)
def test_anything_else_is_a_failure(body: Any, status: int) -> None:
    with pytest.raises(ExecutorFailed):
        read(body, status)


@pytest.mark.parametrize(
    ("request_", "lack"),
    [
        (SearchRequest("a b", language="en", region="US"), None),
        (SearchRequest("a", language="en", region="GB"), None),
        (SearchRequest("x" * 400), None),
        (SearchRequest("x" * 401), "query_too_long"),
        (SearchRequest(" ".join("x" * 51)), "query_too_long"),
        (SearchRequest("a", language="pt", region="US"), "language_unsupported"),
        (SearchRequest("a", language="sw"), "language_unsupported"),
        (SearchRequest("a", region="KE"), "region_unsupported"),
    ],
)
def test_what_it_cannot_serve_is_told_before_it_is_asked(request_: SearchRequest, lack: str | None) -> None:
    assert ADAPTER.capabilities.lacks(request_) == lack


def test_it_has_no_free_proof_and_says_so() -> None:
    assert ADAPTER.probe_calls() == ()
    assert ADAPTER.read_probe(()).basis == "configuration"
    assert not BraveAdapter("brave", "", Cost()).read_probe(()).ok
