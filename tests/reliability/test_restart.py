"""What a restart finds: many open operations, limits that count them, a store that another node has open."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
import trio

from gateway.world.world import World
from tests.world.scenarios.node_process import NodeProcess
from tests.world.scenarios.purchase import FREE, Calls, Purchase, Shop, body, carries_challenge, fresh_key

pytestmark = pytest.mark.world

Maker = Callable[..., NodeProcess]
MANY = 150


async def start(node: NodeProcess) -> None:
    await trio.to_thread.run_sync(node.start)


async def test_a_node_takes_on_all_of_150_open_operations_after_a_kill(
    forged: Maker, world: World, customer: httpx.AsyncClient
) -> None:
    node = forged(payment={"verify_timeout_s": 60})
    await start(node)
    shop = Shop(customer, node.url, world)
    orders = [await shop.order(world.payers[number % 16]) for number in range(MANY)]
    before, calls = len(await shop.transfers()), await Calls.from_now(shop)
    await shop.fault("facilitator", "settle_500_before")
    codes: list[str] = []

    async def send(order: Purchase) -> None:
        codes.append((await shop.send(order)).json()["code"])

    async with trio.open_nursery() as nursery:
        for order in orders:
            nursery.start_soon(send, order)
    assert set(codes) == {"settlement_pending"}
    node.kill()
    await shop.heal()
    await start(node)
    for _ in range(600):
        if node.select("SELECT COUNT(*) FROM operations WHERE ended_at IS NULL") == [(0,)]:
            break
        await trio.sleep(0.1)
    assert node.select("SELECT state, settlement, COUNT(*) FROM operations GROUP BY 1, 2") == [
        ("receipted", "settled", MANY)
    ]
    assert len(await shop.transfers()) == before + MANY
    assert await calls.of("search") == {"search": MANY}
    for order in orders[:5]:
        assert (await shop.send(order)).json()["replayed"] is True
    assert node.balances() == {"payers": -6000 * MANY, "hold": 0, "revenue": 6000 * MANY}
    assert node.defects() == []


async def test_what_was_unsettled_before_a_restart_still_counts_against_the_payers_limit(
    forged: Maker, world: World, customer: httpx.AsyncClient
) -> None:
    node = forged(payment={"max_unsettled_per_payer": 12_000})
    await start(node)
    shop, payer = Shop(customer, node.url, world), world.payers[6]
    orders = [await shop.order(payer) for _ in range(3)]
    await shop.fault("facilitator", "settle_500_before")
    for order in orders[:2]:
        assert (await shop.send(order)).json()["code"] == "settlement_pending"
    node.kill()
    await start(node)
    refused = await shop.send(orders[2])
    assert (refused.status_code, refused.json()["code"]) == (503, "exposure_limit")
    assert not carries_challenge(refused)
    await shop.heal()
    for order in orders:
        await shop.until_served(order)


async def test_a_second_node_on_the_same_store_refuses_to_start_and_the_first_goes_on(
    forged: Maker, world: World, customer: httpx.AsyncClient
) -> None:
    node, second = forged(), forged()
    await start(node)
    shop = Shop(customer, node.url, world)
    settings = second.config.read_text().replace(str(second.data_dir), str(node.data_dir))
    second.config.write_text(settings)
    second.spawn()
    for _ in range(100):
        if second.returncode is not None or second.ready():
            break
        await trio.sleep(0.1)
    assert second.returncode == 3, second.log
    assert str(node.data_dir) in second.log.splitlines()[-1]
    purchase = await shop.order(world.payers[7])
    assert (await shop.send(purchase)).status_code == 200
    node.kill()
    second.spawn()
    await trio.to_thread.run_sync(second.wait_ready)
    assert (await Shop(customer, second.url, world).send(purchase)).json()["replayed"] is True


async def test_quotas_are_not_forgotten_over_a_restart(
    forged: Maker, world: World, customer: httpx.AsyncClient
) -> None:
    node = forged(quota={"free_search": 5})
    await start(node)
    shop = Shop(customer, node.url, world)
    for number in range(5):
        assert (await shop.post(body(f"call {number}"), fresh_key(), path=FREE)).status_code == 200
    await trio.to_thread.run_sync(node.restart)
    answer = await shop.post(body("one more"), fresh_key(), path=FREE)
    assert (answer.status_code, answer.json()["code"]) == (429, "quota_exceeded")


async def test_a_free_call_that_a_kill_cut_short_is_finished_without_anybody_asking(
    forged: Maker, world: World, customer: httpx.AsyncClient
) -> None:
    node = forged()
    await trio.to_thread.run_sync(lambda: node.start(GATEWAY_FAILPOINT="execute.before"))
    shop = Shop(customer, node.url, world)
    purchase = Purchase(None, body(fresh_key()), fresh_key(), path=FREE)
    with pytest.raises(httpx.TransportError):
        await shop.send(purchase)
    await trio.to_thread.run_sync(node.wait)
    await start(node)
    for _ in range(100):
        if node.select("SELECT state FROM operations") == [("receipted",)]:
            break
        await trio.sleep(0.1)
    answer = await shop.send(purchase)
    assert (answer.status_code, answer.json()["replayed"]) == (200, True)
