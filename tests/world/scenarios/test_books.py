"""What can be proved afterwards: the ledger against the chain, receipts offline, the operator's commands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio

from gateway.world.world import World
from tests.world.scenarios.node_process import NodeProcess
from tests.world.scenarios.purchase import FREE, Purchase, Shop, body, fresh_key

pytestmark = pytest.mark.world

Maker = Callable[..., NodeProcess]


async def gateway(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Run a command; return its exit code and what it printed."""

    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gateway", *arguments, "--json"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    done = await trio.to_thread.run_sync(run)
    assert done.stdout, done.stderr
    told = json.loads(done.stdout)
    assert isinstance(told, dict)
    return done.returncode, told


async def test_the_ledger_of_a_busy_node_stands_by_itself_and_against_the_chain(
    shop: Shop, world: World, own_node: Maker, tmp_path: Path
) -> None:
    node = own_node()
    await trio.to_thread.run_sync(node.start)
    mine = Shop(shop.client, node.url, world)
    receipts = []
    for number, mode in enumerate(("ok", "settle_500_after", "settle_no_tx")):
        purchase = await mine.order(world.payers[number], "mpp" if number % 2 else "x402")
        await mine.fault("facilitator", mode)
        await mine.send(purchase)
        await mine.heal()
        receipts.append((await mine.until_served(purchase)).json()["receipt"])
    free = Purchase(None, body(), fresh_key(), path=FREE)
    receipts.append((await mine.send(free)).json()["receipt"])
    key_set = (await mine.client.get(f"{node.url}/.well-known/jwks.json")).text
    code, told = await gateway("ledger", "verify", "--chain", "--config", str(node.config))
    assert (code, told["ok"]) == (0, True), told
    node.terminate()
    assert await trio.to_thread.run_sync(node.wait) == 0
    (tmp_path / "keys.json").write_text(key_set)
    files = []
    for number, receipt in enumerate(receipts):
        files.append(tmp_path / f"receipt-{number}.json")
        files[-1].write_text(json.dumps(receipt))
    code, told = await gateway("receipts", "verify", *map(str, files), "--keys", str(tmp_path / "keys.json"))
    assert (code, told["ok"]) == (0, True), told
    files[0].write_text(json.dumps(receipts[0] | {"payer": "0x00000000000000000000000000000000DeaDBeef"}))
    code, _ = await gateway("receipts", "verify", str(files[0]), "--keys", str(tmp_path / "keys.json"))
    assert code == 1
    code, _ = await gateway("ledger", "verify", "--chain", "--config", str(node.config))
    assert code == 0
    import sqlite3

    with closing(sqlite3.connect(node.data_dir / "gateway.db")) as store, store:
        store.execute("UPDATE ledger_entries SET amount = amount + 1 WHERE account = 'revenue'")
    code, told = await gateway("ledger", "verify", "--config", str(node.config))
    assert code == 1
