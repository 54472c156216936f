"""The groups that bound and measure runs: found on this machine, whichever version of cgroups it has.

Standard library only: the launcher imports this (`cgroup_files` says why).

The three ways it is met: v2 with a part of the tree handed over, v1, and v1 beside a bare v2 tree ("hybrid").  What a
machine lacks is told with the reason; nothing weaker is put in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from gateway.sandbox import cgroups_v1, cgroups_v2
from gateway.sandbox.cgroup_files import Bounds, Examined, Files, Finding, MechanismMissing
from gateway.sandbox.cgroup_trees import Swept

__all__ = ["Bounds", "Cgroups", "Examined", "Files", "Finding", "Group", "MechanismMissing", "Swept", "examine", "find"]

ROOT = Path("/sys/fs/cgroup")
PROC = Path("/proc")


class Group(Protocol):
    """One run's bounds and figures; the docstrings are those of `GroupTrees`, `GroupV1` and `GroupV2`."""

    places: dict[str, Path]
    directories: tuple[Path, ...]

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def join_paths(self) -> tuple[Path, ...]: ...  # noqa: D102
    @property
    def oom_events(self) -> int | None: ...  # noqa: D102
    @property
    def oom_watched(self) -> Path: ...  # noqa: D102
    def oom_seen(self) -> bool: ...  # noqa: D102
    def oom_kills(self) -> int | None: ...  # noqa: D102
    def cpu_us(self) -> int: ...  # noqa: D102
    def memory(self) -> int: ...  # noqa: D102
    def shared_memory(self) -> int | None: ...  # noqa: D102
    def peak_memory(self) -> int | None: ...  # noqa: D102
    def peak_tasks(self) -> int | None: ...  # noqa: D102
    def task_denials(self) -> int | None: ...  # noqa: D102
    def populated(self) -> bool: ...  # noqa: D102
    def begin_to_kill(self) -> None: ...  # noqa: D102
    def kill(self, within: float = 2.0) -> bool: ...  # noqa: D102
    def remove(self, within: float = 1.0) -> tuple[Path, ...]: ...  # noqa: D102


class Cgroups(Protocol):
    """Where groups are made and swept; `kind` is `v1`, `hybrid` or `v2`, `notes` what is worth knowing."""

    kind: str
    notes: tuple[Finding, ...]

    def make(self, name: str, bounds: Bounds) -> Group: ...  # noqa: D102
    def standing(self, places: Mapping[str, str]) -> Group: ...  # noqa: D102
    def leftovers(self, prefix: str) -> tuple[str, ...]: ...  # noqa: D102
    def sweep(self, prefix: str) -> Swept: ...  # noqa: D102


def find(root: Path = ROOT, *, proc: Path = PROC, files: Files | None = None) -> Cgroups:
    """Return the cgroups of this machine, ready for runs.

    On v2 this enables the controllers in this process's part of the tree, and moves the processes there to a leaf.

    Raises:
        MechanismMissing: something is missing; `findings` holds all of it.
    """
    files = files or Files()
    examined = examine(root, proc=proc, files=files)
    if examined.missing:
        raise MechanismMissing(*examined.missing)
    if examined.kind == "v2":
        return cgroups_v2.CgroupsV2(root, examined, files)
    return cgroups_v1.CgroupsV1(root, examined, files)


def examine(root: Path = ROOT, *, proc: Path = PROC, files: Files | None = None) -> Examined:
    """Return what is there and what is missing, and change nothing: for the doctor."""
    files = files or Files()
    if (root / "cgroup.controllers").exists():
        return cgroups_v2.examine(root, proc, files)
    if any((root / controller / "cgroup.procs").exists() for controller in cgroups_v1.NEEDED):
        return cgroups_v1.examine(root, proc, files)
    return Examined("none", {}, (_none_at(root),), ())


def _none_at(root: Path) -> Finding:
    return Finding(
        "sandbox.cgroups_missing",
        f"no cgroups are mounted at {root}",
        "nothing can bound or measure a run",
        f"mount -t cgroup2 cgroup2 {root}",
    )
