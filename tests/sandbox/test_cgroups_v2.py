"""v2: what is written and read, what is missing told, and moving to a leaf, the last on a real v2 tree too."""

from __future__ import annotations

import errno
import os
import select
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.sandbox import cgroups_v2
from gateway.sandbox.cgroup_files import Files, members
from gateway.sandbox.cgroup_trees import LEAF, GroupTrees
from gateway.sandbox.cgroups import ROOT, Bounds, Cgroups, MechanismMissing, Swept, examine, find
from tests.sandbox.fake_cgroups import FakeFiles, a_v2_machine
from tests.sandbox.in_groups import MIB, a_prefix, descriptors, standing, unavailable

BOUNDS = Bounds(memory_bytes=64 * MIB, tasks=34)
UNIT = "system.slice/gateway.service"
SWAPPING = "Filename Type Size Used Priority\n/dev/sda2 partition 1048572 0 -2\n"


def delegated(at: Path, *, processes: str = "41\n42\n") -> tuple[FakeFiles, Path]:
    """Make a machine whose systemd handed the node's unit over to it, with processes in it as systemd starts them."""
    files, proc = a_v2_machine(at, own=f"/{UNIT}")
    files.put("system.slice", {"cgroup.subtree_control": "cpu memory pids\n"})
    files.put(UNIT, {"cgroup.procs": processes})
    os.setxattr(files.root / UNIT, "user.delegate", b"1")
    return files, proc


def found(at: Path) -> tuple[Cgroups, FakeFiles]:
    files, proc = delegated(at)
    cgroups = find(files.root, proc=proc, files=files)
    files.written.clear()
    return cgroups, files


def test_every_bound_is_written_where_the_kernel_reads_it(tmp_path: Path) -> None:
    cgroups, files = found(tmp_path)
    group = cgroups.make("gateway-one", BOUNDS)
    assert files.written == [
        (f"{UNIT}/gateway-one/memory.max", "67108864"),
        (f"{UNIT}/gateway-one/pids.max", "34"),
        (f"{UNIT}/gateway-one/cpu.max", "100000 100000"),
        (f"{UNIT}/gateway-one/memory.swap.max", "0"),
        (f"{UNIT}/gateway-one/memory.oom.group", "1"),
    ]
    assert cgroups.kind == "v2"
    assert group.name == "gateway-one"
    assert group.join_paths == (files.root / UNIT / "gateway-one" / "cgroup.procs",)
    assert group.remove() == ()
    assert standing(files.root, "gateway-one") == []


def test_two_cores_are_twice_the_period(tmp_path: Path) -> None:
    cgroups, files = found(tmp_path)
    assert cgroups.make("gateway-one", Bounds(MIB, 4, cpu_cores=2)).remove() == ()
    assert (f"{UNIT}/gateway-one/cpu.max", "200000 100000") in files.written


def test_every_figure_is_read_where_the_kernel_writes_it(tmp_path: Path) -> None:
    cgroups, files = found(tmp_path)
    group = cgroups.make("gateway-one", BOUNDS)
    files.put(
        f"{UNIT}/gateway-one",
        {
            "cpu.stat": "usage_usec 123456\nuser_usec 100000\nsystem_usec 23456\ncore_sched.force_idle_usec 0\n",
            "memory.current": "1001\n",
            "memory.peak": "2002\n",
            "memory.stat": "anon 7\nfile 9\nshmem 303\n",
            "memory.events": "low 0\nhigh 0\nmax 17\noom 2\noom_kill 4\noom_group_kill 1\n",
            "pids.peak": "5\n",
            "pids.events": "max 6\n",
        },
    )
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
    files.absent |= {"memory.peak", "pids.peak", "pids.events", "memory.stat"}
    group = cgroups.make("gateway-one", BOUNDS)
    assert (group.peak_memory(), group.peak_tasks(), group.task_denials()) == (None, None, None)
    assert group.shared_memory() is None
    assert group.remove() == ()


