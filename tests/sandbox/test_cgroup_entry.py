"""A child is born in its group in every tree, on kernels with clone3 and without."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gateway.sandbox.cgroups import Bounds, Cgroups, Group, MechanismMissing, find
from tests.sandbox.in_groups import MIB, a_prefix, swept, unavailable

PROGRAM = """
import json, os, sys, threading
from pathlib import Path
from gateway.sandbox import cgroup_entry

places, number, threads = json.loads(sys.argv[1])
cgroup_entry.CLONE3 = number
places = {tree: Path(place) for tree, place in places.items()}
groups = dict.fromkeys(places.values())
for _ in range(threads):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
out, inward = os.pipe()
child = cgroup_entry.fork_into(places)
if child == 0:
    os.write(inward, json.dumps({
        "pid": os.getpid(),
        "in": [str(os.getpid()) in (each / "cgroup.procs").read_text().split() for each in groups],
        "tasks": [str(os.getpid()) in (each / "tasks").read_text().split()
                  for each in groups if (each / "tasks").exists()],
    }).encode())
    os.execv("/bin/sh", ["sh", "-c", "exit 7"])
os.close(inward)
told = b"".join(iter(lambda: os.read(out, 4096), b""))
ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
held = len(list(Path("/proc/self/fd").iterdir()))
print(json.dumps({"child": child, "ended": ended, "told": json.loads(told or b"null"), "held": held}))
"""
CLONE3 = 435
NO_SUCH_CALL = 9999
BOUNDS = Bounds(memory_bytes=64 * MIB, tasks=8)


@pytest.fixture
def cgroups() -> Iterator[Cgroups]:
    try:
        found = find()
    except MechanismMissing as missing:
        unavailable(str(missing))
        raise
    with swept(found, PREFIX):
        yield found


PREFIX = a_prefix()


def forked(group: Group, number: int = CLONE3, threads: int = 0) -> subprocess.CompletedProcess[str]:
    places = {tree: str(place) for tree, place in group.places.items()}
    asked = json.dumps([places, number, threads])
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, asked], capture_output=True, text=True, timeout=20, check=False
    )


@pytest.mark.parametrize("number", [CLONE3, NO_SUCH_CALL], ids=["clone3", "without clone3"])
def test_the_child_is_in_the_group_in_every_tree(cgroups: Cgroups, number: int) -> None:
    group = cgroups.make(PREFIX, BOUNDS)
    answer = forked(group, number)
    assert answer.stderr == ""
    told = json.loads(answer.stdout)
    assert told["told"]["pid"] == told["child"]
    assert told["told"]["in"] == [True] * len(group.join_paths)
    assert all(told["told"]["tasks"])
    assert told["ended"] == 7
    assert told["held"] <= 5  # three streams, the pipe's end, and the listing's own
    assert not group.populated()
    assert group.peak_tasks() in {1, None}
    assert group.remove() == ()


def test_a_child_that_cannot_enter_every_tree_ends_before_it_runs_anything(cgroups: Cgroups) -> None:
    group = cgroups.make(PREFIX, BOUNDS)
    trees = {tree: str(place) for tree, place in group.places.items()}
    half = cgroups.standing({**trees, "pids": "/sys/fs/cgroup/no-such-group"})
    if cgroups.kind == "v2":
        half = cgroups.standing({**trees, "other": "/sys/fs/cgroup/no-such-group"})
    told = json.loads(forked(half).stdout)
    assert told["told"] is None
    assert told["ended"] == 97
    assert group.remove() == ()


def test_a_group_that_is_gone_is_told_to_the_parent(cgroups: Cgroups) -> None:
    group = cgroups.make(PREFIX, BOUNDS)
    assert group.remove() == ()
    if "unified" not in group.places:
        pytest.skip("v1 alone: the child finds it gone")
    assert "FileNotFoundError" in forked(group).stderr


def test_a_program_of_several_threads_is_refused(cgroups: Cgroups) -> None:
    group = cgroups.make(PREFIX, BOUNDS)
    answer = forked(group, threads=1)
    assert "RuntimeError: a program with several threads" in answer.stderr
    assert group.remove() == ()
