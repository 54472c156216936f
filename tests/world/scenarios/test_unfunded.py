"""Signatures without funds behind them: they cost nothing to make, and must not cost the node much either."""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import httpx
import pytest
import trio

from gateway.actors.operations.rows import REFUSED_LIFE_MS
from gateway.world.chain import Account, account
from gateway.world.world import World
from tests.world.scenarios.node_process import NodeProcess, running
from tests.world.scenarios.purchase import (
    Calls,
    Shop,
    body,
    carries_challenge,
    fresh_key,
    funded,
    together,
    x402,
    x402_payload,
)

pytestmark = pytest.mark.world

ATTEMPTS, UNPAID, CROWD, ABREAST, WINDOW_S = 120, 300, 256, 16, 60


@pytest.fixture(scope="module")
def node(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    quota = {"payment_attempts": ATTEMPTS, "unpaid_quotes": UNPAID, "trusted_proxies": ["127.0.0.1"]}
    patient = {"verify_timeout_s": 60}
    with running(NodeProcess.of(world, tmp_path_factory.mktemp("unfunded"), quota=quota, payment=patient)) as started:
        yield started


@pytest.fixture
def from_here() -> dict[str, str]:
    return {"X-Forwarded-For": "192.0.2.77"}


async def crowd(shop: Shop, caller: dict[str, str], size: int) -> list[httpx.Response]:
    """Present as many payments of unfunded accounts for one quote, `ABREAST` at once: the chain is to keep up."""
    sent = body(secrets.token_hex(8))
    challenge = await shop.challenge(sent)
    signed = [x402(x402_payload(challenge, account(secrets.token_hex(8)))) for _ in range(size)]
    calls = [partial(shop.post, sent, fresh_key(), each | caller) for each in signed]
    answers: list[httpx.Response] = []
    for start in range(0, size, ABREAST):
        answers += await together(calls[start : start + ABREAST])
    return answers


def forget(node: NodeProcess, milliseconds: int) -> None:
    """Let time go by for what the stopped node stores of operations."""
    with closing(sqlite3.connect(node.data_dir / "gateway.db")) as store, store:
        store.execute("UPDATE operations SET tombstone_until = tombstone_until - ?", (milliseconds,))


async def until(fact: Callable[[], bool]) -> None:
    for _ in range(300):
        if fact():
            return
        await trio.sleep(0.1)
    raise AssertionError("it did not come true")


async def test_256_unfunded_signatures_of_one_address_cost_a_quota_of_looks_and_leave_nothing(
    world: World, customer: httpx.AsyncClient, node: NodeProcess, from_here: dict[str, str], payer: Account
) -> None:
    shop = Shop(customer, node.url, world)
    before, calls, began = node.rows(), await Calls.from_now(shop), time.monotonic()
    answers = await crowd(shop, from_here, CROWD)
    granted = ATTEMPTS * (1 + int((time.monotonic() - began) // WINDOW_S))
    statuses = Counter(answer.status_code for answer in answers)
    assert set(statuses) == {402, 429}, Counter((each.status_code, each.json()["code"]) for each in answers)
    assert ATTEMPTS <= statuses[402] <= granted
    for answer in answers:
        told = answer.json()
        if answer.status_code == 402:
            assert (told["code"], carries_challenge(answer)) == ("insufficient_funds", True)
        else:
            assert (told["code"], told["quota"]) == ("quota_exceeded", "payment_attempts")
            assert (carries_challenge(answer), int(answer.headers["retry-after"]) >= 1) == (False, True)
    assert (await calls.of("verify", "settle")) == {"verify": statuses[402], "settle": 0}
    assert node.rows()["operations"] - before["operations"] == statuses[402]

    served = await shop.send(await shop.order(payer))  # of another network
    assert served.status_code == 200, served.text

    node.terminate()
    assert node.wait() == 0
    forget(node, REFUSED_LIFE_MS)
    node.start()
    await until(lambda: node.rows()["operations"] == before["operations"] + 1)
    kept = node.rows()
    assert [kept[table] - before[table] for table in ("operations", "idempotency_keys", "authorizations")] == [1, 1, 1]
    for table in ("operation_events", "idempotency_callers"):
        left = f"SELECT COUNT(*) FROM {table} WHERE operation_id NOT IN (SELECT operation_id FROM operations)"
        assert node.select(left) == [(0,)]
    assert node.defects() == []


async def test_a_payer_who_was_unfunded_is_served_with_the_same_payment_once_he_has_the_funds(
    world: World, customer: httpx.AsyncClient, node: NodeProcess
) -> None:
    shop = Shop(customer, node.url, world)
    late = account(name := secrets.token_hex(8))
    order = await shop.order(late)
    refused = await shop.send(order)
    assert (refused.status_code, refused.json()["code"]) == (402, "insufficient_funds")
    await funded(world, customer, [name])
    served = await shop.send(order)
    assert served.status_code == 200, served.text
    assert served.json()["operationId"] == refused.json()["operationId"]
    assert served.json()["execution"]["attempt"] == 2
    assert len(await shop.transfers(late)) == 1
