"""The store's part of a paid call, its three durable steps, on SQLite and PostgreSQL in the same run."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from gateway.actors.operations import claiming, keeping, rows
from gateway.actors.operations.life import State
from gateway.actors.operations.order import Order
from gateway.actors.payment import Payment
from gateway.actors.runtime import Runtime, open_runtime
from gateway.actors.store import Engine, PostgresqlSettings, Statement, open_postgresql, open_sqlite
from gateway.registry import ledger

CALLERS = (1, 16, 64)
ROUNDS = 3
SECONDS = 2.0
NOW = 1_800_000_000_000

OpenEngine = Callable[[Runtime], AbstractAsyncContextManager[Engine]]


def paid_call(name: str) -> Iterator[Sequence[Statement]]:
    """Its three steps: claimed, executed, receipted."""
    payment = Payment(
        protocol="x402",
        chain_id=8453,
        network="eip155:8453",
        asset="0x833589fcd6edb6e08f4c7c32d4f71b54bda02913",
        payer=f"0x{name:0>40}"[:42],
        pay_to="0x" + "7" * 40,
        amount=20_000,
        nonce=f"0x{name:0>64}",
        valid_before=NOW // 1000 + 60,
        quote_id=f"q_{name}",
        price_version="2026-11",
        challenge_id=None,
        body={},
    )
    order = cast(
        "Order",
        SimpleNamespace(
            operation=SimpleNamespace(id="search.web"),
            request_hash=f"sha256:{name:0>64}",
            names=((SimpleNamespace(hmac=f"key {name}", pepper=1),),),
            callers=((f"payer {name}",),),
        ),
    )
    owner = rows.Owner(f"op_{name}", "node-1", 1)
    sealed = claiming.Sealed(bytes(300), bytes(900), bytes(60), [[bytes(60)]])
    claimed = claiming.first_claim(owner, order, payment, sealed, now=NOW)
    yield [*(statement for _, statement in claimed), *told(owner, 1, State.CLAIMED)]
    result = rows.Result(f"sha256:{name}", '{"routeId": "web", "qualificationId": "q1"}', NOW)
    yield [
        rows.keep(owner, sealed_output=bytes(2000), result=result, look_from_block=None),
        *keeping.posted(owner.operation_id, "executed.1", f"payer:{payment.payer}", ledger.HOLD, payment, NOW),
        *told(owner, 2, State.VERIFIED, State.EXECUTING, State.EXECUTED),
    ]
    settled = rows.Settled("0x" + "3" * 64, 1234, "0x" + "4" * 64)
    yield [
        rows.receipt(
            owner, receipt_json="{" + " " * 900 + "}", settled=settled, sealed_output=None, result=result, now=NOW
        ),
        *keeping.posted(owner.operation_id, "receipted", ledger.HOLD, ledger.REVENUE, payment, NOW),
        *told(owner, 5, State.SETTLING, State.SETTLED, State.RECEIPTED),
    ]


def told(owner: rows.Owner, first: int, *states: State) -> list[Statement]:
    return rows.happenings(owner, first, [rows.Happening(state, NOW) for state in states])


async def rate(store: Engine, callers: int, prefix: str) -> tuple[float, float]:
    """Steps a second, and the 99th percentile of a step in milliseconds."""
    calls = itertools.count()
    taken: list[float] = []
    began = time.perf_counter()

    async def caller() -> None:
        while time.perf_counter() - began < SECONDS:
            for step in paid_call(f"{prefix}{next(calls)}"):
                asked = time.perf_counter()
                await store.commit(*step)
                taken.append(time.perf_counter() - asked)

    async with trio.open_nursery() as nursery:
        for _ in range(callers):
            nursery.start_soon(caller)
    return len(taken) / (time.perf_counter() - began), sorted(taken)[int(len(taken) * 0.99)] * 1000


@pytest.fixture
async def engines(tmp_path: Path, postgresql_url: str) -> AsyncIterator[dict[str, Engine]]:
    settings = PostgresqlSettings(postgresql_url)
    async with (
        open_runtime() as one,
        open_runtime() as other,
        open_sqlite(one, tmp_path / "gateway.db") as sqlite,
        open_postgresql(other, settings, node="node-1") as postgresql,
    ):
        yield {"sqlite": sqlite, "postgresql": postgresql}


@pytest.mark.benchmark
async def test_postgresql_stores_at_least_half_as_many_paid_calls_as_sqlite(engines: dict[str, Engine]) -> None:
    ratios: dict[int, list[float]] = {callers: [] for callers in CALLERS}
    for number in range(ROUNDS):
        for callers in CALLERS:
            found: dict[str, Any] = {}
            for name, store in engines.items():
                found[name] = await rate(store, callers, f"{name[0]}{number}c{callers}n")
            ratios[callers].append(found["postgresql"][0] / found["sqlite"][0])
            told_ = ", ".join(f"{name} {steps:,.0f} steps/s (p99 {p99:.0f} ms)" for name, (steps, p99) in found.items())
            print(f"\nround {number}, {callers} callers: {told_}, ratio {ratios[callers][-1]:.2f}")
    best = {callers: max(found) for callers, found in ratios.items()}
    print("best ratios:", ", ".join(f"{callers} callers {ratio:.2f}" for callers, ratio in best.items()))
    assert best[64] >= 0.5
