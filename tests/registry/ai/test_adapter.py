from __future__ import annotations

import attrs

from gateway.registry.ai.adapter import Completion, ModelFailed, ModelRoute, RouteSettings, text_member
from gateway.registry.ai.openai import OpenAiAdapter
from gateway.registry.call_evidence import Weight

ROUTE = ModelRoute(
    "ai/luna", "openai/gpt-5.6-luna", OpenAiAdapter("http://127.0.0.1:1", "m"), billed=True, canary=False
)


def test_a_billed_route_has_a_daily_budget_of_its_own_and_a_free_one_none() -> None:
    assert ROUTE.budget == "billed:ai/luna"
    assert attrs.evolve(ROUTE, billed=False).budget is None


def test_a_failure_weighs_what_its_word_does_unless_it_says_otherwise() -> None:
    failed = ModelFailed("status_429", "answered 429", retry_after=2.0)
    assert (failed.weight, failed.retry_after, str(failed)) == (Weight.PROOF, 2.0, "status_429: answered 429")
    assert ModelFailed("status_400", "answered 400", weight=Weight.PROOF).weight is Weight.PROOF


def test_neither_a_key_nor_what_a_model_said_is_in_a_text() -> None:
    assert "hush" not in repr(RouteSettings("a/b", "openai", key="hush"))
    assert "hush" not in repr(Completion("hush", "stop", None))


def test_a_member_is_text_or_nothing() -> None:
    assert text_member({"a": "x"}, "a") == "x"
    assert text_member({"a": 3}, "a") is None
    assert text_member({}, "a") is None
