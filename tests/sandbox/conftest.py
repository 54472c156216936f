"""What several test modules of the sandbox start once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sandbox.launcher_driver import Driver, launcher, pinned_image, require_a_sandbox


@pytest.fixture(scope="session")
def image_of_runs() -> Iterator[Path]:
    """The pinned image, where the users of slots may enter."""
    require_a_sandbox()
    with pinned_image() as path:
        yield path


@pytest.fixture(scope="module")
def driver(image_of_runs: Path) -> Iterator[Driver]:
    """A launcher of two slots that the module's tests share."""
    with launcher(image_of_runs) as started:
        yield started
