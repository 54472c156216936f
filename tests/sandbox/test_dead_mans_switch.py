"""Who waits for the launcher's death removes what the launcher left, and nothing of anybody else's."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from gateway.sandbox.cgroups import Bounds, Cgroups, MechanismMissing, find
from gateway.sandbox.dead_mans_switch import DeadMansSwitch
from tests.sandbox.in_groups import MIB, a_prefix, descriptors, ended, heard, start, swept, unavailable

BOUNDS = Bounds(memory_bytes=64 * MIB, tasks=16)
SLEEPS = "import time; print('asleep', flush=True); time.sleep(60)"


@pytest.fixture
def prefix() -> str:
    return a_prefix()


@pytest.fixture
def cgroups(prefix: str) -> Iterator[Cgroups]:
    try:
        found = find()
    except MechanismMissing as missing:
        unavailable(str(missing))
        raise
    with swept(found, prefix):
        yield found


def test_at_the_end_all_of_that_name_is_killed_and_removed_and_nothing_else(cgroups: Cgroups, prefix: str) -> None:
    groups = [cgroups.make(f"{prefix}-{name}", BOUNDS) for name in ("one-a", "one-b", "two")]
    programs = [start(group, SLEEPS) for group in groups]
    for each in programs:
        heard(each, "asleep")
    switch = DeadMansSwitch(cgroups, f"{prefix}-one")
    assert all(group.populated() for group in groups)
    switch.end()
    assert os.waitstatus_to_exitcode(os.waitpid(switch.pid, 0)[1]) == 0
    assert cgroups.leftovers(prefix) == (f"{prefix}-two",)
    assert [ended(each) for each in programs[:2]] == [-signal.SIGKILL] * 2
    assert groups[2].kill()
    assert groups[2].remove() == ()
    ended(programs[2])


def test_it_does_not_end_by_what_ends_a_service(cgroups: Cgroups, prefix: str) -> None:
    switch = DeadMansSwitch(cgroups, prefix)
    group = cgroups.make(f"{prefix}-one", BOUNDS)
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(switch.pid, each)
    assert os.waitpid(switch.pid, os.WNOHANG) == (0, 0)
    switch.end()
    assert os.waitstatus_to_exitcode(os.waitpid(switch.pid, 0)[1]) == 0
    assert cgroups.leftovers(prefix) == ()
    group.remove()


def test_no_descriptor_is_left(cgroups: Cgroups, prefix: str) -> None:
    before = descriptors()
    switch = DeadMansSwitch(cgroups, prefix)
    switch.end()
    switch.end()
    os.waitpid(switch.pid, 0)
    assert descriptors() == before
