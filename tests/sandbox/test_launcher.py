"""The launcher through its socket, on the kernel and the bubblewrap at hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.sandbox.launcher_messages import Up
from tests.sandbox.launcher_driver import Driver, launcher, pinned_image, require_a_sandbox


@pytest.fixture(scope="module")
def image() -> Iterator[Path]:
    require_a_sandbox()
    with pinned_image() as path:
        yield path


@pytest.fixture(scope="module")
def driver(image: Path) -> Iterator[Driver]:
    with launcher(image) as started:
        yield started


def test_a_command_runs_and_nothing_is_left_of_it(driver: Driver) -> None:
    assert isinstance(driver.up, Up)
    ran = driver.run(["node", "-e", "console.log(6 * 7)"])
    assert (ran.stdout, ran.stderr) == (b"42\n", b"")
    told = ran.told()
    assert (told.exit_code, told.sandbox_status, told.stopped) == (0, 0, None)
