from __future__ import annotations

import pytest

from gateway.errors import CapabilityUnavailable, OperationUnavailable
from gateway.registry.qualification import Evidence, State
from gateway.registry.search.adapter import Adapter, Cost
from gateway.registry.search.brave import BraveAdapter
from gateway.registry.search.choice import choose
from gateway.registry.search.request import SearchRequest
from gateway.registry.search.searxng import SearxngAdapter
from gateway.registry.search.tavily import TavilyAdapter

BRAVE = BraveAdapter("brave", "k", Cost(5000))
TAVILY = TavilyAdapter("tavily", "k", Cost(8000))
SEARXNG = SearxngAdapter("searxng", "http://127.0.0.1:1")
ALL: tuple[Adapter, ...] = (BRAVE, TAVILY, SEARXNG)


class Proven:
    """Evidence by adapter name: those named are open."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __call__(self, route_id: str) -> Evidence:
        if route_id.removeprefix("search/") in self._names:
            return Evidence(route_id, State.AVAILABLE, f"q_{route_id}", None, expires=1e9)
        return Evidence(route_id, State.UNAVAILABLE, reason="unreachable")


def chosen(request: SearchRequest, *names: str) -> tuple[str, list[str]]:
    choice = choose(ALL, request, Proven(*names))
    return choice.preferred, [adapter.name for adapter, _ in choice.candidates]


def test_proven_adapters_serve_in_the_operators_order() -> None:
    assert chosen(SearchRequest("a"), "searxng", "tavily", "brave") == ("brave", ["brave", "tavily", "searxng"])


def test_an_adapter_that_cannot_serve_the_request_is_skipped_and_not_preferred() -> None:
    assert chosen(SearchRequest("x" * 500), "brave", "tavily", "searxng") == ("searxng", ["searxng"])


def test_a_closed_adapter_stays_the_preferred_one_so_that_the_next_is_a_fallback() -> None:
    assert chosen(SearchRequest("a"), "searxng") == ("brave", ["searxng"])


def test_each_candidate_comes_with_its_proof() -> None:
    ((adapter, evidence),) = choose(ALL, SearchRequest("a"), Proven("tavily")).candidates
    assert (adapter.name, evidence.qualification_id) == ("tavily", "q_search/tavily")


def test_nothing_proven_is_unavailable_with_the_reason_of_each_route() -> None:
    with pytest.raises(OperationUnavailable) as caught:
        choose(ALL, SearchRequest("a"), Proven())
    assert caught.value.extra["reason"] == "unreachable"
    assert set(caught.value.extra["routes"]) == {"search/brave", "search/tavily", "search/searxng"}


def test_proven_but_incapable_is_a_missing_capability_with_the_reason_of_each_route() -> None:
    with pytest.raises(CapabilityUnavailable) as caught:
        choose(ALL, SearchRequest("a", language="de", region="DE"), Proven("tavily"))
    assert caught.value.extra == {
        "reason": "language_unsupported",
        "routes": {"search/tavily": "language_unsupported"},
    }
