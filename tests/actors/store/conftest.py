"""Engines under the conformance suite; another engine joins by one more parameter."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from gateway.actors.runtime import Runtime, open_runtime
from gateway.actors.store import Engine, PostgresqlSettings, open_postgresql, open_sqlite

OpenStore = Callable[[Runtime], AbstractAsyncContextManager[Engine]]


@pytest.fixture
def migrations() -> Path:
    return Path(__file__).parent / "migrations" / "conformance"


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path, migrations: Path) -> OpenStore:
    """Opens the same database each time it is called."""
    if request.param == "sqlite":
        return lambda runtime: open_sqlite(runtime, tmp_path / "conformance.db", migrations=migrations)
    settings = PostgresqlSettings(request.getfixturevalue("postgresql_url"))
    return lambda runtime: open_postgresql(runtime, settings, node="node-1", migrations=migrations)


@pytest.fixture
async def store(engine: OpenStore) -> AsyncIterator[Engine]:
    async with open_runtime() as runtime, engine(runtime) as opened:
        yield opened
