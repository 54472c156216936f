"""What both versions of cgroups share: bounds, what a machine lacks, and the kernel's files read and written.

This module and its siblings (`cgroups` and all whose names begin so) import the standard library and
each other only: the launcher imports them, holds privilege, and must start fast; what it does not import it need not
trust.  Hence dataclasses here, and attrs elsewhere.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

CPU_PERIOD_US = 100_000
"""The period over which a group's share of the processors is reckoned: the kernel's own default.

Within it a group runs ahead on every core there is; who waits for it to use so much time looks again after that much
divided by the machine's cores.
"""

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{5,63}")
"""Names of groups, and prefixes of them: long enough to be one node's alone."""

NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a group may use: bytes of memory (files in memory count), tasks (processes and threads), whole cores."""

    memory_bytes: int
    tasks: int
    cpu_cores: int = 1


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about this machine: the machine's word for it, the fact, what follows, and the exact fix."""

    reason: str
    fact: str
    consequence: str
    fix: str


class MechanismMissing(Exception):
    """This machine cannot bound or measure a run; `findings` says all that is missing, `reason` the first of it."""

    def __init__(self, *findings: Finding) -> None:
        super().__init__("; ".join(f"{each.reason}: {each.fact}" for each in findings))
        self.findings = findings

    @property
    def reason(self) -> str:
        """Return the machine's word for the first thing missing."""
        return self.findings[0].reason


@dataclass(frozen=True, slots=True)
class Examined:
    """What was found: a directory to make groups in for each tree, all that is missing, and what is worth knowing.

    `kind` is `v2`, `v1`, `hybrid` (v1 beside a bare v2 tree) or `none`.
    """

    kind: str
    trees: dict[str, Path]
    missing: tuple[Finding, ...]
    notes: tuple[Finding, ...]


