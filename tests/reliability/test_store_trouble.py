"""A disk that takes nothing more: 503, no lost acknowledgement, and back to work once there is room."""

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


async def until_ready(node: NodeProcess, wanted: bool) -> None:
    for _ in range(200):
        if await trio.to_thread.run_sync(node.ready) is wanted:
            return
        await trio.sleep(0.1)
    raise AssertionError(f"the node's readiness did not become {wanted}")


async def test_a_full_disk_is_503_without_a_challenge_and_everything_acknowledged_survives_it(
    forged: Maker, world: World, customer: httpx.AsyncClient
) -> None:
    node = forged()
    await trio.to_thread.run_sync(node.start)
    shop, (one, two, three, *_) = Shop(customer, node.url, world), world.payers
    bought = await shop.order(one)
    first = await shop.send(bought)
    assert first.status_code == 200
    paid, over_mpp = await shop.order(two), await shop.order(three, "mpp")
    free = Purchase(None, body(fresh_key()), fresh_key(), path=FREE)
    before, calls = node.rows(), await Calls.from_now(shop)
    transfers = len(await shop.transfers())
    node.limit_file_size(1)
    for order in (paid, over_mpp, free):
        answer = await shop.send(order)
        assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable"), answer.text
        assert answer.json()["retryable"] is True
        assert not carries_challenge(answer)
    await until_ready(node, False)
    replay = await shop.send(bought)
    assert (replay.status_code, replay.json()["receipt"]) == (200, first.json()["receipt"])
    for key in (fresh_key(), paid.key):
        unquoted = await shop.post(body(), key)
        assert (unquoted.status_code, unquoted.json()["code"]) == (503, "store_unavailable"), unquoted.text
        assert unquoted.json()["reason"] in {"disk_full", "io_error"}
        assert int(unquoted.headers["retry-after"]) >= 1
        assert not carries_challenge(unquoted)
    assert await calls.of("verify", "settle", "search") == {"verify": 0, "settle": 0, "search": 0}
    assert node.returncode is None
    node.limit_file_size(-1)
    await until_ready(node, True)
    assert node.rows() == before
    for order in (paid, over_mpp, free):
        await shop.until_served(order)
    assert len(await shop.transfers()) == transfers + 2
    assert node.balances()["hold"] == 0
    node.kill()
    await trio.to_thread.run_sync(node.start)
    assert (await shop.send(bought)).json()["receipt"] == first.json()["receipt"]


async def test_a_full_disk_is_noticed_and_over_without_anybody_asking(
    forged: Maker, world: World, customer: httpx.AsyncClient
) -> None:
    node = forged()
    await trio.to_thread.run_sync(node.start)
    shop = Shop(customer, node.url, world)
    assert (await shop.post(body(), fresh_key())).status_code == 402
    node.limit_file_size(1)
    await until_quoted(shop, False)
    node.limit_file_size(-1)
    await until_quoted(shop, True)


async def until_quoted(shop: Shop, wanted: bool) -> None:
    for _ in range(200):
        answer = await shop.post(body(), fresh_key())
        if (answer.status_code == 402) is wanted:
            assert carries_challenge(answer) is wanted
            return
        await trio.sleep(0.1)
    raise AssertionError(f"quotes did not {'come again' if wanted else 'end'}")


LONG = pytest.mark.campaign


@pytest.mark.parametrize(
    ("after", "until_answered"),
    [
        ("verify", False),
        ("search", False),
        ("settle", False),
        ("settle", True),
        pytest.param("verify", True, marks=LONG),
        pytest.param("search", True, marks=LONG),
    ],
)
async def test_a_disk_that_fills_during_a_paid_call_costs_the_payer_nothing_twice(
    forged: Maker, world: World, customer: httpx.AsyncClient, after: str, until_answered: bool
) -> None:
    node = forged()
    await trio.to_thread.run_sync(node.start)
    shop, payer = Shop(customer, node.url, world), world.payers[4]
    purchase = await shop.order(payer)
    paid_before, calls = len(await shop.transfers(payer)), await Calls.from_now(shop)
    answers: list[httpx.Response] = []

    async def send() -> None:
        answers.append(await shop.send(purchase))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await filled(node, calls, after)
        if not until_answered:
            await until_ready(node, False)
            node.limit_file_size(-1)
    assert answers[0].status_code in {200, 503}, answers[0].text
    assert not carries_challenge(answers[0])
    assert node.returncode is None
    node.limit_file_size(-1)
    await until_ready(node, True)
    await shop.until_served(purchase)
    assert len(await shop.transfers(payer)) == paid_before + 1
    assert await calls.of("settle") == {"settle": 1}
    assert node.balances() == {"payers": -6000, "hold": 0, "revenue": 6000}


async def filled(node: NodeProcess, calls: Calls, after: str) -> None:
    """Fill the disk as soon as an upstream was called."""
    for _ in range(2000):
        if (await calls.of(after))[after]:
            break
        await trio.lowlevel.checkpoint()
    node.limit_file_size(1)


async def test_a_disk_that_stays_full_over_a_kill_loses_no_payment(
    forged: Maker, world: World, customer: httpx.AsyncClient
) -> None:
    node = forged()
    await trio.to_thread.run_sync(node.start)
    shop = Shop(customer, node.url, world)
    payer = world.payers[5]
    purchase = await shop.order(payer, "mpp")
    before, calls = len(await shop.transfers(payer)), await Calls.from_now(shop)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shop.send, purchase)
        await filled(node, calls, "settle")
    node.kill()
    await trio.to_thread.run_sync(node.start)
    await shop.until_served(purchase)
    assert len(await shop.transfers(payer)) == before + 1
    assert node.balances() == {"payers": -6000, "hold": 0, "revenue": 6000}


async def test_a_node_whose_store_is_no_database_refuses_to_start_and_says_which(forged: Maker) -> None:
    node = forged()
    await trio.to_thread.run_sync(node.start)
    node.terminate()
    assert await trio.to_thread.run_sync(node.wait) == 0
    store = node.data_dir / "gateway.db"
    store.write_bytes(b"this is not a database at all, is it? " * 1000)
    node.spawn()
    assert await trio.to_thread.run_sync(node.wait) == 3
    assert str(store) in node.log.splitlines()[-1]


async def test_a_node_whose_data_directory_cannot_be_made_refuses_to_start_and_says_which(forged: Maker) -> None:
    node = forged()
    node.data_dir.write_text("a file where a directory should be")
    node.spawn()
    assert await trio.to_thread.run_sync(node.wait) == 3
    assert str(node.data_dir) in node.log.splitlines()[-1]
