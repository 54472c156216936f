"""One run's life in the launcher: given a sandbox that is held, released, bounded, ended, cleared.

Whatever ends a run is one reason, the first; all of it is killed at once, and the run is over when all of it is reaped
and no process of the group lives.  Standard library only: the launcher imports this.
"""

from __future__ import annotations

import contextlib
import enum
import os
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gateway.sandbox import starter
from gateway.sandbox.bubblewrap_start import Place
from gateway.sandbox.cgroup_files import Files, members
from gateway.sandbox.cgroups import Group
from gateway.sandbox.held_sandbox import Events, HeldSandbox, SetupFailed
from gateway.sandbox.launcher_messages import Cleared, Ended, Failed, Left, Message, Ready, Spawn
from gateway.sandbox.leavings import leavings
from gateway.sandbox.run_watch import RunWatch
from gateway.sandbox.sandbox_end import SandboxEnd, remove_group

LONGEST_COMMAND = 1 << 20
REFUSED = 126 << 8
"""The wait(2) status that is told of bubblewrap where the command could not be executed, also if it was killed then."""
SHOWN = 200
"""Bytes of a name that cannot be executed, as the command's standard error tells it."""

Send = Callable[[Message, Sequence[int]], None]


class State(enum.Enum):
    """Where a run stands."""

    SETTING_UP = enum.auto()
    HELD = enum.auto()
    RELEASED = enum.auto()
    ENDING = enum.auto()
    """Killed, or over by itself, and not all of it dead yet."""
    ENDED = enum.auto()
    GONE = enum.auto()


