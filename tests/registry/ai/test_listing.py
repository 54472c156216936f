"""What the list says of a model: its row, what is proved of it now, what a call costs and why there is none."""

from __future__ import annotations

from decimal import Decimal
from math import ceil
from typing import Any

import attrs
import orjson
import pytest

from gateway.registry.ai.catalog import CATALOG
from gateway.registry.ai.listing import Selling, model_list, model_object
from gateway.registry.ai.pricing import execute_price, prompt_tokens
from gateway.registry.ai.prompt import Message, Prompt
from gateway.registry.payment.asset import Asset
from gateway.registry.payment.terms import Terms
from gateway.registry.qualification import Finding
from tests.registry.ai.shelf import GLM, LUNA, RULES, SMOLLM2, Shelf, route

BASE = "https://gateway.example"
ASSET = Asset("eip155:8453", 8453, "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913", "USD Coin", "2", 6)
TERMS = Terms(ASSET, "0x90F79bf6EB2c4f870365E785982E1f101E93b906", BASE, "gateway.example")
OPEN = Selling(BASE, TERMS, None, 12)
PRICED = ["ai.execute", "chat.completions"]


def said(shelf: Shelf, model_id: str, selling: Selling = OPEN) -> Any:
    return model_object(CATALOG, shelf.standing(model_id), selling)["gateway"]


def listed(shelf: Shelf, selling: Selling = OPEN) -> Any:
    return model_list(CATALOG, shelf.standings(), selling)


# -- the row -----------------------------------------------------------------------------------------------------------


def test_an_item_is_openai_s_model_and_what_the_gateway_says_of_it() -> None:
    item = model_object(CATALOG, Shelf().standing(LUNA), OPEN)
    assert set(item) == {"id", "object", "created", "owned_by", "gateway"}
    assert (item["id"], item["object"], item["owned_by"]) == (LUNA, "model", "openai")
    assert item["created"] == CATALOG.created


def test_every_item_has_every_member_of_the_interface() -> None:
    for item in listed(Shelf())["data"]:
        told = item["gateway"]
        always = {
            "identityKind",
            "name",
            "capabilities",
            "inputModalities",
            "outputModalities",
            "contextWindow",
            "limits",
        }
        always |= {"lifecycle", "availability", "availabilityReason", "health", "billing", "pricing", "commerce"}
        assert set(told) == always | ({"aliasFor"} if told["identityKind"] == "alias" else set())
        assert set(told["limits"]) == {"maxInputCharacters", "maxOutputTokens"}
        assert set(told["health"]) == {"state", "lastProbeAt", "validUntil", "p50Ms", "errorRate"}
        commerce = {"callable", "purchasable", "reason", "operations", "protocols", "replaySafe"}
        assert set(told["commerce"]) == commerce


def test_a_row_says_what_its_model_can_do_in_one_order() -> None:
    told = said(Shelf(), LUNA)
    assert told["capabilities"] == ["text", "json", "reasoning", "code"]
    assert (told["inputModalities"], told["outputModalities"]) == (["text"], ["text"])
    assert told["limits"] == {"maxInputCharacters": 20_000, "maxOutputTokens": 1024}
    assert (told["identityKind"], told["name"], told["lifecycle"]) == ("canonical", "GPT-5.6 Luna", "live")
    assert told["contextWindow"] == 1_050_000


def test_every_capability_of_the_catalog_is_listed() -> None:
    for model in CATALOG.models.values():
        assert set(said(Shelf(), model.id)["capabilities"]) == model.capabilities


def test_the_list_is_in_the_catalog_s_order() -> None:
    assert [each["id"] for each in listed(Shelf())["data"]] == list(CATALOG.models)


# -- what is proved ----------------------------------------------------------------------------------------------------


def test_without_a_route_every_id_is_closed_and_says_why() -> None:
    for item in listed(Shelf())["data"]:
        told = item["gateway"]
        offered = bool(CATALOG.models[item["id"]].operations)
        assert told["availability"] == told["health"]["state"] == "unavailable"
        assert told["availabilityReason"] == told["commerce"]["reason"] == ("no_route" if offered else "not_offered")
        assert (told["commerce"]["callable"], told["commerce"]["purchasable"]) == (False, False)
        health = (told["health"]["lastProbeAt"], told["health"]["validUntil"], told["health"]["p50Ms"])
        assert (health, told["health"]["errorRate"]) == ((None, None, None), None)


