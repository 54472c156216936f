"""What is left of runs, seen from outside and without the code under test: by user, group, mount and descriptor."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import attrs

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
GONE = (FileNotFoundError, ProcessLookupError)
"""What reading of a process says that has ended meanwhile."""


@attrs.frozen
class Left:
    """What is there of a slot's user, of groups with a prefix, of mounts of an image, and what two processes hold.

    `launcher` and `node` are how many descriptors they have; `children` are the launcher's, `zombies` those among them
    that nobody has reaped.
    """

    processes: tuple[tuple[int, str], ...]
    groups: tuple[str, ...]
    mounts: tuple[str, ...]
    children: tuple[str, ...]
    zombies: tuple[str, ...]
    launcher: int
    node: int

    @property
    def is_nothing(self) -> bool:
        """Whether nothing of any run is left."""
        return (self.processes, self.groups, self.mounts, self.zombies) == ((), (), (), ())


def left(*, users: range, prefix: str, image: Path, launcher: int) -> Left:
    """Look everywhere."""
    children = tuple((PROC / str(launcher) / "task" / str(launcher) / "children").read_text().split())
    return Left(
        processes=tuple(processes_of(users).items()),
        groups=tuple(groups(prefix)),
        mounts=tuple(_mounted_in(image)),
        children=children,
        zombies=tuple(pid for pid in children if _state(pid) == "Z"),
        launcher=_descriptors(launcher),
        node=_descriptors(os.getpid()),
    )


def _pids() -> Iterator[str]:
    return (each.name for each in PROC.iterdir() if each.name.isdigit())


def processes_of(users: range, *, zombies: bool = True) -> dict[int, str]:
    """Return the processes of these users, each with its name; with or without those that are dead but not reaped."""
    found = {}
    for pid in _pids():
        with suppress(*GONE):
            lines = (line.partition(":") for line in (PROC / pid / "status").read_text().splitlines())
            status = {name: value.strip() for name, _, value in lines}
            if int(status["Uid"].split()[0]) in users and (zombies or status["State"].split()[0] != "Z"):
                found[int(pid)] = status["Name"]
    return found


def waits(pid: int) -> bool:
    """Return whether a process is a starter that has not become a command yet."""
    try:
        return str((PROC / str(pid) / "exe").readlink()).startswith("/memfd:starter")
    except GONE:
        return False


def group_of(pid: int, prefix: str) -> str:
    """Return the name of the group with this prefix that a process is in, empty where there is none."""
    with suppress(*GONE):
        for line in (PROC / str(pid) / "cgroup").read_text().splitlines():
            name = line.rpartition("/")[2]
            if name.startswith(prefix):
                return name
    return ""


def groups(prefix: str) -> list[str]:
    """Return the directories of groups whose name begins so."""
    return [f"{at}/{name}" for at, names, _ in os.walk(CGROUPS) for name in names if name.startswith(prefix)]


def standing(pids: Iterable[str]) -> list[str]:
    """Return which of these processes live."""
    return [pid for pid in pids if _state(pid) not in {"Z", "gone"}]


def _state(pid: str) -> str:
    try:
        return (PROC / pid / "stat").read_text().rpartition(")")[2].split()[0]
    except GONE:
        return "gone"


def _mounted_in(image: Path) -> Iterator[str]:
    for pid in _pids():
        try:
            if image.name in (PROC / pid / "mountinfo").read_text():
                yield pid
        except GONE:
            continue
        except OSError as error:
            if error.errno != errno.EINVAL:  # a process that is dead and not reaped has none
                raise


def _descriptors(pid: int) -> int:
    return len(list((PROC / str(pid) / "fd").iterdir()))