class Files:
    """The four things that are done with a tree of cgroups; tests put the kernel's answers in their place."""

    def read(self, path: Path) -> str:
        """Return the whole content."""
        # Not Path.read_text, which takes three times as long: this is read again and again while a run lives.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts = []
            while part := os.read(descriptor, 1 << 16):
                parts.append(part)
        finally:
            os.close(descriptor)
        return b"".join(parts).decode()

    def write(self, path: Path, text: str) -> None:
        """Write in one go, and never make a file: where the kernel has none, ENOENT tells so."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def mkdir(self, path: Path) -> None:
        """Make a group."""
        path.mkdir()

    def rmdir(self, path: Path) -> None:
        """Remove a group."""
        path.rmdir()


class Descriptor:
    """A file descriptor that is closed once, however often that is asked."""

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        """Return its number, or -1 after `close`."""
        return self._number

    def close(self) -> None:
        """Close it."""
        if self._number >= 0:
            os.close(self._number)
            self._number = -1


def content(files: Files, path: Path) -> str | None:
    """Return what is in a file, or None where this kernel has none such, or its group is gone."""
    try:
        return files.read(path)
    except OSError as absent:
        if absent.errno in {errno.ENOENT, errno.ENODEV}:
            return None
        raise


def number(files: Files, path: Path) -> int | None:
    """Return the number in a file, or None where this kernel has no such file."""
    text = content(files, path)
    return None if text is None else int(text)


def fields(files: Files, path: Path) -> dict[str, int]:
    """Return the `name number` lines of a file (`cpu.stat`, `memory.events`), none where there is no such file."""
    pairs = (line.split() for line in (content(files, path) or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def members(files: Files, group: Path) -> list[int]:
    """Return the processes in a group, but not those outside this pid namespace, which the kernel lists as 0."""
    return [int(line) for line in (content(files, group / "cgroup.procs") or "").split() if line != "0"]


def own_paths(files: Files, proc: Path) -> dict[str, str]:
    """Return this process's path in each tree by controller; that of the cgroup v2 tree under the empty name."""
    paths = {}
    for line in files.read(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def own_place(mounted: Path, path: str) -> Path:
    """Return this process's group in a tree mounted here, or the mount itself where the path is of elsewhere.

    A container without a cgroup namespace reads its path on the host and has only its own part mounted; a process
    outside its mount's namespace reads `/../..`.
    """
    mounted = mounted.resolve()
    place = mounted / path.lstrip("/")
    return place if ".." not in place.parts and place.is_dir() else mounted


def switched_off(files: Files, proc: Path, controller: str) -> bool:
    """Return True where the kernel knows the controller and was started with it disabled."""
    lines = [line.split() for line in (content(files, proc / "cgroups") or "").splitlines()]
    return any(line[0] == controller and line[-1] == "0" for line in lines)


def swaps(files: Files, proc: Path) -> bool:
    """Return True where the machine has swap space (the first line of the file is its heading)."""
    return len((content(files, proc / "swaps") or "").splitlines()) > 1


def make_group(files: Files, base: Path, name: str) -> Path:
    """Make one directory, and return it.

    Raises:
        MechanismMissing: none may be made there.
        FileExistsError: there is one.
        ValueError: the name could be the kernel's, or lead elsewhere.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a group: 6 to 64 of a-z, 0-9, dot, dash, underscore")
    try:
        files.mkdir(base / name)
    except OSError as refused:
        if refused.errno in NOT_WRITABLE:
            raise MechanismMissing(not_writable(base)) from None
        raise
    return base / name


def bound(files: Files, controller: str, path: Path, value: object) -> None:
    """Write one bound.

    Raises:
        MechanismMissing: this kernel has no such file, or it may not be written.
        OSError: anything else.
    """
    try:
        files.write(path, str(value))
    except FileNotFoundError:
        raise MechanismMissing(bound_missing(controller, path)) from None
    except OSError as refused:
        if refused.errno in NOT_WRITABLE:
            raise MechanismMissing(not_writable(path)) from None
        raise


def not_writable(path: Path) -> Finding:
    """Say that groups cannot be made here."""
    return Finding(
        "sandbox.cgroup_not_writable",
        f"{path} cannot be written by uid {os.geteuid()}",
        "no group can be made for a run, so nothing would bound it",
        "start the node's launcher as root; without root, use cgroup v2 (where v1 is mounted, start the kernel with "
        "`systemd.unified_cgroup_hierarchy=1`) and set `Delegate=yes` in the node's systemd unit; "
        "in a container, mount /sys/fs/cgroup read-write with a cgroup namespace of its own",
    )


def controller_missing(controller: str, fact: str, fix: str) -> Finding:
    """Say that a controller is missing, and what it would have bounded."""
    unbounded = {
        "memory": "the memory of a run cannot be bounded",
        "pids": "the number of processes of a run cannot be bounded",
        "cpu": "a run cannot be held to its share of the processors",
        "cpuacct": "the processor time of a run cannot be measured, so neither bounded nor told",
    }
    reasons = {"cpuacct": "sandbox.cpu_accounting_missing"}
    return Finding(
        reasons.get(controller, f"sandbox.{controller}_controller_missing"), fact, unbounded[controller], fix
    )


def disabled(controller: str) -> Finding:
    """Say that the kernel was told to go without a controller."""
    return controller_missing(
        controller,
        f"the kernel was started with the {controller} controller disabled",
        f"take `cgroup_disable={controller}` off the kernel's command line (some boards need "
        f"`cgroup_enable={controller}`) and start the machine anew",
    )


def bound_missing(controller: str, path: Path) -> Finding:
    """Say that a controller is there, and not the file of one of its bounds."""
    return controller_missing(
        controller,
        f"the {controller} controller of this kernel has no {path.name}",
        "use a kernel of version 4.15 or later that is built with CONFIG_MEMCG, CONFIG_CGROUP_PIDS "
        "and CONFIG_CFS_BANDWIDTH",
    )


def swap_unbounded(fact: str) -> Finding:
    """Say that a run may swap (a note: its memory stays bounded, what it swaps out does not)."""
    return Finding(
        "sandbox.swap_accounting_missing",
        fact,
        "what a run swaps out is not counted: it is slowed down where it would have been ended",
        "start the kernel with `swapaccount=1`, or turn swap off (`swapoff -a`)",
    )
