from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from gateway.errors import EngineBlocked, ExecutorFailed
from gateway.registry.http_call import HttpAnswer
from gateway.registry.search.page import SearchPage
from gateway.registry.search.request import SearchRequest
from gateway.registry.search.searxng import SearxngAdapter

ADAPTER = SearxngAdapter("searxng", "http://127.0.0.1:8888/searx/")
REQUEST = SearchRequest("trio & actors", max_results=2, language="de", region="AT")
RESULT = {
    "url": "https://trio.example/docs",
    "title": "Trio: nursery<T> & docs",
    "content": "Structured\nconcurrency",
    "engine": "brave",
    "engines": ["brave", "bing"],
    "publishedDate": "2026-02-03T04:05:06",
    "score": 1.5,
    "category": "general",
}
PAGE = {"query": "trio", "number_of_results": 0, "results": [RESULT], "answers": [], "unresponsive_engines": []}


def answer(body: Any, status: int = 200) -> HttpAnswer:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return HttpAnswer(status, {"content-type": "application/json"}, content, 12)


def read(body: Any) -> SearchPage:
    return ADAPTER.read(REQUEST, answer(body))


def test_the_call_asks_for_json_in_the_requests_locale() -> None:
    call = ADAPTER.plan(REQUEST)
    url = urlsplit(call.url)
    assert (call.method, url.path, call.target) == ("GET", "/searx/search", "searxng")
    assert parse_qs(url.query) == {
        "q": ["trio & actors"],
        "format": ["json"],
        "language": ["de-AT"],
        "safesearch": ["1"],
    }


def test_a_query_too_long_for_a_request_line_goes_whole_as_a_form() -> None:
    query = "\u6f22" * 2000
    call = ADAPTER.plan(SearchRequest(query))
    assert (call.method, urlsplit(call.url).query) == ("POST", "")
    assert parse_qs(call.content.decode())["q"] == [query]


def test_a_result_is_read_whole_and_plain() -> None:
    (hit,) = read(PAGE).hits
    assert hit.title == "Trio: nursery<T> & docs"
    assert hit.url == "https://trio.example/docs"
    assert hit.snippet == "Structured concurrency"
    assert hit.published_at == "2026-02-03T04:05:06.000Z"
    assert hit.engine == "brave"


def test_no_results_from_responsive_engines_is_an_empty_page() -> None:
    assert read(PAGE | {"results": []}) == SearchPage(())


def test_no_results_while_engines_are_silent_is_blocked_and_names_them() -> None:
    silent = [["google", "CAPTCHA"], ["bing", "timeout"]]
    with pytest.raises(EngineBlocked) as caught:
        read(PAGE | {"results": [], "unresponsive_engines": silent})
    assert caught.value.extra == {"reason": "blocked", "cause": "engines_silent", "unresponsive": ["bing", "google"]}


def test_results_while_engines_are_silent_are_degraded_and_name_them() -> None:
    page = read(PAGE | {"unresponsive_engines": [["google", "CAPTCHA"]]})
    assert (len(page.hits), page.degraded, page.unresponsive) == (1, True, ("google",))


def test_an_instance_without_json_format_is_blocked() -> None:
    with pytest.raises(EngineBlocked):
        ADAPTER.read(REQUEST, answer(b"<h1>Forbidden</h1>", 403))


def test_more_results_than_asked_for_are_left_out() -> None:
    results = [RESULT | {"url": f"https://trio.example/{n}"} for n in range(20)]
    assert [hit.url[-1] for hit in read(PAGE | {"results": results}).hits] == ["0", "1"]


@pytest.mark.parametrize(
    "body",
    [
        b"<html>all is well</html>",
        {},
        {"results": None},
        {"results": {"url": "https://e.example"}},
        {"results": [1, 2]},
        {"results": [{"url": "javascript:alert(1)", "title": "x"}]},
        PAGE | {"unresponsive_engines": "google"},
    ],
)
def test_a_hostile_answer_is_a_failure_and_no_page(body: Any) -> None:
    with pytest.raises(ExecutorFailed):
        read(body)


def test_it_is_proved_by_health_and_engine_list_without_searching() -> None:
    health, config = ADAPTER.probe_calls()
    assert [health.url, config.url] == ["http://127.0.0.1:8888/searx/healthz", "http://127.0.0.1:8888/searx/config"]
    finding = ADAPTER.read_probe([answer(b"OK"), answer({"engines": [{"name": "bing", "enabled": True}]})])
    assert (finding.ok, finding.basis) == (True, "probe")


@pytest.mark.parametrize(
    ("health", "config", "reason"),
    [
        (answer(b"", 503), answer({}), "health_status_503"),
        (answer(b"", 404), answer({}), "health_status_404"),
        (answer(b"OK"), answer(b"x", 404), "config_status_404"),
        (answer(b"OK"), answer(b"x", 429), "config_blocked"),
        (answer(b"OK"), answer(b"<html>"), "config_malformed_answer"),
        (answer(b"OK"), answer({"engines": "all"}), "config_malformed_answer"),
        (answer(b"OK"), answer({"engines": [{"enabled": False}, 3, None]}), "no_engine_enabled"),
        (answer(b"OK"), answer({"engines": []}), "no_engine_enabled"),
    ],
)
def test_anything_else_is_not_health(health: HttpAnswer, config: HttpAnswer, reason: str) -> None:
    finding = ADAPTER.read_probe([health, config])
    assert (finding.ok, finding.reason) == (False, reason)


@pytest.mark.parametrize(
    ("language", "region", "asked"),
    [("ja", "JP", "ja-JP"), ("pt-BR", "US", "pt-br"), ("zh-Hant-TW", "US", "zh-tw"), ("de-1996", "AT", "de-AT")],
)
def test_any_language_and_region_is_served(language: str, region: str, asked: str) -> None:
    wanted = SearchRequest("a", language=language, region=region)
    assert ADAPTER.capabilities.lacks(wanted) is None
    (told,) = parse_qs(urlsplit(ADAPTER.plan(wanted).url).query)["language"]
    assert told.lower() == asked.lower()


@pytest.mark.parametrize(
    "more", [{"error": "engines failed"}, {"answers": ["42"]}, {"infoboxes": [{"infobox": "Trio"}]}]
)
def test_an_empty_list_with_something_beside_it_is_never_no_results(more: dict[str, Any]) -> None:
    with pytest.raises(ExecutorFailed):
        read({"results": [], **more})


@pytest.mark.parametrize("status", [403, 429, 503])
def test_the_wait_that_an_engine_asked_for_is_passed_on(status: int) -> None:
    with pytest.raises(ExecutorFailed) as failure:
        ADAPTER.read(REQUEST, HttpAnswer(status, {"retry-after": "17"}, b"", 1))
    assert failure.value.retry_after == 17.0
