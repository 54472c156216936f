from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import EngineBlocked, ExecutorFailed
from gateway.registry.http_call import HttpAnswer
from gateway.registry.search.ddgs import CODES, DdgsAdapter
from gateway.registry.search.page import SearchPage
from gateway.registry.search.request import SearchRequest

ADAPTER = DdgsAdapter("ddgs", installed=True)
REQUEST = SearchRequest("trio", max_results=5, region="GB")


def read(body: Any) -> SearchPage:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return ADAPTER.read(REQUEST, HttpAnswer(200, {}, content, 9))


def test_the_worker_is_told_query_region_and_number_on_its_standard_input() -> None:
    call = ADAPTER.plan(REQUEST)
    assert call.argv[1:] == ("-I", "-m", "gateway.registry.search.ddgs_worker")
    assert json.loads(call.stdin) == {"query": "trio", "region": "uk-en", "max_results": 5}


def test_a_result_is_read_and_no_engine_is_invented() -> None:
    (hit,) = read({"results": [{"title": "Trio", "href": "https://trio.example/", "body": "Friendly"}]}).hits
    assert (hit.title, hit.url, hit.snippet, hit.engine) == ("Trio", "https://trio.example/", "Friendly", None)


@pytest.mark.parametrize("error", ["rate_limited", "no_results"])
def test_what_may_be_a_block_is_never_an_empty_page(error: str) -> None:
    with pytest.raises(EngineBlocked):
        read({"error": error})


@pytest.mark.parametrize("body", [{"error": "timed_out"}, {"error": "failed"}, {"error": 7}, {}, b"Traceback", b""])
def test_anything_else_is_a_failure(body: Any) -> None:
    with pytest.raises(ExecutorFailed) as caught:
        read(body)
    assert not isinstance(caught.value, EngineBlocked)


def test_only_pairs_that_the_library_has_a_code_for_are_served() -> None:
    lacks = ADAPTER.capabilities.lacks
    assert all(lacks(SearchRequest("a", language=language, region=region)) is None for language, region in CODES)
    assert lacks(SearchRequest("a", language="de", region="US")) == "locale_unsupported"
    assert lacks(SearchRequest("a", language="ja", region="JP")) == "language_unsupported"


def test_it_is_proved_by_its_installation() -> None:
    assert ADAPTER.probe_calls() == ()
    assert ADAPTER.read_probe(()).ok
    assert DdgsAdapter("ddgs", installed=False).read_probe(()).reason == "extra_not_installed"
