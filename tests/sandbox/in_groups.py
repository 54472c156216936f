"""Programs started in groups of the real kernel, and groups that never outlive their test."""

from __future__ import annotations

import gc
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.sandbox.cgroup_trees import GroupTrees
from gateway.sandbox.cgroups import Cgroups, Group

MIB = 1 << 20
JOIN = 'n=$1; shift; while [ $n -gt 0 ]; do echo 0 > "$1" || exit 97; shift; n=$((n-1)); done; exec "$@"'

EIGHT_DEAF_CHILDREN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(8):
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
print("started", flush=True)
time.sleep(60)
"""


def start(group: Group | GroupTrees, code: str) -> subprocess.Popen[bytes]:
    """Start a Python program that is in the group from before its first instruction."""
    joins = [str(each) for each in group.join_paths]
    python = [sys.executable, "-I", "-S", "-c", code]
    return subprocess.Popen(
        ["/bin/sh", "-c", JOIN, "sh", str(len(joins)), *joins, *python], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def said(program: subprocess.Popen[bytes]) -> str:
    """Wait for the end of a program, and return all it said."""
    out, err = program.communicate(timeout=20)
    assert err == b""
    return out.decode().strip()


def heard(program: subprocess.Popen[bytes], word: str) -> None:
    """Wait until the program says the word."""
    assert program.stdout is not None
    assert program.stdout.readline().decode().strip() == word


def ended(program: subprocess.Popen[bytes]) -> int:
    """Wait for the end of a program without reading it, and return how it ended."""
    with program:
        return program.wait(timeout=20)


def eventually(fact: Callable[[], bool], within: float = 5.0) -> bool:
    """Return True as soon as the fact holds, False when it does not within so many seconds."""
    until = time.monotonic() + within
    while not fact():
        if time.monotonic() > until:
            return False
        time.sleep(0.002)
    return True


def unavailable(why: str) -> None:
    """Skip the test, but not in CI, where what it needs has to be there."""
    if os.environ.get("CI"):
        pytest.fail(f"CI must be able to run this: {why}")
    pytest.skip(why)


def a_prefix() -> str:
    """Return a prefix of groups that is this test's alone."""
    return f"gwtest-{secrets.token_hex(5)}"


@contextmanager
def swept(cgroups: Cgroups, prefix: str) -> Iterator[None]:
    """Remove whatever the test left, and fail when the test was to remove it."""
    try:
        yield
        assert cgroups.leftovers(prefix) == (), "the test left groups behind"
    finally:
        cgroups.sweep(prefix)


def standing(root: Path, prefix: str) -> list[Path]:
    """Return all directories of that prefix below, seen without the code under test."""
    return [Path(at) / each for at, names, _ in os.walk(root) for each in names if each.startswith(prefix)]


def descriptors() -> int:
    """Return how many descriptors this process holds; those of a test before that nobody refers to are let go of."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))