class LaunchedRun:
    """One run, from `start` until it is gone."""

    def __init__(
        self,
        asked: Spawn,
        place: Place,
        sandbox: HeldSandbox,
        *,
        user: int | None,
        send: Send,
        gone: Callable[[bool], None],
    ) -> None:
        """`sandbox` was started before, or is not yet; `user` is the host user that it is for, None the launcher's own.

        `gone` is called when nothing is left to do, with whether nothing is left of it either.
        """
        self.asked = asked
        self.state = State.SETTING_UP
        self._place = place
        self._sandbox = sandbox
        self._ahead = sandbox.group is not None
        self._user = user
        self._send = send
        self._gone = gone
        self._began = time.monotonic()
        self._command: list[bytes] = []
        self._order: starter.Order | None = None
        self._streams: list[int] = []
        self._watch: RunWatch | None = None
        self._why = ("sandbox.setup_failed", "")
        self._end_of_it: SandboxEnd | None = None
        self._cpu_before_us = 0
        self._wall_us = 0

    def start(self, streams: Sequence[int], command: int) -> None:
        """Set it up; the caller keeps and closes the descriptors."""
        self._sandbox.events = Events(self._held, self.fail, self._over, self._told)
        try:
            # What the node waits for is said before the rest is done; nothing is let go of before that.
            if self._sandbox.held:
                self._held()
                self._look_who_is_there()
                if self.state is not State.HELD:
                    return
            self._take(streams, command)
            if not self._ahead:
                self._sandbox.start()
        except SetupFailed as failed:
            self.fail(failed.reason, failed.detail)
        except (OSError, ValueError) as refused:
            self.fail("sandbox.setup_failed", str(refused))

    def _take(self, streams: Sequence[int], command: int) -> None:
        """Make the order of the command, and hold its streams."""
        self._command = read_command(command)
        self._order = starter.order(self._command, self.asked.bounds.memory_bytes)
        for each in streams:
            self._streams.append(os.dup(each))
            if self._user is not None and stat.S_ISFIFO(os.fstat(each).st_mode):
                # So that it can open them by name (`/dev/stdin`), where root may do that; nothing else is its own.
                with contextlib.suppress(OSError):
                    os.fchown(each, self._user, self._user)

    def _held(self) -> None:
        if self._sandbox.group is not None:
            self.state = State.HELD
            places = {tree: str(path) for tree, path in self._sandbox.group.places.items()}
            took = round((time.monotonic() - self._began) * 1_000_000)
            self._send(Ready(self.asked.run, places, took, self._ahead), ())
            self._cpu_before_us = self._sandbox.group.cpu_us()

    def _look_who_is_there(self) -> None:
        if self._sandbox.whole():
            return
        # What has just died tells of its end itself.
        self._place.loop.reap()
        if self._sandbox.quiet():
            self.fail("sandbox.check_failed", "not all of it, or somebody else, is in its group")

    def release(self) -> None:
        """Let the command be executed, and count from here on."""
        # Where bubblewrap has just been killed, that is known first.
        self._place.loop.reap()
        box, group, began = self._sandbox, self._sandbox.group, time.monotonic()
        if self.state is not State.HELD or group is None or self._order is None:
            return
        # What it waits for comes first, and what watches it is made while it becomes the command.
        try:
            box.order(self._order, self._streams, self._answered)
        except OSError as gone:
            self.fail("sandbox.starter_gone", str(gone))
            return
        self.state = State.RELEASED
        self._watch = RunWatch(
            group,
            self.asked.bounds,
            self._place.loop,
            box.pidfds,
            box.directories,
            self.stop,
            began=began,
            cpu_before_us=self._cpu_before_us,
        )
        self._let_go_of_streams(but=1)

    def _let_go_of_streams(self, but: int = 0) -> None:
        while len(self._streams) > but:
            os.close(self._streams.pop(0))
        if self._order is not None:
            os.close(self._order.descriptor)
            self._order = None

    def _answered(self, refused: int | None) -> None:
        """Tell on its standard error why the command could not be executed; whoever ran it would have."""
        if refused is not None:
            told = self._command[0][:SHOWN] + b": " + os.strerror(refused).encode() + b"\n"
            with contextlib.suppress(OSError):
                os.write(self._streams[0], told)
        self._let_go_of_streams()

    def stop(self, reason: str) -> None:
        """End it for this reason, if it is the first."""
        if self.state is State.RELEASED and self._watch is not None:
            self._watch.stopped = reason
            self._end()
        else:
            self.fail("sandbox.stopped", reason)

    def fail(self, reason: str, detail: str) -> None:
        """End what has not been released, if this is the first reason."""
        if self.state in {State.SETTING_UP, State.HELD}:
            self._why = (reason, detail)
            self._end()

    def _told(self) -> None:
        # Bubblewrap itself takes its time to end, and nobody has to wait for that.
        if self.state is State.RELEASED:
            self._over()

    def _over(self) -> None:
        if self.state is State.RELEASED and self._watch is not None:
            # Bubblewrap tells of it as if the command had been killed.
            self._watch.stopped = "cancelled" if self._watch.init_killed() else None
            self._end()
        elif self.state in {State.SETTING_UP, State.HELD}:
            self.fail(*self._sandbox.complaint())

    def _end(self) -> None:
        self._wall_us = 0 if self._watch is None else self._watch.finish()
        self.state = State.ENDING
        self._end_of_it = SandboxEnd(self._sandbox, self._place.loop, self._ended)
        self._end_of_it.look()

    def kill(self) -> None:
        """Kill all of it, and do not wait for its death."""
        self._sandbox.kill()

    def look_whether_dead(self) -> None:
        """Go on once all of it is dead; called again whenever a process was reaped."""
        if self._end_of_it is not None:
            self._end_of_it.look()

    def _ended(self) -> None:
        if self._watch is None or self._sandbox.group is None:
            self._close()
            self.state = State.GONE
            remove_group(self._sandbox, self._place.loop, self._say_failed)
            return
        scratch, out = self._sandbox.directories
        left = leavings(scratch, out)
        told = self._account(self._watch, self._sandbox.group, left.disk_bytes)
        if not left.nothing:
            self._send(Left(self.asked.run), (scratch, out))
        # From here on nobody holds them, or the node alone: what is much takes long to be taken away.
        self._close()
        self.state = State.ENDED
        self._send(told, ())
        if left.nothing:
            self.clear()

    def _close(self) -> None:
        self._sandbox.close()
        self._let_go_of_streams()

    def _account(self, watch: RunWatch, group: Group, disk_bytes: int | None) -> Ended:
        return Ended(
            run=self.asked.run,
            stopped=watch.stopped,
            exit_code=self._sandbox.exit_code(),
            sandbox_status=REFUSED if self._sandbox.refused else self._sandbox.status,
            command_status=watch.command_status(),
            cpu_us=watch.cpu_us(),
            wall_us=self._wall_us,
            peak_memory=group.peak_memory(),
            peak_tasks=group.peak_tasks(),
            task_denials=group.task_denials(),
            oom_kills=group.oom_kills(),
            disk_bytes=disk_bytes,
            processes=0 if self._end_of_it is not None and self._end_of_it.all_dead else alive_in(group),
        )

    def clear(self) -> None:
        """Remove what is left of an ended run, of which nobody holds a descriptor, and say what could not be."""
        if self.state is State.ENDED:
            self.state = State.GONE
            remove_group(self._sandbox, self._place.loop, self._say_cleared)

    def _say_cleared(self, left: tuple[Path, ...]) -> None:
        mounts = None if self._sandbox.mounts is None else self._sandbox.mounts.left()
        self._send(Cleared(self.asked.run, mounts, len(left)), ())
        self._gone((mounts, left) == (0, ()))

    def _say_failed(self, left: tuple[Path, ...]) -> None:
        self._send(Failed(self.asked.run, *self._why, left=", ".join(map(str, left)) or None), ())
        self._gone(not left)

    def abandon(self) -> None:
        """Wait until all that was killed is dead, and let go of the rest: nobody is there to be told."""
        if self._sandbox.group is not None:
            self._sandbox.group.kill()
        self._close()


def alive_in(group: Group) -> int:
    """Return how many processes of a group live."""
    if not group.populated():
        return 0
    return len({pid for place in group.places.values() for pid in members(Files(), place)})


def read_command(file: int) -> list[bytes]:
    """Return the arguments in a file, each ended by NUL.  Raises `ValueError` where it holds none, `OSError`."""
    # Not more than there is: the room for the longest takes longer to be had than all the rest.
    content = os.pread(file, min(os.fstat(file).st_size, LONGEST_COMMAND + 1), 0)
    if len(content) > LONGEST_COMMAND or not content.endswith(b"\0"):
        raise ValueError("the command is no sequence of arguments that each end with NUL")
    return content[:-1].split(b"\0")
