"""What this machine offers the sandbox, as facts: what was found, what follows, the exact fix, a machine reason.

Nothing is changed and no command is run; what only a run shows, the canaries show.  A fact that closes is one for which
no run may be sold: nothing weaker is ever put in the place of what is missing.
"""

from __future__ import annotations

import re

import attrs

from gateway.sandbox import cgroups
from gateway.sandbox.cgroup_files import Examined
from gateway.sandbox.cgroup_trees import leftovers as groups_left
from gateway.sandbox.host_bubblewrap import bubblewrap, namespaces
from gateway.sandbox.host_machine import Fact, Grade, Machine, Wanted, closes, fine, note, of_finding
from gateway.sandbox.host_room import kernel_limits, memory
from gateway.sandbox.host_users import launcher, slot_users
from gateway.sandbox.image import PINNED, ImageRefused, closed_to_others, locate, verify
from gateway.sandbox.seccomp import FilterUnavailable, load_filter, require_kernel_support

__all__ = ["Fact", "Grade", "Host", "Machine", "Wanted", "examine", "leftovers"]

OLDEST_LINUX = (5, 8)
"""The first with `subset=pid` of proc(5)."""
UNSOLVED_BY_LAUNCHER = frozenset({"sandbox.cgroup_not_writable", "sandbox.cgroup_not_delegated"})
"""What a launcher with more privilege than the node is not stopped by."""


@attrs.frozen
class Host:
    """All facts, in the order in which things are needed."""

    facts: tuple[Fact, ...]

    @property
    def closing(self) -> tuple[Fact, ...]:
        """The facts for which no run may be sold; the first is told where there is room for one."""
        return tuple(each for each in self.facts if each.grade is Grade.CLOSES)


def examine(wanted: Wanted, machine: Machine | None = None) -> Host:
    """Look at this machine, for a second at most where the image is looked at; blocking."""
    machine = machine or Machine()
    return Host(
        (
            kernel(machine),
            system_call_filter(machine),
            *bubblewrap(machine),
            namespaces(machine, wanted),
            *groups(machine, wanted),
            launcher(machine, wanted),
            *slot_users(machine, wanted),
            memory(machine, wanted),
            *kernel_limits(machine, wanted),
            *image(machine, wanted),
        )
    )


def kernel(machine: Machine) -> Fact:
    """Look at the kernel's version: each run's /proc has to be reduced to the run's own processes."""
    name = "kernel"
    release = machine.read("sys/kernel/osrelease")
    told = re.match(r"(\d+)\.(\d+)", release or "")
    if told is None or (int(told[1]), int(told[2])) < OLDEST_LINUX:
        return closes(
            name,
            "sandbox.kernel_too_old",
            f"Linux {release}" if release else "this is no Linux",
            "a command would see much of the host in /proc",
            "run the node on Linux 5.8 or newer",
        )
    return fine(name, f"Linux {release}")


def system_call_filter(machine: Machine) -> Fact:
    """Look whether the kernel takes filters, and whether there is one for this architecture, whole."""
    name = "system-call filter"
    try:
        require_kernel_support(machine.proc / "sys/kernel/seccomp/actions_avail")
        digests = [load_filter(machine.arch, single=single).digest for single in (False, True)]
    except FilterUnavailable as error:
        fixes = {
            "sandbox.seccomp_unsupported": "run the node on x86_64 or aarch64, on Linux with CONFIG_SECCOMP_FILTER",
            "sandbox.filter_digest_mismatch": "install gateway anew",
        }
        return closes(
            name, error.reason, str(error), "a command could make every system call of the kernel", fixes[error.reason]
        )
    return fine(name, f"{machine.arch}, {digests[0]}")


def groups(machine: Machine, wanted: Wanted) -> list[Fact]:
    """Look at the cgroups: what bounds and measures a run."""
    name = "cgroups"
    found = _examined(machine)
    ours = machine.uid == 0 or not wanted.launcher
    missing = [each for each in found.missing if ours or each.reason not in UNSOLVED_BY_LAUNCHER]
    facts = [of_finding(name, Grade.CLOSES, each) for each in missing]
    facts += [of_finding(name, Grade.NOTE, each) for each in found.notes]
    return facts or [fine(name, f"{found.kind}: memory, pids and cpu can be bounded")]


def _examined(machine: Machine) -> Examined:
    return cgroups.examine(machine.cgroups, proc=machine.proc, files=machine.files)


def image(machine: Machine, wanted: Wanted) -> list[Fact]:
    """Hash the image and compare it with its digest and the lock; nothing where no directory of images is named."""
    if wanted.images is None:
        return []
    name = "image"
    try:
        lock = machine.lock()
        found = verify(locate(wanted.images, lock), lock)
        closed = closed_to_others(found.path) if wanted.privileged(machine) else None
    except ImageRefused as refused:
        where = f": {'; '.join(refused.where[:3])}" if refused.where else ""
        return [
            closes(name, refused.reason, f"{refused.what}{where}", "there is nothing to run a command in", refused.fix)
        ]
    if closed is not None:
        return [
            closes(
                name,
                "sandbox.image_closed",
                f"other users may not enter {closed}",
                "the users that runs have cannot reach the image",
                f"`chmod o+x {closed}`, or set [sandbox] image to a directory that they can",
            )
        ]
    if found.kind != PINNED:
        return [
            note(
                name,
                "sandbox.image_from_host",
                f"{found.digest}, with this machine's own libraries",
                "it is another image than the one that this version pins, and every receipt says so",
                f"`gateway sandbox build --images {wanted.images}` where the pinned packages can be had",
            )
        ]
    return [fine(name, f"{found.digest}, as this version pins it")]


def leftovers(wanted: Wanted, machine: Machine | None = None) -> Fact:
    """Look for groups of earlier runs; where the node runs, its runs have such too, and this says nothing."""
    machine = machine or Machine()
    name = "leftovers"
    found = _examined(machine)
    roots = {
        tree: (machine.cgroups if found.kind == "v2" else machine.cgroups / tree).resolve() for tree in found.trees
    }
    left = groups_left(roots, found.trees, wanted.prefix, machine.files)
    if not left:
        return fine(name, "nothing is left of earlier runs")
    pids = sum(each.populated() for each in left)
    return note(
        name,
        "sandbox.leftovers",
        f"{len(left)} groups of earlier runs stand, {pids} of them with processes",
        "the node was ended before it could remove them; its next start ends and removes all",
        "start the node",
    )
