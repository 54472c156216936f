"""A sandbox looked at from outside, while its command is blocked: is it what it was asked to be?

What is read here the kernel tells, not bubblewrap.  Standard library only: the launcher imports this.  Source: proc(5),
user_namespaces(7).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from gateway.sandbox.bubblewrap import DEVICES, OUT, SCRATCH, USER

NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
NO_CAPABILITIES = "0" * 16
FILTERED = "2"
"""How the kernel tells of a process under a filter."""
CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
READS_A_PIPE = ("anon_pipe_read", "pipe_read", "pipe_wait", "0")
"""Where the kernel says that a process sleeps in reading a pipe; 0 where it does not say."""
NOTHING_RUNS = frozenset({"nosuid", "nodev", "noexec"})
OWN_MOUNTS = {SCRATCH: NOTHING_RUNS | {"rw"}, OUT: NOTHING_RUNS | {"rw"}, "/proc": NOTHING_RUNS | {"ro"}}
PROC = frozenset({"subset=pid", "hidepid=invisible"})


def blocked(init: int) -> bool:
    """Return True once bubblewrap's child has no capability any more and sleeps before the command.

    It gives up its capabilities when all is set up, and reads the block pipe next.

    Raises `OSError` where there is no such process.
    """
    told = status_of(init)
    if (told["CapEff"], told["CapBnd"]) != (NO_CAPABILITIES, NO_CAPABILITIES) or told["State"][0] != "S":
        return False
    return _read(f"/proc/{init}/wchan") in READS_A_PIPE


def status_of(pid: int) -> dict[str, str]:
    """Return `/proc/PID/status` by name.  Raises `OSError`."""
    lines = (line.partition(":") for line in _read(f"/proc/{pid}/status").splitlines())
    return {name: value.strip() for name, _, value in lines}


def faults(init: int, places: Mapping[str, Path], user: int | None) -> Iterator[str]:
    """Tell what is not as it should be with this init of a sandbox: nothing, or why it must not go on.

    `places` are the directories of its group, `user` is the host user that it was to become (None: who this process
    is).  Raises `OSError` where it cannot be looked at.
    """
    told = status_of(init)
    yield from (f"{each} is {told[each]}" for each in CAPABILITIES if told[each] != NO_CAPABILITIES)
    if told["NoNewPrivs"] != "1":
        yield "it may gain privileges"
    if told["NSpid"].split()[-1] != "1":
        yield "it is not the first process of its namespace"
    yield from _faults_of_user(init, told, user)
    for kind in NAMESPACES:
        if _namespace(init, kind) == _namespace("self", kind):
            yield f"it is in the host's {kind} namespace"
    for directory in dict.fromkeys(places.values()):
        if str(init) not in _read(f"{directory}/cgroup.procs").split():
            yield f"it is not in {directory}"
    yield from mount_faults(_read(f"/proc/{init}/mountinfo"))


def faults_of_starter(starter: int, init: int, *, filtered: bool) -> Iterator[str]:
    """Tell what is not as it should be with the process that executes the command next.

    Raises `OSError` where it cannot be looked at.
    """
    told = status_of(starter)
    yield from (f"{each} of the starter is {told[each]}" for each in CAPABILITIES if told[each] != NO_CAPABILITIES)
    if told["NoNewPrivs"] != "1":
        yield "the starter may gain privileges"
    if told["PPid"] != str(init) or told["NSpid"].split()[-1] != "2":
        yield "the starter is not the second process of its namespace"
    if filtered and told["Seccomp"] != FILTERED:
        yield "the starter is not under a filter"


def _faults_of_user(init: int, told: Mapping[str, str], user: int | None) -> Iterator[str]:
    wanted = {"Uid": os.geteuid() if user is None else user, "Gid": os.getegid() if user is None else user}
    for kind, number in wanted.items():
        if set(told[kind].split()) != {str(number)} or number == 0:
            yield f"{kind} is {told[kind]}"
        mapped = _read(f"/proc/{init}/{kind.lower()}_map").split()
        if mapped != [str(USER), str(number), "1"]:
            yield f"{kind} is mapped {' '.join(mapped)}"
    # Without privilege the groups of the launcher's user cannot be left.
    if user is not None and told["Groups"]:
        yield f"it is in the groups {told['Groups']}"


def _namespace(process: int | str, kind: str) -> str:
    return os.readlink(f"/proc/{process}/ns/{kind}")  # noqa: PTH115 - a third of the time


def mount_faults(mountinfo: str) -> Iterator[str]:
    """Tell what of a sandbox's mounts is not as it should be (proc(5), mountinfo)."""
    seen = set()
    for line in mountinfo.splitlines():
        of_mount, _, of_filesystem = line.partition(" - ")
        place, options = of_mount.split()[4:6]
        wanted = OWN_MOUNTS.get(place, _read_only(place))
        seen.add(place)
        if not wanted <= set(options.split(",")):
            yield f"{place} is mounted {options}"
        if place == "/proc" and not set(of_filesystem.split()[2].split(",")) >= PROC:
            yield f"/proc is mounted {of_filesystem}"
    yield from (f"{each} is not mounted" for each in OWN_MOUNTS if each not in seen)


def _read_only(place: str) -> frozenset[str]:
    # A device can be written whatever its mount says.
    return frozenset() if place in {f"/dev/{each}" for each in DEVICES} else frozenset({"ro", "nosuid"})


def _read(path: str) -> str:
    # Not Path.read_text, which takes four times as long: this is read again and again while bubblewrap sets up.
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(file, 65536):
            parts.append(part)
    finally:
        os.close(file)
    return b"".join(parts).decode(errors="replace")
