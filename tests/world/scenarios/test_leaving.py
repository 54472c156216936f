"""Clients that leave and nodes that are asked to end: what was paid for is completed (reference: attack case 30)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest
import trio

from gateway.world.chain import Account
from tests.world.scenarios.node_process import NodeProcess
from tests.world.scenarios.purchase import (
    FREE,
    Calls,
    Protocol,
    Purchase,
    Shop,
    body,
    carries_challenge,
    fresh_key,
    hang_up,
)

pytestmark = pytest.mark.world

FLIGHT = 20


@pytest.mark.parametrize("after", [None, "verify", "search", "settle"])
@pytest.mark.parametrize("protocol", ["x402", "mpp"])
async def test_30_a_client_that_hangs_up_after_paying_finds_its_result_later(
    shop: Shop, payer: Account, node: NodeProcess, protocol: Protocol, after: str | None
) -> None:
    purchase = await shop.order(payer, protocol)
    calls = await Calls.from_now(shop)
    await hang_up(shop, purchase, after=after)
    if after is not None:
        # Without anybody asking again, the operation comes to its end.
        for _ in range(200):
            if await shop.transfers(payer):
                break
            await trio.sleep(0.05)
        assert len(await shop.transfers(payer)) == 1
    served = await shop.until_served(purchase)
    assert served.json()["replayed"] is True or after is None
    assert await calls.of("search", "settle") == {"search": 1, "settle": 1}
    assert len(await shop.transfers(payer)) == 1
    assert node.defects() == []


async def test_a_free_call_that_is_hung_up_on_replays_or_runs_again(shop: Shop) -> None:
    purchase = Purchase(None, body(fresh_key()), fresh_key(), path=FREE)
    await hang_up(shop, purchase, after="search")
    assert (await shop.until_served(purchase)).status_code == 200


async def send_all(shop: Shop, purchases: list[Purchase], answers: dict[str, httpx.Response | None]) -> None:
    """Send all at once; an answer that never comes is kept as None."""

    async def send(purchase: Purchase) -> None:
        answers[purchase.key] = None
        try:
            answers[purchase.key] = await shop.send(purchase)
        except httpx.TransportError:
            return

    async with trio.open_nursery() as nursery:
        for purchase in purchases:
            nursery.start_soon(send, purchase)


@pytest.mark.parametrize("mode", ["ok", "settle_hang_before", "settle_500_after"])
async def test_sigterm_with_20_paid_calls_in_flight_loses_nothing_and_ends_with_0(
    shop: Shop, payers: Iterator[Account], own_node: Callable[..., NodeProcess], mode: str
) -> None:
    node = own_node()
    await trio.to_thread.run_sync(node.start)
    mine = Shop(shop.client, node.url, shop.world)
    orders = [await mine.order(next(payers), "mpp" if number % 2 else "x402") for number in range(FLIGHT)]
    orders += [Purchase(None, body(f"free {number}"), fresh_key(), path=FREE) for number in range(4)]
    await mine.fault("facilitator", mode)
    calls = await Calls.from_now(mine)
    answers: dict[str, httpx.Response | None] = {}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_all, mine, orders, answers)
        for _ in range(500):
            if (await calls.of("search"))["search"] >= FLIGHT // 2:
                break
            await trio.sleep(0.01)
        node.terminate()
    assert await trio.to_thread.run_sync(node.wait) == 0
    assert node.defects() == []
    assert all(answer is not None for answer in answers.values())
    for answer in answers.values():
        assert answer is not None
        assert answer.status_code in {200, 503}, answer.text
        assert not carries_challenge(answer)
    if mode == "ok":
        assert sum(answer is not None and answer.status_code == 200 for answer in answers.values()) >= FLIGHT // 2
    await mine.heal()
    await trio.to_thread.run_sync(node.start)
    for order in orders:
        served = await mine.until_served(order)
        known = answers[order.key]
        assert known is not None
        if known.status_code == 200:
            assert served.json()["replayed"] is True
            assert served.json()["receipt"] == known.json()["receipt"]
    for order in orders[:FLIGHT]:
        assert len(await mine.transfers(order.payer)) == 1
    assert node.balances() == {"payers": -6000 * FLIGHT, "hold": 0, "revenue": 6000 * FLIGHT}
