from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest

from gateway.errors import CapabilityUnavailable, ModelNotFound, ModelUnavailable
from gateway.registry.ai.adapter import ModelRoute
from gateway.registry.ai.anthropic import AnthropicAdapter
from gateway.registry.ai.catalog import CATALOG
from gateway.registry.ai.choice import RETRY_S, Standing, choose, standing
from gateway.registry.ai.openai import OpenAiAdapter
from gateway.registry.ai.prompt import Message, Prompt, ResponseFormat, Sampling
from gateway.registry.qualification import Evidence, State

LUNA, SMOL, SMART = "openai/gpt-5.6-luna", "huggingfacetb/smollm2-135m-instruct", "gateway/smart"
FIRST, SECOND, *_ = [CATALOG.models[each] for each in CATALOG.models[SMART].candidates]
JSON = ResponseFormat("json_object")


def route(name: str, model: str, *, honours_all: bool = True) -> ModelRoute:
    """A route of that name; one that does not honour all lacks the sampling of `picky`."""
    adapter = OpenAiAdapter(f"http://{name}.example", name) if honours_all else AnthropicAdapter("http://a", name, "k")
    return ModelRoute(f"ai/{name}", model, adapter, billed=False, canary=False)


def prompt(model: str, **sampling: object) -> Prompt:
    return Prompt(model, (Message("user", "hello"),), 16, sampling=Sampling(**sampling))  # type: ignore[arg-type]


def picky(model: str) -> Prompt:
    return prompt(model, seed=7)


