"""Chains whose history or time is bent: reorganisations and authorizations that die (reference: cases 27 and 31)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import trio

from gateway.world.world import World, world_in_thread
from tests.world.scenarios.node_process import NodeProcess, running
from tests.world.scenarios.purchase import Calls, Challenge, Protocol, Shop, body, fresh_key, x402, x402_payload

pytestmark = pytest.mark.world

LONGEST_S = 440
"""How far ahead an authorization for a search may expire, nearly."""


@pytest.fixture(scope="module")
def bent_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Yield a world of its own, because time never comes back."""
    with world_in_thread(tmp_path_factory.mktemp("bent"), block_time=0.25) as opened:
        yield opened


@pytest.fixture(scope="module")
def bent_node(bent_world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with running(NodeProcess.of(bent_world, tmp_path_factory.mktemp("node"))) as started:
        yield started


@pytest.fixture
async def bent(bent_world: World, bent_node: NodeProcess, customer: httpx.AsyncClient) -> AsyncIterator[Shop]:
    opened = Shop(customer, bent_node.url, bent_world)
    yield opened
    await opened.heal()


async def drop(shop: Shop, block: int) -> None:
    """Take the chain's blocks from `block` on away, and everything in them."""
    head = int(await shop.rpc.call("eth_blockNumber"), 16)
    await shop.rpc.call("anvil_reorg", head - block + 1, [])


@pytest.mark.parametrize(("number", "protocol"), [(0, "x402"), (1, "mpp")])
async def test_31_a_reorganised_settlement_is_made_again_with_the_same_authorization(
    bent: Shop, bent_world: World, bent_node: NodeProcess, number: int, protocol: Protocol
) -> None:
    payer = bent_world.payers[number]
    purchase = await bent.order(payer, protocol)
    served = await bent.send(purchase)
    (before,) = await bent.transfers(payer)
    calls = await Calls.from_now(bent)
    await drop(bent, before.block)
    gone = await bent.rpc.call("eth_getTransactionReceipt", before.transaction)
    assert gone is None or int(gone["blockNumber"], 16) > before.block
    operation_id = served.json()["operationId"]
    shown = await bent.operation(operation_id)
    for _ in range(200):
        if "settled again" in str(shown["transitions"]):
            break
        await trio.sleep(0.1)
        shown = await bent.operation(operation_id)
    (after,) = await bent.transfers(payer)
    assert after.value == before.value
    assert shown["state"] == "RECEIPTED"
    assert shown["settlement"] == {"status": "settled", "transaction": after.transaction, "network": "eip155:8453"}
    replay = await bent.send(purchase)
    assert (replay.status_code, replay.json()["replayed"]) == (200, True)
    assert replay.json()["output"] == served.json()["output"]
    assert replay.json()["receipt"]["settlement"]["transaction"] == after.transaction
    assert await calls.of("search") == {"search": 0}
    assert bent_node.balances()["revenue"] == sum(each.value for each in await bent.transfers())


async def test_31_a_reorganisation_that_the_authorization_does_not_outlive_is_told_to_the_operator_and_replays(
    bent: Shop, bent_world: World, bent_node: NodeProcess
) -> None:
    payer = bent_world.payers[2]
    purchase = await bent.order(payer)
    served = await bent.send(purchase)
    (before,) = await bent.transfers(payer)
    await bent.rpc.call("evm_setAutomine", False)
    await bent.fault("facilitator", "settle_500_before")
    await drop(bent, before.block)
    await bent.rpc.call("evm_increaseTime", 250)
    await bent.rpc.call("evm_mine")
    operation_id = served.json()["operationId"]
    shown = await bent.operation(operation_id)
    for _ in range(200):
        if shown["settlement"]["status"] != "settled":
            break
        await trio.sleep(0.1)
        shown = await bent.operation(operation_id)
    assert shown["settlement"]["status"] in {"unknown", "not_settled"}
    replay = await bent.send(purchase)
    assert (replay.status_code, replay.json()["replayed"]) == (200, True)
    assert await bent.transfers(payer) == []
    assert bent_node.log.count('"life_crashed"') == 0


async def test_no_result_is_released_before_its_settlement_is_deep_enough(
    bent_world: World, customer: httpx.AsyncClient, tmp_path: Path
) -> None:
    node = NodeProcess.of(bent_world, tmp_path / "deep", payment={"confirmations": 6, "settle_wait_s": 20})
    payer = bent_world.payers[3]
    with running(node):
        shop = Shop(customer, node.url, bent_world)
        sent, key = body(), fresh_key()
        lasting = int(time.time()) + LONGEST_S  # the clock of this chain may run ahead
        credential = x402(x402_payload(await shop.challenge(sent, key), payer, validBefore=lasting))
        served = await shop.post(sent, key, credential)
        head = int(await shop.rpc.call("eth_blockNumber"), 16)
        assert served.status_code == 200, served.text
        (transfer,) = await shop.transfers(payer)
        assert head - transfer.block + 1 >= 6


async def test_27_a_payment_that_expires_unsettled_is_withheld_and_charged_to_nobody(
    tmp_path_factory: pytest.TempPathFactory, customer: httpx.AsyncClient
) -> None:
    with world_in_thread(tmp_path_factory.mktemp("ending"), block_time=0.25) as world:
        node = NodeProcess.of(world, tmp_path_factory.mktemp("node"), payment={"payer_hold_s": 0})
        with running(node):
            shop, payer = Shop(customer, node.url, world), world.payers[0]
            purchase = await shop.order(payer)
            calls = await Calls.from_now(shop)
            await shop.fault("facilitator", "settle_500_before")
            pending = await shop.send(purchase)
            assert pending.json()["code"] == "settlement_pending"
            await shop.rpc.call("evm_increaseTime", 200)
            operation_id = pending.json()["operationId"]
            shown = await shop.ended(operation_id, purchase.key)
            assert (shown["state"], shown["settlement"]["status"]) == ("FAILED", "not_settled")
            assert "output" not in shown
            assert node.balances() == {"payers": 0, "hold": 0, "revenue": 0}
            await shop.heal()
            refused = await shop.send(purchase)
            assert refused.status_code == 402, refused.text
            # What is proven unpaid may be paid anew; the clock of this chain runs ahead, so for longer.
            fresh = x402_payload(Challenge.of(refused), payer, validBefore=int(time.time()) + LONGEST_S)
            served = await shop.post(purchase.body, purchase.key, x402(fresh))
            assert served.status_code == 200, served.text
            assert await calls.of("search") == {"search": 1}
            assert len(await shop.transfers(payer)) == 1
