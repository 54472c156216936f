"""cgroup v2: one tree, in which this process has a part of its own to make groups in.

The part is the group that the node was started in (systemd: `Delegate=yes`), or the root of a cgroup namespace.  A
group with controllers for its children may have no process of its own, so those there are move to a leaf first.
Standard library only (`cgroup_files`).  Source: the kernel's Documentation/admin-guide/cgroup-v2, systemd's
CGROUP_DELEGATION.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gateway.sandbox.cgroup_files import (
    CPU_PERIOD_US,
    NOT_WRITABLE,
    Bounds,
    Descriptor,
    Examined,
    Files,
    Finding,
    MechanismMissing,
    bound,
    controller_missing,
    disabled,
    fields,
    make_group,
    members,
    not_writable,
    number,
    own_paths,
    own_place,
    swap_unbounded,
    swaps,
    switched_off,
)
from gateway.sandbox.cgroup_trees import LEAF, UNIFIED, GroupTrees, Swept, leftovers, sweep

NEEDED = ("memory", "pids", "cpu")
TREE = UNIFIED
MOST_MOVES = 20
"""How often the processes of the part are listed and moved; one may fork between the two."""
MODIFIED = 0x2
"""IN_MODIFY of inotify(7)."""


def examine(root: Path, proc: Path, files: Files) -> Examined:
    """Find this process's part of the tree and what it may do there; changes nothing."""
    base = _part(root.resolve(), own_paths(files, proc).get("", "/"))
    has = files.read(base / "cgroup.controllers").split()
    missing = [
        _no_controller(each, base, files, root, off=switched_off(files, proc, each))
        for each in NEEDED
        if each not in has
    ]
    if not (base / "cpu.stat").exists():
        missing.append(_no_accounting(base / "cpu.stat"))
    lacking = _lacking(files, base, NEEDED)
    doors = [base, base / "cgroup.procs", *([base / "cgroup.subtree_control"] if lacking else [])]
    missing += [not_writable(each) for each in doors if not os.access(each, os.W_OK)][:1]
    if lacking and members(files, base) and base != root.resolve() and not _delegated(base):
        missing.append(_not_delegated(base))
    return Examined("v2", {TREE: base}, tuple(missing), _swap_notes(base, proc, files))


def _part(root: Path, own: str) -> Path:
    here = own_place(root, own)
    if here == root:
        return root
    if here.name == LEAF:
        return here.parent
    # The parent's: systemd's DelegateSubgroup= starts a service one below the group it delegated.
    return here.parent if _marked(here.parent) and not _marked(here) else here


def _marked(group: Path) -> bool:
    for name in ("user.delegate", "trusted.delegate"):
        with suppress(OSError):
            if os.getxattr(group, name) == b"1":
                return True
    return False


def _delegated(group: Path) -> bool:
    return _marked(group) or group.stat().st_uid == os.geteuid() != 0


def _lacking(files: Files, base: Path, wanted: tuple[str, ...]) -> list[str]:
    enabled = files.read(base / "cgroup.subtree_control").split()
    return [each for each in wanted if each not in enabled]


def _swap_notes(base: Path, proc: Path, files: Files) -> tuple[Finding, ...]:
    # The root group has no bounds of its own, so any below it tells.
    bounded = [each.parent for each in (base / "memory.max", *base.glob("*/memory.max")) if each.exists()]
    if not bounded or any((each / "memory.swap.max").exists() for each in bounded) or not swaps(files, proc):
        return ()
    return (swap_unbounded("the machine swaps, and the memory controller has no memory.swap.max"),)


def _no_controller(controller: str, base: Path, files: Files, root: Path, *, off: bool) -> Finding:
    if off:
        return disabled(controller)
    if base != root.resolve() and controller in files.read(root / "cgroup.controllers").split():
        return controller_missing(
            controller,
            f"the {controller} controller is not handed down to {base}",
            "set `Delegate=memory pids cpu` in the node's systemd unit, then "
            "`systemctl daemon-reload` and restart the node",
        )
    return controller_missing(
        controller,
        f"the cgroup v2 tree at {root} has no {controller} controller",
        f"use a kernel with it, and leave it to v2: unmount a v1 tree of {controller}, "
        "or start the kernel with `systemd.unified_cgroup_hierarchy=1`",
    )


def _no_accounting(path: Path) -> Finding:
    return controller_missing("cpuacct", f"there is no {path}", "use a kernel of version 4.15 or later")


def _not_delegated(base: Path) -> Finding:
    return Finding(
        "sandbox.cgroup_not_delegated",
        f"{base} has processes and was not handed over to the node",
        "no controller can be enabled for runs there without moving processes that are not the node's",
        "set `Delegate=yes` in the node's systemd unit, or try it with `systemd-run --scope -p Delegate=yes`; "
        f"without systemd, start the node in a group of its own and mark it: `setfattr -n user.delegate -v 1 {base}`",
    )


