"""What the store's part of a call costs over a store of 10^3 to 10^6 operations, on each engine, with the plans.

Reads are single, their keys from the whole past; steps are those of `TOGETHER` paid calls at once.  Everything was
read or written a moment before, so what is measured is work, not a disk.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from functools import partial
from pathlib import Path

import attrs
import psycopg
import pytest
import trio

from gateway.actors.idempotency import LookUp, Show, _queries
from gateway.actors.ledger import LAST_BLOCK, UNSEALED, seal_next
from gateway.actors.operations import claiming, rows
from gateway.actors.operations.exposure import ELSEWHERE, OF_PAYER, OPEN_ELSEWHERE, OPEN_HERE
from gateway.actors.operations.life import State
from gateway.actors.operations.reorg import LAST_END, RECENT, WATCH_MS
from gateway.actors.payment import Payment
from gateway.actors.retention import KINDS, SWEEP_AT_ONCE, sweep
from gateway.actors.runtime import open_runtime
from gateway.actors.store import Engine, PostgresqlSettings, Statement, Value, open_postgresql, open_sqlite
from gateway.actors.store.sqlite import SqliteStore
from gateway.actors.store_time import confirmed
from gateway.http.metrics import ENDED
from gateway.http.operator_view import COUNTS, NODES, STATES, details, listing
from gateway.registry import ledger
from gateway.registry.sealing import KeyName
from tests.actors.operations.scene import SIGNER, order, payment
from tests.past import ASSET, NETWORK, NODE, Past, Trace, fill_postgresql, fill_sqlite
from tests.plans import AS_THE_NODE_ASKS, Plan, postgresql_plan, sqlite_plan, with_clock

pytestmark = pytest.mark.benchmark

SIZES = (1_000, 10_000, 100_000, 1_000_000)
READS, READ_FOR_S = 400, 4.0
TOGETHER, ROUNDS = 64, 20
OPEN = 300
DUE = 2 * SWEEP_AT_ONCE
PLANS_SHOWN = 6

Query = tuple[str, Mapping[str, Value]]
Costs = dict[str, float]
"""Microseconds by what was done."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


# -- what is asked -----------------------------------------------------------------------------------------------------


def named(key_hmac: str) -> tuple[tuple[KeyName, ...], ...]:
    return ((KeyName(1, key_hmac, b"", b""),),)


def fresh_key(_: Trace, chance: random.Random) -> Sequence[Query]:
    key, hashed = chance.randbytes(32).hex(), chance.randbytes(32).hex()
    return _queries(LookUp(named(key), f"sha256:{hashed}", (chance.randbytes(32).hex(),)))


def fresh_payment(trace: Trace, chance: random.Random) -> Sequence[Query]:
    key, caller = chance.randbytes(32).hex(), (chance.randbytes(32).hex(),)
    bought = (8453, ASSET.lower(), trace.payer, "0x" + chance.randbytes(32).hex())
    return _queries(LookUp(named(key), f"sha256:{key}", caller, caller, bought))


def replay(trace: Trace, _: random.Random) -> Sequence[Query]:
    return _queries(LookUp(named(trace.key_hmac), trace.request_hash, (trace.caller,)))


def shown(trace: Trace, _: random.Random) -> Sequence[Query]:
    return _queries(Show(trace.operation_id, named(trace.key_hmac)[0]))


def reconciled(_: Trace, __: random.Random) -> Sequence[Query]:
    return [(rows.OPEN, {"node": NODE, "network": NETWORK, "asset": ASSET, "limit": 64})]


def exposed(trace: Trace, _: random.Random) -> Sequence[Query]:
    here = {"node": NODE, "network": NETWORK, "asset": ASSET}
    return [
        (ELSEWHERE, {"node": NODE}),
        (OF_PAYER, {"payer": trace.payer, "node": NODE}),
        (OPEN_ELSEWHERE, here | {"payer": trace.payer}),
        (OPEN_HERE, here),
    ]


def nothing_due(_: Trace, __: random.Random) -> Sequence[Query]:
    return [(each.due, each.named(now_ms())) for each in KINDS]


def watched(_: Trace, __: random.Random) -> Sequence[Query]:
    return [(LAST_END, {}), (RECENT, {"since": now_ms() - WATCH_MS, "network": NETWORK, "asset": ASSET})]


def books(_: Trace, __: random.Random) -> Sequence[Query]:
    return [(UNSEALED, {"limit": 500}), (LAST_BLOCK, {})]


def listed(_: Trace, __: random.Random) -> Sequence[Query]:
    return listing(None, 50)


def listed_by_state(_: Trace, __: random.Random) -> Sequence[Query]:
    return [query for state in STATES for query in listing(state, 50)]


def one_operation(trace: Trace, _: random.Random) -> Sequence[Query]:
    return details(trace.operation_id)


def counted(_: Trace, __: random.Random) -> Sequence[Query]:
    return [COUNTS]


def endings(_: Trace, __: random.Random) -> Sequence[Query]:
    return [(ENDED, {"since": now_ms() - 60_000, "node": NODE, "limit": 2_000})]


