"""A database that refuses statements, or is dropped and restored, under running nodes.

They say why, charge nobody, and sell again by themselves seconds after it is as it was.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import attrs
import httpx
import psycopg
import pytest
import trio

from gateway.world.postgresql import PostgresqlServer
from gateway.world.world import World
from tests.reliability.forge import Forge
from tests.reliability.pair import Pair
from tests.world.scenarios.node_process import NodeProcess
from tests.world.scenarios.purchase import Calls, Shop, carries_challenge

pytestmark = [
    pytest.mark.world,
    pytest.mark.filterwarnings("ignore:Exception ignored in. <async_generator object ByteStream"),
]

ROLE = "keeper"
REFUSED_S = 6.0
BACK_S = 15.0
"""How long nodes may take to sell again; an actor that crashes in a row pauses for up to 5 s."""


@attrs.frozen
class Kept:
    """A pair of nodes, and the database of a role of its own that they share."""

    pair: Pair
    server: PostgresqlServer
    name: str

    @property
    def url(self) -> str:
        return self.server.url(self.name)

    def run(self, *statements: str, database: str | None = None) -> None:
        with psycopg.connect(self.server.url(database or self.name), autocommit=True) as connection:
            for each in statements:
                connection.execute(each.encode())


@pytest.fixture
async def kept(
    world: World,
    customer: httpx.AsyncClient,
    forge: Forge,
    tmp_path: Path,
    killable_postgresql: PostgresqlServer,
) -> AsyncIterator[Kept]:
    server, name = killable_postgresql, "kept"
    with psycopg.connect(server.url(), autocommit=True) as administrator:
        administrator.execute(f"CREATE ROLE {ROLE} LOGIN".encode())
        administrator.execute(f"CREATE DATABASE {name} OWNER {ROLE}".encode())
    pair = Pair.of(world, customer, tmp_path / "pair", server.url(name, user=ROLE), launch=forge.launch)
    await pair.start()
    yield Kept(pair, server, name)
    pair.kill()


def faults(node: NodeProcess) -> list[dict[str, str]]:
    told: list[dict[str, str]] = httpx.get(f"{node.url}/readyz", timeout=5, trust_env=False).json()["faults"]
    return told


def alive(node: NodeProcess) -> bool:
    return httpx.get(f"{node.url}/healthz", timeout=5, trust_env=False).status_code == 200


async def until_told(node: NodeProcess, reason: str) -> None:
    found: list[dict[str, str]] = []
    for _ in range(100):
        found = await trio.to_thread.run_sync(faults, node)
        if found == [{"part": "store", "reason": reason}]:
            return
        await trio.sleep(0.1)
    raise AssertionError(found)


async def refuse(kept: Kept, refuse: Callable[[], None], mend: Callable[[], None], reason: str) -> None:
    """Let the database refuse for a while; check what both nodes say meanwhile, and that they come back."""
    pair, (one, two) = kept.pair, kept.pair.shops
    pids = [node.pid for node in pair.nodes]
    orders = [await one.order(one.world.payers[3]), await two.order(one.world.payers[4])]
    before, calls = len(await one.transfers()), await Calls.from_now(one)
    await trio.to_thread.run_sync(refuse)
    try:
        until = time.monotonic() + REFUSED_S
        for node in pair.nodes:
            await until_told(node, reason)
        for shop, order in zip(pair.shops, orders, strict=True):
            answer = await shop.send(order)
            assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable"), answer.text
            assert answer.json()["reason"] == reason, answer.text
            assert not carries_challenge(answer)
        await trio.sleep(max(0.0, until - time.monotonic()))
        for node in pair.nodes:
            assert await trio.to_thread.run_sync(alive, node)
    finally:
        await trio.to_thread.run_sync(mend)
    with trio.fail_after(BACK_S):
        for node in pair.nodes:
            await trio.to_thread.run_sync(node.wait_ready)
        for shop, order in zip(pair.shops, orders, strict=True):
            await shop.until_served(order)
    assert len(await one.transfers()) == before + 2
    assert await calls.of("settle") == {"settle": 2}
    assert [node.pid for node in pair.nodes] == pids
    assert [node.returncode for node in pair.nodes] == [None, None]


@pytest.mark.parametrize("what", ["TABLE operations", "TABLE leases", "ALL TABLES IN SCHEMA public"])
async def test_statements_that_are_refused_for_seconds_stop_no_node_for_longer(kept: Kept, what: str) -> None:
    role = f"{ROLE}, PUBLIC"
    await refuse(
        kept,
        lambda: kept.run(f"REVOKE ALL ON {what} FROM {role}"),
        lambda: kept.run(f"GRANT ALL ON {what} TO {ROLE}"),
        "store_permission_denied",
    )


async def test_a_database_that_is_dropped_and_restored_is_served_from_again(kept: Kept) -> None:
    kept.run(
        f"ALTER DATABASE {kept.name} ALLOW_CONNECTIONS false",
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{kept.name}'",
        f"CREATE DATABASE backup TEMPLATE {kept.name}",
        f"ALTER DATABASE {kept.name} ALLOW_CONNECTIONS true",
        database="postgres",
    )
    for node in kept.pair.nodes:
        await trio.to_thread.run_sync(node.wait_ready)
    await refuse(
        kept,
        lambda: kept.run(f"DROP DATABASE {kept.name} WITH (FORCE)", database="postgres"),
        lambda: kept.run(f"CREATE DATABASE {kept.name} OWNER {ROLE} TEMPLATE backup", database="postgres"),
        "store_database_missing",
    )


async def test_tables_that_are_gone_for_seconds_stop_no_node_for_longer(kept: Kept) -> None:
    await refuse(
        kept,
        lambda: kept.run("ALTER TABLE operations RENAME TO away"),
        lambda: kept.run("ALTER TABLE away RENAME TO operations"),
        "store_schema_missing",
    )


# -- the one node of a file --------------------------------------------------------------------------------------------


@contextmanager
def table_away(path: Path) -> Iterator[None]:
    """Rename a table of the file for the length of a block, as a hand that repairs it might."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as other:
        other.execute("ALTER TABLE operations RENAME TO away")
        yield
        other.execute("ALTER TABLE away RENAME TO operations")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the file's write lock for the length of a block, as a backup tool might."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@pytest.mark.parametrize(("trouble", "reason"), [(table_away, "store_schema_missing"), (locked, "locked")])
async def test_a_file_that_refuses_for_seconds_stops_its_node_for_no_longer(
    forged: Callable[..., NodeProcess],
    world: World,
    customer: httpx.AsyncClient,
    trouble: Callable[[Path], AbstractContextManager[None]],
    reason: str,
) -> None:
    node = forged()
    await trio.to_thread.run_sync(node.start)
    shop, pid = Shop(customer, node.url, world), node.pid
    order = await shop.order(world.payers[5])
    before = len(await shop.transfers())
    with trouble(node.data_dir / "gateway.db"):
        until = time.monotonic() + REFUSED_S
        await until_told(node, reason)
        answer = await shop.send(order)
        assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable"), answer.text
        assert not carries_challenge(answer)
        await trio.sleep(max(0.0, until - time.monotonic()))
    with trio.fail_after(BACK_S):
        await trio.to_thread.run_sync(node.wait_ready)
        await shop.until_served(order)
    assert len(await shop.transfers()) == before + 1
    assert (node.pid, node.returncode) == (pid, None)
