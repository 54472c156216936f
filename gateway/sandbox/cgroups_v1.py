"""cgroup v1: a tree for each controller, and beside them, where systemd calls it hybrid, a bare cgroup v2 tree.

v1 cannot end a group as a whole when one of its processes runs out of memory: eight children were killed so and
their parent exited 0.  Hence `oom_events`.  Standard library only (`cgroup_files`).  Source: the kernel's
Documentation/admin-guide/cgroup-v1 (memory, pids, cpuacct, freezer-subsystem) and scheduler/sched-bwc.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from gateway.sandbox.cgroup_files import (
    CPU_PERIOD_US,
    Bounds,
    Descriptor,
    Examined,
    Files,
    Finding,
    bound,
    controller_missing,
    disabled,
    fields,
    make_group,
    not_writable,
    number,
    own_paths,
    own_place,
    swap_unbounded,
    swaps,
    switched_off,
)
from gateway.sandbox.cgroup_trees import UNIFIED, GroupTrees, Swept, leftovers, sweep

NEEDED = ("memory", "pids", "cpu", "cpuacct")
FREEZER = "freezer"


def examine(root: Path, proc: Path, files: Files) -> Examined:
    """Find the trees and this process's place in each; changes nothing."""
    own = own_paths(files, proc)
    trees, missing, notes = {}, [], []
    for controller in (UNIFIED, *NEEDED, FREEZER):
        mounted = root / controller
        if (mounted / "cgroup.procs").exists():
            trees[controller] = own_place(mounted, own.get("" if controller == UNIFIED else controller, "/"))
        elif controller in NEEDED:
            missing.append(_not_mounted(controller, mounted, off=switched_off(files, proc, controller)))
    closed = [each for tree, each in trees.items() if tree != FREEZER and not _open(each)]
    if FREEZER in trees and not _open(trees[FREEZER]):
        # It holds still what `cgroup.kill` or a bound of no tasks ends as well (`GroupTrees.kill`).
        del trees[FREEZER]
    missing += [not_writable(each) for each in closed[:1]]
    if "memory" in trees and swaps(files, proc) and not (trees["memory"] / "memory.memsw.limit_in_bytes").exists():
        notes.append(swap_unbounded("the machine swaps, and the memory controller has no memory.memsw files"))
    return Examined("hybrid" if UNIFIED in trees else "v1", trees, tuple(missing), tuple(notes))


def _open(base: Path) -> bool:
    return os.access(base, os.W_OK | os.X_OK)


def _not_mounted(controller: str, mounted: Path, *, off: bool) -> Finding:
    if off:
        return disabled(controller)
    return controller_missing(
        controller,
        f"no {controller} controller is mounted at {mounted}",
        f"mkdir -p {mounted} && mount -t cgroup -o {controller} cgroup {mounted}",
    )


