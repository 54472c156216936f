"""A store as a node leaves it: one free operation, one settled, one that settles, one that waits for the operator."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio

from gateway.actors.ledger import seal_next
from gateway.actors.operations import rows
from gateway.actors.runtime import open_runtime
from gateway.actors.store import Statement, Store
from gateway.config import Configuration, load
from gateway.keys import open_keys
from gateway.opening import open_engine
from gateway.registry import ledger
from gateway.registry.ledger import Entry
from gateway.registry.receipts import Signer

NOW = 1_795_000_000_000
NETWORK, ASSET = "eip155:8453", "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"
PAYER, PAY_TO = "0x" + "a" * 40, "0x" + "b" * 40
FREE, SETTLED, SETTLING, WAITING = (f"op_{index:026d}" for index in (1, 2, 3, 4))


def operation(operation_id: str, at: int, **columns: Any) -> Statement:
    values: dict[str, Any] = {
        "operation_id": operation_id,
        "operation": "search.paid",
        "state": "receipted",
        "epoch": 1,
        "attempt": 1,
        "node": "node-1",
        "funding": "paid",
        "request_hash": "sha256:" + "0" * 64,
        "sealed_request": b"sealed",
        "network": NETWORK,
        "asset": ASSET,
        "amount": 6000,
        "pay_to": PAY_TO,
        "protocol": "x402",
        "payer": PAYER,
        "nonce": "0x" + "1" * 64,
        "valid_before": at // 1000 + 600,
        "settlement": "settled",
        "claimed_at": at,
        "ended_at": at,
    } | columns
    names = ", ".join(values)
    return Statement(f"INSERT INTO operations ({names}) VALUES (:{names.replace(', ', ', :')})", values)


def moved(operation_id: str, step: str, debit: str, credit: str) -> Sequence[Entry]:
    asked = {"operation_id": operation_id, "step": step, "debit": debit, "credit": credit}
    return ledger.move(**asked, network=NETWORK, asset=ASSET, amount=6000, at=NOW)


async def fill(store: Store, signer: Signer) -> None:
    payer = ledger.payer_account(PAYER)
    free = {"operation": "search.free", "funding": "free", "amount": 0, "settlement": "none", "network": None}
    open_now = {"ended_at": None, "settlement": "unknown"}
    stuck = {"state": "needs_operator", "settlement": "unknown", "failure_code": "operator_needed"}
    await store.commit(
        operation(FREE, NOW, **free),
        operation(SETTLED, NOW + 1, transaction_hash="0x" + "2" * 64, block_number=7),
        operation(SETTLING, NOW + 2, state="executed", **open_now),
        operation(WAITING, NOW + 3, **stuck, failure_detail="its transaction cannot be found"),
        *rows.postings(moved(SETTLED, "executed.1", payer, ledger.HOLD)),
        *rows.postings(moved(SETTLED, "receipted", ledger.HOLD, ledger.REVENUE)),
        *rows.postings(moved(SETTLING, "executed.1", payer, ledger.HOLD)),
        *rows.postings(moved(WAITING, "executed.1", payer, ledger.HOLD)),
        Statement(
            "INSERT INTO operation_events (operation_id, step, state, at, epoch, note)"
            " VALUES (:operation_id, 1, 'claimed', :at, 1, NULL)",
            {"operation_id": SETTLED, "at": NOW + 1},
        ),
    )
    while await seal_next(store, signer, NOW + 4):
        pass


@attrs.frozen
class StoreOfANode:
    data_dir: Path

    @property
    def path(self) -> Path:
        return self.data_dir / "gateway.db"

    @property
    def config(self) -> Path:
        return self.data_dir / "gateway.toml"

    @property
    def configuration(self) -> Configuration:
        return load(self.config, {})

    def change(self, sql: str, **parameters: Any) -> None:
        """Do what no node does."""
        trio.run(_change, self.configuration, Statement(sql, parameters))


async def _change(configuration: Configuration, statement: Statement) -> None:
    async with open_runtime() as runtime, open_engine(runtime, configuration) as store:
        await store.commit(statement)


def make_store(data_dir: Path, url: str = "") -> StoreOfANode:
    """Fill a store in the directory, or the empty PostgreSQL database at `url`."""
    made = StoreOfANode(data_dir)
    data_dir.mkdir(exist_ok=True)
    made.config.write_text(
        f'[node]\ndata_dir = "{data_dir}"\n' + (f"[store]\nurl = {json.dumps(url)}\n" if url else "")
    )
    signer = Signer.from_keys(open_keys(data_dir / "keys", create=True).receipts)

    async def live(configuration: Configuration) -> None:
        async with open_runtime() as runtime, open_engine(runtime, configuration) as store:
            await fill(store, signer)

    trio.run(partial(live, made.configuration))
    return made
