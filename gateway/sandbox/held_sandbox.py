"""A sandbox set up in a group of its own, and brought to where its starter waits for an order: there it is held.

Nothing of a command is in it until then, so that it can be laid ahead of need.  Standard library only: the launcher
imports this.
"""

from __future__ import annotations

import array
import contextlib
import errno
import json
import os
import signal
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.sandbox import outside_check, starter
from gateway.sandbox.bubblewrap import OUT, SCRATCH
from gateway.sandbox.bubblewrap_start import Kind, Place, Started, start_bubblewrap
from gateway.sandbox.cgroup_files import Descriptor, Files, members
from gateway.sandbox.cgroups import Bounds as GroupBounds
from gateway.sandbox.cgroups import Group
from gateway.sandbox.event_loop import Moment
from gateway.sandbox.hardening import ROOT_KEPT, Hardening
from gateway.sandbox.launcher_child import COMPLAINT
from gateway.sandbox.mount_namespace import MountNamespace

SETUP_WITHIN_S = 10.0
LONGEST_COMPLAINT = 2048
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
CREDENTIALS = struct.Struct("3i")
"""struct ucred of unix(7): pid, uid, gid."""


@dataclass(frozen=True)
class Events:
    """What is called when a sandbox is held, when it cannot be, and when bubblewrap is over; never from `start`.

    `told` is called before that, when bubblewrap has told how the command ended; it may be called again.
    """

    held: Callable[[], None]
    failed: Callable[[str, str], None]
    over: Callable[[], None]
    told: Callable[[], None] = lambda: None