class CgroupsV1:
    """Makes groups in the trees given: a base directory for each controller, `unified` and `freezer` where mounted."""

    def __init__(self, root: Path, examined: Examined, files: Files) -> None:
        self._roots = {tree: (root / tree).resolve() for tree in examined.trees}
        self._bases = examined.trees
        self._files = files
        self.kind = examined.kind
        self.notes = examined.notes

    def make(self, name: str, bounds: Bounds) -> GroupV1:
        """Make a group under these bounds, in every tree; nothing stays behind of one that could not be made.

        Raises:
            MechanismMissing: a bound has no file on this kernel, or may not be written.
            FileExistsError: there is such a group.
        """
        made: dict[str, Path] = {}
        try:
            for tree, base in self._bases.items():
                if tree == FREEZER and (made.get(UNIFIED, base) / "cgroup.kill").exists():
                    continue
                together = base / name in made.values()  # often cpu and cpuacct
                made[tree] = base / name if together else make_group(self._files, base, name)
            self._bound(made, bounds)
            return GroupV1(made, self._files, _oom_events(made["memory"], self._files))
        except BaseException:
            if made:
                GroupTrees(made, self._files).remove()
            raise

    def _bound(self, places: Mapping[str, Path], bounds: Bounds) -> None:
        write = partial(bound, self._files)
        write("memory", places["memory"] / "memory.limit_in_bytes", bounds.memory_bytes)
        try:
            # With swap it may be no more than without, so it comes second.
            self._files.write(places["memory"] / "memory.memsw.limit_in_bytes", str(bounds.memory_bytes))
        except FileNotFoundError:
            self._files.write(places["memory"] / "memory.swappiness", "0")
        # A group inherits that nothing is killed: then a run would hang at its bound.
        write("memory", places["memory"] / "memory.oom_control", 0)
        write("pids", places["pids"] / "pids.max", bounds.tasks)
        write("cpu", places["cpu"] / "cpu.cfs_period_us", CPU_PERIOD_US)
        try:
            write("cpu", places["cpu"] / "cpu.cfs_quota_us", CPU_PERIOD_US * bounds.cpu_cores)
        except OSError as refused:
            # More than a group above may have: then that one holds the run to less.
            if refused.errno != errno.EINVAL:
                raise

    def standing(self, places: Mapping[str, str]) -> GroupV1:
        """Return a group that another process of the node made, by its `places`; its `oom_events` stay there."""
        return GroupV1({tree: Path(path) for tree, path in places.items()}, self._files, None)

    def leftovers(self, prefix: str) -> tuple[str, ...]:
        """Return the names of groups that begin with `prefix`; changes nothing."""
        return tuple(group.name for group in leftovers(self._roots, self._bases, prefix, self._files))

    def sweep(self, prefix: str) -> Swept:
        """End and remove all groups whose name begins with `prefix`, which must be this node's alone."""
        return sweep(leftovers(self._roots, self._bases, prefix, self._files))


class GroupV1(GroupTrees):
    """One run's group in each tree.  Where a figure is None this kernel does not tell it."""

    def cpu_us(self) -> int:
        """Return the processor time of every process the group ever had, in microseconds, late by a tick at most."""
        return int(self.files.read(self.places["cpuacct"] / "cpuacct.usage")) // 1000

    def memory(self) -> int:
        """Return the bytes charged now."""
        return int(self.files.read(self.places["memory"] / "memory.usage_in_bytes"))

    def shared_memory(self) -> int | None:
        """Return how many of them are files in memory (tmpfs, shared memory)."""
        told = fields(self.files, self.places["memory"] / "memory.stat")
        return told.get("total_shmem", told.get("shmem"))

    def peak_memory(self) -> int | None:
        """Return the most bytes that were ever charged."""
        return number(self.files, self.places["memory"] / "memory.max_usage_in_bytes")

    def peak_tasks(self) -> int | None:
        """Return the most tasks there ever were."""
        return number(self.files, self.places["pids"] / "pids.peak")

    def task_denials(self) -> int | None:
        """Return how often a fork was denied."""
        return fields(self.files, self.places["pids"] / "pids.events").get("max")

    def oom_kills(self) -> int | None:
        """Return how many processes were killed for want of memory."""
        return fields(self.files, self.oom_watched).get("oom_kill")

    @property
    def oom_watched(self) -> Path:
        """Return the file whose content changes when the group runs out of memory."""
        return self.places["memory"] / "memory.oom_control"

    def oom_seen(self) -> bool:
        """Return True when memory ran out since the last look, or something was ever killed for it.

        The kernel tells before it kills, so the count may still be 0.
        """
        if self._events is not None and self._events.fileno() >= 0:
            with suppress(BlockingIOError):
                return os.eventfd_read(self._events.fileno()) > 0
        return bool(self.oom_kills())


def _oom_events(group: Path, files: Files) -> Descriptor | None:
    events = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    control = -1
    try:
        control = os.open(group / "memory.oom_control", os.O_RDONLY | os.O_CLOEXEC)
        files.write(group / "cgroup.event_control", f"{events} {control}")
    except OSError:
        os.close(events)
        return None
    finally:
        if control >= 0:
            os.close(control)
    return Descriptor(events)
