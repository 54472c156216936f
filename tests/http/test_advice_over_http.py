"""What a client reads of trying again over HTTP, on a route of problems and on one that speaks OpenAI."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from gateway.registry.qualification import Rules
from tests.http.ai_shop import FREE, PAID, UPSTREAM, AiShop, Said, open_ai_shop, open_provider, openai, route
from tests.http.shop import TERMS

SELDOM = Rules(interval_s=60, probe_timeout_s=2, retry_first_s=30, failures_to_close=1)


def check(answer: httpx.Response, code: str, reason: str, *, retryable: bool) -> None:
    told = answer.json()
    assert (answer.status_code, told["code"], told["reason"]) == (503, code, reason), answer.text
    assert told["retryable"] is retryable
    assert told["next"]
    assert ("retry-after" in answer.headers) is retryable
    assert ("x-should-retry" not in answer.headers) is retryable
    assert "payment-required" not in answer.headers
    if retryable:
        assert int(answer.headers["retry-after"]) >= 1
    else:
        assert answer.headers["x-should-retry"] == "false"
        assert "Retry-After" not in told["next"]


@pytest.fixture(params=["chat", "execute"])
def path(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def ask(shop: AiShop, path: str, model: str = FREE) -> httpx.Response:
    return await (shop.chat(model) if path == "chat" else shop.execute(model))


async def test_a_model_that_this_node_has_no_route_to_is_not_to_be_asked_again(tmp_path: Path, path: str) -> None:
    async with open_ai_shop(tmp_path, []) as shop:
        check(await ask(shop, path), "model_unavailable", "no_route", retryable=False)


async def test_a_node_that_takes_no_payments_says_that_no_wait_changes_it(tmp_path: Path, path: str) -> None:
    async with open_provider() as provider, open_ai_shop(tmp_path, [route(provider, PAID)], terms=None) as shop:
        await shop.until(f"ai/{PAID}", is_open=True)
        answer = await ask(shop, path, PAID)
        check(answer, "settlement_unavailable", "payment_not_configured", retryable=False)


async def test_a_settlement_path_that_is_not_proven_now_is_worth_a_wait(tmp_path: Path, path: str) -> None:
    async with open_provider() as provider, open_ai_shop(tmp_path, [route(provider, PAID)]) as shop:
        await shop.until(f"ai/{PAID}", is_open=True)
        shop.bank.path.proven_until, shop.bank.path.reason = float("-inf"), "facilitator_timeout"
        answer = await ask(shop, path, PAID)
        check(answer, "settlement_unavailable", "facilitator_timeout", retryable=True)
        shop.bank.path.reason = "rpc_wrong_chain"
        check(await ask(shop, path, PAID), "settlement_unavailable", "rpc_wrong_chain", retryable=False)


@pytest.mark.parametrize(
    ("said", "reason", "retryable"),
    [
        (Said({"error": {"message": "this prompt is no good"}}, 400), "status_400", False),
        (Said({"error": {"message": "flagged", "metadata": {"flagged_input": "x"}}}, 403), "flagged_input", False),
        (Said({"error": {"message": "no such key"}}, 401), "status_401", False),
        (Said({"error": {"message": "API key not valid."}}, 400), "route_refused", False),
        (Said({"error": {"message": "slower, please"}}, 429), "status_429", True),
        (Said({"error": {"message": "out of order"}}, 500), "status_500", True),
    ],
)
async def test_what_an_upstream_refuses_is_told_by_whose_fault_it_is(
    tmp_path: Path, path: str, said: Said, reason: str, retryable: bool
) -> None:
    async with open_provider() as provider, open_ai_shop(tmp_path, [route(provider)], rules=SELDOM) as shop:
        await shop.until(f"ai/{FREE}", is_open=True)
        provider.say = lambda _: said
        check(await ask(shop, path), "execution_failed", reason, retryable=retryable)


async def test_a_result_over_the_cap_is_not_to_be_asked_for_again(tmp_path: Path, path: str) -> None:
    async with open_provider() as provider, open_ai_shop(tmp_path, [route(provider)], rules=SELDOM) as shop:
        await shop.until(f"ai/{FREE}", is_open=True)
        provider.say = lambda _: Said(openai(UPSTREAM, "tide " * 2**19))
        check(await ask(shop, path), "execution_failed", "result_too_large", retryable=False)


async def test_a_route_that_a_failure_closed_is_worth_a_wait(tmp_path: Path, path: str) -> None:
    async with open_provider() as provider, open_ai_shop(tmp_path, [route(provider)], rules=SELDOM) as shop:
        await shop.until(f"ai/{FREE}", is_open=True)
        provider.say = lambda _: Said({}, 500)
        await ask(shop, path)
        check(await ask(shop, path), "model_unavailable", "status_500", retryable=True)


async def test_the_page_of_a_problem_says_on_what_trying_again_depends(tmp_path: Path) -> None:
    async with open_ai_shop(tmp_path, []) as shop:
        for code in ("execution_failed", "model_unavailable", "settlement_unavailable", "store_unavailable"):
            described = (await shop.client.get(f"/problems/{code}")).json()
            assert (described["retryable"], described["retryableDependsOn"]) == (True, "reason")
        described = (await shop.client.get("/problems/operation_in_progress")).json()
        assert (described["retryable"], "retryableDependsOn" in described) == (True, False)
        assert TERMS.base_url in described["type"]
