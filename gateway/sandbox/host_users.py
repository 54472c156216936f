"""Whose runs are on this machine: the launcher's privilege, and the host's users that runs have.

Bubblewrap that is started by root can be escaped from, and the runs of one user share its limits: so each slot has a
user of its own where the launcher is root.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gateway.sandbox.host_machine import Fact, Machine, Wanted, closes, fine, note

BECOMES_ANOTHER = {"CAP_SETGID": 6, "CAP_SETUID": 7}
"""What root needs to make a run another user's."""
REACHES_ANOTHER = {"CAP_KILL": 5, "CAP_SYS_PTRACE": 19}
"""What root needs to look into a run, and to end one where the kernel cannot end a group at once."""
HOW = "systemd: CapabilityBoundingSet=, a container: --cap-add"
USERS = "users of runs"


def launcher(machine: Machine, wanted: Wanted) -> Fact:
    """Look at the privilege that the launcher has from here."""
    name = "launcher"
    if machine.uid != 0:
        if wanted.launcher and _status(machine, "NoNewPrivs") == "1":
            return note(
                name,
                "sandbox.no_new_privileges",
                f"started with `{' '.join(wanted.launcher)}`, and this process may gain no privileges",
                "sudo and its like give the launcher none either, and the sandbox is closed",
                "set NoNewPrivileges=no in the node's systemd unit (a container: no `no-new-privileges`)",
            )
        if wanted.launcher:
            return fine(name, f"started with `{' '.join(wanted.launcher)}`, which is not tried here")
        return note(
            name,
            "sandbox.one_slot",
            f"it is no root, so every run has the node's own uid {machine.uid}",
            "one run at a time is sold, for two of one user could use up each other's limits",
            "start the node as root, or give its launcher alone that privilege: [sandbox] launcher",
        )
    if lacking := _lacking(machine, BECOMES_ANOTHER):
        return closes(
            name,
            "sandbox.launcher_root_uid",
            f"it is root without {', '.join(lacking)}",
            "it cannot make a run another user's, and as root it makes none",
            f"give the node {' '.join(lacking)} ({HOW}), or start it as another user",
        )
    if lacking := _lacking(machine, REACHES_ANOTHER):
        return note(
            name,
            "sandbox.launcher_short_of_capabilities",
            f"it is root without {', '.join(lacking)}",
            "it may be unable to look into a run, or to end one; the sandbox is closed if it is",
            f"give the node {' '.join(lacking)} ({HOW})",
        )
    return fine(name, "root, which gives each slot a user of its own")


def _lacking(machine: Machine, needed: Mapping[str, int]) -> list[str]:
    told = _status(machine, "CapEff")
    return [] if told is None else [each for each, bit in needed.items() if not int(told, 16) >> bit & 1]


def _status(machine: Machine, name: str) -> str | None:
    lines = (line.partition(":") for line in (machine.read("self/status") or "").splitlines())
    return next((value.strip() for each, _, value in lines if each == name), None)


def slot_users(machine: Machine, wanted: Wanted) -> list[Fact]:
    """Look whether the users that runs have are nobody else."""
    if not wanted.privileged(machine):
        return []
    uids = wanted.uids_on(machine)
    found = [*_unmapped(machine, uids), *_accounts(machine, uids), *_processes(machine, wanted, uids)]
    return found or [fine(USERS, f"uids {uids[0]} to {uids[-1]}, which nobody else has")]


def _unmapped(machine: Machine, uids: range) -> Iterator[Fact]:
    told = machine.read("self/uid_map")
    if told is None:
        return
    spans = [(int(first), int(first) + int(count)) for first, _, count in (line.split() for line in told.splitlines())]
    outside = [each for each in uids if not any(first <= each < end for first, end in spans)]
    if outside:
        yield closes(
            USERS,
            "sandbox.slot_uid_unmapped",
            f"uid {outside[0]} does not exist in this user namespace",
            "the launcher cannot run a slot as it",
            f"set [sandbox] first_uid so that {len(uids)} uids from it are within /proc/self/uid_map, or give the "
            "container more",
        )


def _accounts(machine: Machine, uids: range) -> Iterator[Fact]:
    for uid in uids:
        owner = machine.account(uid)
        if owner is not None:
            yield closes(
                USERS,
                "sandbox.slot_uid_in_use",
                f"uid {uid} is the account {owner}",
                "runs could reach its files and its processes",
                f"set [sandbox] first_uid to the first of {len(uids)} uids that nobody has",
            )
            return


def _processes(machine: Machine, wanted: Wanted, uids: range) -> Iterator[Fact]:
    """Look for processes of these users that are in no group of this node's."""
    for each in sorted(machine.proc.glob("[0-9]*")):
        uid = _uid_of(machine.read(f"{each.name}/status"))
        if uid in uids and wanted.prefix not in (machine.read(f"{each.name}/cgroup") or wanted.prefix):
            yield note(
                USERS,
                "sandbox.slot_uid_shared",
                f"process {each.name} has uid {uid}, and is no run of this node",
                "the two share the limits of that user, and could end each other; another node of this machine may "
                "have the same uids",
                f"set [sandbox] first_uid to the first of {len(uids)} uids that no other node has",
            )
            return


def _uid_of(status: str | None) -> int:
    lines = (line.split() for line in (status or "").splitlines())
    return next((int(words[1]) for words in lines if words[:1] == ["Uid:"]), -1)
