"""What is asked of the cgroups of any machine, asked of this one's kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from gateway.sandbox.cgroups import ROOT, Bounds, Cgroups, MechanismMissing, examine, find
from tests.sandbox.in_groups import (
    EIGHT_DEAF_CHILDREN,
    MIB,
    a_prefix,
    descriptors,
    ended,
    eventually,
    heard,
    said,
    standing,
    start,
    swept,
    unavailable,
)

ROOMY = Bounds(memory_bytes=256 * MIB, tasks=64)


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


def test_this_machine_has_all_that_is_needed(cgroups: Cgroups) -> None:
    assert examine().missing == ()
    assert cgroups.kind == examine().kind != "none"


def test_a_group_is_in_no_tree_before_it_is_made_and_after_it_was_removed(cgroups: Cgroups, prefix: str) -> None:
    assert standing(ROOT, prefix) == []
    group = cgroups.make(prefix, ROOMY)
    assert sorted(standing(ROOT, prefix)) == sorted(set(group.places.values()))
    assert group.remove() == ()
    assert standing(ROOT, prefix) == []


def test_a_joined_program_is_in_the_group_in_every_tree(cgroups: Cgroups, prefix: str) -> None:
    group = cgroups.make(prefix, ROOMY)
    program = start(group, "print(open('/proc/self/cgroup').read())")
    places = {line.split(":", 2)[2] for line in said(program).splitlines()}
    assert sum(place.endswith(f"/{prefix}") for place in places) >= 1
    inside = [line for line in group.join_paths if line.parent.name == prefix]
    assert len(inside) == len(group.join_paths)
    assert eventually(lambda: not group.populated())
    assert group.remove() == ()


def test_an_allocating_child_is_killed_at_the_memory_bound(cgroups: Cgroups, prefix: str) -> None:
    group = cgroups.make(prefix, Bounds(memory_bytes=48 * MIB, tasks=16))
    code = """
import os
child = os.fork()
if child == 0:
    held = [bytes(range(256)) * 4096 for _ in range(256)]
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
    program = start(group, code)
    spoken = program.communicate(timeout=20)[0].decode().strip()
    assert spoken in {"-9", ""}  # v1 kills the child, v2 the whole group
    assert (group.oom_kills() or 0) >= 1
    assert group.oom_seen()
    peak = group.peak_memory()
    assert peak is None or 40 * MIB < peak <= 48 * MIB
    assert group.remove() == ()


async def test_the_descriptor_tells_that_a_child_ran_out_of_memory_and_the_tree_is_killed(
    cgroups: Cgroups, prefix: str
) -> None:
    group = cgroups.make(prefix, Bounds(memory_bytes=48 * MIB, tasks=16))
    code = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        held = [bytes(range(256)) * 4096 for _ in range(256)]
        os._exit(0)
time.sleep(60)
"""
    assert group.oom_events is not None
    program = start(group, code)
    with trio.fail_after(10):
        while not group.oom_seen():
            await trio.lowlevel.wait_readable(group.oom_events)
    assert group.kill()
    assert ended(program) == -9
    assert group.remove() == ()
    assert group.oom_events == -1


def test_nothing_is_seen_of_memory_that_sufficed(cgroups: Cgroups, prefix: str) -> None:
    group = cgroups.make(prefix, ROOMY)
    assert said(start(group, "print(len(bytes(1 << 20)))")) == str(1 << 20)
    assert not group.oom_seen()
    assert group.oom_kills() == 0
    assert group.remove() == ()


def test_files_in_memory_are_told_apart(cgroups: Cgroups, prefix: str) -> None:
    group = cgroups.make(prefix, ROOMY)
    code = """
