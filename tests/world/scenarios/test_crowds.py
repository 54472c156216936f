"""Many at once: one execution and one transfer for one key, one operation for one authorization, exact quotas."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio

from gateway.world.chain import Account
from gateway.world.world import World
from tests.world.scenarios.node_process import NodeProcess, running
from tests.world.scenarios.purchase import (
    FREE,
    Calls,
    Challenge,
    Protocol,
    Purchase,
    Shop,
    body,
    carries_challenge,
    decoded,
    fresh_key,
    together,
    x402,
    x402_payload,
)

pytestmark = pytest.mark.world

CROWD = 64
UNHURRIED = {"verify_timeout_s": 20, "settle_timeout_s": 20, "settle_wait_s": 20}
"""Crowds load a small machine; who waits here is not told that the settlement is pending."""


@pytest.fixture(scope="module")
def node(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with running(NodeProcess.of(world, tmp_path_factory.mktemp("node"), payment=UNHURRIED)) as started:
        yield started


def equal_but_for_replayed(answers: Sequence[httpx.Response]) -> bool:
    told = [
        (answer.json(), answer.headers.get("payment-response"), answer.headers.get("payment-receipt"))
        for answer in answers
    ]
    for document, _, _ in told:
        del document["replayed"]
    return len({json.dumps(each, sort_keys=True) for each in told}) == 1


@pytest.mark.parametrize("protocol", ["x402", "mpp"])
async def test_64_identical_paid_requests_run_once_and_transfer_once(
    shop: Shop, payer: Account, protocol: Protocol
) -> None:
    purchase = await shop.order(payer, protocol)
    calls = await Calls.from_now(shop)
    answers = await together([partial(shop.send, purchase)] * CROWD)
    assert Counter(answer.status_code for answer in answers) == {200: CROWD}
    assert equal_but_for_replayed(answers)
    assert sum(not answer.json()["replayed"] for answer in answers) == 1
    assert await calls.of("verify", "settle", "search") == {"verify": 1, "settle": 1, "search": 1}
    assert len(await shop.transfers(payer)) == 1


@pytest.mark.parametrize("seed", range(4))
async def test_identical_requests_that_come_at_any_moment_are_all_served_by_one_run(
    shop: Shop, payer: Account, seed: int
) -> None:
    purchase, chance = await shop.order(payer), random.Random(seed)
    calls = await Calls.from_now(shop)

    async def later(delay: float) -> httpx.Response:
        await trio.sleep(delay)
        return await shop.send(purchase)

    delays = [chance.uniform(0, 0.6) for _ in range(2 * CROWD)]
    answers = await together([partial(later, delay) for delay in delays])
    assert Counter(answer.status_code for answer in answers) == {200: 2 * CROWD}
    assert equal_but_for_replayed(answers)
    assert sum(not answer.json()["replayed"] for answer in answers) == 1
    assert await calls.of("verify", "settle", "search") == {"verify": 1, "settle": 1, "search": 1}


async def test_64_requests_for_one_key_with_a_credential_each_run_once_and_transfer_once(
    shop: Shop, payers: Iterator[Account], node: NodeProcess
) -> None:
    sent, key = body(fresh_key()), fresh_key()
    challenge = await shop.challenge(sent, key)
    crowd = [next(payers) for _ in range(8)]
    purchases = [
        Purchase(each, sent, key, x402(x402_payload(challenge, each))) for each in crowd for _ in range(CROWD // 8)
    ]
    claims, calls = node.rows()["authorizations"], await Calls.from_now(shop)
    answers = await together([partial(shop.send, each) for each in purchases])
    assert Counter(answer.status_code for answer in answers) == {200: CROWD}
    assert equal_but_for_replayed(answers)
    assert await calls.of("verify", "settle", "search") == {"verify": 1, "settle": 1, "search": 1}
    assert sum([len(await shop.transfers(each)) for each in crowd]) == 1
    assert node.rows()["authorizations"] == claims + 1


async def test_64_requests_with_one_authorization_and_different_keys_are_one_operation(
    shop: Shop, payer: Account, node: NodeProcess
) -> None:
    purchase = await shop.order(payer)
    before, calls = node.rows(), await Calls.from_now(shop)
    answers = await together(
        [partial(shop.post, purchase.body, fresh_key(), purchase.credential) for _ in range(CROWD)]
    )
    assert Counter(answer.status_code for answer in answers) == {200: 1, 409: CROWD - 1}
    lost = [answer for answer in answers if answer.status_code == 409]
    assert {answer.json()["code"] for answer in lost} == {"payment_already_bound"}
    assert not any(carries_challenge(answer) for answer in lost)
    assert await calls.of("verify", "settle", "search") == {"verify": 1, "settle": 1, "search": 1}
    assert len(await shop.transfers(payer)) == 1
    assert node.rows()["operations"] == before["operations"] + 1


async def test_one_key_with_64_bodies_is_one_operation(shop: Shop, payer: Account, node: NodeProcess) -> None:
    key = fresh_key()
    before = node.rows()["operations"]
    answers = await together([partial(shop.post, body(f"body {number}"), key, path=FREE) for number in range(CROWD)])
    assert Counter(answer.status_code for answer in answers) == {200: 1, 409: CROWD - 1}
    assert node.rows()["operations"] == before + 1


async def test_64_buyers_are_each_served_and_charged_once(shop: Shop, payers: Iterator[Account]) -> None:
    orders = [await shop.order(next(payers), "mpp" if number % 2 else "x402") for number in range(CROWD)]
    answers = await together([partial(shop.send, each) for each in orders])
    for order, answer in zip(orders, answers, strict=True):
        assert answer.status_code == 200 or (await shop.until_served(order)).status_code == 200
    assert [len(await shop.transfers(each.payer)) for each in orders] == [1] * CROWD


async def test_waiters_for_an_operation_in_flight_may_choose_not_to_wait(shop: Shop, payer: Account) -> None:
    purchase = await shop.order(payer)
    await shop.fault("facilitator", "settle_500_before")
    answers: list[httpx.Response] = []

    async def first() -> None:
        answers.append(await shop.send(purchase))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(first)
        calls = await Calls.from_now(shop)
        for _ in range(100):
            if (await calls.of("settle"))["settle"]:
                break
            await trio.sleep(0.02)
        for preference in ("wait=0", "respond-async"):
            impatient = await shop.send(purchase, prefer=preference)
            assert impatient.status_code in {409, 503}
            assert int(impatient.headers["retry-after"]) >= 1
            assert impatient.json()["operationId"]
            assert not carries_challenge(impatient)
        await shop.heal()
    assert answers[0].status_code == 200
    await shop.until_served(purchase)
    assert len(await shop.transfers(payer)) == 1


async def test_a_caller_who_runs_an_operation_may_choose_how_long_to_wait(shop: Shop, payer: Account) -> None:
    purchase = await shop.order(payer)
    await shop.fault("search", "hang")
    impatient = await shop.send(purchase, prefer="wait=1")
    assert (impatient.status_code, impatient.json()["code"]) == (409, "operation_in_progress")
    assert impatient.headers["preference-applied"] == "wait=1"
    assert not carries_challenge(impatient)
    await shop.heal()
    served = await shop.until_served(purchase)
    assert served.json()["operationId"] == impatient.json()["operationId"]
    assert len(await shop.transfers(payer)) == 1


# -- quotas ------------------------------------------------------------------------------------------------------------

LIMIT = 50


@pytest.fixture(scope="module")
def strict_node(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    directory: Path = tmp_path_factory.mktemp("strict")
    quota = {"free_search": LIMIT, "unpaid_quotes": 20, "paid": 3, "trusted_proxies": ["127.0.0.1"]}
    with running(NodeProcess.of(world, directory, quota=quota)) as started:
        yield started


@pytest.fixture
async def strict(world: World, customer: httpx.AsyncClient, strict_node: NodeProcess) -> Shop:
    return Shop(customer, strict_node.url, world)


def from_network(address: str) -> dict[str, str]:
    return {"X-Forwarded-For": address}


async def test_600_free_calls_at_once_under_a_limit_of_50_are_exactly_50(
    strict: Shop, strict_node: NodeProcess
) -> None:
    before, calls = strict_node.rows()["operations"], await Calls.from_now(strict)
    caller = from_network("192.0.2.1")
    answers = await together(
        [partial(strict.post, body(f"free {number}"), fresh_key(), caller, path=FREE) for number in range(600)]
    )
    assert Counter(answer.status_code for answer in answers) == {200: LIMIT, 429: 600 - LIMIT}
    for answer in answers:
        assert answer.headers["ratelimit-policy"] == f'"free_search";q={LIMIT};w=60'
        if answer.status_code == 429:
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            assert not carries_challenge(answer)
    assert strict_node.rows()["operations"] == before + LIMIT
    assert await calls.of("search") == {"search": LIMIT}


async def test_35_a_payment_on_an_exhausted_free_route_is_429_and_never_touched(
    strict: Shop, payer: Account, strict_node: NodeProcess
) -> None:
    caller = from_network("192.0.2.2")
    purchase = await strict.order(payer)
    for number in range(LIMIT):
        assert (await strict.post(body(f"use {number}"), fresh_key(), caller, path=FREE)).status_code == 200
    before, calls = strict_node.rows(), await Calls.from_now(strict)
    answer = await strict.post(purchase.body, fresh_key(), caller | purchase.credential, path=FREE)
    assert (answer.status_code, answer.json()["code"]) == (429, "quota_exceeded")
    assert not carries_challenge(answer)
    assert strict_node.rows() == before
    assert await calls.of("verify", "settle", "search") == {"verify": 0, "settle": 0, "search": 0}
    assert (await strict.send(purchase)).status_code == 200


async def test_a_payment_on_a_free_route_is_ignored_and_never_settled(strict: Shop, payer: Account) -> None:
    purchase = await strict.order(payer)
    answer = await strict.post(purchase.body, fresh_key(), purchase.credential, path=FREE)
    assert (answer.status_code, answer.json()["receipt"]["funding"]) == (200, "free")
    assert await strict.transfers(payer) == []
    assert (await strict.send(purchase)).status_code == 200


async def test_a_free_replay_costs_no_quota(strict: Shop) -> None:
    caller, key = from_network("192.0.2.3"), fresh_key()
    for _ in range(LIMIT + 10):
        assert (await strict.post(body(), key, caller, path=FREE)).status_code == 200


async def test_40_bad_credentials_use_up_the_quotes_of_their_caller(
    strict: Shop, payer: Account, payers: Iterator[Account]
) -> None:
    purchase = await strict.order(payer)
    spoiled = {"PAYMENT-SIGNATURE": (await strict.order(next(payers))).credential["PAYMENT-SIGNATURE"]}
    caller, calls = from_network("192.0.2.4"), await Calls.from_now(strict)
    answers = await together(
        [
            partial(strict.post, body(f"other {number}"), fresh_key(), caller | x402(broken(spoiled)))
            for number in range(40)
        ]
    )
    assert Counter(answer.status_code for answer in answers) == {402: 20, 429: 20}
    assert await calls.of("verify", "settle") == {"verify": 0, "settle": 0}
    assert (await strict.send(purchase)).status_code == 200


def broken(credential: dict[str, str]) -> dict[str, object]:
    payload = decoded(credential["PAYMENT-SIGNATURE"])
    payload["payload"]["authorization"]["value"] = "5999"
    payload["accepted"]["extra"]["quote"] = "forged"
    return payload


async def test_a_redeemed_quote_is_given_back_and_paid_calls_have_a_limit_of_their_own(
    strict: Shop, payer: Account
) -> None:
    caller = from_network("192.0.2.5")
    statuses = []
    for number in range(5):
        sent, key = body(f"redeem {number}"), fresh_key()
        answer = await strict.post(sent, key, caller)
        assert answer.status_code == 402
        credential = x402(x402_payload(Challenge.of(answer), payer))
        paid = await strict.post(sent, key, caller | credential)
        statuses.append(paid.status_code)
        assert not carries_challenge(paid)
    assert statuses == [200, 200, 200, 429, 429]
    assert len(await strict.transfers(payer)) == 3
    left = await strict.post(body(), fresh_key(), caller)
    assert ";r=17;" in left.headers["ratelimit"], left.headers["ratelimit"]


def test_the_nodes_have_logged_no_defect(node: NodeProcess, strict_node: NodeProcess) -> None:
    assert node.defects() == []
    assert strict_node.defects() == []
