"""What every case of the battery needs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from gateway.sandbox.image import Image, warm
from tests.sandbox.battery.real_path import Sandbox, open_sandbox
from tests.sandbox.hostile_image import hostile_image, require_a_sandbox


@pytest.fixture(scope="session")
def image() -> Iterator[Image]:
    require_a_sandbox()
    with hostile_image() as built:
        warm(built)
        yield built


@pytest.fixture
async def sandbox(image: Image) -> AsyncIterator[Sandbox]:
    async with open_sandbox(image) as opened:
        yield opened
