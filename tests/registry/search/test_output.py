from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gateway.registry.canonical import result_hash
from gateway.registry.search.output import Asset, Spent, output, route
from gateway.registry.search.page import Hit, SearchPage
from gateway.registry.search.request import SearchRequest
from gateway.registry.search.searxng import SearxngAdapter

ADAPTER = SearxngAdapter("searxng", "http://127.0.0.1:1")
NOW = datetime(2026, 5, 6, 7, 8, 9, 123000, tzinfo=UTC)
PAGE = SearchPage(
    (
        Hit("A", "https://a.example/x", "about a", "2026-01-01T00:00:00.000Z", "brave"),
        Hit("B", "https://b.example:8443/", "about b"),
    ),
    degraded=True,
    unresponsive=("google",),
)
ROUTE = route(ADAPTER, "q_1", PAGE, Spent(0, "self_hosted"), Asset(), fallback=False)


def test_the_output_has_the_names_of_the_interface_and_no_others() -> None:
    told = output(SearchRequest("trio"), PAGE, ADAPTER, ROUTE, retrieved_at=NOW)
    assert told == {
        "query": "trio",
        "results": [
            {
                "rank": 1,
                "title": "A",
                "url": "https://a.example/x",
                "hostname": "a.example",
                "snippet": "about a",
                "publishedAt": "2026-01-01T00:00:00.000Z",
                "retrievedAt": "2026-05-06T07:08:09.123Z",
                "source": "searxng",
                "engine": "brave",
            },
            {
                "rank": 2,
                "title": "B",
                "url": "https://b.example:8443/",
                "hostname": "b.example",
                "snippet": "about b",
                "publishedAt": None,
                "retrievedAt": "2026-05-06T07:08:09.123Z",
                "source": "searxng",
                "engine": None,
            },
        ],
        "coverage": "web",
        "language": "en",
        "region": "US",
        "synthesized": False,
        "unresponsive": ["google"],
        "freshness": {"retrievedAt": "2026-05-06T07:08:09.123Z", "cached": False, "ageMs": 0},
        "route": ROUTE,
    }


def test_the_output_can_be_hashed_whatever_a_stranger_wrote() -> None:
    page = SearchPage((Hit("\u2028 \x7f é 漢 \U0001f600", "https://a.example/é", "x"),))
    assert result_hash(output(SearchRequest("a"), page, ADAPTER, ROUTE, retrieved_at=NOW))


def test_the_route_is_told_in_full() -> None:
    told = route(ADAPTER, "q_1", PAGE, Spent(5000, "configured_per_call"), Asset(), fallback=True)
    assert told == {
        "routeId": "search/searxng",
        "qualificationId": "q_1",
        "servingAdapters": ["searxng"],
        "degraded": True,
        "fallback": True,
        "cost": {"asset": "USD", "amountAtomic": "5000", "usd": "0.005000", "basis": "configured_per_call"},
    }


def test_a_stand_in_of_the_local_world_is_marked() -> None:
    adapter = SearxngAdapter("searxng", "http://127.0.0.1:1", simulated=True)
    assert route(adapter, "q_1", PAGE, Spent(0, "x"), Asset(), fallback=False)["simulated"] is True


@pytest.mark.parametrize(
    ("decimals", "atomic", "usd"),
    [(6, 0, "0.000000"), (6, 1, "0.000001"), (6, 12_345_678, "12.345678"), (2, 5, "0.050000"), (8, 5, "0.00000005")],
)
def test_amounts_are_exact_decimal_text(decimals: int, atomic: int, usd: str) -> None:
    assert Asset("USD", decimals).usd(atomic) == usd


@pytest.mark.parametrize(
    ("language", "told"),
    [("en", "en"), ("en-GB", "en-GB"), ("pt-BR", "pt-BR"), ("de-1996", "de"), ("zh-Hant-TW", "zh-TW")],
)
def test_the_language_that_was_searched_in_is_told(language: str, told: str) -> None:
    adapter = SearxngAdapter("s", "http://127.0.0.1")
    said = output(
        SearchRequest("a", language=language),
        SearchPage(()),
        adapter,
        {},
        retrieved_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    assert said["language"] == told