def test_a_proved_route_opens_its_id_and_tells_until_when() -> None:
    shelf = Shelf([route(SMOLLM2)])
    shelf.probe(SMOLLM2, ms=40)
    told = said(shelf, SMOLLM2)
    assert (told["availability"], told["availabilityReason"]) == ("available", None)
    assert told["health"] == {
        "state": "available",
        "lastProbeAt": "2026-07-26T12:00:00.500Z",
        "validUntil": "2026-07-26T12:00:45.500Z",
        "p50Ms": 40,
        "errorRate": 0.0,
    }
    assert (told["commerce"]["callable"], told["commerce"]["purchasable"], told["commerce"]["reason"]) == (
        True,
        False,
        None,
    )


def test_a_route_that_was_never_probed_is_unproven() -> None:
    told = said(Shelf([route(SMOLLM2)]), SMOLLM2)
    assert (told["availability"], told["availabilityReason"]) == ("unproven", "not_probed")
    assert (told["commerce"]["callable"], told["commerce"]["reason"]) == (False, "not_probed")


def test_an_expired_proof_closes_by_itself() -> None:
    shelf = Shelf([route(SMOLLM2)])
    shelf.probe(SMOLLM2)
    shelf.now = RULES.validity_s
    told = said(shelf, SMOLLM2)
    assert (told["availability"], told["availabilityReason"]) == ("unproven", "proof_expired")
    assert told["health"]["validUntil"] is None
    assert told["commerce"]["callable"] is False


def test_one_failed_call_closes_the_id_and_the_aliases_behind_which_it_stands() -> None:
    shelf = Shelf([route(SMOLLM2)])
    shelf.probe(SMOLLM2)
    assert said(shelf, "gateway/fast")["commerce"]["callable"] is True
    shelf.call(SMOLLM2, ok=False)
    for model_id in (SMOLLM2, "gateway/fast"):
        told = said(shelf, model_id)
        assert (told["availability"], told["commerce"]["callable"]) == ("unavailable", False)
        assert told["availabilityReason"] == told["commerce"]["reason"] == shelf.standing(model_id).reason is not None
    assert said(shelf, SMOLLM2)["health"]["errorRate"] == 0.5


def test_a_degraded_route_is_callable_and_says_what_is_wrong() -> None:
    shelf = Shelf([route(SMOLLM2)])
    shelf.probe(SMOLLM2, Finding(ok=True, reason="slow", degraded=True))
    told = said(shelf, SMOLLM2)
    assert (told["availability"], told["availabilityReason"]) == ("degraded", "slow")
    assert (told["commerce"]["callable"], told["commerce"]["reason"]) == (True, None)


def test_an_alias_names_the_id_that_answers_for_it_while_one_does() -> None:
    shelf = Shelf([route(SMOLLM2)])
    assert said(shelf, "gateway/fast")["aliasFor"] is None
    shelf.probe(SMOLLM2)
    assert said(shelf, "gateway/fast")["aliasFor"] == SMOLLM2
    assert "aliasFor" not in said(shelf, SMOLLM2)
    assert said(shelf, "gateway/smart")["availabilityReason"] == "no_route"


def test_a_stand_in_of_the_local_world_is_labelled() -> None:
    shelf = Shelf([route(SMOLLM2), route(LUNA, simulated=True)])
    for model_id in (SMOLLM2, LUNA):
        shelf.probe(model_id)
    assert said(shelf, LUNA)["simulated"] is True
    assert "simulated" not in said(shelf, SMOLLM2)


def test_an_id_without_a_price_is_closed_even_where_somebody_configured_a_route() -> None:
    shelf = Shelf([route("openai/o3")])
    shelf.probe("openai/o3")
    told = said(shelf, "openai/o3")
    assert (told["availability"], told["availabilityReason"]) == ("unavailable", "not_offered")
    assert (told["billing"], told["pricing"]) == (None, None)
    assert told["commerce"] == {
        "callable": False,
        "purchasable": False,
        "reason": "not_offered",
        "operations": [],
        "protocols": [],
        "replaySafe": False,
    }


# -- what it costs -----------------------------------------------------------------------------------------------------


def test_a_paid_model_with_a_proved_route_can_be_bought() -> None:
    shelf = Shelf([route(LUNA)])
    shelf.probe(LUNA)
    told = said(shelf, LUNA)
    assert told["billing"] == "paid"
    assert told["commerce"] == {
        "callable": True,
        "purchasable": True,
        "reason": None,
        "operations": PRICED,
        "protocols": ["x402", "mpp"],
        "replaySafe": True,
    }


