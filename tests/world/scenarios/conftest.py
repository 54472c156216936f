from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from pathlib import Path

import httpx
import pytest
import trio

from gateway.world.chain import Account
from gateway.world.world import World
from tests.world.scenarios.node_process import NodeProcess, running
from tests.world.scenarios.purchase import Shop, funded

WALLETS = 500


@pytest.fixture(scope="session")
def wallets(world: World) -> Iterator[Account]:
    async def mint() -> list[Account]:
        async with httpx.AsyncClient(timeout=30) as client:
            return list(await funded(world, client, [f"scenario {index}" for index in range(WALLETS)]))

    return iter(trio.run(mint))


@pytest.fixture
def payer(wallets: Iterator[Account]) -> Account:
    """Return an account that has paid nobody yet."""
    return next(wallets)


@pytest.fixture
def payers(wallets: Iterator[Account]) -> Iterator[Account]:
    return wallets


@pytest.fixture(scope="session")
def node(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """Yield the node that most scenarios share; those that end it have one of their own."""
    with running(NodeProcess.of(world, tmp_path_factory.mktemp("node"))) as started:
        yield started


@pytest.fixture
def own_node(world: World, tmp_path: Path) -> Iterator[Callable[..., NodeProcess]]:
    """Return a maker of nodes, not yet started, that end with the test."""
    made: list[NodeProcess] = []
    numbers = count()

    def make(**sections: object) -> NodeProcess:
        made.append(NodeProcess.of(world, tmp_path / f"node-{next(numbers)}", **sections))  # type: ignore[arg-type]  # sections of the configuration
        return made[-1]

    yield make
    for each in made:
        each.kill()


@pytest.fixture
async def customer() -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
    async with httpx.AsyncClient(timeout=120, limits=limits, trust_env=False) as opened:
        yield opened


@pytest.fixture
async def shop(world: World, customer: httpx.AsyncClient, node: NodeProcess) -> AsyncIterator[Shop]:
    """Yield the shared node's shop; the world is well again afterwards."""
    opened = Shop(customer, node.url, world)
    yield opened
    await opened.heal()
