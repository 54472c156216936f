"""The locks hold what the project says it needs."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gateway.registry.ai.embedded_engine import PACKAGE, weights

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
NODE = [*PROJECT["dependencies"], *EXTRAS["model"]]
NEEDED = {
    "node": NODE,
    "world": [*NODE, *EXTRAS["world"]],
    "test": [*NODE, *EXTRAS["world"], *EXTRAS["ddgs"], *EXTRAS["test"]],
}
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)


def pins(lock: str) -> dict[str, str]:
    return {
        canonicalize_name(name): version
        for name, version in PIN.findall((ROOT / "requirements" / f"{lock}.txt").read_text())
    }


@pytest.mark.parametrize("lock", ["node", "world"])
def test_one_environment_can_hold_all_locks(lock: str) -> None:
    tested = pins("test")
    assert {name: version for name, version in pins(lock).items() if tested.get(name) != version} == {}


@pytest.mark.parametrize("lock", NEEDED)
def test_every_dependency_is_locked_at_a_version_it_allows(lock: str) -> None:
    pinned = pins(lock)
    for line in NEEDED[lock]:
        wanted = Requirement(line)
        if wanted.name == PROJECT["name"] or (wanted.marker is not None and not wanted.marker.evaluate()):
            continue
        assert canonicalize_name(wanted.name) in pinned, f"{wanted.name} is not locked in requirements/{lock}.txt"
        if wanted.marker is None:
            assert pinned[canonicalize_name(wanted.name)] in wanted.specifier, line


@pytest.mark.parametrize("lock", [*NEEDED, "weights"])
def test_every_pin_has_a_hash(lock: str) -> None:
    text = (ROOT / "requirements" / f"{lock}.txt").read_text()
    entries = re.split(r"\n(?=[A-Za-z0-9])", text.strip())
    assert [entry.partition("==")[0] for entry in entries if "==" in entry and "--hash=sha256:" not in entry] == []


def test_the_weights_are_locked_by_themselves() -> None:
    wanted = [
        Requirement(line) for line in (ROOT / "requirements" / "weights.in").read_text().splitlines() if line[0] != "#"
    ]
    assert pins("weights").keys() == {canonicalize_name(each.name) for each in wanted}
    assert all(pins("weights")[canonicalize_name(each.name)] in each.specifier for each in wanted)


@pytest.mark.parametrize("lock", NEEDED)
def test_no_lock_holds_the_engine_that_the_weights_package_asks_for(lock: str) -> None:
    assert not {"llama-cpp-python", *pins("weights")} & pins(lock).keys()


def test_the_weights_that_are_locked_are_the_ones_that_are_read() -> None:
    assert version(PACKAGE) == pins("weights")[canonicalize_name(PACKAGE)]
    assert weights().stat().st_size > 2**20
