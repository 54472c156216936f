"""Clocks that are wrong by more than a year: nothing is forgotten by them, and no key is charged twice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import trio

from gateway.world.world import World
from tests.reliability.forge import Dial, Forge
from tests.reliability.pair import Pair
from tests.reliability.test_store_trouble import until_ready
from tests.world.scenarios.node_process import NodeProcess
from tests.world.scenarios.purchase import FREE, Purchase, Shop, body, carries_challenge, fresh_key

pytestmark = pytest.mark.world

Maker = Callable[..., NodeProcess]
LONG_S = 401 * 24 * 3600
LOOKS = 300


@pytest.fixture
def pair(
    world: World, customer: httpx.AsyncClient, forge: Forge, tmp_path: Path, postgresql_url: str
) -> Iterator[Pair]:
    made = Pair.of(world, customer, tmp_path / "pair", postgresql_url, launch=forge.launch)
    yield made
    made.kill()


async def until_told(node: NodeProcess, reason: str) -> dict[str, Any]:
    """Return the fault of that reason once `/readyz` tells it."""
    for _ in range(LOOKS):
        with_answer = await trio.to_thread.run_sync(asked, node)
        for fault in with_answer.get("faults", ()):
            if fault["reason"] == reason:
                assert isinstance(fault, dict)
                return fault
        await trio.sleep(0.1)
    raise AssertionError(f"{reason} was not told:\n{node.log[-3000:]}")


def asked(node: NodeProcess) -> dict[str, Any]:
    try:
        told = httpx.get(f"{node.url}/readyz", timeout=5, trust_env=False).json()
    except httpx.TransportError:
        return {}
    assert isinstance(told, dict)
    return told


async def until_logged(node: NodeProcess, event: str) -> None:
    for _ in range(LOOKS):
        if f'"{event}"' in node.log:
            return
        await trio.sleep(0.1)
    raise AssertionError(f"{event} was not logged:\n{node.log[-3000:]}")


async def verified(node: NodeProcess) -> tuple[int, dict[str, Any]]:
    """Return what `gateway ledger verify --chain` ends with and tells."""

    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gateway", "ledger", "verify", "--chain", "--json", "--config"]
        return subprocess.run([*command, str(node.config)], capture_output=True, text=True, timeout=60, check=False)

    done = await trio.to_thread.run_sync(run)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def unknown(told: Mapping[str, Any]) -> set[str]:
    """Return the transactions that paid by authorization and that no operation has."""
    return {str(each["transaction"]) for each in told["transfersWithoutOperation"]}


def holders(url: str) -> set[str]:
    """Return the nodes that ever took a lease."""
    with psycopg.connect(url) as connection:
        return {str(node) for (node,) in connection.execute("SELECT node FROM leases")}


@pytest.mark.parametrize("ahead_s", [LONG_S, -LONG_S], ids=["ahead", "behind"])
async def test_a_node_with_a_wrong_clock_drops_and_sells_nothing_and_goes_on_when_it_is_set(
    pair: Pair, postgresql_url: str, tmp_path: Path, ahead_s: int
) -> None:
    right, wrong = pair.shops
    payer = right.world.payers[0]
    before = len(await right.transfers(payer))
    await trio.to_thread.run_sync(pair.one.start)
    bought = [await right.order(payer, protocol) for protocol in ("x402", "mpp")]
    receipts = [(await right.until_served(each)).json()["receipt"] for each in bought]
    free = Purchase(None, body(fresh_key()), fresh_key(), path=FREE)
    assert (await right.send(free)).status_code == 200
    rows = pair.one.rows()
    pair.one.terminate()
    assert await trio.to_thread.run_sync(pair.one.wait) == 0
    with psycopg.connect(postgresql_url) as connection:
        connection.execute("DELETE FROM leases")

    dial = Dial.at(tmp_path / "dial")
    dial.turn(ahead_s)
    await trio.to_thread.run_sync(lambda: pair.two.spawn(**dial.environment))
    fault = await until_told(pair.two, "clock_skew")
    assert fault["part"] == "clock"
    assert abs(int(fault["aheadMs"]) - ahead_s * 1000) < 60_000
    await until_logged(pair.two, "clock_skew")
    for each, receipt in zip(bought, receipts, strict=True):
        replay = await wrong.send(each)
        assert (replay.status_code, replay.json()["replayed"], replay.json()["receipt"]) == (200, True, receipt)
    refused = await wrong.post(body(), fresh_key())
    assert (refused.status_code, refused.json()["code"]) == (503, "settlement_unavailable")
    assert refused.json()["reason"] == "clock_skew"
    assert not carries_challenge(refused)
    assert (await wrong.send(free)).json()["replayed"] is True
    assert holders(postgresql_url) == set()
    assert pair.two.rows() == rows

    await trio.to_thread.run_sync(pair.one.start)
    for each, receipt in zip(bought, receipts, strict=True):
        assert (await right.send(each)).json()["receipt"] == receipt
    assert holders(postgresql_url) == {"one"}
    assert await trio.to_thread.run_sync(pair.two.ready) is False
    dial.turn(0)
    await until_ready(pair.two, True)
    assert (await wrong.until_served(await wrong.order(payer))).json()["replayed"] is False
    assert len(await right.transfers(payer)) == before + 3
    code, told = await verified(pair.one)
    assert (code, told["ok"]) == (0, True), told
    others = unknown(told)  # of other nodes of this world, which are paid at the same address
    dropped, transaction = receipts[0]["operationId"], receipts[0]["settlement"]["transaction"]
    with psycopg.connect(postgresql_url) as connection:
        for table in ("operations", "idempotency_keys", "idempotency_callers", "operation_events", "authorizations"):
            connection.execute(f"DELETE FROM {table} WHERE operation_id = %s".encode(), [dropped])
    code, told = await verified(pair.one)
    assert code == 1
    assert [fault for fault in told["faults"] if fault.startswith(f"operation {dropped} is gone")] == told["faults"]
    assert unknown(told) - others == {transaction}


async def test_a_clock_that_jumped_across_a_restart_makes_a_node_of_its_own_file_forget_nothing(
    forged: Maker, world: World, customer: httpx.AsyncClient, tmp_path: Path
) -> None:
    node, dial = forged(), Dial.at(tmp_path / "dial")
    shop, payer = Shop(customer, node.url, world), world.payers[1]
    before = len(await shop.transfers(payer))
    await trio.to_thread.run_sync(lambda: node.start(**dial.environment))
    bought = await shop.order(payer)
    receipt = (await shop.until_served(bought)).json()["receipt"]
    rows = node.rows()
    dial.turn(LONG_S)
    await trio.to_thread.run_sync(lambda: node.restart(**dial.environment))
    await until_logged(node, "clock_unconfirmed")
    assert (await shop.send(bought)).json()["receipt"] == receipt
    refused = await shop.post(body(), fresh_key())
    assert (refused.status_code, refused.json()["code"]) == (503, "settlement_unavailable")
    assert not carries_challenge(refused)
    assert node.rows() == rows
    dial.turn(0)
    await trio.to_thread.run_sync(lambda: node.restart(**dial.environment))
    replay = await shop.send(bought)
    assert (replay.status_code, replay.json()["replayed"], replay.json()["receipt"]) == (200, True, receipt)
    assert len(await shop.transfers(payer)) == before + 1
    code, told = await verified(node)
    assert (code, told["ok"]) == (0, True), told


async def test_a_clock_that_is_behind_the_chain_sells_nothing_until_it_is_set(
    forged: Maker, world: World, customer: httpx.AsyncClient, tmp_path: Path
) -> None:
    """It would take authorizations that have expired, and its quotes would never end."""
    node, dial = forged(), Dial.at(tmp_path / "dial")
    shop, payer = Shop(customer, node.url, world), world.payers[2]
    dial.turn(-LONG_S)
    await trio.to_thread.run_sync(lambda: node.start(**dial.environment))
    refused = await shop.post(body(), fresh_key())
    assert (refused.status_code, refused.json()["reason"]) == (503, "clock_skew")
    assert not carries_challenge(refused)
    dial.turn(0)
    assert (await shop.until_served(await shop.order(payer))).status_code == 200