class Proven:
    """Evidence by route name: those named are open."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __call__(self, route_id: str) -> Evidence:
        if route_id.removeprefix("ai/") in self._names:
            return Evidence(route_id, State.AVAILABLE, f"q_{route_id}", None, expires=1e9)
        return Evidence(route_id, State.UNAVAILABLE, reason=f"{route_id.removeprefix('ai/')}_is_down")


def chosen(routes: Sequence[ModelRoute], asked: Prompt, *names: str) -> tuple[str, list[str]]:
    choice = choose(CATALOG, routes, asked, Proven(*names))
    return choice.preferred, [each.route_id for each, _ in choice.candidates]


A, B, C = route("a", LUNA), route("b", LUNA), route("c", LUNA)
OTHER = route("other", "openai/gpt-5.6-terra")


def test_the_routes_of_a_canonical_id_answer_in_the_operators_order() -> None:
    assert chosen([A, OTHER, B], prompt(LUNA), "b", "a", "other") == ("ai/a", ["ai/a", "ai/b"])


def test_each_candidate_comes_with_its_proof() -> None:
    ((_, evidence),) = choose(CATALOG, [A], prompt(LUNA), Proven("a")).candidates
    assert evidence.qualification_id == "q_ai/a"


def test_a_closed_route_stays_the_preferred_one_so_that_the_next_is_a_fallback() -> None:
    assert chosen([A, B], prompt(LUNA), "b") == ("ai/a", ["ai/b"])


def test_a_route_that_cannot_serve_the_prompt_is_skipped_and_not_preferred() -> None:
    assert chosen([route("a", LUNA, honours_all=False), B], picky(LUNA), "a", "b") == ("ai/b", ["ai/b"])


def test_a_canonical_id_is_never_answered_by_another() -> None:
    with pytest.raises(ModelUnavailable) as caught:
        choose(CATALOG, [OTHER, route("alias", "gateway/code")], prompt(LUNA), Proven("other", "alias"))
    assert caught.value.extra == {"reason": "no_route", "routes": {}}
    assert caught.value.retry_after is None


def test_closed_routes_are_told_with_the_reason_of_each_and_when_to_ask_again() -> None:
    with pytest.raises(ModelUnavailable) as caught:
        choose(CATALOG, [A, B], prompt(LUNA), Proven())
    assert caught.value.extra == {"reason": "a_is_down", "routes": {"ai/a": "a_is_down", "ai/b": "b_is_down"}}
    assert caught.value.retry_after == RETRY_S


def test_open_routes_that_cannot_serve_the_prompt_are_a_missing_capability() -> None:
    with pytest.raises(CapabilityUnavailable) as caught:
        choose(CATALOG, [route("a", LUNA, honours_all=False), B], picky(LUNA), Proven("a"))
    assert caught.value.extra == {"reason": "seed_unsupported", "routes": {"ai/a": "seed_unsupported"}}


def test_an_id_that_the_catalog_does_not_have_is_not_found() -> None:
    with pytest.raises(ModelNotFound):
        choose(CATALOG, [A], prompt("openai/gpt-9"), Proven("a"))
    with pytest.raises(ModelNotFound):
        standing(CATALOG, [A], Proven("a"), "openai/gpt-9")


def test_an_alias_is_answered_by_its_own_route_before_those_of_the_ids_behind_it() -> None:
    routes = [route("behind", FIRST.id), route("own", SMART)]
    assert chosen(routes, prompt(SMART), "behind", "own") == ("ai/own", ["ai/own"])


def test_an_alias_is_answered_by_the_first_id_behind_it_that_has_an_open_route() -> None:
    routes = [route("second", SECOND.id), route("second-2", SECOND.id), route("first", FIRST.id)]
    assert chosen(routes, prompt(SMART), "first", "second", "second-2") == ("ai/first", ["ai/first"])
    assert chosen(routes, prompt(SMART), "second", "second-2") == ("ai/first", ["ai/second", "ai/second-2"])


def test_an_alias_passes_over_an_id_whose_routes_cannot_serve_the_prompt() -> None:
    routes = [route("first", FIRST.id, honours_all=False), route("second", SECOND.id)]
    assert chosen(routes, picky(SMART), "first", "second") == ("ai/second", ["ai/second"])


def test_an_alias_is_never_answered_by_an_id_without_its_capabilities() -> None:
    with pytest.raises(ModelUnavailable) as caught:
        choose(CATALOG, [route("small", SMOL)], prompt(SMART), Proven("small"))
    assert caught.value.extra["reason"] == "no_route"


def test_a_free_alias_is_never_answered_by_a_paid_id() -> None:
    paid = [route(f"paid{index}", each.id) for index, each in enumerate(CATALOG.canonical) if each.billing == "paid"]
    proven = Proven(*(each.route_id.removeprefix("ai/") for each in paid))
    for alias in CATALOG.aliases:
        if alias.billing == "free":
            with pytest.raises(ModelUnavailable):
                choose(CATALOG, paid, prompt(alias.id), proven)


def told(routes: Sequence[ModelRoute], model_id: str, *names: str) -> Standing:
    return standing(CATALOG, routes, Proven(*names), model_id)


def test_an_id_without_a_route_is_unavailable() -> None:
    now = told([OTHER], LUNA, "other")
    assert (now.state, now.reason, now.route, now.evidence) == (State.UNAVAILABLE, "no_route", None, None)
    assert not now.open


def test_an_id_stands_as_its_first_open_route_does() -> None:
    now = told([A, B], LUNA, "b")
    assert now.route is B
    assert (now.model.id, now.state, now.reason, now.target) == (LUNA, State.AVAILABLE, None, None)
    assert now.evidence is not None
    assert now.evidence.qualification_id == "q_ai/b"
    assert now.open


def test_a_closed_id_stands_as_its_first_route_does() -> None:
    now = told([A, B], LUNA)
    assert now.route is A
    assert (now.state, now.reason, now.open) == (State.UNAVAILABLE, "a_is_down", False)


def test_a_degraded_route_is_told_with_its_reason() -> None:
    evidence = attrs.evolve(Proven("a")("ai/a"), state=State.DEGRADED, reason="slow")
    now = standing(CATALOG, [A], lambda _: evidence, LUNA)
    assert (now.state, now.reason, now.open) == (State.DEGRADED, "slow", True)


def test_an_alias_tells_which_id_answers_for_it_now() -> None:
    routes = [route("first", FIRST.id), route("second", SECOND.id)]
    assert told(routes, SMART, "first", "second").target == FIRST.id
    assert told(routes, SMART, "second").target == SECOND.id
    assert told(routes, SMART).target is None


def test_an_alias_with_an_open_route_of_its_own_tells_no_other_id() -> None:
    now = told([route("own", SMART), route("first", FIRST.id)], SMART, "own", "first")
    assert now.target is None
    assert now.route is not None
    assert now.route.route_id == "ai/own"
