from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.world.world import World, world_in_thread
from tests.reliability.forge import Forge, open_forge
from tests.world.scenarios.node_process import NodeProcess


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world_in_thread(tmp_path_factory.mktemp("world"), block_time=0.25) as opened:
        yield opened


@pytest.fixture(scope="session")
def forge() -> Iterator[Forge]:
    with open_forge() as opened:
        yield opened


@pytest.fixture
def forged(world: World, forge: Forge, tmp_path: Path) -> Iterator[Callable[..., NodeProcess]]:
    """Return a maker of quickly started nodes that end with the test."""
    made: list[NodeProcess] = []
    numbers = count()

    def make(**sections: Mapping[str, Any]) -> NodeProcess:
        made.append(NodeProcess.of(world, tmp_path / f"node-{next(numbers)}", launch=forge.launch, **sections))
        return made[-1]

    yield make
    for each in made:
        each.kill()


@pytest.fixture
async def customer() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None), trust_env=False) as opened:
        yield opened
