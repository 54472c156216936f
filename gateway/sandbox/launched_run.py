"""One run's life in the launcher: set up and held back, released, bounded, ended, cleared.

Standard library only: the launcher imports this.  Whatever ends a run is one reason, the first; the group is killed at
once, and the run is over when bubblewrap is reaped and no process of the group lives.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.sandbox import bubblewrap, hardening, outside_check
from gateway.sandbox.bubblewrap import OUT, SCRATCH
from gateway.sandbox.cgroup_entry import fork_into
from gateway.sandbox.cgroup_files import Descriptor, members
from gateway.sandbox.cgroups import Bounds, Cgroups, Group
from gateway.sandbox.event_loop import EventLoop, Moment
from gateway.sandbox.kernel_calls import mount_namespace_id, mounts_in
from gateway.sandbox.launcher_child import COMPLAINT, Descriptors, become
from gateway.sandbox.launcher_messages import Cleared, Ended, Failed, Message, Ready, Spawn
from gateway.sandbox.run_watch import RunWatch

SETUP_WITHIN_S = 10.0
LOOK_AGAIN_S = 0.0004
"""Between two looks whether bubblewrap has set up, which takes it some 5 ms."""
EMPTY_WITHIN_S = 5.0
NOT_EMPTY_YET_S = 0.001
KILL_AGAIN_S = 0.25
REMOVED_WITHIN_S = 1.0
LONGEST_COMMAND = 1 << 20

Send = Callable[[Message, Sequence[int]], None]


class State(enum.Enum):
    """Where a run stands."""

    SETTING_UP = enum.auto()
    BLOCKED = enum.auto()
    RELEASED = enum.auto()
    ENDING = enum.auto()
    """Killed or over by itself; waits for bubblewrap to be reaped and the group to be empty."""
    ENDED = enum.auto()
    GONE = enum.auto()


@dataclass(frozen=True)
class Place:
    """What all runs of a launcher share: the program, the arguments of the image, the groups, the loop."""

    program: Path
    image: list[str]
    cgroups: Cgroups
    loop: EventLoop
    prefix: str


class LaunchedRun:
    """One run, from `start` until it is gone."""

    def __init__(self, asked: Spawn, place: Place, *, user: int | None, send: Send, gone: Callable[[], None]) -> None:
        """`user` is the host user to run as, None the launcher's own; `gone` is called when nothing is left to do."""
        self.asked = asked
        self.state = State.SETTING_UP
        self.group: Group | None = None
        self._place = place
        self._loop = place.loop
        self._user = user
        self._send = send
        self._gone = gone
        self._began = time.monotonic()
        self._timers: list[Moment] = []
        self._release = Descriptor(-1)
        self._status = Descriptor(-1)
        self._told = b""
        self._init: int | None = None
        self._mounts: int | None = None
        self._watch: RunWatch | None = None
        self._ending_since = 0.0
        self._sandbox_status: int | None = None
        self._reaped = False
        self._why: tuple[str, str] = ("sandbox.setup_failed", "")
        self._wall_us = 0

    # Set up

    def start(self, streams: Sequence[int], command: int, filter_: int | None) -> None:
        """Make the group and start bubblewrap in it; the caller keeps and closes the descriptors."""
        try:
            argv = read_command(command)
            bounds = self.asked.bounds
            limits = Bounds(memory_bytes=bounds.host_bytes, tasks=bounds.tasks)
            self.group = self._place.cgroups.make(f"{self._place.prefix}-{self.asked.run}", limits)
        except Exception as refused:  # noqa: BLE001 - whatever it is, this run has not begun and the others go on
            self._why = (getattr(refused, "reason", "sandbox.setup_failed"), f"{refused}")
            self._finish_failed(None)
            return
        try:
            pid = self._fork(argv, streams, filter_)
        except (OSError, RuntimeError) as refused:
            self._reaped = True
            self.fail("sandbox.setup_failed", str(refused))
            return
        self._loop.on_exit(pid, self._sandbox_over)
        self._loop.watch(self._status.fileno(), self._read_status)
        self._timers.append(
            self._loop.after(SETUP_WITHIN_S, lambda: self.fail("sandbox.setup_failed", "the set-up does not end"))
        )

    def _fork(self, argv: list[bytes], streams: Sequence[int], filter_: int | None) -> int:
        assert self.group is not None  # noqa: S101
        arguments = bubblewrap.arguments(
            self._place.image,
            disk_bytes=self.asked.bounds.disk_bytes,
            artifact_bytes=self.asked.bounds.artifact_bytes,
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
            os.set_blocking(hears, False)  # noqa: FBT003
            self._status = Descriptor(hears)
            descriptors = Descriptors(*streams, told, block, tells, filter_)
            parent = os.getpid()
            pid = fork_into(self.group.places)
            if pid == 0:
                become(self._place.program, argv, self.asked.bounds, descriptors, user=self._user, parent=parent)
        return pid

    def _read_status(self) -> None:
        if self._drain_status():
            self._loop.unwatch(self._status.fileno())
        if self.state is State.SETTING_UP and self._init is None and b"}" in self._told:
            self._init = json.loads(self._told[: self._told.index(b"}") + 1])["child-pid"]
            self._look_whether_blocked()

    def _drain_status(self) -> bool:
        """Read what there is, and return True at the end of it."""
        while True:
            try:
                part = os.read(self._status.fileno(), 4096)
            except BlockingIOError:
                return False
            if not part:
                return True
            self._told += part

    def _look_whether_blocked(self) -> None:
        if self.state is not State.SETTING_UP or self._init is None:
            return
        try:
            if outside_check.blocked(self._init):
                helper = hardening.begin(self._init, user=self._user)
                self._loop.on_exit(helper, self._hardened)
            else:
                self._timers.append(self._loop.after(LOOK_AGAIN_S, self._look_whether_blocked))
        except OSError as gone:
            self.fail("sandbox.bwrap_failed", f"bubblewrap's child is gone: {gone.strerror}")

    def _hardened(self, status: int) -> None:
        if self.state is not State.SETTING_UP or self._init is None or self.group is None:
            return
        code = os.waitstatus_to_exitcode(status)
        if code:
            self.fail("sandbox.hardening_failed", os.strerror(code) if code > 0 else f"signal {-code}")
            return
        directories: list[int] = []
        try:
            for place in (SCRATCH, OUT):
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                directories.append(os.open(f"/proc/{self._init}/root{place}", flags))
            self._mounts = _mount_namespace(self._init)
            user = os.geteuid() if self._user is None else self._user
            wrong = list(outside_check.faults(self._init, self.group.places, user))
            if wrong:
                self.fail("sandbox.check_failed", "; ".join(wrong))
                return
            self._cancel_timers()
            self.state = State.BLOCKED
            places = {tree: str(path) for tree, path in self.group.places.items()}
            self._send(Ready(self.asked.run, places, _us_since(self._began)), directories)
        except OSError as refused:
            self.fail("sandbox.check_failed", str(refused))
        finally:
            for each in directories:
                os.close(each)

    # Released

    def release(self) -> None:
        """Let the command be executed, and count from here on."""
        if self.state is not State.BLOCKED or self.group is None or self._init is None:
            return
        self.state = State.RELEASED
        self._watch = RunWatch(self.group, self.asked.bounds, self._loop, self._init, self.stop)
        os.write(self._release.fileno(), b"\0")
        self._release.close()

    # Ended

    def stop(self, reason: str) -> None:
        """End it for this reason, the first of all."""
        if self.state in {State.SETTING_UP, State.BLOCKED}:
            self.fail("sandbox.stopped", reason)
        elif self.state is State.RELEASED and self._watch is not None:
            self._watch.stopped = reason
            self._end()

    def fail(self, reason: str, detail: str) -> None:
        """End what has not been released."""
        if self.state in {State.SETTING_UP, State.BLOCKED}:
            self._why = (reason, detail)
            self._end()

    def _sandbox_over(self, status: int) -> None:
        self._sandbox_status = status
        self._reaped = True
        at_end = self._drain_status()
        if at_end:
            self._loop.unwatch(self._status.fileno())
        if self.state in {State.SETTING_UP, State.BLOCKED}:
            self.fail(*_complaint(self._told, status))
        elif self.state is State.RELEASED:
            self._end()

    def _end(self) -> None:
        self._wall_us = self._watch.finish() if self._watch is not None else 0
        self.state = State.ENDING
        self._ending_since = time.monotonic()
        self._cancel_timers()
        if self.group is not None:
            self.group.kill(within=0)
        self.look_whether_over()

    def look_whether_over(self) -> None:
        """See whether all of it is dead; called again whenever a process was reaped."""
        if self.state is not State.ENDING or self.group is None:
            return
        since = time.monotonic() - self._ending_since
        alive = self.group.populated()
        if (self._reaped and not alive) or since >= EMPTY_WITHIN_S:
            self._over()
            return
        if since >= KILL_AGAIN_S:
            self.group.kill(within=KILL_AGAIN_S)
        self._cancel_timers()
        self._timers.append(self._loop.after(NOT_EMPTY_YET_S, self.look_whether_over))

    def _over(self) -> None:
        assert self.group is not None  # noqa: S101
        self._cancel_timers()
        self._close()
        if self._watch is None:
            self._remove(self._began_removing(), self._finish_failed)
            return
        self.state = State.ENDED
        self._send(self._ended(self._watch, self.group), ())

    def _ended(self, watch: RunWatch, group: Group) -> Ended:
        return Ended(
            run=self.asked.run,
            stopped=watch.stopped,
            exit_code=_exit_code(self._told),
            sandbox_status=self._sandbox_status,
            command_status=watch.command_status(),
            cpu_us=watch.cpu_us(),
            wall_us=self._wall_us,
            peak_memory=group.peak_memory(),
            peak_tasks=group.peak_tasks(),
            task_denials=group.task_denials(),
            oom_kills=group.oom_kills(),
            processes=alive_in(group),
        )

    # Cleared

    def clear(self) -> None:
        """Remove what is left, and say what could not be."""
        if self.state is State.ENDED:
            self.state = State.GONE
            self._remove(self._began_removing(), self._finish_cleared)

    def _began_removing(self) -> float:
        return time.monotonic() + REMOVED_WITHIN_S

    def _remove(self, until: float, then: Callable[[tuple[Path, ...]], None]) -> None:
        left = () if self.group is None else self.group.remove(within=0)
        if left and time.monotonic() < until:
            self._loop.after(NOT_EMPTY_YET_S, lambda: self._remove(until, then))
        else:
            then(left)

    def _finish_cleared(self, left: tuple[Path, ...]) -> None:
        self._send(Cleared(self.asked.run, self._mounts_left(), len(left)), ())
        self._gone()

    def _finish_failed(self, left: tuple[Path, ...] | None) -> None:
        self.state = State.GONE
        still = ", ".join(map(str, left or ())) or None
        self._send(Failed(self.asked.run, *self._why, left=still), ())
        self._gone()

    def _mounts_left(self) -> int | None:
        return None if self._mounts is None else mounts_in(self._mounts)

    def abandon(self) -> None:
        """Kill all of it and remove its group, whatever state it is in: nobody is there to be told."""
        if self.group is not None:
            self.group.kill()
        self._close()

    def _cancel_timers(self) -> None:
        for each in self._timers:
            each.cancel()
        self._timers.clear()

    def _close(self) -> None:
        """Let go of the descriptors, the release among them: only after all is killed."""
        if self._status.fileno() >= 0:
            self._loop.unwatch(self._status.fileno())
        self._status.close()
        self._release.close()


def read_command(file: int) -> list[bytes]:
    """Return the arguments in a file, each ended by NUL.  Raises `ValueError` where it holds none, `OSError`."""
    content = os.pread(file, LONGEST_COMMAND + 1, 0)
    if len(content) > LONGEST_COMMAND or not content.endswith(b"\0"):
        raise ValueError("the command is no sequence of arguments that each end with NUL")
    return content[:-1].split(b"\0")


def alive_in(group: Group) -> int:
    """Return how many processes of a group live."""
    if not group.populated():
        return 0
    return len({pid for place in group.places.values() for pid in members(group.files, place)})


def _exit_code(told: bytes) -> int | None:
    for line in told.splitlines():
        if b"exit-code" in line:
            code: int = json.loads(line)["exit-code"]
            return code
    return None


def _complaint(told: bytes, status: int) -> tuple[str, str]:
    for line in told.splitlines():
        if line.startswith(COMPLAINT):
            reason, _, detail = line[len(COMPLAINT) :].decode().partition(": ")
            return reason, detail
    return "sandbox.bwrap_failed", f"bubblewrap ended with {os.waitstatus_to_exitcode(status)} before the release"


def _mount_namespace(init: int) -> int | None:
    namespace = os.open(f"/proc/{init}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return mount_namespace_id(namespace)
    finally:
        os.close(namespace)


def _us_since(moment: float) -> int:
    return round((time.monotonic() - moment) * 1_000_000)