@pytest.mark.parametrize(
    ("selling", "reason", "protocols"),
    [
        (Selling(BASE, None, None, 12), "payment_not_configured", []),
        (Selling(BASE, TERMS, "facilitator_unreachable", 12), "facilitator_unreachable", ["x402", "mpp"]),
    ],
)
def test_no_payment_path_closes_what_is_paid_and_nothing_else(
    selling: Selling, reason: str, protocols: list[str]
) -> None:
    shelf = Shelf([route(LUNA), route(SMOLLM2)])
    for model_id in (LUNA, SMOLLM2):
        shelf.probe(model_id)
    commerce = said(shelf, LUNA, selling)["commerce"]
    assert (commerce["callable"], commerce["purchasable"], commerce["reason"]) == (False, False, reason)
    assert commerce["protocols"] == protocols
    assert said(shelf, LUNA, selling)["availability"] == "available"
    assert said(shelf, SMOLLM2, selling)["commerce"]["callable"] is True


def test_a_closed_route_is_told_before_a_closed_payment_path() -> None:
    assert said(Shelf(), LUNA, Selling(BASE, None, None, 12))["commerce"]["reason"] == "no_route"


def test_prices_are_decimal_strings_of_the_price_rows() -> None:
    assert said(Shelf(), SMOLLM2)["pricing"] == {"usd": "0.000000", "unit": "request"}
    for model in CATALOG.on("chat.completions"):
        assert model.price is not None
        pricing = said(Shelf(), model.id)["pricing"]
        assert Decimal(pricing["usd"]) * 10**6 == model.price
        assert pricing["unit"] == "request"
        assert ("aiExecute" in pricing) == (model.billing == "paid")


def test_the_rates_of_luna_are_published() -> None:
    assert said(Shelf(), LUNA)["pricing"]["aiExecute"] == {
        "inputUsdPerMillionTokens": "1",
        "outputUsdPerMillionTokens": "6",
        "minimumUsd": "0.000001",
        "maximumUsd": "2.621440",
        "longContext": {"overInputTokens": 272_000, "inputUsdPerMillionTokens": "2", "outputUsdPerMillionTokens": "9"},
    }
    assert said(Shelf(), GLM)["pricing"]["aiExecute"]["longContext"] is None


@pytest.mark.parametrize("margin", [100, 105, 133])
@pytest.mark.parametrize("tokens", [18, 272_000, 272_001])
def test_a_price_worked_out_from_the_published_rates_is_the_price(margin: int, tokens: int) -> None:
    prompt = Prompt(LUNA, (Message("user", "a" * (tokens - 16)),), 1_001)
    rates = said(Shelf(), LUNA, attrs.evolve(OPEN, margin_percent=margin))["pricing"]["aiExecute"]
    if prompt_tokens(prompt) > rates["longContext"]["overInputTokens"]:
        rates = rates["longContext"]
    exact = tokens * Decimal(rates["inputUsdPerMillionTokens"]) + 1_001 * Decimal(rates["outputUsdPerMillionTokens"])
    assert execute_price(CATALOG.models[LUNA], prompt, margin_percent=margin) == ceil(exact)


# -- the whole ---------------------------------------------------------------------------------------------------------


def test_the_catalog_s_metadata_counts_what_is_listed_and_what_is_open() -> None:
    shelf = Shelf([route(SMOLLM2), route(LUNA)])
    for model_id in (SMOLLM2, LUNA):
        shelf.probe(model_id)
    told = listed(shelf)["gateway"]
    assert (told["catalogVersion"], told["interfaceVersion"]) == ("2026-07-25.3", "2026-07-29.1")
    assert told["counts"] == {"canonical": 85, "aliases": 4, "free": 13, "paid": 13, "callable": 3, "purchasable": 1}
    assert told["currency"] == "USD"
    assert told["payment"] == {
        "open": True,
        "reason": None,
        "protocols": ["x402", "mpp"],
        "network": "eip155:8453",
        "asset": ASSET.address,
        "decimals": 6,
        "payTo": TERMS.pay_to,
        "quoteTtlSeconds": 120,
    }
    assert told["quotas"] == {"freeAi": {"limit": 12, "windowSeconds": 60, "per": "caller"}}


def test_a_node_without_payments_says_so() -> None:
    payment = listed(Shelf(), Selling(BASE, None, None, 12))["gateway"]["payment"]
    assert payment == {"open": False, "reason": "payment_not_configured", "protocols": []}


def test_every_link_is_on_this_node() -> None:
    assert all(each.startswith(f"{BASE}/") for each in listed(Shelf())["gateway"]["links"].values())


def test_the_list_is_json_that_says_nothing_of_upstreams() -> None:
    shelf = Shelf([route(LUNA, simulated=True, rates=(123_456, 654_321))])
    shelf.probe(LUNA)
    text = orjson.dumps(listed(shelf)).decode()
    assert "127.0.0.1" not in text
    assert "123456" not in text
