"""What other gateways of models are known to get wrong, each with the issue that tells of it, against a whole node.

The numbers are those of the list that the issues were collected in; 11 is of fetching pages, which is not sold yet.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.registry.qualification import Rules
from tests.http.ai_shop import (
    FREE,
    PAID,
    SAID,
    UPSTREAM,
    AiShop,
    Heard,
    Provider,
    Said,
    chat_body,
    completion,
    open_ai_shop,
    open_provider,
    openai,
    paid,
    route,
)
from tests.http.shop import OTHER_PAYER

KEY = "a-key-of-the-callers-own"
KEYED = {"idempotency-key": KEY}
FREE_ROUTE, PAID_ROUTE = f"ai/{FREE}", f"ai/{PAID}"
SELDOM = Rules(interval_s=60, probe_timeout_s=2, retry_first_s=0.1, failures_to_close=1)
"""Probes too seldom to see a failure before a call does."""


@attrs.frozen(eq=False)
class Site:
    shop: AiShop
    provider: Provider


@asynccontextmanager
async def open_site(directory: Path, **more: Any) -> AsyncIterator[Site]:
    async with open_provider() as provider:
        routes = [route(provider), route(provider, PAID)]
        async with open_ai_shop(directory, routes, **more) as shop:
            yield Site(shop, provider)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with open_site(tmp_path, rules=SELDOM) as opened:
        yield opened


def always(said: Any, status: int = 200) -> Callable[[Heard], Said]:
    return lambda _: Said(said, status)


def told(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["code"]


async def ask_uncharged(site: Site) -> httpx.Response:
    """Buy what the provider will fail to deliver, see that nothing is charged, and return the answer."""
    answer = await site.shop.buy(key=KEY)
    assert told(answer) == (503, "execution_failed")
    assert "payment-required" not in answer.headers
    assert site.shop.bank.paid == {}
    return answer


# -- 1: BerriAI/litellm#28241, a fallback answered and the requested model was named -----------------------------------


@pytest.mark.parametrize("model", [FREE, "gateway/smart"])
async def test_1_the_model_of_an_answer_is_the_id_that_was_asked(site: Site, model: str) -> None:
    answer = (await site.shop.chat(model)).json()
    assert answer["model"] == model
    assert answer["gateway"]["route"].get("model", model) == FREE


async def test_1_an_upstream_that_says_another_model_answered_is_not_sold(site: Site) -> None:
    site.provider.say = always(openai("some-cheaper-model"))
    assert (await ask_uncharged(site)).json()["reason"] == "wrong_model"


# -- 2: BerriAI/litellm#40405, a lone route is never cooled, an outage costs every request time-outs ---------------


async def test_2_a_dead_route_answers_at_once_and_opens_again_by_itself(site: Site) -> None:
    site.provider.die()
    assert told(await site.shop.chat()) == (503, "execution_failed")
    took = []
    for _ in range(5):
        began = trio.current_time()
        assert told(await site.shop.chat()) == (503, "model_unavailable")
        took.append(trio.current_time() - began)
    assert min(took) < 0.05
    await site.provider.start()
    await site.shop.until(FREE_ROUTE, is_open=True)
    assert (await site.shop.chat()).status_code == 200


# -- 3: BerriAI/litellm#26987, #24365, #25349, probes of one token break reasoning models, and cost --------------------


def reasoning(heard: Heard) -> Said:
    asked = heard.body.get("max_completion_tokens") or heard.body["max_tokens"]
    if asked < 16:
        return Said({"error": {"message": "max_tokens is too small", "type": "invalid_request_error"}}, 400)
    return Said(openai(heard.body["model"], content="", finish="length"))


async def test_3_probes_are_never_billed(tmp_path: Path) -> None:
    async with open_site(tmp_path) as site:
        with trio.fail_after(10):
            while site.provider.looked_at < 6:  # noqa: ASYNC110 - counted, not announced
                await trio.sleep(0.05)
        assert site.shop.proofs.of(PAID_ROUTE).open
        assert site.provider.heard == []


async def test_3_a_canary_leaves_a_reasoning_model_room_to_answer(tmp_path: Path) -> None:
    async with open_provider() as provider:
        provider.say = reasoning
        async with open_ai_shop(tmp_path, [route(provider, canary=True)]) as shop:
            await shop.until(FREE_ROUTE, is_open=True)
            assert shop.proofs.of(FREE_ROUTE).basis == "canary"
            assert len(provider.heard) == 1


# -- 4: Exgentic#247, a probe that was refused counted as health -------------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500])
async def test_4_a_probe_that_is_refused_closes_the_model(tmp_path: Path, status: int) -> None:
    async with open_provider() as provider:
        provider.show = always({"error": {"message": "no"}}, status)
        async with open_ai_shop(tmp_path, [route(provider)]) as shop:
            assert told(await shop.chat()) == (503, "model_unavailable")
            assert provider.looked_at
            assert provider.heard == []


# -- 5: BerriAI/litellm#13774, #37140, QuantumNous/new-api#4184, the client is gone, the upstream runs on and bills ----


async def ask_and_leave(site: Site, ask: Callable[[], Any]) -> None:
    """Send a request, and hang up once the provider has it."""
    site.provider.hold()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        with trio.fail_after(10):
            await site.provider.begun.wait()
        nursery.cancel_scope.cancel()


async def test_5_a_free_call_that_is_left_stops_its_upstream_within_a_second(site: Site) -> None:
    await ask_and_leave(site, site.shop.chat)
    with trio.fail_after(1):
        await site.provider.left.wait()
    assert site.provider.hung_up == 1


async def test_5_a_paid_call_that_is_left_completes_is_kept_and_replays(site: Site) -> None:
    payment = await site.shop.payment(key=KEY)
    await ask_and_leave(site, partial(site.shop.chat, PAID, headers=payment))
    site.provider.gate.set()
    answer = await site.shop.chat(PAID, headers=KEYED)
    assert answer.status_code == 200
    assert answer.headers["idempotency-replayed"] == "true"
    assert answer.json()["choices"][0]["message"]["content"] == SAID
    assert (len(site.provider.heard), len(site.shop.bank.paid), site.provider.hung_up) == (1, 1, 0)


# -- 6: BerriAI/litellm#34732, #40095, requests at the same time pass a budget before it is counted --------------------


async def test_6_of_fifty_at_once_the_quota_serves_ten(tmp_path: Path) -> None:
    async with open_site(tmp_path, limits={"free_ai": 10}) as site:
        statuses: list[int] = []

        async def one() -> None:
            statuses.append((await site.shop.chat()).status_code)

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(one)
        assert sorted(statuses) == [200] * 10 + [429] * 40
        assert len(site.provider.heard) == 10


# -- 7: BerriAI/litellm#13245, #36083, #11789, #42663, usage is lost or made up ----------------------------------------

OPENAI_USAGE = openai(
    UPSTREAM,
    usage={
        "prompt_tokens": 20,
        "completion_tokens": 30,
        "total_tokens": 50,
        "prompt_tokens_details": {"cached_tokens": 8},
        "completion_tokens_details": {"reasoning_tokens": 25},
    },
)
ANTHROPIC_USAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": UPSTREAM,
    "content": [{"type": "text", "text": SAID}],
    "stop_reason": "end_turn",
    "usage": {
        "input_tokens": 5,
        "cache_creation_input_tokens": 7,
        "cache_read_input_tokens": 8,
        "output_tokens": 30,
    },
}
GEMINI_USAGE = {
    "candidates": [{"content": {"role": "model", "parts": [{"text": SAID}]}, "finishReason": "STOP"}],
    "modelVersion": UPSTREAM,
    "usageMetadata": {
        "promptTokenCount": 20,
        "candidatesTokenCount": 5,
        "thoughtsTokenCount": 25,
        "cachedContentTokenCount": 8,
        "totalTokenCount": 50,
    },
}


@pytest.mark.parametrize(
    ("kind", "answer", "reasoning_tokens"),
    [("openai", OPENAI_USAGE, 25), ("anthropic", ANTHROPIC_USAGE, None), ("gemini", GEMINI_USAGE, 25)],
)
async def test_7_usage_is_the_providers_own(
    tmp_path: Path, kind: str, answer: Any, reasoning_tokens: int | None
) -> None:
    async with open_provider() as provider:
        provider.say = always(answer)
        async with open_ai_shop(tmp_path, [route(provider, kind=kind)]) as shop:
            chat = (await shop.chat()).json()
            executed = (await shop.execute()).json()
    counted = {"inputTokens": 20, "outputTokens": 30, "reasoningTokens": reasoning_tokens}
    assert executed["output"]["usage"] == executed["execution"]["usage"] == counted
    usage = chat["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (20, 30, 50)


async def test_7_usage_that_no_provider_told_is_null_and_said_to_be_missing(site: Site) -> None:
    untold = openai(UPSTREAM)
    del untold["usage"]
    site.provider.say = always(untold)
    answer = (await site.shop.chat()).json()
    assert answer["usage"] is None
    assert answer["gateway"]["execution"]["usageReported"] is False


# -- 8: NVIDIA/OpenShell#2118, theopenco/llmgateway#2811, OmniRoute#4942, a 200 without content ------------------------


@pytest.mark.parametrize(
    "answer",
    [
        openai(UPSTREAM, choices=[]),
        openai(UPSTREAM, None),
        openai(UPSTREAM, ""),
        openai(UPSTREAM, " \n\u200b"),
        openai(UPSTREAM, None, finish="length"),
        openai(UPSTREAM, "", finish="content_filter"),
    ],
    ids=["no choice", "null", "empty", "invisible", "cut off", "filtered"],
)
async def test_8_an_answer_without_anything_is_no_result_and_not_charged(site: Site, answer: Any) -> None:
    site.provider.say = always(answer)
    await ask_uncharged(site)


async def test_8_what_was_not_charged_may_be_sent_again_with_its_payment(site: Site) -> None:
    payment = await site.shop.payment(key=KEY)
    site.provider.say = always(openai(UPSTREAM, choices=[]))
    assert told(await site.shop.chat(PAID, headers=payment)) == (503, "execution_failed")
    site.provider.say = completion
    await site.shop.until(PAID_ROUTE, is_open=True)
    assert (await site.shop.chat(PAID, headers=payment)).status_code == 200
    assert len(site.shop.bank.paid) == 1


# -- 9: OpenRouter's documentation, a free model falls back to one that bills ------------------------------------------


async def test_9_a_free_quota_that_is_spent_is_never_sold(tmp_path: Path) -> None:
    async with open_site(tmp_path, limits={"free_ai": 1}) as site:
        assert (await site.shop.chat()).status_code == 200
        quoted = await site.shop.chat(PAID)
        for headers in ({}, paid(quoted), paid(quoted) | KEYED):
            refused = await site.shop.chat(headers=headers)
            assert told(refused) == (429, "quota_exceeded")
            assert "payment-required" not in refused.headers
            assert "www-authenticate" not in refused.headers
        assert told(await site.shop.chat(headers={"x-gateway-funding": "paid"})) == (400, "funding_mismatch")
        assert site.shop.bank.paid == {}
        assert len(site.provider.heard) == 1


async def test_9_a_free_call_goes_over_no_billed_route_beyond_its_budget(tmp_path: Path) -> None:
    async with open_provider() as free, open_provider() as billing:
        routes = [route(free, name="free"), route(billing, name="bills", billed=True)]
        async with open_ai_shop(tmp_path, routes, limits={"billed:ai/bills": 1}, rules=SELDOM) as shop:
            free.die()
            assert told(await shop.chat()) == (503, "execution_failed")
            assert billing.heard == []  # the call was counted on the free route alone
            assert (await shop.chat()).status_code == 200
            assert told(await shop.chat()) == (429, "quota_exceeded")
            assert len(billing.heard) == 1


# -- 10: x402-foundation/x402#808, bitrouter/x402-kit#14, a retry signs anew and is settled twice ----------------------


async def test_10_a_lost_answer_is_replayed_to_a_new_signature_and_settled_once(site: Site) -> None:
    quoted = await site.shop.chat(PAID, headers=KEYED)
    first = await site.shop.chat(PAID, headers=KEYED | paid(quoted))
    again = await site.shop.chat(PAID, headers=KEYED | paid(quoted))
    assert (first.status_code, again.status_code) == (200, 200)
    assert again.json()["gateway"]["receipt"] == first.json()["gateway"]["receipt"]
    assert again.json()["gateway"]["replayed"] is True
    assert (len(site.shop.bank.paid), len(site.provider.heard)) == (1, 1)


async def test_10_the_same_holds_while_the_first_still_runs(site: Site) -> None:
    quoted = await site.shop.chat(PAID, headers=KEYED)
    site.provider.hold()
    answers: list[httpx.Response] = []

    async def pay(payment: dict[str, str]) -> None:
        answers.append(await site.shop.chat(PAID, headers=KEYED | payment))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pay, paid(quoted))
        await site.provider.begun.wait()
        nursery.start_soon(pay, paid(quoted))
        nursery.start_soon(pay, paid(quoted, OTHER_PAYER))
        await wait_all_tasks_blocked(0.05)  # they have arrived, and it still runs
        assert answers == []
        site.provider.gate.set()
    assert [each.status_code for each in answers] == [200] * 3
    assert len({each.json()["gateway"]["receipt"]["receiptId"] for each in answers}) == 1
    assert (len(site.shop.bank.paid), len(site.provider.heard)) == (1, 1)


# -- 12: langwatch#7602, Portkey#165, causes are mixed up, and a thrown error skips the fallback -----------------------


@attrs.frozen
class Cause:
    """Something that goes wrong with an upstream, and the word that tells it."""

    reason: str
    say: Callable[[Heard], Said | None] | None

    def befall(self, provider: Provider) -> None:
        if self.say is None:
            provider.die()
        else:
            provider.say = self.say


CAUSES = [
    Cause("unreachable", None),
    Cause("connection_broken", lambda _: None),
    Cause("status_429", always({"error": {"message": "slow down"}}, 429)),
    Cause("status_500", always({"error": {"message": "overloaded"}}, 500)),
    Cause("status_401", always({"error": {"message": "no such key"}}, 401)),
    Cause("malformed_answer", always(b'{"choices": [')),
]


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.reason)
async def test_12_each_cause_has_its_own_word(site: Site, cause: Cause) -> None:
    cause.befall(site.provider)
    assert (await ask_uncharged(site)).json()["reason"] == cause.reason


async def test_12_a_time_out_is_told_as_one(tmp_path: Path) -> None:
    async with open_site(tmp_path, rules=SELDOM, deadline_s=2.0) as site:
        site.provider.hold()
        assert (await ask_uncharged(site)).json()["reason"] == "timeout"


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.reason)
async def test_12_after_any_of_them_the_next_route_to_the_same_model_is_asked(tmp_path: Path, cause: Cause) -> None:
    async with open_provider() as first, open_provider() as second:
        routes = [route(first, PAID, name="first"), route(second, PAID, name="second")]
        async with open_ai_shop(tmp_path, routes, rules=SELDOM) as shop:
            cause.befall(first)
            answer = (await shop.buy(key=KEY)).json()
    assert answer["gateway"]["route"]["routeId"] == "ai/second"
    assert answer["gateway"]["route"]["fallback"] is True
    assert [each["outcome"] for each in answer["gateway"]["execution"]["attempts"]] == [cause.reason, "served"]


# -- 13: 9router#1468, opencode#23193, strict upstreams refuse what is passed through ----------------------------------


async def test_13_an_upstream_gets_the_members_it_knows_and_no_others(site: Site) -> None:
    bystanders = {"user": "somebody", "metadata": {"a": "b"}, "n": 1, "stream": False, "store": False, "tools": []}
    answer = await site.shop.chat(FREE, bystanders | {"temperature": 0.2, "stop": "END"})
    assert answer.status_code == 200
    (heard,) = site.provider.heard
    asked = chat_body()
    assert heard.body == {
        "model": UPSTREAM,
        "messages": asked["messages"],
        "max_tokens": asked["max_tokens"],
        "temperature": 0.2,
        "stop": ["END"],
    }


async def test_13_nothing_of_the_caller_reaches_an_upstream_in_headers(site: Site) -> None:
    await site.shop.chat(headers=KEYED | {"authorization": "Bearer the-callers-own", "x-forwarded-for": "192.0.2.7"})
    (heard,) = site.provider.heard
    assert heard.headers["authorization"] == "Bearer k-provider"
    assert set(heard.headers) <= {
        "accept",
        "accept-encoding",
        "authorization",
        "content-length",
        "content-type",
        "host",
        "user-agent",
    }
    assert KEY not in str(heard)
