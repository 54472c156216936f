"""Chats sold and given away: what is proved is sold, what fails is not charged, and who leaves a free call ends it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import orjson
import pytest
import trio

from gateway.world.chain import Account
from gateway.world.world import LUNA as LUNA_ROUTE
from gateway.world.world import World
from tests.world.scenarios.node_process import NodeProcess, running
from tests.world.scenarios.old_quotes import repriced, sealed_by_the_node
from tests.world.scenarios.purchase import (
    CHAT,
    EXECUTE,
    Calls,
    Challenge,
    Protocol,
    Purchase,
    Shop,
    carries_challenge,
    fresh_key,
    hang_up,
    mpp,
    mpp_payload,
    together,
    x402,
    x402_payload,
)

pytestmark = pytest.mark.world

LUNA, SONNET, GEMINI = "openai/gpt-5.6-luna", "anthropic/claude-sonnet-4.6", "google/gemini-3.1-pro-preview"
FREE = "openai/gpt-oss-20b"
QUOTA, PROBE_S = 10, 3
PROBE_TIMEOUT_S = 5
PRICES = {LUNA: 7_000, SONNET: 18_000, GEMINI: 84_000}
PAID = {"x-gateway-funding": "paid"}
networks = (f"198.51.100.{number}" for number in range(1, 255))


@pytest.fixture(scope="module")
def node(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """Yield a node that sells a model of each format and gives one away."""
    route = [
        world.ai_route(*LUNA_ROUTE),
        world.ai_route(SONNET, "anthropic", "claude-sonnet-4-6"),
        world.ai_route(GEMINI, "gemini", "gemini-3.1-pro-preview"),
        world.ai_route(FREE, "openai", "gpt-oss-20b"),
    ]
    ai = {"embedded": False, "probe_interval_s": PROBE_S, "route": route}
    quota = {"free_ai": QUOTA, "trusted_proxies": ["127.0.0.1"]}
    with running(NodeProcess.of(world, tmp_path_factory.mktemp("node"), ai=ai, quota=quota)) as started:
        yield started


def execute(content: str = "What is a tide?", most: int = 64) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    asked = {"kind": "chat", "messages": messages, "responseFormat": "text", "stream": False}
    return {"model": LUNA, "input": asked, "maximumOutputTokens": most}


def chat(model: str = LUNA, content: str = "What is a tide?", **members: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 128, **members}


def from_elsewhere() -> dict[str, str]:
    """Return the header of a caller that nobody has counted yet."""
    return {"X-Forwarded-For": next(networks)}


async def until_open(shop: Shop, model: str = LUNA) -> None:
    for _ in range(200):
        if (await shop.model(model))["availability"] == "available":
            return
        await trio.sleep(0.1)
    raise AssertionError(f"{model} did not open: {await shop.model(model)}")


async def until_closed(shop: Shop, within_s: float) -> None:
    """Wait for the id to close, and no longer."""
    with trio.fail_after(within_s):
        while True:
            if (await shop.model(LUNA))["availability"] != "available":
                return
            await trio.sleep(0.05)


async def just_probed(shop: Shop, model: str = LUNA) -> None:
    """Return right after a probe of a model: the next one is not at hand."""
    seen = (await shop.model(model))["health"]["lastProbeAt"]
    for _ in range(50 * PROBE_S):
        if (await shop.model(model))["health"]["lastProbeAt"] != seen:
            return
        await trio.sleep(0.05)
    raise AssertionError(f"{model} is probed no more")


async def refused_everywhere(shop: Shop, reason: str) -> None:
    """Check that a closed id is closed in the list, in its own listing, and for whoever asks for a price."""
    told = await shop.model(LUNA)
    assert (told["availability"], told["availabilityReason"]) == ("unavailable", reason)
    assert not told["commerce"]["callable"]
    assert not told["commerce"]["purchasable"]
    listed = (await shop.client.get(f"{shop.url}/v1/models")).json()["data"]
    (luna,) = (each["gateway"] for each in listed if each["id"] == LUNA)
    assert luna["availability"] == "unavailable"
    for path, sent in ((EXECUTE, execute()), (CHAT, chat())):
        answer = await shop.post(sent, fresh_key(), path=path)
        assert (answer.status_code, answer.json()["code"]) == (503, "model_unavailable")
        assert answer.json()["reason"] == reason
        assert not carries_challenge(answer)


# -- what is sold ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["x402", "mpp"])
@pytest.mark.parametrize(("content", "most"), [("?", 1), ("What is a tide?", 64), ("tide " * 4000, 16_384)])
async def test_what_is_quoted_is_charged_to_the_atomic_unit(
    shop: Shop, payer: Account, protocol: Protocol, content: str, most: int
) -> None:
    await until_open(shop)
    purchase = await shop.order(payer, protocol, sent=execute(content, most), path=EXECUTE)
    quoted = (await shop.post(execute(content, most), fresh_key(), path=EXECUTE)).json()["price"]["amountAtomic"]
    assert int(quoted) == len(content) + 16 + 6 * most
    served = await shop.until_served(purchase)
    told = served.json()
    assert told["receipt"]["charge"]["amountAtomic"] == quoted
    assert [str(each.value) for each in await shop.transfers(payer)] == [quoted]
    assert told["output"]["model"] == LUNA
    assert told["output"]["usage"] == told["execution"]["usage"]
    assert 0 < told["output"]["usage"]["outputTokens"] <= most
    assert told["output"]["route"]["simulated"] is True


@pytest.mark.parametrize("model", [LUNA, SONNET, GEMINI])
@pytest.mark.parametrize("protocol", ["x402", "mpp"])
async def test_a_chat_is_sold_in_each_format_and_replays(
    shop: Shop, payer: Account, model: str, protocol: Protocol
) -> None:
    await until_open(shop, model)
    calls = await Calls.from_now(shop)
    purchase = await shop.order(payer, protocol, sent=chat(model), path=CHAT)
    served = (await shop.until_served(purchase)).json()
    assert (served["object"], served["model"]) == ("chat.completion", model)
    assert "What is a tide?" in served["choices"][0]["message"]["content"]
    assert served["usage"]["total_tokens"] == served["usage"]["prompt_tokens"] + served["usage"]["completion_tokens"]
    assert [each.value for each in await shop.transfers(payer)] == [PRICES[model]]
    again = (await shop.send(purchase)).json()
    assert (served["gateway"].pop("replayed"), again["gateway"].pop("replayed")) == (False, True)
    assert again == served
    assert await calls.of("completions", "settle") == {"completions": 1, "settle": 1}


async def test_json_mode_is_honoured_by_a_route_that_can_and_refused_where_none_does(shop: Shop) -> None:
    await until_open(shop, FREE)
    wished: dict[str, Any] = {"response_format": {"type": "json_object"}}
    answer = await shop.post(chat(FREE, "as JSON", **wished), fresh_key(), from_elsewhere(), path=CHAT)
    assert answer.status_code == 200, answer.text
    assert orjson.loads(answer.json()["choices"][0]["message"]["content"])["simulated"] is True
    await until_open(shop, SONNET)
    refused = await shop.post(chat(SONNET, **wished), fresh_key(), PAID, path=CHAT)
    assert (refused.status_code, refused.json()["code"]) == (503, "capability_unavailable")
    assert not carries_challenge(refused)


async def test_a_live_quote_of_an_older_price_list_is_honoured_at_its_price(
    shop: Shop, payer: Account, node: NodeProcess
) -> None:
    await until_open(shop)
    sent, key = execute(), fresh_key()
    challenge = await shop.challenge(sent, key, path=EXECUTE)
    sealed = sealed_by_the_node(node, shop, challenge, 300, 60, 120, operation="ai.execute")
    old = repriced(challenge, sealed, 300)
    served = await shop.post(sent, key, x402(x402_payload(old, payer)), path=EXECUTE)
    assert served.status_code == 200, served.text
    assert served.json()["receipt"]["charge"]["amountAtomic"] == "300"
    assert [each.value for each in await shop.transfers(payer)] == [300]


async def test_a_generated_key_comes_with_the_challenge_and_replays(shop: Shop, payer: Account) -> None:
    await until_open(shop)
    asked = await shop.post(execute(), path=EXECUTE)
    key = asked.headers["idempotency-key"]
    credential = x402(x402_payload(Challenge.of(asked), payer))
    served = await shop.post(execute(), headers=credential, path=EXECUTE)
    assert (served.status_code, served.headers["idempotency-key"]) == (200, key)
    again = await shop.post(execute(), key, path=EXECUTE)
    assert (again.status_code, again.json()["replayed"]) == (200, True)
    assert len(await shop.transfers(payer)) == 1


async def test_a_keyless_result_is_not_read_by_a_third_party_with_a_payment_for_its_quote(
    shop: Shop, payers: Iterator[Account]
) -> None:
    payer, third = next(payers), next(payers)
    await until_open(shop)
    challenge = Challenge.of(await shop.post(execute(), path=EXECUTE))
    served = await shop.post(execute(), headers=x402(x402_payload(challenge, payer)), path=EXECUTE)
    assert served.status_code == 200, served.text
    for theirs in (x402(x402_payload(challenge, third)), mpp(mpp_payload(challenge, third))):
        answer = await shop.post(execute(), headers=theirs, path=EXECUTE)
        assert (answer.status_code, answer.json()["code"]) == (409, "quote_conflict")
        assert served.json()["operationId"] not in answer.text
    again = await shop.post(execute(), headers=x402(x402_payload(challenge, payer)), path=EXECUTE)
    assert (again.status_code, again.json()["replayed"]) == (200, True)
    assert (len(await shop.transfers(payer)), await shop.transfers(third)) == (1, [])


# -- what fails --------------------------------------------------------------------------------------------------------

FAULTS = {
    "http_500": "status_500",
    "http_429": "status_429",
    "empty_choices": "empty_choices",
    "wrong_model": "wrong_model",
    "invalid_json": "malformed_answer",
    "refuse": "unreachable",
}


@pytest.mark.parametrize(
    ("mode", "path", "protocol"),
    [
        ("http_500", EXECUTE, "x402"),
        ("http_429", CHAT, "mpp"),
        ("wrong_model", CHAT, "x402"),
        ("refuse", CHAT, "mpp"),
    ],
)
async def test_a_fault_of_the_upstream_is_not_charged_closes_the_id_at_once_and_is_over_when_it_is(
    shop: Shop, payer: Account, mode: str, path: str, protocol: Protocol
) -> None:
    await until_open(shop)
    await just_probed(shop)
    sent = execute() if path == EXECUTE else chat()
    purchase = await shop.order(payer, protocol, sent=sent, path=path)
    calls = await Calls.from_now(shop)
    await shop.fault("ai", mode)
    answer = await shop.send(purchase)
    assert (answer.status_code, answer.json()["code"]) == (503, "execution_failed"), answer.text
    assert (answer.json()["reason"], answer.json()["retryable"]) == (FAULTS[mode], True)
    assert not carries_challenge(answer)
    await refused_everywhere(shop, FAULTS[mode])
    assert await calls.of("completions", "settle") == {"completions": int(mode != "refuse"), "settle": 0}
    assert await shop.transfers(payer) == []
    await shop.heal()
    await until_open(shop)
    served = (await shop.until_served(purchase)).json()
    about = served if path == EXECUTE else served["gateway"]
    assert (about["operationId"], about["execution"]["attempt"]) == (answer.json()["operationId"], 2)
    assert len(await shop.transfers(payer)) == 1


@pytest.mark.parametrize(
    ("mode", "path", "protocol"), [("empty_choices", EXECUTE, "mpp"), ("invalid_json", EXECUTE, "x402")]
)
async def test_what_a_prompt_may_have_brought_about_is_not_charged_and_closes_the_id_for_nobody(
    shop: Shop, payer: Account, mode: str, path: str, protocol: Protocol
) -> None:
    await until_open(shop)
    purchase = await shop.order(payer, protocol, sent=execute() if path == EXECUTE else chat(), path=path)
    calls = await Calls.from_now(shop)
    await shop.fault("ai", mode)
    for attempt in range(1, 8):
        answer = await shop.send(purchase)
        assert (answer.status_code, answer.json()["code"]) == (503, "execution_failed"), answer.text
        assert answer.json()["reason"] == FAULTS[mode]
        assert (await shop.model(LUNA))["availability"] == "available"
        assert await calls.of("completions", "settle") == {"completions": attempt, "settle": 0}
    assert await shop.transfers(payer) == []
    await shop.heal()
    assert (await shop.send(purchase)).status_code == 200
    assert len(await shop.transfers(payer)) == 1


async def test_what_three_unrelated_callers_meet_in_a_row_closes_the_id_until_it_is_over(shop: Shop) -> None:
    await until_open(shop, FREE)
    await shop.fault("ai", "empty_choices")
    for _ in range(3):
        assert (await shop.model(FREE))["availability"] == "available"
        answer = await shop.post(chat(FREE), fresh_key(), from_elsewhere(), path=CHAT)
        assert (answer.status_code, answer.json()["reason"]) == (503, "empty_choices")
    refused = await shop.post(chat(FREE), fresh_key(), from_elsewhere(), path=CHAT)
    assert (refused.json()["code"], refused.json()["reason"]) == ("model_unavailable", "empty_choices")
    await shop.heal()
    await until_open(shop, FREE)
    assert (await shop.post(chat(FREE), fresh_key(), from_elsewhere(), path=CHAT)).status_code == 200


@pytest.mark.parametrize("mode", ["refuse", "hang", "http_500"])
async def test_an_upstream_that_dies_unseen_is_closed_within_a_probe_interval_and_opens_by_itself(
    shop: Shop, mode: str
) -> None:
    await until_open(shop)
    await shop.fault("ai", mode)
    await until_closed(shop, 1.2 * PROBE_S + 1 + (PROBE_TIMEOUT_S if mode == "hang" else 0))
    await refused_everywhere(shop, {"refuse": "unreachable", "hang": "probe_timeout", "http_500": "status_500"}[mode])
    await shop.heal()
    await until_open(shop)
    assert (await shop.post(execute(), fresh_key(), path=EXECUTE)).status_code == 402


async def test_an_upstream_that_never_answers_holds_a_call_no_longer_than_its_deadline(
    shop: Shop, payer: Account
) -> None:
    await until_open(shop)
    purchase = await shop.order(payer, sent=execute("hang"), path=EXECUTE)
    calls = await Calls.from_now(shop)
    await shop.fault("ai", "hang")
    began = trio.current_time()
    answer = await shop.send(purchase)
    assert 50 < trio.current_time() - began < 65
    assert (answer.status_code, answer.json()["code"]) == (503, "execution_failed"), answer.text
    assert answer.json()["reason"] == "timeout"
    assert not carries_challenge(answer)
    assert await calls.of("completions", "aborted", "settle") == {"completions": 1, "aborted": 1, "settle": 0}
    await shop.heal()
    await until_open(shop)
    await shop.until_served(purchase)
    assert len(await shop.transfers(payer)) == 1


# -- who leaves --------------------------------------------------------------------------------------------------------


async def test_a_free_call_whose_client_leaves_is_cancelled_upstream_within_a_second(shop: Shop) -> None:
    await until_open(shop, FREE)
    await shop.fault("ai", "ok", latencyMs=20_000)
    calls = await Calls.from_now(shop)
    purchase = Purchase(None, chat(FREE, fresh_key()), fresh_key(), from_elsewhere(), path=CHAT)
    await hang_up(shop, purchase, after="completions")
    await trio.sleep(1)
    assert await calls.of("aborted") == {"aborted": 1}
    await shop.heal()
    served = await shop.until_served(purchase)
    assert served.json()["gateway"]["replayed"] is False
    assert (await shop.model(FREE))["availability"] == "available"
    assert await calls.of("completions", "aborted") == {"completions": 2, "aborted": 1}


@pytest.mark.parametrize(("path", "protocol"), [(EXECUTE, "x402"), (CHAT, "mpp")])
async def test_a_paid_call_whose_client_leaves_is_completed_stored_and_replayed(
    shop: Shop, payer: Account, path: str, protocol: Protocol
) -> None:
    await until_open(shop)
    purchase = await shop.order(payer, protocol, sent=execute() if path == EXECUTE else chat(), path=path)
    await shop.fault("ai", "ok", latencyMs=1_000)
    calls = await Calls.from_now(shop)
    await hang_up(shop, purchase, after="completions")
    for _ in range(200):
        if await shop.transfers(payer):
            break
        await trio.sleep(0.05)
    assert len(await shop.transfers(payer)) == 1
    served = (await shop.until_served(purchase)).json()
    assert (served if path == EXECUTE else served["gateway"])["replayed"] is True
    assert await calls.of("completions", "aborted", "settle") == {"completions": 1, "aborted": 0, "settle": 1}


# -- what is free ------------------------------------------------------------------------------------------------------


async def test_50_free_calls_at_once_under_a_quota_of_10_are_exactly_10(shop: Shop, node: NodeProcess) -> None:
    await until_open(shop, FREE)
    await shop.fault("ai", "ok", latencyMs=300)
    caller, calls, before = from_elsewhere(), await Calls.from_now(shop), node.rows()["operations"]
    answers = await together(
        [partial(shop.post, chat(FREE, f"{number}"), fresh_key(), caller, path=CHAT) for number in range(50)]
    )
    assert Counter(answer.status_code for answer in answers) == {200: QUOTA, 429: 50 - QUOTA}
    for answer in answers:
        assert not carries_challenge(answer)
        if answer.status_code == 429:
            assert answer.json()["code"] == "quota_exceeded"
            assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert await calls.of("completions", "verify", "settle") == {"completions": QUOTA, "verify": 0, "settle": 0}
    assert node.rows()["operations"] == before + QUOTA


async def test_an_exhausted_quota_never_asks_for_a_payment_nor_takes_one(
    shop: Shop, payer: Account, node: NodeProcess
) -> None:
    await until_open(shop, FREE)
    purchase = await shop.order(payer, sent=chat(), path=CHAT)
    caller = from_elsewhere()
    answers = [await shop.post(chat(FREE, f"{number}"), fresh_key(), caller, path=CHAT) for number in range(QUOTA + 2)]
    assert [answer.status_code for answer in answers] == [200] * QUOTA + [429] * 2
    before, calls = node.rows(), await Calls.from_now(shop)
    with_payment = await shop.post(chat(FREE), fresh_key(), caller | purchase.credential, path=CHAT)
    assert (with_payment.status_code, with_payment.json()["code"]) == (429, "quota_exceeded")
    as_paid = await shop.post(chat(FREE), fresh_key(), caller | PAID, path=CHAT)
    assert (as_paid.status_code, as_paid.json()["code"]) == (400, "funding_mismatch")
    assert not any(carries_challenge(answer) for answer in (*answers, with_payment, as_paid))
    assert node.rows() == before
    assert await calls.of("completions", "verify", "settle") == {"completions": 0, "verify": 0, "settle": 0}
    await shop.until_served(purchase)


def test_the_node_has_logged_no_defect_and_its_books_are_even(node: NodeProcess) -> None:
    assert node.defects() == []
    assert node.balances()["hold"] == 0