def members(_: Trace, __: random.Random) -> Sequence[Query]:
    return NODES


Ask = Callable[[Trace, random.Random], Sequence[Query]]

ON_THE_ROAD: Mapping[str, Ask] = {
    "402: a fresh key": fresh_key,
    "a fresh key and its payment": fresh_payment,
    "a replay": replay,
    "an operation shown": shown,
}
BESIDE_IT: Mapping[str, Ask] = {
    "reconcile": reconciled,
    "exposure elsewhere and of a payer": exposed,
    "sweep, nothing due": nothing_due,
    "reorganisations: what to watch": watched,
    "ledger: unsealed, last block": books,
    "operator: list": listed,
    "operator: lists by state": listed_by_state,
    "operator: one operation": one_operation,
    "operator: nodes": members,
    "metrics: counts by state": counted,
    "metrics: endings of a minute": endings,
}


def lower_quartile(taken: Sequence[float]) -> float:
    """What it takes when nothing else is in the way."""
    return sorted(taken)[len(taken) // 4]


async def read(ask: Callable[[Sequence[Query]], Awaitable[object]], what: Ask, traces: Sequence[Trace]) -> float:
    """Return what a single read takes."""
    chance = random.Random(7)
    asked = [what(chance.choice(traces), chance) for _ in range(READS)]
    for queries in asked[:20]:
        await ask(queries)
    taken = []
    ends = time.perf_counter() + READ_FOR_S
    for queries in asked:
        began = time.perf_counter()
        await ask(queries)
        taken.append(time.perf_counter() - began)
        if time.perf_counter() > ends:
            break
    return lower_quartile(taken) * 1e6


# -- what is written ---------------------------------------------------------------------------------------------------


@attrs.frozen
class PaidCall:
    """The three durable steps of a paid call, ready to be committed."""

    claim: Sequence[Statement]
    keep: Sequence[Statement]
    receipt: Sequence[Statement]

    @classmethod
    def of(cls, number: str, chance: random.Random) -> PaidCall:
        paid_by = payment(payer=f"0x{chance.randrange(10_000):040x}", nonce="0x" + chance.randbytes(32).hex())
        made, owner, at = order(f"key of {number}", paid_by), rows.Owner(f"op_9{number}", NODE, 1), now_ms()
        wraps = [[chance.randbytes(60) for _ in versions] for versions in made.names]
        sealed = claiming.Sealed(chance.randbytes(250), chance.randbytes(900), chance.randbytes(60), wraps)
        first = claiming.first_claim(owner, made, paid_by, sealed, now=at)
        claim = [*(each for _, each in first), *rows.happenings(owner, 1, [rows.Happening(State.CLAIMED, at)])]
        result = rows.Result("sha256:" + chance.randbytes(32).hex(), '{"routeId":"search:one"}', at)
        kept = rows.keep(owner, sealed_output=chance.randbytes(3000), result=result, look_from_block=7)
        settled = rows.Settled("0x" + chance.randbytes(32).hex(), 7, "0x" + chance.randbytes(32).hex())
        receipt = rows.receipt(
            owner, receipt_json=f'"{"r" * 900}"', settled=settled, sealed_output=None, result=result, now=at
        )
        payer = ledger.payer_account(paid_by.payer)
        return cls(
            claim,
            [
                kept,
                *posted(owner, "executed.1", payer, ledger.HOLD, paid_by, at),
                *told(owner, 2, State.VERIFIED, State.EXECUTING, State.EXECUTED),
            ],
            [
                receipt,
                *posted(owner, "receipted", ledger.HOLD, ledger.REVENUE, paid_by, at),
                *told(owner, 5, State.SETTLING, State.SETTLED, State.RECEIPTED),
            ],
        )


def told(owner: rows.Owner, first: int, *states: State) -> Sequence[Statement]:
    return rows.happenings(owner, first, [rows.Happening(state, now_ms()) for state in states])


def posted(owner: rows.Owner, step: str, debit: str, credit: str, paid: Payment, at: int) -> Sequence[Statement]:
    sides = {"debit": debit, "credit": credit, "network": paid.network, "asset": paid.asset}
    return rows.postings(ledger.move(operation_id=owner.operation_id, step=step, amount=paid.amount, at=at, **sides))


async def write(store: Engine) -> tuple[Costs, Mapping[str, Sequence[Statement]]]:
    """Return what the steps of a call take, `TOGETHER` at once, and the statements of the last call."""
    chance, taken = random.Random(11), dict[str, list[float]]()
    for turn in range(ROUNDS):
        calls = [PaidCall.of(f"{turn:04d}{number:04d}", chance) for number in range(TOGETHER)]
        for name in ("claim", "keep", "receipt"):
            began = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for call in calls:
                    nursery.start_soon(store.commit, *getattr(call, name))
            taken.setdefault(f"step: {name}", []).append((time.perf_counter() - began) / TOGETHER)
    one = PaidCall.of("last", chance)
    last = {"step: claim": one.claim, "step: keep": one.keep, "step: receipt": one.receipt}
    return {name: lower_quartile(times) * 1e6 for name, times in taken.items()}, last


async def in_loop(store: SqliteStore, queries: Sequence[Query]) -> object:
    return store._readers.read(queries)


async def once(call: Callable[[], Awaitable[object]], per: int) -> float:
    began = time.perf_counter()
    await call()
    return (time.perf_counter() - began) / per * 1e6


async def costs(store: Engine, past: Past) -> tuple[Costs, Mapping[str, Sequence[Query]]]:
    """Return what everything costs over this past, and the statements of it."""
    found = {name: await read(store.look_up, what, past.traces) for name, what in ON_THE_ROAD.items()}
    if isinstance(store, SqliteStore):
        found["402: a fresh key, in the loop"] = await read(partial(in_loop, store), fresh_key, past.traces)
        found["402: a fresh key, in a thread"] = await read(store.fetch_many, fresh_key, past.traces)
    written, last = await write(store)
    found |= written
    found |= {name: await read(store.fetch_many, what, past.traces) for name, what in BESIDE_IT.items()}
    found["ledger: seal 500 entries"] = await once(partial(seal_next, store, SIGNER, now_ms()), 1)
    found["sweep, an output that is due"] = await once(partial(sweep, store, confirmed(now_ms())), DUE)
    asked = {name: what(past.traces[-1], random.Random(3)) for name, what in {**ON_THE_ROAD, **BESIDE_IT}.items()}
    return found, asked | {
        name: [(each.sql, each.parameters) for each in statements] for name, statements in last.items()
    }


# -- the engines -------------------------------------------------------------------------------------------------------

Open = Callable[[Past], AbstractAsyncContextManager[Engine]]


@asynccontextmanager
async def sqlite_with(path: Path, past: Past) -> AsyncIterator[Engine]:
    """A new file with a past, opened."""
    for old in path.parent.glob(f"{path.name}*"):
        old.unlink()
    async with open_runtime() as runtime, open_sqlite(runtime, path):
        pass
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        fill_sqlite(connection, past, open_now=OPEN)
    async with open_runtime() as runtime, open_sqlite(runtime, path) as store:
        yield store


@asynccontextmanager
async def postgresql_with(url: str, past: Past) -> AsyncIterator[Engine]:
    """A database with this past and no other, opened."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    settings = PostgresqlSettings(url)
    async with open_runtime() as runtime, open_postgresql(runtime, settings, node="maker", migrate=True):
        pass
    with psycopg.connect(url) as connection:
        fill_postgresql(connection, past, open_now=OPEN)
    async with open_runtime() as runtime, open_postgresql(runtime, settings, node=NODE) as store:
        yield store


async def compare(engine: str, open_with: Open, plan: Callable[[Query], Plan]) -> str:
    """Measure over every size; return a table of it and the plans over the largest."""
    found: dict[int, Costs] = {}
    asked: Mapping[str, Sequence[Query]] = {}
    for size in SIZES:
        past, began = Past(size, now_ms(), due=DUE), time.perf_counter()
        async with open_with(past) as store:
            filled = time.perf_counter() - began
            found[size], asked = await costs(store, past)
        print(f"{engine}: {size} operations made in {filled:.0f} s, measured in {time.perf_counter() - began:.0f} s")
    small, large = found[SIZES[0]], found[SIZES[-1]]
    ratios = {name: large[name] / small[name] for name in small}
    lines = [f"{engine}, microseconds", f"{'':36}" + "".join(f"{size:>12,}" for size in SIZES) + f"{'ratio':>8}"]
    for name, ratio in ratios.items():
        lines.append(f"{name:36}" + "".join(f"{found[size][name]:>12,.0f}" for size in SIZES) + f"{ratio:>8.2f}")
    slowest = sorted((name for name in asked if name not in ON_THE_ROAD), key=ratios.__getitem__)[-PLANS_SHOWN:]
    for name in [*ON_THE_ROAD, *reversed(slowest)]:
        lines.append(f"\n{name}")
        for query in asked[name]:
            told = plan(query)
            lines.append(f"  {' '.join(query[0].split())[:160]}\n    looks at {told.looked_at}")
            lines += [f"    {line}" for line in told.text.splitlines()]
    return "\n".join(lines)


async def test_what_a_call_costs_over_a_long_past_on_sqlite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "past.db"

    def plan(query: Query) -> Plan:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            return sqlite_plan(connection, query[0], with_clock(query[1], now_ms()))

    with capsys.disabled():
        print("\n" + await compare("SQLite", partial(sqlite_with, path), plan))
    path.unlink()


async def test_what_a_call_costs_over_a_long_past_on_postgresql(
    postgresql_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def plan(query: Query) -> Plan:
        with psycopg.connect(postgresql_url) as connection:
            return postgresql_plan(connection, query[0], with_clock(query[1], now_ms()), AS_THE_NODE_ASKS)

    with capsys.disabled():
        print("\n" + await compare("PostgreSQL", partial(postgresql_with, postgresql_url), plan))
