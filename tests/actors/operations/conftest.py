from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.actors.operations.scene import Scene


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    """A store, a chain and an executor; what must hold of every store is checked at the end of each test."""
    made = Scene(tmp_path)
    yield made
    await made.check()


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[MutableMapping[str, Any]]]:
    """What is logged, kept from the terminal."""
    with capture_logs() as told:
        yield told