class SetupFailed(Exception):
    """A sandbox could not even be started: a machine reason, and what happened."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class HeldSandbox:
    """One sandbox.

    Attributes:
        kind: what it is made of.
        events: who is called; whoever takes it over puts others in their place.
        group: its group, None until `start` has made it.
        held: its starter waits, or has had its order.
        pidfds: of its first process, and of the second, which is the starter and then the command; -1 where this kernel
            has none, and until it is held.
        directories: `/scratch` and `/out`, open from when it is held until `close`.
        mounts: its mount namespace, from when it is held.
        status: the wait(2) status of bubblewrap, from when it is over.
        refused: no command was executed, and none will be: the starter told why, or ended before it took its order.
    """

    def __init__(self, place: Place, kind: Kind, user: int | None, events: Events) -> None:
        """`user` is the host user to run as, None who this process is."""
        self.kind = kind
        self.events = events
        self.group: Group | None = None
        self.held = False
        self.pidfds = (Descriptor(-1), Descriptor(-1))
        self.directories: list[int] = []
        self.mounts: MountNamespace | None = None
        self.status: int | None = None
        self.refused = False
        self._place = place
        self._user = user
        self._pid = 0
        self._init = 0
        self._command = 0
        self._started: Started | None = None
        self._hardening: Hardening | None = None
        self._children: list[tuple[int, int]] = []
        self._told = b""
        self._answered: Callable[[int | None], None] | None = None
        self._timers: list[Moment] = []
        self._still = False

    def start(self) -> None:
        """Make the group and start bubblewrap in it.  Raises `SetupFailed`, after which a group may stand."""
        loop, bounds = self._place.loop, self.kind.bounds
        try:
            limits = GroupBounds(memory_bytes=bounds.host_bytes, tasks=bounds.tasks)
            self.group = self._place.cgroups.make(f"{self._place.prefix}-{next(self._place.numbers)}", limits)
            self._started = start_bubblewrap(self._place, self.group, self.kind, self._user)
            self._pid = self._started.pid
            # Until it leads a group of its own, bubblewrap's child is in the one of bubblewrap.
            self._children.append((os.P_PGID, self._pid))
            loop.on_exit(self._pid, self._over)
            loop.watch(self._started.status.fileno(), self._read_status)
            self._hardening = Hardening(self._user)
            self._children.append((os.P_PID, self._hardening.pid))
            loop.on_exit(self._hardening.pid, self._not_hardened)
            loop.watch(self._hardening.done, self._hardened)
        except Exception as refused:
            # Whatever it is: this run has not begun, and the others go on.
            raise SetupFailed(getattr(refused, "reason", "sandbox.setup_failed"), str(refused)) from refused
        late = "bubblewrap does not come to its end"
        self._timers.append(loop.after(SETUP_WITHIN_S, lambda: self.events.failed("sandbox.setup_failed", late)))

    def _read_status(self) -> None:
        """Take what bubblewrap tells: first of all its child, which is there from then on, and how it ended at last."""
        self._drain_status()
        if not self._init and self._told[:1] == b"{" and b"}" in self._told:
            self._init = json.loads(self._told[: self._told.index(b"}") + 1])["child-pid"]
            self._children.append((os.P_PID, self._init))
            if self._hardening is not None:
                self._hardening.aim(self._init)
        if self.status is None and self.exit_code() is not None:
            self._hear_answer()
            self.events.told()

    def _drain_status(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._started is not None and self._started.status.fileno() >= 0:
                part = os.read(self._started.status.fileno(), 4096)
                if not part:
                    self._place.loop.unwatch(self._started.status.fileno())
                    self._started.status.close()
                self._told += part

    def _not_hardened(self, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        # Without its child bubblewrap ends, too, and then tells why.
        if self._still or code in {0, errno.ENOENT, errno.ESRCH}:
            return
        if code == ROOT_KEPT:
            self.events.failed("sandbox.launcher_root_uid", "the launcher cannot stop being uid 0")
        else:
            self.events.failed("sandbox.hardening_failed", os.strerror(code) if code > 0 else f"signal {-code}")

    def _hardened(self) -> None:
        """Look at what was set up, and let bubblewrap execute the starter."""
        if self.group is None or self._started is None or self._hardening is None:
            return
        done = self._hardening.succeeded()
        self._forget_hardening()
        if not done:
            return
        try:
            for place in (SCRATCH, OUT):
                self.directories.append(os.open(f"/proc/{self._init}/root{place}", DIRECTORY))
            self.mounts = MountNamespace(self._init, self._user)
            wrong = "; ".join(outside_check.faults(self._init, self.group.places, self._user))
        except OSError as refused:
            wrong = str(refused)
        if wrong:
            self.events.failed("sandbox.check_failed", wrong)
            return
        self._place.loop.watch(self._started.orders.fileno(), self._starter_here)
        with contextlib.suppress(BrokenPipeError):  # all of it has just died, and its end is told
            os.write(self._started.block.fileno(), b"\0")
        self._started.block.close()

    def _starter_here(self) -> None:
        """Look at the starter, which the kernel tells the process of."""
        if self._started is None:
            return
        self._place.loop.unwatch(self._started.orders.fileno())
        if self._still:
            return
        said, told, _, _ = self._started.orders.recvmsg(1, socket.CMSG_SPACE(CREDENTIALS.size))
        if said != starter.HERE or not told:  # its end, of which bubblewrap tells more
            return
        self._command = CREDENTIALS.unpack(told[0][2])[0]
        try:
            filtered = self.kind.filter is not None
            wrong = "; ".join(outside_check.faults_of_starter(self._command, self._init, filtered=filtered))
            self.pidfds = (_pidfd(self._init), _pidfd(self._command))
        except OSError as refused:
            wrong = str(refused)
        if wrong:
            self.events.failed("sandbox.check_failed", wrong)
        else:
            self.stand_still()
            self.held = True
            self.events.held()

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

    def waits(self) -> bool:
        """Look once more, at little cost: is all of it there, has the starter said nothing more, is nobody with it?"""
        return self.quiet() and self._all_there(self._directories[:1])

    def whole(self) -> bool:
        """Look, at more cost, in every tree of groups: is all of it there, and nobody else?"""
        return self._all_there(self._directories)

    @property
    def _directories(self) -> tuple[Path, ...]:
        return () if self.group is None else self.group.directories

    def _all_there(self, directories: tuple[Path, ...]) -> bool:
        own = {self._pid, self._init, self._command}
        return all(set(members(Files(), each)) == own for each in directories)

    def quiet(self) -> bool:
        """Return whether the starter is there, and has said nothing since it said so."""
        if not self.held or self._started is None or self.status is not None:
            return False
        try:
            self._started.orders.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def order(self, order: starter.Order, streams: Sequence[int], answered: Callable[[int | None], None]) -> None:
        """Have the starter become a command; the descriptors stay the caller's.

        `answered` is called once, with the errno where that cannot be executed, with None once it was.  Raises
        `OSError` where there is no starter any more.
        """
        if self._started is None:
            raise ConnectionError(errno.ENOTCONN, "no sandbox was started")
        rights = array.array("i", (*streams, order.descriptor))
        self._started.orders.sendmsg([order.numbers], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        self._answered = answered
        self._place.loop.watch(self._started.orders.fileno(), self._hear_answer)
        # The first process of the sandbox has the other end: nobody is to hear what is written there from now on.
        self._started.complaints.close()

    def _hear_answer(self) -> None:
        if self._started is None or self._answered is None:
            return
        try:
            said = self._started.orders.recv(starter.REFUSED.size)
        except BlockingIOError:
            return
        except ConnectionResetError:  # its end came with the order unread (unix(7))
            said, self.refused = b"", True
        except OSError:
            said = b""
        self._place.loop.unwatch(self._started.orders.fileno())
        refused, answered, self._answered = starter.refusal(said), self._answered, None
        self.refused = self.refused or refused is not None
        answered(refused)

    def _over(self, status: int) -> None:
        self.status = status
        self._pid = 0
        self._read_status()
        self._hear_answer()
        self.events.over()

    def kill(self) -> None:
        """Kill all of it, and do not wait for its death."""
        self.stand_still()
        # By its number, too: on v1 a child that has just been forked is not in the group yet.
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
        if self.group is not None:
            self.group.begin_to_kill()

    @property
    def dead(self) -> bool:
        """Whether all of it has been reaped, and nothing in the group lives.

        The end of bubblewrap makes what it has not reaped, the init of the sandbox, a child of this process.
        """
        if self._pid or (self.group is not None and self.group.populated()):
            return False
        return not any(_is_child(kind, number) for kind, number in self._children)

    def exit_code(self) -> int | None:
        """Return what bubblewrap told of the command; None where it told nothing, or there never was a command."""
        for line in self._told.splitlines():
            if b"exit-code" in line and not self.refused:
                code: int = json.loads(line)["exit-code"]
                return code
        return None

    def complaint(self) -> tuple[str, str]:
        """Return why bubblewrap was over before there was an order: a machine reason, and what is known."""
        if self._told.startswith(COMPLAINT):
            reason, _, detail = self._told[len(COMPLAINT) :].decode().strip().partition(": ")
            return reason, detail
        words = ""
        if self._started is not None and self._started.complaints.fileno() >= 0:
            with contextlib.suppress(BlockingIOError):
                words = os.read(self._started.complaints.fileno(), LONGEST_COMPLAINT).decode(errors="replace").strip()
        ended = "" if self.status is None else f" with {os.waitstatus_to_exitcode(self.status)}"
        return "sandbox.bwrap_failed", f"bubblewrap ended{ended} before the release{words and ': '}{words}"

    def close(self) -> None:
        """Let go of all descriptors: only after all is killed."""
        if self._started is not None:
            for each in (self._started.status, self._started.orders):
                if each.fileno() >= 0:
                    self._place.loop.unwatch(each.fileno())
            self._started.close()
        for held in self.pidfds:
            held.close()
        while self.directories:
            os.close(self.directories.pop())


def _pidfd(pid: int) -> Descriptor:
    try:
        return Descriptor(os.pidfd_open(pid))
    except ProcessLookupError:
        raise
    except OSError:  # before Linux 5.3, and under the filters of some containers
        return Descriptor(-1)


def _is_child(kind: int, number: int) -> bool:
    try:
        os.waitid(kind, number, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
