"""kill -9 at every failpoint: nothing lost, nothing charged twice, the ledger and the chain agree."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from typing import Any

import attrs
import httpx
import pytest
import trio

from gateway.actors.failpoints import LABELS
from gateway.world.chain import NETWORK, Account
from gateway.world.world import World
from tests.world.scenarios.node_process import NodeProcess, running
from tests.world.scenarios.purchase import FREE, PRICE, Purchase, Shop, body, fresh_key

# httpx leaves the body of a request that a dying node cut short to the garbage collector.
pytestmark = [
    pytest.mark.world,
    pytest.mark.filterwarnings("ignore:Exception ignored in. <async_generator object ByteStream"),
]

Maker = Callable[..., NodeProcess]
STARTS_S = 30.0
ROAD = ("CLAIMED", "VERIFIED", "EXECUTING", "EXECUTED", "SETTLING", "SETTLED", "RECEIPTED")
RECOVERY = (
    "verify.before",
    "execute.after",
    "keep.after",
    "settle.after",
    "look.after",
    "receipt.before",
    "receipt.after",
)


@attrs.define
class Campaign:
    """One node that is killed again and again, and the books that its customers keep."""

    node: NodeProcess
    shop: Shop
    payers: tuple[Account, ...]
    chance: random.Random
    kept: dict[str, tuple[Purchase, httpx.Response]] = attrs.field(factory=dict)

    async def orders(self) -> list[Purchase]:
        """Two paid calls, one over each protocol, and two free ones."""
        one, two = self.chance.sample(self.payers, 2)
        free = [Purchase(None, body(fresh_key()), fresh_key(), path=FREE) for _ in range(2)]
        return [await self.shop.order(one, "x402"), await self.shop.order(two, "mpp"), *free]

    async def start(self, armed: str | None = None) -> None:
        environment = {"GATEWAY_FAILPOINT": armed} if armed else {}
        await trio.to_thread.run_sync(lambda: self.node.start(**environment))

    async def place(self, orders: list[Purchase]) -> dict[str, httpx.Response]:
        """Send all at once; return what was answered before the node died."""
        answers: dict[str, httpx.Response] = {}

        async def place(order: Purchase) -> None:
            try:
                answers[order.key] = await self.shop.send(order)
            except httpx.TransportError:
                return

        async with trio.open_nursery() as nursery:
            for order in orders:
                nursery.start_soon(place, order)
        return answers

    async def death(self) -> None:
        """Wait until the node has killed itself."""
        code = await trio.to_thread.run_sync(self.node.wait, STARTS_S)
        assert code == -signal.SIGKILL, self.node.log[-2000:]

    async def collect(self, orders: list[Purchase], answers: dict[str, httpx.Response]) -> None:
        """Ask until everything is served; what was acknowledged before must be the same now."""
        served: dict[str, httpx.Response] = {}

        async def collect(order: Purchase) -> None:
            served[order.key] = await self.shop.until_served(order)

        async with trio.open_nursery() as nursery:
            for order in orders:
                nursery.start_soon(collect, order)
        for order in orders:
            answer, before = served[order.key], answers.get(order.key)
            if before is not None and before.status_code == 200:
                assert answer.json()["replayed"] is True
                for part in ("operationId", "receipt", "output", "execution"):
                    assert answer.json()[part] == before.json()[part]
            self.kept[order.key] = order, answer

    async def audit(self) -> None:
        """Hold receipts, histories, ledger and chain against each other."""
        paid = [answer for order, answer in self.kept.values() if order.payer is not None]
        receipts = [answer.json()["receipt"] for answer in paid]
        bought = {receipt["settlement"]["transaction"] for receipt in receipts}
        assert len(bought) == len(paid)
        transfers = {each.transaction: each for each in await self.shop.transfers()}
        assert bought <= transfers.keys()
        settled = self.node.select("SELECT COUNT(*) FROM operations WHERE settlement = 'settled'")
        assert settled == [(len(paid),)]
        revenue = PRICE * len(paid)
        assert self.node.balances() == {"payers": -revenue, "hold": 0, "revenue": revenue}
        for _, answer in self.kept.values():
            told = await self.shop.operation(answer.json()["operationId"])
            assert told["state"] == "RECEIPTED"
            assert_sane(told["transitions"])
        assert self.node.select("SELECT COUNT(*) FROM operations WHERE ended_at IS NULL") == [(0,)]


def assert_sane(transitions: list[dict[str, Any]]) -> None:
    """A history starts with a claim, never goes back without saying why, and ends once, receipted."""
    states = [each["state"] for each in transitions]
    assert states[0] == "CLAIMED"
    assert states[-1] == "RECEIPTED"
    assert states.count("RECEIPTED") == 1
    moments = [datetime.fromisoformat(each["at"]) for each in transitions]
    assert moments == sorted(moments)
    for before, after in pairwise(transitions):
        if before["state"] == "FAILED":
            assert after["state"] == "CLAIMED"
        elif after["state"] != "FAILED" and ROAD.index(after["state"]) <= ROAD.index(before["state"]):
            assert "taken on" in after["note"], transitions


def paid_transfers(transfers: list[Any], payers: tuple[Account, ...]) -> int:
    mine = {payer.address.lower() for payer in payers}
    return sum(each.sender in mine for each in transfers)


async def kill_at(label: str, rounds: int, node: NodeProcess, shop: Shop) -> None:
    """Kill a node at one label, again and again, and let its customers collect each time."""
    campaign = Campaign(node, shop, shop.world.payers, random.Random(f"{label} {rounds}"))
    before = paid_transfers(await shop.transfers(), campaign.payers)
    for _ in range(rounds):
        await campaign.start(f"{label}:{campaign.chance.randint(1, 2)}")
        orders = await campaign.orders()
        if label.startswith("fail"):
            await shop.fault("search", "blocked")
        answers = await campaign.place(orders)
        await campaign.death()
        await shop.heal()
        await campaign.start()
        await campaign.collect(orders, answers)
        node.terminate()
        assert await trio.to_thread.run_sync(node.wait) == 0
    await campaign.start()
    await campaign.audit()
    assert paid_transfers(await shop.transfers(), campaign.payers) - before == 2 * rounds
    assert node.defects() == []


@pytest.mark.parametrize("label", LABELS)
async def test_a_node_killed_at_a_failpoint_loses_nothing_and_charges_nothing_twice(
    label: str, forged: Maker, world: World, customer: httpx.AsyncClient
) -> None:
    node = forged()
    await kill_at(label, 3, node, Shop(customer, node.url, world))


@pytest.mark.campaign
@pytest.mark.parametrize("label", LABELS)
async def test_a_node_killed_a_hundred_times_at_a_failpoint_loses_nothing_and_charges_nothing_twice(
    label: str, forged: Maker, world: World, customer: httpx.AsyncClient
) -> None:
    node = forged()
    await kill_at(label, 100, node, Shop(customer, node.url, world))


async def kill_twice(seed: int, node: NodeProcess, world: World, customer: httpx.AsyncClient) -> None:
    """Kill a node, and kill it again while it takes on what the first kill left."""
    campaign = Campaign(node, Shop(customer, node.url, world), world.payers, random.Random(f"twice {seed}"))
    first = campaign.chance.choice(LABELS[:13])
    await campaign.start(first)
    orders = await campaign.orders()
    answers = await campaign.place(orders)
    await campaign.death()
    for label in campaign.chance.sample(RECOVERY, 3):
        node.spawn(GATEWAY_FAILPOINT=label)
        with contextlib.suppress(subprocess.TimeoutExpired):
            await trio.to_thread.run_sync(node.wait, 1.5)
        node.kill()
    await campaign.start()
    await campaign.collect(orders, answers)
    await campaign.audit()
    assert node.defects() == []


@pytest.mark.parametrize("seed", range(4))
async def test_a_node_killed_again_while_it_recovers_loses_nothing_and_charges_nothing_twice(
    seed: int, forged: Maker, world: World, customer: httpx.AsyncClient
) -> None:
    await kill_twice(seed, forged(), world, customer)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(4, 104))
async def test_a_node_killed_again_and_again_loses_nothing_and_charges_nothing_twice(
    seed: int, forged: Maker, world: World, customer: httpx.AsyncClient
) -> None:
    await kill_twice(seed, forged(), world, customer)


@pytest.mark.parametrize("seed", range(6))
async def test_a_node_killed_at_any_moment_loses_nothing_and_charges_nothing_twice(
    seed: int, forged: Maker, world: World, customer: httpx.AsyncClient
) -> None:
    node = forged()
    campaign = Campaign(node, Shop(customer, node.url, world), world.payers, random.Random(f"moment {seed}"))
    orders: list[Purchase] = []
    answers: dict[str, httpx.Response] = {}
    for _ in range(2):
        await campaign.start()
        fresh = [order for _ in range(3) for order in await campaign.orders()]
        async with trio.open_nursery() as nursery:

            async def place(batch: list[Purchase] = fresh) -> None:
                answers.update(await campaign.place(batch))

            nursery.start_soon(place)
            await trio.sleep(campaign.chance.uniform(0.0, 0.7))
            node.kill()
        orders += fresh
    await campaign.start()
    await campaign.collect(orders, answers)
    await campaign.audit()
    assert node.defects() == []


async def test_a_process_started_from_its_command_line_is_killed_and_recovers_too(
    world: World, customer: httpx.AsyncClient, tmp_path_factory: pytest.TempPathFactory
) -> None:
    node = NodeProcess.of(world, tmp_path_factory.mktemp("plain"))
    with running(node, GATEWAY_FAILPOINT="settle.after"):
        campaign = Campaign(node, Shop(customer, node.url, world), world.payers, random.Random("plain"))
        orders = await campaign.orders()
        answers = await campaign.place(orders)
        await campaign.death()
        await campaign.start()
        await campaign.collect(orders, answers)
        await campaign.audit()


async def test_a_facilitator_that_hangs_for_ever_over_a_kill_settles_once_it_is_well(
    forged: Maker, world: World, customer: httpx.AsyncClient
) -> None:
    node = forged()
    campaign = Campaign(node, Shop(customer, node.url, world), world.payers, random.Random("hang"))
    shop = campaign.shop
    for mode in ("settle_hang_before", "settle_hang_after"):
        await campaign.start()
        orders = await campaign.orders()
        await shop.fault("facilitator", mode)
        await shop.fault(f"rpc/{NETWORK}", "null_block")
        answers = await campaign.place(orders)
        assert {answers[order.key].json().get("code") for order in orders[:2]} == {"settlement_pending"}
        node.kill()
        await campaign.start()
        node.kill()
        await shop.heal()
        await campaign.start()
        await campaign.collect(orders, answers)
        node.kill()
    await campaign.start()
    await campaign.audit()
