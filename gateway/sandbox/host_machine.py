"""A machine as it is looked at for the sandbox, and one fact about it; tests put another machine in its place."""

from __future__ import annotations

import enum
import os
import platform
import pwd
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from gateway.sandbox import cgroups, image
from gateway.sandbox.cgroup_files import Files, Finding
from gateway.sandbox.image_lock import Lock

PATIENCE_S = 10.0


class Grade(enum.StrEnum):
    """What a fact means for the sandbox."""

    FINE = "fine"
    NOTE = "note"
    CLOSES = "closes"


@attrs.frozen
class Fact:
    """One thing about this machine.

    Attributes:
        name: what was looked at, in a word or two.
        grade: what it means.
        fact: what was found.
        consequence: what follows; empty where all is fine.
        fix: what mends it, word for word; empty where there is nothing to mend.
        reason: the machine's word for it (`sandbox.userns_denied`), None where all is fine.
    """

    name: str
    grade: Grade
    fact: str
    consequence: str = ""
    fix: str = ""
    reason: str | None = None

    def as_json(self) -> dict[str, str | None]:
        """Return it as a JSON object."""
        return {**attrs.asdict(self), "grade": self.grade.value}


def fine(name: str, fact: str) -> Fact:
    """Return a fact that is as it should be."""
    return Fact(name, Grade.FINE, fact)


def note(name: str, reason: str, fact: str, consequence: str, fix: str) -> Fact:
    """Return a fact that is worth knowing; runs are sold all the same."""
    return Fact(name, Grade.NOTE, fact, consequence, fix, reason)


def closes(name: str, reason: str, fact: str, consequence: str, fix: str) -> Fact:
    """Return a fact for which no run may be sold."""
    return Fact(name, Grade.CLOSES, fact, consequence, fix, reason)


def of_finding(name: str, grade: Grade, found: Finding) -> Fact:
    """Return what was found about cgroups as a fact."""
    return Fact(name, grade, found.fact, found.consequence, found.fix, found.reason)


@attrs.frozen
class Ran:
    """How a program ended, and what it said on both streams; `code` is None where nothing was started."""

    code: int | None
    said: str


def run(words: Sequence[str], uid: int | None) -> Ran:
    """Run a program, as another user where `uid` is one."""
    as_whom = {} if uid is None else {"user": uid, "group": uid, "extra_groups": ()}
    try:
        ended = subprocess.run(  # noqa: S603 - bubblewrap, where it was found
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={},
            cwd="/",
            timeout=PATIENCE_S,
            check=False,
            **as_whom,  # type: ignore[call-overload]
        )
    except OSError as error:
        return Ran(None, error.strerror or str(error))
    except subprocess.TimeoutExpired:
        return Ran(-signal.SIGKILL, f"it did not end within {PATIENCE_S:.0f} s")
    return Ran(ended.returncode, ended.stdout.decode(errors="replace").strip())


def account(uid: int) -> str | None:
    """Return the name of the account with this number, or None."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


@attrs.frozen
class Machine:
    """Where a machine is looked at.

    `bubblewrap` is the program's path, None where there is none; `uid` the user that the node has; `account` names the
    account of a number; `lock` is that of the image; `run` starts a program as a user.
    """

    proc: Path = Path("/proc")
    security: Path = Path("/sys/kernel/security")
    cgroups: Path = cgroups.ROOT
    files: Files = attrs.field(factory=Files)
    arch: str = attrs.field(factory=platform.machine)
    uid: int = attrs.field(factory=os.geteuid)
    cores: int = attrs.field(factory=lambda: len(os.sched_getaffinity(0)))
    bubblewrap: str | None = attrs.field(factory=lambda: shutil.which("bwrap"))
    account: Callable[[int], str | None] = account
    lock: Callable[[], Lock] = lambda: image.load_lock()  # noqa: PLW0108 - looked up when it is called
    run: Callable[[Sequence[str], int | None], Ran] = run

    def read(self, path: str) -> str | None:
        """Return what is in a file beneath /proc, or None where there is none or it is not for this user."""
        try:
            return (self.proc / path).read_text().strip()
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """Return the number in a file beneath /proc, or None."""
        told = self.read(path)
        return int(told) if told is not None and told.lstrip("-").isdecimal() else None

    @property
    def memory_bytes(self) -> int:
        """The memory of the machine, in bytes."""
        for line in (self.read("meminfo") or "").splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
        return 0


@attrs.frozen
class Wanted:
    """What a node wants of its machine, as `[sandbox]` says it: 0 slots are one a core, 0 bytes half of its memory.

    `launcher` are the words before the launcher's command, `images` is where images stand (None: not looked at), and
    `prefix` begins the names of this node's groups.
    """

    slots: int = 0
    memory_bytes: int = 0
    first_uid: int = 64400
    launcher: tuple[str, ...] = ()
    images: Path | None = None
    prefix: str = "gateway-run-"

    def privileged(self, machine: Machine) -> bool:
        """Whether the launcher has, or is given, the privilege to run each slot as a user of its own."""
        return machine.uid == 0 or bool(self.launcher)

    def slots_on(self, machine: Machine) -> int:
        """Return how many runs there may be at a time; one where all would run as the node's own user."""
        return (self.slots or machine.cores) if self.privileged(machine) else 1

    def uids_on(self, machine: Machine) -> range:
        """Return the host's users that runs have."""
        if not self.privileged(machine):
            return range(machine.uid, machine.uid + 1)
        return range(self.first_uid, self.first_uid + self.slots_on(machine))

    def memory_on(self, machine: Machine) -> int:
        """Return what all runs together may take of the host's memory, in bytes."""
        return self.memory_bytes or machine.memory_bytes // 2
