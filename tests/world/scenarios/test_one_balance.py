"""A payer that signs away more than it has: what its balance covers is served, and nothing else costs anything."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import httpx
import pytest
import trio

from gateway.world import token
from gateway.world.chain import NETWORK, Account
from gateway.world.world import World
from tests.world.scenarios.node_process import NodeProcess, running
from tests.world.scenarios.purchase import (
    FREE,
    PRICE,
    Calls,
    Purchase,
    Shop,
    body,
    fresh_key,
    funded,
    mined,
    together,
    x402,
    x402_payload,
)

pytestmark = pytest.mark.world

CALLS = 60
PATIENT = {"verify_timeout_s": 30, "settle_timeout_s": 30, "settle_wait_s": 40}
"""So that a node waits for its facilitator however busy the machine is."""
OPEN = "SELECT COUNT(*) FROM operations WHERE ended_at IS NULL"
STRANGER = "0x00000000000000000000000000000000deadbeef"


@pytest.fixture(scope="module")
def node(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """Yield a node whose holds are those of this module."""
    with running(NodeProcess.of(world, tmp_path_factory.mktemp("node"))) as started:
        yield started


async def holding(shop: Shop, amount: int) -> Account:
    """Return a fresh payer with exactly so much."""
    (payer,) = await funded(shop.world, shop.client, [f"of one balance {secrets.token_hex(8)}"], amount)
    return payer


async def transfer(shop: Shop, payer: Account, to: str, amount: int) -> None:
    """Let an account send tokens to another one."""
    rpc, data = shop.rpc, f"0xa9059cbb{to[2:].lower():0>64}{amount:064x}"
    await rpc.call("anvil_setBalance", payer.address, hex(10**18))
    await rpc.call("anvil_impersonateAccount", payer.address)
    try:
        call = {"from": payer.address, "to": token.ADDRESS, "gas": hex(100_000), "data": data}
        await mined(rpc, await rpc.call("eth_sendTransaction", call))
    finally:
        await rpc.call("anvil_stopImpersonatingAccount", payer.address)


async def authorizations(shop: Shop, payer: Account, count: int) -> list[Purchase]:
    """Sign one challenge so many times, each for a key of its own and for as long as may be."""
    sent = body(secrets.token_hex(8))
    challenge = await shop.challenge(sent)
    until = int(time.time()) + challenge.terms["maxTimeoutSeconds"] + 250
    payloads = [x402_payload(challenge, payer, validBefore=until) for _ in range(count)]
    return [Purchase(payer, sent, fresh_key(), x402(each)) for each in payloads]


async def rpc_calls(shop: Shop) -> int:
    told = (await shop.client.get(shop.world.faults_url)).raise_for_status().json()
    return sum(told["rpc"][NETWORK].values())


async def held(node: NodeProcess) -> None:
    """Wait until a payer is on hold."""
    for _ in range(600):
        if node.select("SELECT COUNT(*) FROM payer_holds") != [(0,)]:
            return
        await trio.sleep(0.1)
    raise AssertionError("nobody is on hold")


def codes(answers: list[httpx.Response]) -> Counter[tuple[int, str]]:
    return Counter((each.status_code, each.json().get("code", "")) for each in answers)


async def test_60_authorizations_over_one_balance_are_one_call_and_59_refusals(
    world: World, customer: httpx.AsyncClient, own_node: Callable[..., NodeProcess]
) -> None:
    node = own_node(payment=PATIENT)
    node.start()
    shop = Shop(customer, node.url, world)
    payer = await holding(shop, PRICE)
    purchases = await authorizations(shop, payer, CALLS)
    calls, asked = await Calls.from_now(shop), await rpc_calls(shop)
    answers = await together([partial(shop.send, each) for each in purchases])
    assert codes(answers) == {(200, ""): 1, (402, "insufficient_funds"): CALLS - 1}
    assert node.select(OPEN) == [(0,)]
    assert await calls.of("verify", "settle", "search") == {"verify": CALLS, "settle": 1, "search": 1}
    assert await rpc_calls(shop) - asked < 10 * CALLS
    (transferred,) = await shop.transfers(payer)
    assert transferred.value == PRICE
    calls, asked = await Calls.from_now(shop), await rpc_calls(shop)
    await trio.sleep(3)
    assert await calls.of("verify", "settle") == {"verify": 0, "settle": 0}
    assert await rpc_calls(shop) - asked < 50, "the node goes on asking about what has ended"


async def test_a_balance_of_exactly_12_calls_serves_12_concurrent_ones(shop: Shop) -> None:
    payer = await holding(shop, 12 * PRICE)
    purchases = await authorizations(shop, payer, 12)
    answers: list[httpx.Response] = []

    async def buy(purchase: Purchase, after_s: float) -> None:
        await trio.sleep(after_s)
        answers.append(await shop.send(purchase))

    async with trio.open_nursery() as nursery:
        for number, purchase in enumerate(purchases):
            nursery.start_soon(buy, purchase, number * 0.1)
    assert codes(answers) == {(200, ""): 12}
    assert len(await shop.transfers(payer)) == 12


async def test_a_payer_who_drains_its_balance_after_the_result_was_made_is_held_until_that_is_paid(
    shop: Shop, node: NodeProcess
) -> None:
    payer = await holding(shop, PRICE)
    purchase, second = await authorizations(shop, payer, 2)
    await shop.fault("facilitator", "settle_500_before")
    first = await shop.send(purchase, prefer="wait=3")
    assert (first.status_code, first.json()["code"]) == (503, "settlement_pending")
    assert node.select("SELECT COUNT(*) FROM payer_holds") == [(0,)], "an outage holds nobody"
    await transfer(shop, payer, STRANGER, PRICE)
    await shop.heal()
    await held(node)
    told = await shop.send(second)
    assert (told.status_code, told.json()["code"]) == (503, "payer_on_hold")
    assert int(told.headers["retry-after"]) > 1
    calls = await Calls.from_now(shop)
    await transfer(shop, await holding(shop, PRICE), payer.address, PRICE)
    await shop.until_served(purchase, tries=400)
    assert await calls.of("search") == {"search": 0}
    assert node.select("SELECT COUNT(*) FROM payer_holds") == [(0,)]


async def test_open_settlements_stop_no_free_call(shop: Shop) -> None:
    payer = await holding(shop, 40 * PRICE)
    purchases = await authorizations(shop, payer, 40)
    await shop.fault("facilitator", "settle_hang_before")
    async with trio.open_nursery() as nursery:
        for each in purchases:
            nursery.start_soon(partial(shop.send, each, prefer="wait=1"))
    answers = await together([partial(shop.post, body(f"free {n}"), fresh_key(), path=FREE) for n in range(20)])
    assert codes(answers) == {(200, ""): 20}
    await shop.heal()
    for each in purchases:
        await shop.until_served(each, tries=600)
    assert len(await shop.transfers(payer)) == 40


async def test_a_chain_that_cannot_be_read_runs_nothing_and_the_same_payment_serves_later(shop: Shop) -> None:
    payer = await holding(shop, PRICE)
    (purchase,) = await authorizations(shop, payer, 1)
    calls = await Calls.from_now(shop)
    await shop.fault(f"rpc/{NETWORK}", "http_429")
    told = await shop.send(purchase)
    assert (told.status_code, told.json()["code"]) == (503, "facilitator_unavailable")
    assert await calls.of("search", "settle") == {"search": 0, "settle": 0}
    await shop.heal()
    await shop.until_served(purchase)


def test_the_node_has_logged_no_defect(node: NodeProcess) -> None:
    assert node.defects() == []
