"""What was left is told: how much of `/scratch` was used, and whether there is anything to be seen to."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.sandbox.leavings import LITTLE_BYTES, LITTLE_FILES, Leavings, leavings
from tests.sandbox.in_groups import unavailable

Directories = tuple[int, int]


@pytest.fixture
def places(tmp_path: Path) -> Iterator[list[Path]]:
    """Two file systems in memory."""
    made = [tmp_path / "scratch", tmp_path / "out"]
    mounted: list[Path] = []
    try:
        for each in made:
            each.mkdir()
            told = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "test", str(each)], check=False)
            if told.returncode:
                unavailable("nothing can be mounted here")
            mounted.append(each)
        yield made
    finally:
        for each in mounted:
            subprocess.run(["umount", str(each)], check=True)


def of(places: list[Path]) -> Leavings:
    opened = [os.open(each, os.O_RDONLY | os.O_DIRECTORY) for each in places]
    try:
        return leavings(*opened)
    finally:
        for each in opened:
            os.close(each)


def test_nothing(places: list[Path]) -> None:
    assert of(places) == Leavings(0, nothing=True)


def test_a_little_in_scratch_is_counted_and_nothing_to_be_seen_to(places: list[Path]) -> None:
    (places[0] / "a").write_bytes(b"x" * LITTLE_BYTES)
    assert of(places) == Leavings(LITTLE_BYTES, nothing=True)


@pytest.mark.parametrize("made", ["file", "directory", "link"])
def test_anything_in_out_is_something(places: list[Path], made: str) -> None:
    entry = places[1] / ".a"
    match made:
        case "file":
            entry.touch()
        case "directory":
            entry.mkdir()
        case _:
            entry.symlink_to("nowhere")
    assert of(places) == Leavings(0, nothing=False)


def test_what_takes_long_to_be_taken_away_is_something(places: list[Path]) -> None:
    (places[0] / "a").write_bytes(b"x" * (LITTLE_BYTES + 1))
    assert of(places) == Leavings(LITTLE_BYTES + os.sysconf("SC_PAGE_SIZE"), nothing=False)
    (places[0] / "a").unlink()
    for number in range(LITTLE_FILES):
        (places[0] / str(number)).touch()
    assert of(places) == Leavings(0, nothing=False)


def test_what_cannot_be_looked_at_may_be_anything(places: list[Path]) -> None:
    scratch, no_directory = os.open(places[0], os.O_RDONLY), os.open("/dev/null", os.O_RDONLY)
    try:
        assert leavings(scratch, no_directory) == Leavings(0, nothing=False)
        os.close(scratch)
        assert leavings(scratch, no_directory) == Leavings(None, nothing=False)
    finally:
        os.close(no_directory)