class CgroupsV2:
    """Makes groups in one part of the tree; whoever makes this enables the controllers there, and may be moved."""

    def __init__(self, root: Path, examined: Examined, files: Files) -> None:
        self._roots = {TREE: root.resolve()}
        self._base = examined.trees[TREE]
        self._files = files
        self.kind = examined.kind
        self.notes = examined.notes
        enable(self._base, NEEDED, files)

    def make(self, name: str, bounds: Bounds) -> GroupV2:
        """Make a group under these bounds; nothing stays behind of one that could not be made.

        Raises:
            MechanismMissing: a bound has no file on this kernel, or may not be written.
            FileExistsError: there is such a group.
        """
        group = make_group(self._files, self._base, name)
        try:
            self._bound(group, bounds)
        except BaseException:
            GroupTrees({TREE: group}, self._files).remove()
            raise
        return GroupV2({TREE: group}, self._files, _modified(group / "memory.events"))

    def _bound(self, group: Path, bounds: Bounds) -> None:
        for name, value in (
            ("memory.max", bounds.memory_bytes),
            ("pids.max", bounds.tasks),
            ("cpu.max", f"{CPU_PERIOD_US * bounds.cpu_cores} {CPU_PERIOD_US}"),
        ):
            bound(self._files, name.split(".")[0], group / name, value)
        # Absent: without swap accounting, and before 4.19, where `oom_events` must do.
        for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
            with suppress(FileNotFoundError):
                self._files.write(group / name, value)

    def standing(self, places: Mapping[str, str]) -> GroupV2:
        """Return a group that another process of the node made, by its `places`; its `oom_events` stay there."""
        return GroupV2({tree: Path(path) for tree, path in places.items()}, self._files, None)

    def leftovers(self, prefix: str) -> tuple[str, ...]:
        """Return the names of groups that begin with `prefix`; changes nothing."""
        return tuple(group.name for group in self._leftovers(prefix))

    def sweep(self, prefix: str) -> Swept:
        """End and remove all groups whose name begins with `prefix`, which must be this node's alone."""
        return sweep(self._leftovers(prefix))

    def _leftovers(self, prefix: str) -> list[GroupTrees]:
        return leftovers(self._roots, {TREE: self._base / LEAF}, prefix, self._files)


def enable(base: Path, wanted: tuple[str, ...], files: Files) -> None:
    """Give the children of `base` these controllers, moving its processes to a leaf where they are in the way.

    Raises:
        MechanismMissing: it may not be written.
        OSError: the kernel refuses otherwise.
    """
    lacking = _lacking(files, base, wanted)
    if not lacking:
        return
    try:
        for _ in range(MOST_MOVES):
            try:
                files.write(base / "cgroup.subtree_control", " ".join(f"+{each}" for each in lacking))
            except OSError as refused:
                if refused.errno != errno.EBUSY:
                    raise
                _move_to_leaf(base, files)
            else:
                return
        raise OSError(errno.EBUSY, f"processes keep coming into {base}")
    except OSError as refused:
        if refused.errno in NOT_WRITABLE:
            raise MechanismMissing(not_writable(base / "cgroup.subtree_control")) from None
        raise


def _move_to_leaf(base: Path, files: Files) -> None:
    with suppress(FileExistsError):
        files.mkdir(base / LEAF)
    for pid in members(files, base):
        with suppress(ProcessLookupError):
            files.write(base / LEAF / "cgroup.procs", str(pid))


class GroupV2(GroupTrees):
    """One run's group.  Where a figure is None this kernel does not tell it."""

    def cpu_us(self) -> int:
        """Return the processor time of every process the group ever had, in microseconds, late by a tick at most."""
        return fields(self.files, self.places[TREE] / "cpu.stat")["usage_usec"]

    def memory(self) -> int:
        """Return the bytes charged now."""
        return int(self.files.read(self.places[TREE] / "memory.current"))

    def shared_memory(self) -> int | None:
        """Return how many of them are files in memory (tmpfs, shared memory)."""
        return fields(self.files, self.places[TREE] / "memory.stat").get("shmem")

    def peak_memory(self) -> int | None:
        """Return the most bytes that were ever charged; None before 5.19."""
        return number(self.files, self.places[TREE] / "memory.peak")

    def peak_tasks(self) -> int | None:
        """Return the most tasks there ever were; None before 6.1."""
        return number(self.files, self.places[TREE] / "pids.peak")

    def task_denials(self) -> int | None:
        """Return how often a fork was denied."""
        return fields(self.files, self.places[TREE] / "pids.events").get("max")

    def oom_kills(self) -> int | None:
        """Return how many processes were killed for want of memory."""
        return fields(self.files, self.oom_watched).get("oom_kill")

    @property
    def oom_watched(self) -> Path:
        """Return the file whose content changes when the group runs out of memory."""
        return self.places[TREE] / "memory.events"

    def oom_seen(self) -> bool:
        """Return True when memory ever ran out, or something was killed for it; makes `oom_events` wait anew."""
        if self._events is not None and self._events.fileno() >= 0:
            with suppress(BlockingIOError):
                os.read(self._events.fileno(), 65536)
        told = fields(self.files, self.oom_watched)
        return told.get("oom", 0) > 0 or told.get("oom_kill", 0) > 0


def _modified(path: Path) -> Descriptor | None:
    import ctypes

    kernel = ctypes.CDLL(None)
    descriptor: int = kernel.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        return None
    if kernel.inotify_add_watch(descriptor, os.fsencode(path), MODIFIED) < 0:
        os.close(descriptor)
        return None
    return Descriptor(descriptor)
