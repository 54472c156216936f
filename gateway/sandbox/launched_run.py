"""One run's life in the launcher: set up and held back, released, bounded, ended, cleared.

Whatever ends a run is one reason, the first; all of it is killed at once, and the run is over when all of it is reaped
and no process of the group lives.  Standard library only: the launcher imports this.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gateway.sandbox.cgroup_files import Files, members
from gateway.sandbox.cgroups import Group
from gateway.sandbox.event_loop import Moment
from gateway.sandbox.held_sandbox import Events, HeldSandbox, Place, SetupFailed
from gateway.sandbox.launcher_messages import Cleared, Ended, Failed, Message, Ready, Spawn
from gateway.sandbox.run_watch import RunWatch

EMPTY_WITHIN_S = 5.0
NOT_YET_S = 0.001
KILL_AGAIN_S = 0.25
REMOVED_WITHIN_S = 1.0

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

    def __init__(self, asked: Spawn, place: Place, *, user: int | None, send: Send, gone: Callable[[], None]) -> None:
        """`user` is the host user to run as, None the launcher's own; `gone` is called when nothing is left to do."""
        self.asked = asked
        self.state = State.SETTING_UP
        self._place = place
        self._send = send
        self._gone = gone
        self._began = time.monotonic()
        self._sandbox = HeldSandbox(place, asked.bounds, user, Events(self._held, self.fail, self._over))
        self._watch: RunWatch | None = None
        self._why = ("sandbox.setup_failed", "")
        self._ending_since = 0.0
        self._wall_us = 0
        self._next_look: Moment | None = None

    def start(self, streams: Sequence[int], command: int, filter_: int | None) -> None:
        """Set it up; the caller keeps and closes the descriptors."""
        try:
            self._sandbox.start(f"{self._place.prefix}-{self.asked.run}".lower(), streams, command, filter_)
        except SetupFailed as failed:
            self.fail(failed.reason, failed.detail)

    def _held(self) -> None:
        if self._sandbox.group is not None:
            self.state = State.HELD
            places = {tree: str(path) for tree, path in self._sandbox.group.places.items()}
            took = round((time.monotonic() - self._began) * 1_000_000)
            self._send(Ready(self.asked.run, places, took), self._sandbox.directories)

    def release(self) -> None:
        """Let the command be executed, and count from here on."""
        # Where bubblewrap has just been killed, its child still stands there and would go on.
        self._place.loop.reap()
        if self.state is not State.HELD or self._sandbox.group is None:
            return
        self.state = State.RELEASED
        box = self._sandbox
        self._watch = RunWatch(
            self._sandbox.group, self.asked.bounds, self._place.loop, box.init, box.directories, self.stop
        )
        box.let_go()

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
        self._ending_since = time.monotonic()
        self.kill()
        self.look_whether_dead()

    def kill(self) -> None:
        """Kill all of it, and do not wait for its death."""
        self._sandbox.kill()

    def look_whether_dead(self) -> None:
        """Go on once all of it is dead; called again whenever a process was reaped."""
        if self.state is not State.ENDING:
            return
        if self._next_look is not None:
            self._next_look.cancel()
        since = time.monotonic() - self._ending_since
        if self._sandbox.dead or since >= EMPTY_WITHIN_S:
            self._ended()
            return
        if since >= KILL_AGAIN_S and self._sandbox.group is not None:
            self._sandbox.group.kill(within=KILL_AGAIN_S)
        self._next_look = self._place.loop.after(NOT_YET_S, self.look_whether_dead)

    def _ended(self) -> None:
        self._sandbox.close()
        if self._watch is None or self._sandbox.group is None:
            self.state = State.GONE
            self._remove(time.monotonic() + REMOVED_WITHIN_S, self._say_failed)
        else:
            self.state = State.ENDED
            self._send(self._account(self._watch, self._sandbox.group), ())

    def _account(self, watch: RunWatch, group: Group) -> Ended:
        return Ended(
            run=self.asked.run,
            stopped=watch.stopped,
            exit_code=self._sandbox.exit_code(),
            sandbox_status=self._sandbox.status,
            command_status=watch.command_status(),
            cpu_us=watch.cpu_us(),
            wall_us=self._wall_us,
            peak_memory=group.peak_memory(),
            peak_tasks=group.peak_tasks(),
            task_denials=group.task_denials(),
            oom_kills=group.oom_kills(),
            processes=alive_in(group),
        )

    def clear(self) -> None:
        """Remove what is left of an ended run, and say what could not be."""
        if self.state is State.ENDED:
            self.state = State.GONE
            self._remove(time.monotonic() + REMOVED_WITHIN_S, self._say_cleared)

    def _remove(self, until: float, then: Callable[[tuple[Path, ...]], None]) -> None:
        left = () if self._sandbox.group is None else self._sandbox.group.remove(within=0)
        if left and time.monotonic() < until:
            self._place.loop.after(NOT_YET_S, lambda: self._remove(until, then))
        else:
            then(left)

    def _say_cleared(self, left: tuple[Path, ...]) -> None:
        mounts = None if self._sandbox.mounts is None else self._sandbox.mounts.left()
        self._send(Cleared(self.asked.run, mounts, len(left)), ())
        self._gone()

    def _say_failed(self, left: tuple[Path, ...]) -> None:
        self._send(Failed(self.asked.run, *self._why, left=", ".join(map(str, left)) or None), ())
        self._gone()

    def abandon(self) -> None:
        """Wait until all that was killed is dead, and let go of the rest: nobody is there to be told."""
        if self._sandbox.group is not None:
            self._sandbox.group.kill()
        self._sandbox.close()


def alive_in(group: Group) -> int:
    """Return how many processes of a group live."""
    if not group.populated():
        return 0
    return len({pid for place in group.places.values() for pid in members(Files(), place)})
