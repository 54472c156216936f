"""How much there is on this machine for runs: memory, and what the kernel lets one user have."""

from __future__ import annotations

from gateway.sandbox.canaries import CANARIES
from gateway.sandbox.host_machine import Fact, Machine, Wanted, closes, fine, note
from gateway.sandbox.limits import RANGES, Limits

MIB = 2**20
GREATEST = Limits(
    memory_bytes=RANGES["memoryBytes"].most,
    disk_bytes=RANGES["diskBytes"].most,
    artifact_bytes=RANGES["artifactBytes"].most,
)
PIPES_OF_A_RUN = 8
PAGES_OF_A_PIPE = 16
INSTANCES_BESIDE_RUNS = 8


def memory(machine: Machine, wanted: Wanted) -> Fact:
    """Look which runs find room in the memory that runs may have."""
    name = "memory for runs"
    share = wanted.memory_on(machine)
    told = f"{share // MIB} MiB, of {machine.memory_bytes // MIB} MiB that the machine has"
    enough = "set [sandbox] memory_mib to {} or more, on a machine that has it to spare"
    least = max(each.limits.host_bytes for each in CANARIES)
    if share < least:
        return closes(
            name,
            "sandbox.memory_short",
            told,
            "not even the runs that prove the sandbox find room",
            enough.format(-(-least // MIB)),
        )
    for limits, whose in ((Limits(), "default"), (GREATEST, "highest")):
        if share < limits.host_bytes:
            needed = -(-limits.host_bytes // MIB)
            return note(
                name,
                "sandbox.memory_little",
                told,
                f"a run with the {whose} limits takes up to {needed} MiB with its files, so it is always refused",
                enough.format(needed),
            )
    return fine(name, told)


def kernel_limits(machine: Machine, wanted: Wanted) -> list[Fact]:
    """Look at what the kernel lets one user have of inotify instances and pipes."""
    name = "limits of a user"
    slots = wanted.slots_on(machine)
    facts = []
    instances, needed = machine.number("sys/fs/inotify/max_user_instances"), slots + INSTANCES_BESIDE_RUNS
    if instances is not None and instances < needed:
        facts.append(
            note(
                name,
                "sandbox.inotify_few",
                f"fs.inotify.max_user_instances is {instances}",
                "a run that is out of memory may be ended some milliseconds later",
                f"`sysctl -w fs.inotify.max_user_instances={max(needed, 128)}`, and the same line in "
                "/etc/sysctl.d/90-gateway.conf",
            )
        )
    pages, wanted_pages = machine.number("sys/fs/pipe-user-pages-soft"), slots * PIPES_OF_A_RUN * PAGES_OF_A_PIPE
    if pages and pages < wanted_pages:
        facts.append(
            note(
                name,
                "sandbox.pipes_small",
                f"fs.pipe-user-pages-soft is {pages}",
                "the pipes of runs get smaller ones than they should, and much output is read more slowly",
                f"`sysctl -w fs.pipe-user-pages-soft={max(wanted_pages, 16384)}`, and the same line in "
                "/etc/sysctl.d/90-gateway.conf",
            )
        )
    return facts or [fine(name, f"enough for {slots} {'run' if slots == 1 else 'runs'} at a time")]
