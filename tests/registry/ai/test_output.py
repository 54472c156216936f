from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import attrs
import pytest

from gateway.registry.ai.adapter import Completion, ModelRoute, Usage
from gateway.registry.ai.openai import OpenAiAdapter
from gateway.registry.ai.output import Answered, chat_completion, executed, own_usage
from gateway.registry.canonical import result_hash
from gateway.registry.search.output import Asset

LUNA = "openai/gpt-5.6-luna"
ROUTE = ModelRoute(
    "ai/openai/gpt-5.6-luna", LUNA, OpenAiAdapter("http://a.example", "luna"), billed=True, canary=False, rates=(1, 6)
)
ANSWERED = Answered(
    operation_id="op_01ARZ3NDEKTSV4RRFFQ69G5FAV",
    model=LUNA,
    completion=Completion("Hello.", "stop", Usage(9, 3)),
    route=ROUTE,
    qualification="q_1",
    at=datetime(2026, 5, 6, 7, 8, 9, 123000, tzinfo=UTC),
    asset=Asset(),
)
TOLD = {
    "routeId": "ai/openai/gpt-5.6-luna",
    "qualificationId": "q_1",
    "servingAdapters": ["openai/gpt-5.6-luna"],
    "degraded": False,
    "fallback": False,
    "cost": {"asset": "USD", "amountAtomic": "1", "usd": "0.000001", "basis": "upstream_rates"},
}


def answered(usage: Usage | None = ANSWERED.completion.usage, **changes: Any) -> Answered:
    return attrs.evolve(ANSWERED, completion=Completion("Hello.", "stop", usage), **changes)


def cost(said: Answered) -> dict[str, Any]:
    told: dict[str, Any] = executed(said)["route"]["cost"]
    return told


def priced(rates: tuple[int, int] | None, *, billed: bool = True) -> ModelRoute:
    return attrs.evolve(ROUTE, rates=rates, billed=billed)


def test_an_execution_has_the_members_of_the_specification() -> None:
    assert executed(ANSWERED) == {
        "model": LUNA,
        "message": {"role": "assistant", "content": "Hello."},
        "finishReason": "stop",
        "usage": {"inputTokens": 9, "outputTokens": 3, "reasoningTokens": None},
        "route": TOLD,
    }


def test_a_chat_has_the_form_of_openai_and_its_route() -> None:
    assert chat_completion(ANSWERED) == {
        "id": "chatcmpl-01ARZ3NDEKTSV4RRFFQ69G5FAV",
        "object": "chat.completion",
        "created": 1778051289,
        "model": LUNA,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello.", "refusal": None},
                "finish_reason": "stop",
                "logprobs": None,
            }
        ],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
        "system_fingerprint": None,
        "route": TOLD,
    }


def test_details_of_usage_are_told_as_far_as_they_are_known() -> None:
    told = chat_completion(answered(Usage(9, 30, reasoning_tokens=20, cached_tokens=0)))["usage"]
    assert told == {
        "prompt_tokens": 9,
        "completion_tokens": 30,
        "total_tokens": 39,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 20},
    }
    assert executed(answered(Usage(9, 30, reasoning_tokens=20)))["usage"]["reasoningTokens"] == 20


def test_usage_that_the_upstream_did_not_tell_is_null() -> None:
    assert executed(answered(None))["usage"] is None
    assert chat_completion(answered(None))["usage"] is None
    assert own_usage(None) is None


def test_an_answer_can_be_hashed_whatever_a_model_wrote() -> None:
    wild = attrs.evolve(ANSWERED, completion=Completion("\u2028 \x7f é 漢 \U0001f600 \x00", "length", None))
    assert result_hash(executed(wild)) != result_hash(chat_completion(wild))


@pytest.mark.parametrize(
    ("rates", "usage", "atomic"),
    [
        ((1_000_000, 6_000_000), Usage(1000, 1000), 7000),
        ((1_000_000, 6_000_000), Usage(0, 0), 0),
        ((1, 0), Usage(1, 0), 1),
        ((1, 0), Usage(1_000_000, 0), 1),
        ((1, 0), Usage(1_000_001, 0), 2),
        ((50_000, 400_000), Usage(3, 7), 3),
    ],
)
def test_the_cost_is_the_upstreams_rates_times_its_own_count_rounded_up(
    rates: tuple[int, int], usage: Usage, atomic: int
) -> None:
    assert cost(answered(usage, route=priced(rates)))["amountAtomic"] == str(atomic)


@pytest.mark.parametrize(("decimals", "atomic"), [(2, "1"), (6, "7000"), (18, "7000000000000000")])
def test_the_cost_is_stated_in_the_asset(decimals: int, atomic: str) -> None:
    said = answered(Usage(1000, 1000), route=priced((1_000_000, 6_000_000)), asset=Asset("USDX", decimals))
    assert (cost(said)["asset"], cost(said)["amountAtomic"]) == ("USDX", atomic)


def test_a_route_that_is_not_billed_costs_nothing() -> None:
    said = answered(None, route=priced(None, billed=False))
    assert cost(said) == {
        "asset": "USD",
        "amountAtomic": "0",
        "usd": "0.000000",
        "basis": "no_charge_per_call",
    }


@pytest.mark.parametrize(
    "said",
    [
        answered(None),
        answered(Usage(1, 1), route=priced(None)),
        answered(Usage(1, 1), lost=True),
        answered(Usage(1, 1), route=priced(None, billed=False), lost=True),
    ],
)
def test_a_cost_that_cannot_be_told_is_unknown_and_not_zero(said: Answered) -> None:
    assert cost(said) == {"asset": "USD", "amountAtomic": None, "usd": None, "basis": "unknown"}


def test_the_route_of_an_alias_names_the_id_that_answered() -> None:
    said = answered(model="gateway/code")
    assert executed(said)["model"] == "gateway/code"
    assert executed(said)["route"]["model"] == LUNA
    assert chat_completion(said)["model"] == "gateway/code"
    assert "model" not in executed(ANSWERED)["route"]


def test_a_stand_in_a_fallback_and_a_degraded_route_are_marked() -> None:
    said = answered(route=attrs.evolve(ROUTE, simulated=True), degraded=True, fallback=True)
    told = executed(said)["route"]
    assert (told["simulated"], told["degraded"], told["fallback"]) == (True, True, True)
    assert "simulated" not in executed(ANSWERED)["route"]