def test_figures_of_a_group_that_is_gone_are_none(tmp_path: Path) -> None:
    cgroups, files = found(tmp_path)
    group = cgroups.make("gateway-one", BOUNDS)
    for number in (errno.ENOENT, errno.ENODEV):
        files.refuse("read", "memory.peak", number)
        assert group.peak_memory() is None
    files.refuse("read", "memory.peak", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        group.peak_memory()
    assert group.remove() == ()


def test_the_descriptor_tells_when_memory_runs_out(tmp_path: Path) -> None:
    cgroups, files = found(tmp_path)
    group = cgroups.make("gateway-one", BOUNDS)
    assert group.oom_watched == files.root / UNIT / "gateway-one" / "memory.events"
    events = group.oom_events
    assert events is not None
    assert select.select([events], [], [], 0)[0] == []
    group.oom_watched.write_text("low 0\nhigh 0\nmax 3\noom 0\noom_kill 0\n")
    assert select.select([events], [], [], 5)[0] == [events]
    assert not group.oom_seen()  # memory was reclaimed at the bound, and sufficed
    assert select.select([events], [], [], 0)[0] == []
    group.oom_watched.write_text("low 0\nhigh 0\nmax 4\noom 1\noom_kill 0\n")
    assert select.select([events], [], [], 5)[0] == [events]
    assert group.oom_seen()
    assert group.remove() == ()
    assert group.oom_events == -1


def test_a_kernel_that_cannot_end_a_group_as_a_whole_is_watched(tmp_path: Path) -> None:
    cgroups, files = found(tmp_path)
    files.absent.add("memory.oom.group")
    group = cgroups.make("gateway-one", BOUNDS)
    assert group.oom_events is not None
    assert group.remove() == ()


def test_events_that_cannot_be_watched_have_no_descriptor(tmp_path: Path) -> None:
    cgroups, files = found(tmp_path)
    files.absent.add("memory.events")
    before = descriptors()
    group = cgroups.make("gateway-one", BOUNDS)
    assert group.oom_events is None
    assert descriptors() == before
    assert not group.oom_seen()
    assert group.oom_kills() is None
    assert group.remove() == ()


def test_killing_is_one_write_and_proved_by_the_kernels_word(tmp_path: Path) -> None:
    cgroups, files = found(tmp_path)
    group = cgroups.make("gateway-one", BOUNDS)
    files.put(f"{UNIT}/gateway-one", {"cgroup.events": "populated 1\nfrozen 0\n"})
    files.written.clear()
    assert group.populated()
    assert group.kill()
    assert files.written == [(f"{UNIT}/gateway-one/cgroup.kill", "1")]
    assert not group.populated()
    assert group.remove() == ()


def test_a_group_that_stays_populated_is_told_within_its_time(tmp_path: Path) -> None:
    cgroups, files = found(tmp_path)
    group = cgroups.make("gateway-one", BOUNDS)
    files.absent.add("cgroup.kill")
    files.refuse("write", "cgroup.kill", errno.ENOENT, times=-1)
    files.put(f"{UNIT}/gateway-one", {"cgroup.events": "populated 1\nfrozen 1\n"})
    assert not group.kill(within=0.02)
    assert files.written[-1] == (f"{UNIT}/gateway-one/cgroup.freeze", "0")
    files.put(f"{UNIT}/gateway-one", {"cgroup.events": "populated 0\nfrozen 0\n"})
    assert group.remove() == ()


def test_removal_is_tried_again_while_the_kernel_is_busy(tmp_path: Path) -> None:
    cgroups, files = found(tmp_path)
    group = cgroups.make("gateway-one", BOUNDS)
    files.refuse("rmdir", "gateway-one", errno.EBUSY, times=5)
    assert group.remove() == ()
    assert files.rmdirs == 6


def test_removal_gives_up_in_time_and_says_what_stands(tmp_path: Path) -> None:
    cgroups, files = found(tmp_path)
    group = cgroups.make("gateway-one", BOUNDS)
    files.refuse("rmdir", "gateway-one", errno.EBUSY, times=10_000)
    assert group.remove(within=0.02) == (files.root / UNIT / "gateway-one",)


def test_removal_that_is_not_permitted_is_not_tried_again(tmp_path: Path) -> None:
    cgroups, files = found(tmp_path)
    group = cgroups.make("gateway-one", BOUNDS)
    files.refuse("rmdir", "gateway-one", errno.EACCES, times=10)
    assert group.remove() == (files.root / UNIT / "gateway-one",)
    assert files.rmdirs == 1


def test_processes_move_to_a_leaf_before_controllers_are_enabled(tmp_path: Path) -> None:
    files, proc = delegated(tmp_path)
    assert examine(files.root, proc=proc, files=files).missing == ()
    assert files.written == []
    find(files.root, proc=proc, files=files)
    assert files.written == [
        (f"{UNIT}/{LEAF}/cgroup.procs", "41"),
        (f"{UNIT}/{LEAF}/cgroup.procs", "42"),
        (f"{UNIT}/cgroup.subtree_control", "+memory +pids +cpu"),
    ]
    assert members(files, files.root / UNIT / LEAF) == [41, 42]
    assert members(files, files.root / UNIT) == []


def test_a_process_that_ends_or_forks_meanwhile_is_no_obstacle(tmp_path: Path) -> None:
    files, proc = delegated(tmp_path, processes="41\n42\n43\n")
    files.refuse("write", "cgroup.procs", errno.ESRCH)
    find(files.root, proc=proc, files=files)
    assert (files.root / UNIT / "cgroup.subtree_control").read_text() == "memory pids cpu\n"


def test_processes_that_keep_coming_are_given_up_on(tmp_path: Path) -> None:
    files, proc = delegated(tmp_path)
    files.refuse("write", "cgroup.subtree_control", errno.EBUSY, times=1000)
    with pytest.raises(OSError, match="keep coming"):
        find(files.root, proc=proc, files=files)


def test_whoever_is_in_the_leaf_already_makes_groups_beside_it(tmp_path: Path) -> None:
    files, proc = delegated(tmp_path)
    find(files.root, proc=proc, files=files)
    files.written.clear()
    (proc / "self" / "cgroup").write_text(f"0::/{UNIT}/{LEAF}\n")
    group = find(files.root, proc=proc, files=files).make("gateway-one", BOUNDS)
    assert group.places["unified"] == files.root / UNIT / "gateway-one"
    assert not any("subtree_control" in path for path, _ in files.written)
    assert group.remove() == ()


def test_a_service_in_a_subgroup_of_what_was_delegated_makes_groups_beside_itself(tmp_path: Path) -> None:
    files, proc = delegated(tmp_path, processes="")
    files.put(f"{UNIT}/main", {"cgroup.procs": "41\n"})
    (proc / "self" / "cgroup").write_text(f"0::/{UNIT}/main\n")
    group = find(files.root, proc=proc, files=files).make("gateway-one", BOUNDS)
    assert group.places["unified"] == files.root / UNIT / "gateway-one"
    assert files.written[0] == (f"{UNIT}/cgroup.subtree_control", "+memory +pids +cpu")
    assert group.remove() == ()


@pytest.mark.parametrize("own", ["/", "/../../elsewhere", "/not/mounted/here"])
def test_the_root_of_a_namespace_is_this_process_own(tmp_path: Path, own: str) -> None:
    files, proc = a_v2_machine(tmp_path, own=own)
    group = find(files.root, proc=proc, files=files).make("gateway-one", BOUNDS)
    assert group.places["unified"] == files.root / "gateway-one"
    assert group.remove() == ()


def test_a_unit_that_was_not_handed_over_is_left_alone(tmp_path: Path) -> None:
    files, proc = delegated(tmp_path)
    os.removexattr(files.root / UNIT, "user.delegate")
    with pytest.raises(MechanismMissing) as missing:
        find(files.root, proc=proc, files=files)
    assert missing.value.reason == "sandbox.cgroup_not_delegated"
    assert "Delegate=yes" in missing.value.findings[0].fix
    assert files.written == []


def test_a_user_owns_what_it_was_handed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, proc = delegated(tmp_path)
    os.removexattr(files.root / UNIT, "user.delegate")
    owner = 1234
    monkeypatch.setattr(os, "geteuid", lambda: owner)
    monkeypatch.setattr(os, "access", lambda _path, _mode: True)
    assert [each.reason for each in examine(files.root, proc=proc).missing] == ["sandbox.cgroup_not_delegated"]
    os.chown(files.root / UNIT, owner, -1)
    assert examine(files.root, proc=proc).missing == ()


@pytest.mark.parametrize("controller", ["memory", "pids", "cpu"])
def test_a_controller_that_is_not_handed_down_is_told_with_its_fix(tmp_path: Path, controller: str) -> None:
    files, proc = delegated(tmp_path)
    kept = " ".join(each for each in ("memory", "pids", "cpu") if each != controller)
    files.put(UNIT, {"cgroup.controllers": f"{kept}\n"})
    with pytest.raises(MechanismMissing) as missing:
        find(files.root, proc=proc, files=files)
    assert missing.value.reason == f"sandbox.{controller}_controller_missing"
    assert "Delegate=memory pids cpu" in missing.value.findings[0].fix
    assert files.written == []


def test_a_controller_that_another_tree_has_is_told_with_another_fix(tmp_path: Path) -> None:
    files, proc = a_v2_machine(tmp_path, own="/", controllers="cpu pids")
    [finding] = examine(files.root, proc=proc).missing
    assert finding.reason == "sandbox.memory_controller_missing"
    assert "unmount a v1 tree of memory" in finding.fix


def test_a_controller_that_the_kernel_was_told_to_do_without_has_a_third(tmp_path: Path) -> None:
    files, proc = a_v2_machine(tmp_path, own="/", controllers="cpu pids")
    (proc / "cgroups").write_text("#subsys_name\thierarchy\tnum_cgroups\tenabled\nmemory\t0\t1\t0\n")
    [finding] = examine(files.root, proc=proc).missing
    assert "cgroup_disable=memory" in finding.fix


def test_a_kernel_that_counts_no_processor_time_is_told(tmp_path: Path) -> None:
    files, proc = a_v2_machine(tmp_path, own="/")
    (files.root / "cpu.stat").unlink()
    [finding] = examine(files.root, proc=proc).missing
    assert finding.reason == "sandbox.cpu_accounting_missing"


def test_a_tree_mounted_read_only_is_told_before_any_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, proc = delegated(tmp_path)
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    [finding] = examine(files.root, proc=proc).missing
    assert (finding.reason, finding.fact.split()[0]) == ("sandbox.cgroup_not_writable", str(files.root / UNIT))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_controllers_that_may_not_be_enabled_are_told(tmp_path: Path, number: int) -> None:
    files, proc = delegated(tmp_path)
    files.refuse("write", "cgroup.subtree_control", number)
    with pytest.raises(MechanismMissing) as missing:
        find(files.root, proc=proc, files=files)
    assert missing.value.reason == "sandbox.cgroup_not_writable"


@pytest.mark.parametrize(("deed", "name"), [("mkdir", "gateway-one"), ("write", "cpu.max")])
def test_what_may_not_be_written_is_told_and_nothing_stays(tmp_path: Path, deed: str, name: str) -> None:
    cgroups, files = found(tmp_path)
    files.refuse(deed, name, errno.EACCES)
    with pytest.raises(MechanismMissing) as missing:
        cgroups.make("gateway-one", BOUNDS)
    assert missing.value.reason == "sandbox.cgroup_not_writable"
    assert standing(files.root, "gateway-one") == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("memory.max", "sandbox.memory_controller_missing"),
        ("pids.max", "sandbox.pids_controller_missing"),
        ("cpu.max", "sandbox.cpu_controller_missing"),
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
    assert standing(files.root, "gateway-one") == []


def test_swap_that_is_not_counted_is_noted_and_no_obstacle(tmp_path: Path) -> None:
    files, proc = delegated(tmp_path)
    (files.root / UNIT / "memory.swap.max").unlink()
    assert find(files.root, proc=proc, files=files).notes == ()  # the machine has none
    (proc / "swaps").write_text(SWAPPING)
    for each in files.root.rglob("memory.swap.max"):
        each.unlink()
    files.absent.add("memory.swap.max")
    cgroups = find(files.root, proc=proc, files=files)
    assert [note.reason for note in cgroups.notes] == ["sandbox.swap_accounting_missing"]
    assert cgroups.make("gateway-one", BOUNDS).remove() == ()


def test_counted_swap_is_nothing_to_note(tmp_path: Path) -> None:
    files, proc = delegated(tmp_path)
    (proc / "swaps").write_text(SWAPPING)
    assert examine(files.root, proc=proc, files=files).notes == ()


def test_a_sweep_takes_leftovers_anywhere_and_neither_the_node_nor_units(tmp_path: Path) -> None:
    files, proc = delegated(tmp_path)
    cgroups = find(files.root, proc=proc, files=files)
    files.put("user.slice/session-3.scope/gateway-old", {"cgroup.events": "populated 1\nfrozen 0\n"})
    files.put(f"{UNIT}/gateway-older/within", {})
    files.put("system.slice/gateway-backup.service", {})
    assert sorted(cgroups.leftovers("gateway")) == ["gateway-old", "gateway-older"]
    swept = cgroups.sweep("gateway")
    assert (sorted(swept.removed), swept.left) == (["gateway-old", "gateway-older"], ())
    assert cgroups.leftovers("gateway") == ()
    assert {each.name for each in standing(files.root, "gateway")} == {
        "gateway.service",
        "gateway-backup.service",
        LEAF,
    }


def test_a_leftover_that_cannot_be_removed_is_told(tmp_path: Path) -> None:
    cgroups, files = found(tmp_path)
    cgroups.make("gateway-one", BOUNDS)
    files.refuse("rmdir", "gateway-one", errno.EACCES)
    assert cgroups.sweep("gateway-one") == Swept((), (files.root / UNIT / "gateway-one",))
    assert cgroups.sweep("gateway-one").removed == ("gateway-one",)


# -- on the v2 tree of a real kernel, with whatever controller is free there -------------------------------------------


@pytest.fixture
def part() -> Iterator[tuple[Path, str]]:
    """Make a group on the real tree that processes can be moved in, and name a controller it can hand down."""
    root = next((each for each in (ROOT, ROOT / "unified") if (each / "cgroup.controllers").exists()), None)
    if root is None or os.geteuid() != 0:
        unavailable("no cgroup v2 tree here, or no root")
        raise AssertionError
    free = (root / "cgroup.controllers").read_text().split()
    if not free:
        pytest.skip("this kernel's v1 trees hold every controller")
    before = (root / "cgroup.subtree_control").read_text().split()
    group = root / a_prefix()
    group.mkdir()
    if free[0] not in before:
        (root / "cgroup.subtree_control").write_text(f"+{free[0]}")
    try:
        yield group, free[0]
    finally:
        (group / "cgroup.kill").write_text("1")
        assert GroupTrees({"unified": group}, Files()).remove() == ()
        if free[0] not in before:
            (root / "cgroup.subtree_control").write_text(f"-{free[0]}")


def test_the_kernel_demands_the_leaf_and_is_content_with_it(part: tuple[Path, str]) -> None:
    group, controller = part
    programs = [subprocess.Popen(["/bin/sleep", "60"]) for _ in range(3)]
    try:
        for each in programs:
            (group / "cgroup.procs").write_text(str(each.pid))
        with pytest.raises(OSError, match="busy"):
            (group / "cgroup.subtree_control").write_text(f"+{controller}")
        cgroups_v2.enable(group, (controller,), Files())
        assert (group / "cgroup.subtree_control").read_text().split() == [controller]
        assert sorted(members(Files(), group / LEAF)) == sorted(each.pid for each in programs)
        assert members(Files(), group) == []
        cgroups_v2.enable(group, (controller,), Files())
    finally:
        for each in programs:
            each.kill()
            each.wait()


def test_the_mark_of_delegation_is_read_from_the_kernel(part: tuple[Path, str]) -> None:
    group, _ = part
    assert not cgroups_v2._marked(group)
    os.setxattr(group, "user.delegate", b"1")
    assert cgroups_v2._marked(group)
