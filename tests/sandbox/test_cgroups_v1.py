"""v1 and hybrid: what is written where, what is missing told, and v1 without the v2 tree beside it on a real kernel."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.sandbox import cgroups_v1
from gateway.sandbox.cgroup_files import Examined, Files
from gateway.sandbox.cgroups import PROC, ROOT, Bounds, Cgroups, MechanismMissing, Swept, examine, find
from gateway.sandbox.cgroups_v1 import CgroupsV1
from tests.sandbox.fake_cgroups import FakeFiles, a_v1_machine
from tests.sandbox.in_groups import (
    EIGHT_DEAF_CHILDREN,
    MIB,
    a_prefix,
    descriptors,
    ended,
    eventually,
    heard,
    standing,
    start,
    swept,
)

BOUNDS = Bounds(memory_bytes=64 * MIB, tasks=34)
CONTROLLERS = ("memory", "pids", "cpu", "cpuacct", "freezer")


def found(at: Path) -> tuple[Cgroups, FakeFiles]:
    files, proc = a_v1_machine(at)
    return find(files.root, proc=proc, files=files), files


def reasons(examined: Examined) -> list[str]:
    return [each.reason for each in examined.missing]


def test_every_bound_is_written_where_the_kernel_reads_it(tmp_path: Path) -> None:
    cgroups, files = found(tmp_path)
    group = cgroups.make("gateway-one", BOUNDS)
    written = [each for each in files.written if "event_control" not in each[0]]
    assert written == [
        ("memory/gateway-one/memory.limit_in_bytes", "67108864"),
        ("memory/gateway-one/memory.memsw.limit_in_bytes", "67108864"),
        ("memory/gateway-one/memory.oom_control", "0"),
        ("pids/gateway-one/pids.max", "34"),
        ("cpu/gateway-one/cpu.cfs_period_us", "100000"),
        ("cpu/gateway-one/cpu.cfs_quota_us", "100000"),
    ]
    assert cgroups.kind == "v1"
    assert group.name == "gateway-one"
    assert list(group.places) == list(CONTROLLERS)
    assert group.join_paths == tuple(files.root / each / "gateway-one" / "cgroup.procs" for each in CONTROLLERS)
    assert group.remove() == ()
    assert standing(files.root, "gateway-one") == []


def test_every_figure_is_read_where_the_kernel_writes_it(tmp_path: Path) -> None:
    cgroups, files = found(tmp_path)
    group = cgroups.make("gateway-one", BOUNDS)
    files.put("cpuacct/gateway-one", {"cpuacct.usage": "123456789\n"})
    files.put(
        "memory/gateway-one",
        {
            "memory.usage_in_bytes": "1001\n",
            "memory.max_usage_in_bytes": "2002\n",
            "memory.stat": "cache 9\nshmem 1\ntotal_shmem 303\n",
            "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
        },
    )
    files.put("pids/gateway-one", {"pids.peak": "5\n", "pids.events": "max 6\n"})
    assert group.cpu_us() == 123456
    assert group.memory() == 1001
    assert group.peak_memory() == 2002
    assert group.shared_memory() == 303
    assert group.oom_kills() == 4
    assert group.oom_seen()
    assert group.peak_tasks() == 5
    assert group.task_denials() == 6
    assert group.remove() == ()


def test_figures_that_an_old_kernel_has_not_are_none(tmp_path: Path) -> None:
    cgroups, files = found(tmp_path)
    files.absent |= {"memory.max_usage_in_bytes", "pids.peak", "pids.events", "memory.stat"}
    group = cgroups.make("gateway-one", BOUNDS)
    (group.places["memory"] / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\n")
    told = (group.peak_memory(), group.peak_tasks(), group.task_denials(), group.shared_memory(), group.oom_kills())
    assert told == (None, None, None, None, None)
    assert not group.oom_seen()
    assert group.remove() == ()


def test_a_kernel_without_event_control_gives_no_descriptor(tmp_path: Path) -> None:
    cgroups, files = found(tmp_path)
    files.absent.add("cgroup.event_control")
    before = descriptors()
    group = cgroups.make("gateway-one", BOUNDS)
    assert group.oom_events is None
    assert descriptors() == before
    assert group.oom_watched == files.root / "memory/gateway-one/memory.oom_control"
    assert group.remove() == ()


def test_without_swap_accounting_swapping_is_discouraged_and_noted(tmp_path: Path) -> None:
    files, proc = a_v1_machine(tmp_path)
    (files.root / "memory" / "memory.memsw.limit_in_bytes").unlink()
    (proc / "swaps").write_text("Filename Type Size Used Priority\n/dev/sda2 partition 1048572 0 -2\n")
    files.absent.add("memory.memsw.limit_in_bytes")
    cgroups = find(files.root, proc=proc, files=files)
    assert [note.reason for note in cgroups.notes] == ["sandbox.swap_accounting_missing"]
    group = cgroups.make("gateway-one", BOUNDS)
    assert ("memory/gateway-one/memory.swappiness", "0") in files.written
    assert group.remove() == ()


def test_without_swap_there_is_nothing_to_note(tmp_path: Path) -> None:
    files, proc = a_v1_machine(tmp_path)
    (files.root / "memory" / "memory.memsw.limit_in_bytes").unlink()
    assert find(files.root, proc=proc, files=files).notes == ()


def test_a_group_above_with_less_than_a_core_bounds_the_run(tmp_path: Path) -> None:
    cgroups, files = found(tmp_path)
    files.refuse("write", "cpu.cfs_quota_us", errno.EINVAL)
    assert cgroups.make("gateway-one", BOUNDS).remove() == ()


@pytest.mark.parametrize(
    ("controller", "reason"),
    [
        ("memory", "sandbox.memory_controller_missing"),
        ("pids", "sandbox.pids_controller_missing"),
        ("cpu", "sandbox.cpu_controller_missing"),
        ("cpuacct", "sandbox.cpu_accounting_missing"),
    ],
)
def test_a_controller_that_is_not_mounted_is_told_with_its_fix(tmp_path: Path, controller: str, reason: str) -> None:
    files, proc = a_v1_machine(tmp_path, mounted=tuple(each for each in CONTROLLERS if each != controller))
    with pytest.raises(MechanismMissing) as missing:
        find(files.root, proc=proc, files=files)
    assert missing.value.reason == reason
    [finding] = missing.value.findings
    place = files.root / controller
    assert finding.fact == f"no {controller} controller is mounted at {place}"
    assert finding.fix == f"mkdir -p {place} && mount -t cgroup -o {controller} cgroup {place}"
    assert finding.consequence


def test_a_controller_that_the_kernel_was_told_to_do_without_has_another_fix(tmp_path: Path) -> None:
    files, proc = a_v1_machine(tmp_path, mounted=("pids", "cpu", "cpuacct"))
    (proc / "cgroups").write_text("#subsys_name\thierarchy\tnum_cgroups\tenabled\nmemory\t0\t1\t0\npids\t1\t1\t1\n")
    [finding] = examine(files.root, proc=proc).missing
    assert finding.reason == "sandbox.memory_controller_missing"
    assert "cgroup_disable=memory" in finding.fix


def test_all_that_is_missing_is_told_at_once(tmp_path: Path) -> None:
    files, proc = a_v1_machine(tmp_path, mounted=("cpu", "freezer"))
    assert reasons(examine(files.root, proc=proc)) == [
        "sandbox.memory_controller_missing",
        "sandbox.pids_controller_missing",
        "sandbox.cpu_accounting_missing",
    ]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("memory.limit_in_bytes", "sandbox.memory_controller_missing"),
        ("pids.max", "sandbox.pids_controller_missing"),
        ("cpu.cfs_quota_us", "sandbox.cpu_controller_missing"),
    ],
)
def test_a_bound_that_the_kernel_does_not_know_is_told_and_nothing_stays(
    tmp_path: Path, name: str, reason: str
) -> None:
    cgroups, files = found(tmp_path)
    files.absent.add(name)
    with pytest.raises(MechanismMissing) as missing:
        cgroups.make("gateway-one", BOUNDS)
    assert missing.value.reason == reason
    assert name in missing.value.findings[0].fact
    assert standing(files.root, "gateway-one") == []


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
@pytest.mark.parametrize(("deed", "name"), [("mkdir", "gateway-one"), ("write", "pids.max")])
def test_what_may_not_be_written_is_told_and_nothing_stays(tmp_path: Path, deed: str, name: str, number: int) -> None:
    cgroups, files = found(tmp_path)
    files.refuse(deed, name, number)
    with pytest.raises(MechanismMissing) as missing:
        cgroups.make("gateway-one", BOUNDS)
    assert missing.value.reason == "sandbox.cgroup_not_writable"
    assert standing(files.root, "gateway-one") == []


def test_any_other_refusal_is_the_kernels_own_error_and_nothing_stays(tmp_path: Path) -> None:
    cgroups, files = found(tmp_path)
    files.refuse("write", "memory.limit_in_bytes", errno.EBUSY)
    with pytest.raises(OSError, match="busy"):
        cgroups.make("gateway-one", BOUNDS)
    assert standing(files.root, "gateway-one") == []


def test_a_tree_that_cannot_be_written_is_told_before_any_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, proc = a_v1_machine(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, _mode: "pids" not in str(path))
    [finding] = examine(files.root, proc=proc).missing
    assert finding.reason == "sandbox.cgroup_not_writable"
    assert finding.fact.startswith(str(files.root / "pids"))


def test_a_freezer_that_cannot_be_written_is_gone_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, proc = a_v1_machine(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, _mode: path.name != "freezer")
    examined = examine(files.root, proc=proc)
    assert (examined.missing, list(examined.trees)) == ((), ["memory", "pids", "cpu", "cpuacct"])


def test_controllers_that_share_a_tree_have_one_directory(tmp_path: Path) -> None:
    files, proc = a_v1_machine(tmp_path, mounted=("memory", "pids", "cpu,cpuacct"))
    group = find(files.root, proc=proc, files=files).make("gateway-one", BOUNDS)
    shared = files.root / "cpu,cpuacct" / "gateway-one"
    assert group.places["cpu"] == group.places["cpuacct"] == shared
    assert group.join_paths.count(shared / "cgroup.procs") == 1
    assert group.cpu_us() == 0
    assert group.remove() == ()


def test_groups_stand_below_the_one_this_process_is_in(tmp_path: Path) -> None:
    files, proc = a_v1_machine(tmp_path)
    files.put("memory/session/seven", {})
    (proc / "self" / "cgroup").write_text("1:memory:/session/seven\n2:pids:/gone\n3:cpu:/../elsewhere\n4:cpuacct:/\n")
    group = find(files.root, proc=proc, files=files).make("gateway-one", BOUNDS)
    assert group.places["memory"] == files.root / "memory/session/seven/gateway-one"
    assert group.places["pids"] == files.root / "pids/gateway-one"
    assert group.places["cpu"] == files.root / "cpu/gateway-one"
    assert group.remove() == ()


# -- on a real kernel with v1 controllers ------------------------------------------------------------------------------


@pytest.fixture
def prefix() -> str:
    return a_prefix()


def real_trees() -> Examined:
    if not (ROOT / "memory" / "cgroup.procs").exists() or os.geteuid() != 0:
        pytest.skip("this machine has no v1 controllers, or no root: the same is asked of v2 elsewhere")
    return cgroups_v1.examine(ROOT, PROC, Files())


def without(examined: Examined, *trees: str) -> CgroupsV1:
    kept = {tree: place for tree, place in examined.trees.items() if tree not in trees}
    return CgroupsV1(ROOT, Examined("v1", kept, (), ()), Files())


@pytest.fixture
def v1_only(prefix: str) -> Iterator[CgroupsV1]:
    cgroups = without(real_trees(), "unified")
    with swept(cgroups, prefix):
        yield cgroups


@pytest.fixture
def without_freezer(prefix: str) -> Iterator[CgroupsV1]:
    cgroups = without(real_trees(), "unified", "freezer")
    with swept(cgroups, prefix):
        yield cgroups


def test_without_the_v2_tree_a_tree_of_eight_is_gone_within_200_ms(v1_only: CgroupsV1, prefix: str) -> None:
    group = v1_only.make(prefix, BOUNDS)
    assert "freezer" in group.places
    program = start(group, EIGHT_DEAF_CHILDREN)
    heard(program, "started")
    began = time.monotonic()
    assert group.kill()
    assert time.monotonic() - began < 0.2
    assert ended(program) == -9
    assert group.remove() == ()


FORK_BOMB = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass\n"


def test_without_the_v2_tree_a_fork_bomb_is_frozen_and_ended(v1_only: CgroupsV1, prefix: str) -> None:
    group = v1_only.make(prefix, Bounds(memory_bytes=256 * MIB, tasks=24))
    program = start(group, FORK_BOMB)
    assert eventually(lambda: (group.task_denials() or 0) > 20)
    assert group.kill()
    ended(program)
    assert group.remove() == ()


def test_without_a_freezer_a_fork_bomb_is_held_by_a_bound_of_no_tasks(without_freezer: CgroupsV1, prefix: str) -> None:
    group = without_freezer.make(prefix, Bounds(memory_bytes=256 * MIB, tasks=24))
    program = start(group, FORK_BOMB)
    assert eventually(lambda: (group.task_denials() or 0) > 20)
    assert group.kill()
    ended(program)
    assert (group.places["pids"] / "pids.max").read_text() == "0\n"
    assert group.remove() == ()


def test_a_run_that_was_left_frozen_is_swept(v1_only: CgroupsV1, prefix: str) -> None:
    group = v1_only.make(prefix, BOUNDS)
    program = start(group, EIGHT_DEAF_CHILDREN)
    heard(program, "started")
    (group.places["freezer"] / "freezer.state").write_text("FROZEN")
    assert v1_only.sweep(prefix) == Swept((prefix,), ())
    assert ended(program) == -9


def test_a_process_that_joined_some_trees_only_is_found_and_ended(prefix: str) -> None:
    hybrid = CgroupsV1(ROOT, real_trees(), Files())
    with swept(hybrid, prefix):
        group = hybrid.make(prefix, BOUNDS)
        half = hybrid.standing({"pids": str(group.places["pids"])})
        program = start(half, EIGHT_DEAF_CHILDREN)
        heard(program, "started")
        assert group.populated()
        assert group.kill()
        assert ended(program) == -9
        assert group.remove() == ()


def test_leftovers_in_the_memory_group_of_another_session_are_swept(v1_only: CgroupsV1, prefix: str) -> None:
    session = ROOT / "memory" / f"session-of-{prefix}"
    (session / prefix).mkdir(parents=True)
    try:
        lost = v1_only.standing({"memory": str(session / prefix)})
        program = start(lost, EIGHT_DEAF_CHILDREN)
        heard(program, "started")
        assert v1_only.leftovers(prefix) == (prefix,)
        assert v1_only.sweep(prefix).removed == (prefix,)
        assert ended(program) == -9
        assert not (session / prefix).exists()
    finally:
        session.rmdir()


def test_the_kernels_event_on_removal_is_no_lack_of_memory(v1_only: CgroupsV1, prefix: str) -> None:
    group = v1_only.make(prefix, BOUNDS)
    assert group.oom_events is not None
    theirs = os.dup(group.oom_events)
    try:
        assert group.remove() == ()
        assert eventually(lambda: _readable(theirs))
        assert not group.oom_seen()
    finally:
        os.close(theirs)


def _readable(descriptor: int) -> bool:
    try:
        return os.eventfd_read(descriptor) > 0
    except BlockingIOError:
        return False


def test_a_core_is_asked_for_under_a_parent_with_half_of_one(prefix: str) -> None:
    examined = real_trees()
    parent = examined.trees["cpu"] / f"{prefix}-parent"
    parent.mkdir()
    try:
        (parent / "cpu.cfs_quota_us").write_text("50000")
        narrow = Examined("v1", {**examined.trees, "cpu": parent}, (), ())
        group = CgroupsV1(ROOT, narrow, Files()).make(prefix, BOUNDS)
        assert (parent / prefix / "cpu.cfs_quota_us").read_text() == "-1\n"  # the kernel refused: EINVAL
        assert group.remove() == ()
    finally:
        parent.rmdir()
