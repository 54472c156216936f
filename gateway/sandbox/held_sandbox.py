"""Bubblewrap started in a group of its own, and brought to where its command comes next: there it is held.

Standard library only: the launcher imports this.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.sandbox import bubblewrap, outside_check
from gateway.sandbox.bubblewrap import OUT, SCRATCH
from gateway.sandbox.cgroup_entry import fork_into
from gateway.sandbox.cgroup_files import Descriptor
from gateway.sandbox.cgroups import Bounds as GroupBounds
from gateway.sandbox.cgroups import Cgroups, Group
from gateway.sandbox.event_loop import EventLoop, Moment
from gateway.sandbox.hardening import ROOT_KEPT, Hardening
from gateway.sandbox.launcher_child import COMPLAINT, Descriptors, become
from gateway.sandbox.launcher_messages import Bounds
from gateway.sandbox.mount_namespace import MountNamespace

SETUP_WITHIN_S = 10.0
LONGEST_COMMAND = 1 << 20
LONGEST_COMPLAINT = 2048
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Place:
    """What all runs of a launcher share: the program, the arguments of the image, the groups, the loop.

    `prefix` begins the names of their groups.
    """

    program: Path
    image: list[str]
    cgroups: Cgroups
    loop: EventLoop
    prefix: str


@dataclass(frozen=True)
class Events:
    """What is called when a sandbox is held, when it cannot be, and when bubblewrap is over; never from `start`."""

    held: Callable[[], None]
    failed: Callable[[str, str], None]
    over: Callable[[], None]


class SetupFailed(Exception):
    """A sandbox could not even be started: a machine reason, and what happened."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class HeldSandbox:
    """One sandbox.

    Attributes:
        group: its group, None until `start` has made it.
        init: the first process in it, as the host counts them; 0 until bubblewrap has told.
        directories: `/scratch` and `/out`, open from when it is held until `close`.
        mounts: its mount namespace, from when it is held.
        status: the wait(2) status of bubblewrap, from when it is over.
    """

    def __init__(self, place: Place, bounds: Bounds, user: int | None, events: Events) -> None:
        """`user` is the host user to run as, None who this process is."""
        self.group: Group | None = None
        self.init = 0
        self.directories: list[int] = []
        self.mounts: MountNamespace | None = None
        self.status: int | None = None
        self._place = place
        self._bounds = bounds
        self._user = user
        self._events = events
        self._pid = 0
        self._hardening: Hardening | None = None
        self._children: list[tuple[int, int]] = []
        self._told = b""
        self._stderr = Descriptor(-1)
        self._release = Descriptor(-1)
        self._tells = Descriptor(-1)
        self._timers: list[Moment] = []
        self._still = False

    def start(self, name: str, streams: Sequence[int], command: int, filter_: int | None) -> None:
        """Make the group and start bubblewrap in it; the caller keeps and closes the descriptors.

        Raises `SetupFailed`, after which a group may stand.
        """
        try:
            argv = read_command(command)
            limits = GroupBounds(memory_bytes=self._bounds.host_bytes, tasks=self._bounds.tasks)
            self.group = self._place.cgroups.make(name, limits)
            self._stderr = Descriptor(os.dup(streams[2]))
            self._pid = self._fork(self.group, argv, streams, filter_)
            # Until it leads a group of its own, bubblewrap's child is in the one of bubblewrap.
            self._children.append((os.P_PGID, self._pid))
            self._place.loop.on_exit(self._pid, self._over)
            self._place.loop.watch(self._tells.fileno(), self._read_status)
            self._hardening = Hardening(self._user)
            self._children.append((os.P_PID, self._hardening.pid))
            self._place.loop.on_exit(self._hardening.pid, self._not_hardened)
            self._place.loop.watch(self._hardening.done, self._hardened)
        except Exception as refused:
            # Whatever it is: this run has not begun, and the others go on.
            raise SetupFailed(getattr(refused, "reason", "sandbox.setup_failed"), str(refused)) from refused
        late = "bubblewrap does not come to its end"
        self._after(SETUP_WITHIN_S, lambda: self._events.failed("sandbox.setup_failed", late))

    def _fork(self, group: Group, argv: list[bytes], streams: Sequence[int], filter_: int | None) -> int:
        arguments = bubblewrap.arguments(
            self._place.image,
            disk_bytes=self._bounds.disk_bytes,
            artifact_bytes=self._bounds.artifact_bytes,
            filtered=filter_ is not None,
        )
        with contextlib.ExitStack() as opened:
            told = os.memfd_create("arguments", os.MFD_CLOEXEC)
            opened.callback(os.close, told)
            os.write(told, arguments)
            os.lseek(told, 0, os.SEEK_SET)
            reads, releases = os.pipe2(os.O_CLOEXEC)
            opened.callback(os.close, reads)
            self._release = Descriptor(releases)
            # Who waits for the release holds the other end too: no death is an end of file, which would be a release.
            block = os.open(f"/proc/self/fd/{reads}", os.O_RDWR | os.O_CLOEXEC)
            opened.callback(os.close, block)
            hears, tells = os.pipe2(os.O_CLOEXEC)
            opened.callback(os.close, tells)
            os.set_blocking(hears, False)
            self._tells = Descriptor(hears)
            descriptors = Descriptors(tuple(streams), told, block, tells, filter_)
            parent = os.getpid()
            pid = fork_into(group.places)
            if pid == 0:
                become(self._place.program, argv, self._bounds, descriptors, user=self._user, parent=parent)
        return pid

    def _read_status(self) -> None:
        """Take what bubblewrap tells, first of all its child, which is there from then on."""
        self._drain_status()
        if not self.init and self._told[:1] == b"{" and b"}" in self._told:
            self.init = json.loads(self._told[: self._told.index(b"}") + 1])["child-pid"]
            self._children.append((os.P_PID, self.init))
            if self._hardening is not None:
                self._hardening.aim(self.init)

    def _drain_status(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._tells.fileno() >= 0:
                part = os.read(self._tells.fileno(), 4096)
                if not part:
                    self._place.loop.unwatch(self._tells.fileno())
                    self._tells.close()
                self._told += part

    def _not_hardened(self, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        # Without its child bubblewrap ends, too, and then tells why.
        if self._still or code in {0, errno.ENOENT, errno.ESRCH}:
            return
        if code == ROOT_KEPT:
            self._events.failed("sandbox.launcher_root_uid", "the launcher cannot stop being uid 0")
        else:
            self._events.failed("sandbox.hardening_failed", os.strerror(code) if code > 0 else f"signal {-code}")

    def _hardened(self) -> None:
        if self.group is None or self._hardening is None:
            return
        done = self._hardening.succeeded()
        self._forget_hardening()
        if not done:
            return
        try:
            for place in (SCRATCH, OUT):
                self.directories.append(os.open(f"/proc/{self.init}/root{place}", DIRECTORY))
            self.mounts = MountNamespace(self.init, self._user)
            wrong = "; ".join(outside_check.faults(self.init, self.group.places, self._user))
        except OSError as refused:
            wrong = str(refused)
        if wrong:
            self._events.failed("sandbox.check_failed", wrong)
        else:
            self.stand_still()
            self._events.held()

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        self._timers.append(self._place.loop.after(seconds, call))

    def stand_still(self) -> None:
        """Go no further with setting up."""
        self._still = True
        self._forget_hardening()
        for each in self._timers:
            each.cancel()
        self._timers.clear()

    def _forget_hardening(self) -> None:
        if self._hardening is not None:
            self._place.loop.unwatch(self._hardening.done)
            self._hardening.close()
            self._hardening = None

    def let_go(self) -> None:
        """Let the command be executed."""
        self._stderr.close()
        os.write(self._release.fileno(), b"\0")
        self._release.close()

    def _over(self, status: int) -> None:
        self.status = status
        self._pid = 0
        self._read_status()
        self._events.over()

    def kill(self) -> None:
        """Kill all of it, and do not wait for its death."""
        self.stand_still()
        # By its number, too: on v1 a child that has just been forked is not in the group yet.
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
        if self.group is not None:
            self.group.kill(within=0)

    @property
    def dead(self) -> bool:
        """Whether all of it has been reaped, and nothing in the group lives.

        The end of bubblewrap makes what it has not reaped, the init of the sandbox, a child of this process.
        """
        if self._pid or any(_is_child(kind, number) for kind, number in self._children):
            return False
        return self.group is None or not self.group.populated()

    def exit_code(self) -> int | None:
        """Return what bubblewrap told of the command, None where it told nothing, which it does only after its exec."""
        for line in self._told.splitlines():
            if b"exit-code" in line:
                code: int = json.loads(line)["exit-code"]
                return code
        return None

    def complaint(self) -> tuple[str, str]:
        """Return why bubblewrap was over before anything was released: a machine reason, and what is known."""
        if self._told.startswith(COMPLAINT):
            reason, _, detail = self._told[len(COMPLAINT) :].decode().strip().partition(": ")
            return reason, detail
        ended = "" if self.status is None else f" with {os.waitstatus_to_exitcode(self.status)}"
        words = written_to(self._stderr.fileno()).decode(errors="replace").strip()
        return "sandbox.bwrap_failed", f"bubblewrap ended{ended} before the release{words and ': '}{words}"

    def close(self) -> None:
        """Let go of all descriptors, the release among them: only after all is killed."""
        if self._tells.fileno() >= 0:
            self._place.loop.unwatch(self._tells.fileno())
            self._tells.close()
        self._release.close()
        self._stderr.close()
        while self.directories:
            os.close(self.directories.pop())


def read_command(file: int) -> list[bytes]:
    """Return the arguments in a file, each ended by NUL.  Raises `ValueError` where it holds none, `OSError`."""
    content = os.pread(file, LONGEST_COMMAND + 1, 0)
    if len(content) > LONGEST_COMMAND or not content.endswith(b"\0"):
        raise ValueError("the command is no sequence of arguments that each end with NUL")
    return content[:-1].split(b"\0")


def written_to(pipe: int) -> bytes:
    """Return what stands in a pipe unread, taken out by way of its end that is written to; of no pipe, nothing."""
    if pipe < 0 or not stat.S_ISFIFO(os.fstat(pipe).st_mode):
        return b""
    try:
        reads = os.open(f"/proc/self/fd/{pipe}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(reads, LONGEST_COMPLAINT)
    except BlockingIOError:
        return b""
    finally:
        os.close(reads)


def _is_child(kind: int, number: int) -> bool:
    try:
        os.waitid(kind, number, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
