"""Stores that counters are kept in, on each engine, in real time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gateway.actors.runtime import Runtime, open_runtime
from gateway.actors.store import Engine, NodeStore, PostgresqlSettings, open_postgresql, open_sqlite
from tests.actors.quota.nodes import Road


@pytest.fixture(params=["sqlite", "postgresql"])
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sequence[NodeStore]]:
    """One store as two nodes see it."""
    async with AsyncExitStack() as stack:
        if request.param == "sqlite":
            runtime = await stack.enter_async_context(open_runtime())
            engine = await stack.enter_async_context(open_sqlite(runtime, tmp_path / "gateway.db"))
            yield [Road(engine), Road(engine)]
        else:
            url = request.getfixturevalue("postgresql_url")
            yield [await _node(stack, url, name) for name in ("node-1", "node-2")]


async def _node(stack: AsyncExitStack, url: str, name: str) -> Engine:
    runtime: Runtime = await stack.enter_async_context(open_runtime())
    return await stack.enter_async_context(open_postgresql(runtime, PostgresqlSettings(url), node=name))
