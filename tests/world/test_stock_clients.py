"""Four stock clients, two in Python and two in JavaScript, pay the same 402 of a real node."""

from __future__ import annotations

import base64
import json
import re
import secrets
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from gateway.world.chain import Account, Rpc
from gateway.world.npm import node_binary
from gateway.world.world import World

pytestmark = pytest.mark.world

CLIENTS = Path(__file__).parents[1] / "npm"
PYTHON_CLIENT = """
import asyncio, json, sys
from eth_account import Account
from gateway.world.agent import client_of
protocol, url, body, private_key, _, key = sys.argv[1:]
async def main():
    async with client_of(protocol, "", Account.from_key(private_key)) as client:
        answer = await client.post(url, json=json.loads(body), headers={"idempotency-key": key})
        print(json.dumps({"status": answer.status_code, "headers": dict(answer.headers), "body": answer.json()}))
asyncio.run(main())
"""
README = Path(__file__).parents[2] / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?ready\.json.*?)```", README.read_text(), re.DOTALL)
"""The clients of "Buy in ten lines"; each has a payer of its own, `payers[N]`."""
BODY = json.dumps({"query": "what is a tide", "synthesize": False})


@pytest.fixture(scope="module")
def gateway(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("node")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = world.node_config(directory, port)
    with (directory / "node.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "serve", "--config", str(config)], stdout=log, stderr=log
        )
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(600):
            try:
                if httpx.get(f"{url}/readyz").status_code == 200:
                    break
            except httpx.ConnectError:
                select.select([], [], [], 0.05)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def buy(stock: str, gateway: str, world: World, payer: Account, key: str) -> dict[str, Any]:
    command = {
        "x402 in Python": [sys.executable, "-c", PYTHON_CLIENT, "x402"],
        "MPP in Python": [sys.executable, "-c", PYTHON_CLIENT, "mpp"],
        "x402 in JavaScript": [str(node_binary()), str(CLIENTS / "pay_x402.mjs")],
        "MPP in JavaScript": [str(node_binary()), str(CLIENTS / "pay_mppx.mjs")],
    }[stock]
    arguments = [f"{gateway}/v1/search/paid", BODY, payer.private_key, world.rpc_url, key]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, check=True)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def decoded(value: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(base64.urlsafe_b64decode(value.replace("+", "-").replace("/", "_") + "=="))
    return told


@pytest.mark.parametrize(
    ("stock", "payer"),
    [
        ("x402 in Python", 8),
        ("MPP in Python", 9),
        pytest.param("x402 in JavaScript", 10, marks=pytest.mark.npm),
        pytest.param("MPP in JavaScript", 11, marks=pytest.mark.npm),
    ],
)
async def test_a_stock_client_pays_once_and_replays_for_nothing(
    world: World, client: httpx.AsyncClient, gateway: str, stock: str, payer: int
) -> None:
    key = secrets.token_hex(16)
    first = await trio.to_thread.run_sync(buy, stock, gateway, world, world.payers[payer], key)
    assert (first["status"], first["body"]["replayed"]) == (200, False)
    if stock.startswith("x402"):
        transaction = decoded(first["headers"]["payment-response"])["transaction"]
    else:
        transaction = decoded(first["headers"]["payment-receipt"])["reference"]
    assert transaction == first["body"]["receipt"]["settlement"]["transaction"]
    again = await trio.to_thread.run_sync(buy, stock, gateway, world, world.payers[payer], key)
    assert (again["status"], again["body"]["replayed"]) == (200, True)
    assert again["body"]["output"] == first["body"]["output"]
    transfers = await Rpc(world.rpc_url, client).transfers(world.pay_to)
    mine = [each for each in transfers if each.sender == world.payers[payer].address.lower()]
    assert [(each.value, each.transaction) for each in mine] == [(6000, transaction)]


@pytest.mark.parametrize(("example", "price"), [(0, 6000), (1, 6000), (2, 7000)], ids=["x402", "MPP", "OpenAI"])
async def test_a_client_of_the_readme_buys_as_it_stands_there(
    world: World, client: httpx.AsyncClient, gateway: str, tmp_path: Path, example: int, price: int
) -> None:
    assert len(EXAMPLES) == 3
    payers = world.payers[12 + example : 13 + example] * 3  # of its own here, whichever it names
    keys = [{"address": each.address, "privateKey": each.private_key} for each in payers]
    (tmp_path / "ready.json").write_text(json.dumps({"payers": keys}))
    program = EXAMPLES[example].replace("http://127.0.0.1:8402", gateway)
    command = [sys.executable, "-W", "error", "-c", program]
    done = await trio.run_process(command, cwd=tmp_path, capture_stdout=True, capture_stderr=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    *said, transaction = done.stdout.decode().split()
    assert said
    transfers = await Rpc(world.rpc_url, client).transfers(world.pay_to)
    mine = [each for each in transfers if each.sender == payers[0].address.lower()]
    assert [(each.value, each.transaction) for each in mine] == [(price, transaction)]
