"""What an operator does with a node that sells: the commands, beside it and through it."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio

from gateway.world.chain import Account
from gateway.world.world import World
from tests.world.scenarios.node_process import NodeProcess, free_port, running
from tests.world.scenarios.purchase import Shop

pytestmark = pytest.mark.world

Maker = Callable[..., NodeProcess]


@attrs.frozen
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


async def gateway(node: NodeProcess, *arguments: str, given: bytes = b"") -> Done:
    command = [sys.executable, "-m", "gateway", *arguments, "--config", str(node.config)]
    return await _run(command, given)


async def _run(command: list[str], given: bytes = b"") -> Done:
    ended = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False, stdin=given)
    return Done(ended.returncode, ended.stdout.decode(), ended.stderr.decode())


@pytest.fixture(scope="module")
def operated(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    address = f"127.0.0.1:{free_port()}"
    with running(NodeProcess.of(world, tmp_path_factory.mktemp("operated"), node={"operator_listen": address})) as node:
        yield node


@pytest.fixture
async def store(world: World, customer: httpx.AsyncClient, operated: NodeProcess) -> AsyncIterator[Shop]:
    opened = Shop(customer, operated.url, world)
    yield opened
    await opened.heal()


async def test_the_doctor_finds_nothing_wrong_with_a_node_that_sells(operated: NodeProcess) -> None:
    told = await gateway(operated, "doctor", "--json")
    assert told.code == 0, told.out
    found = {each["name"].partition(" ")[0]: each["standing"] for each in told.json["checks"]}
    for name in (
        "node",
        "store",
        "integrity",
        "keys",
        "pay_to",
        "facilitator",
        "rpc",
        "asset",
        "clock",
        "search/searxng",
    ):
        assert found[name] == "fine", told.out


async def test_a_quote_is_the_price_that_a_buyer_is_asked(operated: NodeProcess, store: Shop) -> None:
    body = {"query": "tides", "synthesize": False}
    told = await gateway(operated, "quote", "search.paid", "-", "--json", given=json.dumps(body).encode())
    assert told.code == 0, told.err
    challenge = (await store.post(body, "a key of a buyer")).json()
    assert told.json["amountAtomic"] == challenge["price"]["amountAtomic"]
    assert told.json["requestHash"] == challenge["quote"]["requestHash"]


async def test_what_was_bought_is_listed_proved_and_found_on_the_chain(
    operated: NodeProcess, store: Shop, payer: Account, tmp_path: Path
) -> None:
    answer = await store.until_served(await store.order(payer))
    bought = answer.json()
    listed = (await gateway(operated, "operations", "list", "--json")).json["operations"]
    assert bought["operationId"] in [each["operationId"] for each in listed]
    shown = (await gateway(operated, "operations", "show", bought["operationId"], "--json")).json
    assert shown["transactionHash"] == bought["receipt"]["settlement"]["transaction"]

    (tmp_path / "answer.json").write_text(answer.text)
    (tmp_path / "jwks.json").write_text((await store.client.get(f"{store.url}/.well-known/jwks.json")).text)
    proved = await _run([sys.executable, "-m", "gateway", "receipts", "verify", str(tmp_path / "answer.json")])
    assert proved.code == 0, proved.out

    books = await gateway(operated, "ledger", "verify", "--chain", "--json")
    assert books.code == 0, books.out + books.err
    settled = operated.select("SELECT COUNT(*) FROM operations WHERE settlement = 'settled'")
    assert books.json["transfersOnChain"] == settled[0][0] > 0


async def test_the_operators_listener_counts_settlements_and_exposure(
    operated: NodeProcess, store: Shop, payer: Account
) -> None:
    before = (await _metrics(operated, store)).get('gateway_settlements_total{outcome="settled"}', 0.0)
    await store.until_served(await store.order(payer))
    now = await _metrics(operated, store)
    assert now['gateway_settlements_total{outcome="settled"}'] == before + 1
    assert now["gateway_unsettled_exposure_atomic"] == 0
    assert now["gateway_settlement_open"] == 1


async def _metrics(node: NodeProcess, store: Shop) -> dict[str, float]:
    address = tomllib.loads(node.config.read_text())["node"]["operator_listen"]
    token = (node.data_dir / "operator.token").read_text().strip()
    page = await store.client.get(f"http://{address}/metrics", headers={"Authorization": f"Bearer {token}"})
    lines = [line.rpartition(" ") for line in page.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


async def test_a_transaction_that_is_not_the_one_that_paid_is_found(
    world: World, own_node: Maker, customer: httpx.AsyncClient, payer: Account
) -> None:
    node = own_node()
    await trio.to_thread.run_sync(node.start)
    shop = Shop(customer, node.url, world)
    bought = (await shop.until_served(await shop.order(payer))).json()
    node.terminate()
    assert await trio.to_thread.run_sync(node.wait) == 0
    _change(node, "UPDATE operations SET transaction_hash = '0x' || substr(transaction_hash, 4) || '0'")
    books = await gateway(node, "ledger", "verify", "--chain")
    assert books.code == 1
    transaction = bought["receipt"]["settlement"]["transaction"]
    assert f"operation {bought['operationId']}: paid by transaction {transaction}, the books say" in books.out


async def test_a_decision_goes_through_the_running_node_and_the_chain_has_the_last_word(
    world: World, own_node: Maker, customer: httpx.AsyncClient, payer: Account
) -> None:
    node = own_node(node={"operator_listen": f"127.0.0.1:{free_port()}"})
    await trio.to_thread.run_sync(node.start)
    shop = Shop(customer, node.url, world)
    bought = (await shop.until_served(await shop.order(payer))).json()
    name, transaction = bought["operationId"], bought["receipt"]["settlement"]["transaction"]
    node.terminate()
    assert await trio.to_thread.run_sync(node.wait) == 0
    assert (await gateway(node, "operations", "resolve", name, "--why", "lost")).code == 3
    _lose_track(node, name)
    await trio.to_thread.run_sync(node.start)

    assert name in (await gateway(node, "operations", "list", "--state", "stuck")).out
    refused = await gateway(node, "operations", "resolve", name, "--why", "the payer says no")
    assert refused.code == 1
    assert "resolution_refused: the chain shows" in refused.err
    told = await gateway(node, "operations", "resolve", name, "--why", "seen on the chain", "--paid-by", transaction)
    assert told.code == 0, told.err
    assert told.out == f"{name} is RECEIPTED\n"
    shown = (await gateway(node, "operations", "show", name, "--json")).json
    assert shown["transitions"][-1]["note"] == "operator: seen on the chain"
    assert (await gateway(node, "ledger", "verify", "--chain")).code == 0
    again = await gateway(node, "operations", "resolve", name, "--why", "once more")
    assert again.code == 1
    token = node.data_dir / "operator.token"
    token.write_text("another-token-than-the-nodes")
    denied = await gateway(node, "operations", "resolve", name, "--why", "with a wrong token")
    assert (denied.code, "does not take the token" in denied.err) == (2, True)


def _lose_track(node: NodeProcess, name: str) -> None:
    """Make of a settled operation one whose settlement the node cannot find any more."""
    _change(
        node,
        "UPDATE operations SET state = 'needs_operator', settlement = 'unknown', failure_code = 'operator_needed',"
        f" transaction_hash = NULL, receipt = NULL WHERE operation_id = '{name}'",
        f"DELETE FROM ledger_entries WHERE operation_id = '{name}' AND step = 'receipted'",
        "UPDATE ledger_entries SET height = NULL",
        "DELETE FROM ledger_blocks",
    )


def _change(node: NodeProcess, *statements: str) -> None:
    with closing(sqlite3.connect(node.data_dir / "gateway.db")) as store, store:
        for each in statements:
            store.execute(each)


async def test_a_node_whose_facilitator_is_down_starts_and_sells_as_soon_as_it_is_back(
    world: World, own_node: Maker, customer: httpx.AsyncClient, payer: Account
) -> None:
    node = own_node()
    shop = Shop(customer, node.url, world)
    await shop.fault("facilitator", "refuse")
    try:
        await trio.to_thread.run_sync(node.start)
        closed = await shop.post({"query": "tides", "synthesize": False}, "a key of a buyer")
        assert (closed.status_code, closed.json()["code"]) == (503, "settlement_unavailable")
        free = await shop.post({"query": "tides", "synthesize": False}, "a key of a guest", path="/v1/search/free")
        assert free.status_code == 200
        doctor = await gateway(node, "doctor")
        assert doctor.code == 1
        assert "facilitator_unreachable" in doctor.out
    finally:
        await shop.heal()
    assert (await shop.until_served(await shop.order(payer))).status_code == 200


async def test_a_second_node_on_the_same_data_is_refused_in_one_line_and_the_first_goes_on(
    operated: NodeProcess, store: Shop, tmp_path: Path
) -> None:
    config = tmp_path / "second.toml"
    listen = f'listen = ["127.0.0.1:{free_port()}"]\noperator_listen = "127.0.0.1:0"\n'
    config.write_text(f'[node]\ndata_dir = "{operated.data_dir}"\n{listen}')
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(config)]
    ended = await trio.to_thread.run_sync(partial(subprocess.run, command, capture_output=True, text=True, timeout=60))
    assert ended.returncode == 3
    assert f"another node (process {operated.pid}) has it open" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert (await store.client.get(f"{store.url}/readyz")).status_code == 200