import os, sys
f = os.memfd_create("x")
os.write(f, bytes(8 << 20))
print("written", flush=True)
sys.stdin.read()
import time; time.sleep(60)
"""
    program = start(group, code)
    heard(program, "written")
    shared = group.shared_memory()
    assert shared is not None
    assert 8 * MIB <= shared < 9 * MIB
    assert group.memory() > shared
    assert group.kill()
    ended(program)
    assert group.remove() == ()


def test_a_fork_over_the_bound_is_denied_and_counted(cgroups: Cgroups, prefix: str) -> None:
    group = cgroups.make(prefix, Bounds(memory_bytes=256 * MIB, tasks=6))
    code = """
import os, signal
children = []
try:
    while len(children) < 50:
        child = os.fork()
        if child == 0:
            signal.pause()
        children.append(child)
except BlockingIOError as denied:
    print(len(children), denied.errno, flush=True)
for child in children:
    os.kill(child, 9)
"""
    assert said(start(group, code)) == "5 11"
    assert group.task_denials() == 1
    assert group.peak_tasks() in {6, 7, None}  # the kernel counts the one it then denies
    assert eventually(lambda: not group.populated())
    assert group.remove() == ()


def test_processor_time_is_told_within_20_ms(cgroups: Cgroups, prefix: str) -> None:
    group = cgroups.make(prefix, ROOMY)
    program = start(group, "import time\nwhile time.process_time() < 0.4: pass")
    with program:
        _, status, used = os.wait4(program.pid, 0)
        program.returncode = os.waitstatus_to_exitcode(status)
    assert program.returncode == 0
    by_the_process = (used.ru_utime + used.ru_stime) * 1e6
    assert by_the_process >= 400_000
    assert abs(group.cpu_us() - by_the_process) < 20_000
    assert group.remove() == ()


def test_processor_time_of_a_running_program_grows(cgroups: Cgroups, prefix: str) -> None:
    group = cgroups.make(prefix, ROOMY)
    program = start(group, "while True: pass")
    assert eventually(lambda: group.cpu_us() > 100_000)
    assert group.kill()
    ended(program)
    at_the_end = group.cpu_us()
    assert at_the_end >= 100_000
    assert group.cpu_us() == at_the_end
    assert group.remove() == ()


def test_two_busy_processes_have_one_core_together(cgroups: Cgroups, prefix: str) -> None:
    group = cgroups.make(prefix, ROOMY)
    program = start(group, "import os\nprint(os.fork() > 0, flush=True)\nwhile True: pass")
    began, used = time.monotonic(), group.cpu_us()
    assert eventually(lambda: group.cpu_us() > 700_000, within=15)
    took = time.monotonic() - began
    assert group.cpu_us() - used < (took + 0.15) * 1e6  # one period's share may be spent ahead
    assert group.kill()
    ended(program)
    assert group.remove() == ()


def test_a_tree_of_eight_deaf_to_sigterm_is_gone_within_200_ms(cgroups: Cgroups, prefix: str) -> None:
    group = cgroups.make(prefix, ROOMY)
    program = start(group, EIGHT_DEAF_CHILDREN)
    heard(program, "started")
    assert group.populated()
    began = time.monotonic()
    assert group.kill()
    assert time.monotonic() - began < 0.2
    assert not group.populated()
    assert ended(program) == -9
    assert group.remove() == ()


def test_a_fork_bomb_within_its_bound_is_ended(cgroups: Cgroups, prefix: str) -> None:
    group = cgroups.make(prefix, Bounds(memory_bytes=256 * MIB, tasks=24))
    code = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
    program = start(group, code)
    assert eventually(lambda: (group.task_denials() or 0) > 20)
    assert group.kill()
    ended(program)
    assert group.remove() == ()


def test_killing_nobody_is_done_at_once(cgroups: Cgroups, prefix: str) -> None:
    group = cgroups.make(prefix, ROOMY)
    began = time.monotonic()
    assert group.kill()
    assert time.monotonic() - began < 0.1
    assert group.remove() == ()


def test_a_group_with_a_living_process_is_not_removed(cgroups: Cgroups, prefix: str) -> None:
    group = cgroups.make(prefix, ROOMY)
    program = start(group, EIGHT_DEAF_CHILDREN)
    heard(program, "started")
    left = group.remove(within=0.01)
    assert set(left) == set(group.places.values())
    assert group.kill()
    ended(program)
    assert group.remove() == ()


def test_removing_twice_removes_once(cgroups: Cgroups, prefix: str) -> None:
    group = cgroups.make(prefix, ROOMY)
    assert group.remove() == ()
    assert group.remove() == ()
    assert group.kill()


def test_two_groups_of_one_name_cannot_be_made(cgroups: Cgroups, prefix: str) -> None:
    group = cgroups.make(prefix, ROOMY)
    with pytest.raises(FileExistsError):
        cgroups.make(prefix, ROOMY)
    assert all(each.is_dir() for each in group.places.values())
    assert group.remove() == ()


@pytest.mark.parametrize("name", ["", "x", "../escaped", "cgroup/escaped", "UPPER-CASE", ".hidden", "a" * 65])
def test_a_name_that_leads_elsewhere_is_refused(cgroups: Cgroups, name: str) -> None:
    with pytest.raises(ValueError, match="no name of a group"):
        cgroups.make(name, ROOMY)


def test_another_process_reads_and_ends_the_group_by_its_places(cgroups: Cgroups, prefix: str) -> None:
    made = cgroups.make(prefix, ROOMY)
    program = start(made, EIGHT_DEAF_CHILDREN)
    heard(program, "started")
    group = cgroups.standing({tree: str(place) for tree, place in made.places.items()})
    assert group.name == prefix
    assert group.oom_events is None
    assert group.cpu_us() > 0
    assert group.memory() > 0
    assert group.kill()
    ended(program)
    assert not made.populated()
    assert made.remove() == ()


def test_what_an_earlier_run_left_is_ended_and_removed(cgroups: Cgroups, prefix: str) -> None:
    for number in range(3):
        cgroups.make(f"{prefix}-{number}", ROOMY)
    lost = cgroups.make(f"{prefix}-lost", ROOMY)
    program = start(lost, EIGHT_DEAF_CHILDREN)
    heard(program, "started")
    other = cgroups.make("other-" + prefix, ROOMY)
    later = find()
    expected = sorted([*(f"{prefix}-{number}" for number in range(3)), f"{prefix}-lost"])
    assert sorted(later.leftovers(prefix)) == expected
    swept_away = later.sweep(prefix)
    assert (sorted(swept_away.removed), swept_away.left) == (expected, ())
    assert ended(program) == -9
    assert standing(ROOT, prefix) == []
    assert all(each.is_dir() for each in other.places.values())
    assert other.remove() == ()


@pytest.mark.parametrize("prefix_", ["", "gw", "a/b/c/d", "../../.."])
def test_a_prefix_that_could_be_anybodys_is_not_swept(cgroups: Cgroups, prefix_: str) -> None:
    with pytest.raises(ValueError, match="no prefix"):
        cgroups.sweep(prefix_)


def test_making_and_removing_leaves_no_descriptor(cgroups: Cgroups, prefix: str) -> None:
    before = descriptors()
    for _ in range(20):
        assert cgroups.make(prefix, ROOMY).remove() == ()
    assert descriptors() == before


def test_a_place_without_cgroups_is_told(tmp_path: Path) -> None:
    with pytest.raises(MechanismMissing) as missing:
        find(tmp_path)
    assert missing.value.reason == "sandbox.cgroups_missing"
    assert examine(tmp_path).kind == "none"
    [finding] = missing.value.findings
    assert finding.fix == f"mount -t cgroup2 cgroup2 {tmp_path}"
    assert finding.reason in str(missing.value)


def test_the_launcher_imports_no_package_with_it() -> None:
    code = (
        "import sys, gateway.sandbox.cgroups\n"
        "own = {n.split('.')[0] for n in sys.modules} - set(sys.stdlib_module_names) - {'__main__'}\n"
        "print(sorted(n for n in own if not n.startswith('__editable')))"
    )
    told = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, check=True, timeout=20, text=True)
    assert told.stdout.strip() == "['gateway']"
