from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.world.family import halted, kill, pause, resume
from tests.world.programs import gone_within

PARENT = """
import subprocess, sys
children = [subprocess.Popen(["/bin/sleep", "600"], start_new_session=True) for _ in range(3)]
print(*(child.pid for child in children), flush=True)
children[-1].kill()
sys.stdin.read()
for child in children:
    child.kill()
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A program with two children in sessions of their own, and one that has ended unnoticed."""
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        yield started
        resume(started)


def children_of(process: subprocess.Popen[bytes]) -> list[int]:
    assert process.stdout is not None
    found = [int(each) for each in process.stdout.readline().split()]
    assert gone_within(found[-1], 20)
    return found[:-1]


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_program_and_its_children_end_at_once(process: subprocess.Popen[bytes]) -> None:
    pids = [process.pid, *children_of(process)]
    kill(process)
    assert all(gone_within(pid, 0) for pid in pids)


def test_a_paused_family_stands_and_goes_on(process: subprocess.Popen[bytes]) -> None:
    pids = [process.pid, *children_of(process)]
    wakers = [pause(process), pause(process)]
    assert [state(pid) for pid in pids] == ["T", "T", "T"]
    resume(process)
    assert "T" not in [state(pid) for pid in pids]
    for waker in wakers:
        waker.communicate(timeout=20)


def test_a_paused_family_goes_on_when_whoever_paused_it_is_gone(process: subprocess.Popen[bytes]) -> None:
    pids = [process.pid, *children_of(process)]
    waker = pause(process)
    assert [state(pid) for pid in pids] == ["T", "T", "T"]
    waker.communicate(timeout=20)
    assert "T" not in [state(pid) for pid in pids]


def test_a_paused_family_can_be_killed(process: subprocess.Popen[bytes]) -> None:
    pids = [process.pid, *children_of(process)]
    waker = pause(process)
    kill(process)
    waker.communicate(timeout=20)
    assert all(gone_within(pid, 0) for pid in pids)


def test_the_program_comes_first_and_can_start_no_more_meanwhile(process: subprocess.Popen[bytes]) -> None:
    pids = [process.pid, *children_of(process)]
    with halted(process) as family:
        assert next(iter(family)) == process.pid
        assert set(pids) <= set(family)
        assert state(process.pid) == "T"
    for pidfd in family.values():
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(pidfd)


def test_nothing_happens_to_a_program_that_has_ended(process: subprocess.Popen[bytes]) -> None:
    kill(process)
    kill(process)
    pause(process).communicate(timeout=20)
    resume(process)
    with halted(process) as family:
        assert family == {}
