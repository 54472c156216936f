"""One run, from `Spawn` to what it came to.

The commit point stands before `Release`: whatever fails before that is told as a run that never was, whatever is lost
after it as one that may have been.  That a run may be let go is made durable once it is `Ready`, and while that is
waited for where its sandbox is laid already, which takes less.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import TypeVar

import attrs
import trio

from gateway.actors.sandbox.closed import LAUNCHER_BROKEN, LAUNCHER_HUNG
from gateway.actors.sandbox.link import Heard, Line, Link
from gateway.actors.sandbox.pipes import Pipes, open_pipes
from gateway.errors import ExecutionFailed, ExecutionReconciliation, GatewayError
from gateway.sandbox import launcher_messages as messages
from gateway.sandbox.artifacts import Bounds, Listing, listing
from gateway.sandbox.launcher_messages import Clear, Cleared, Ended, Failed, Left, Ready, Release, Spawn
from gateway.sandbox.limits import Limits
from gateway.sandbox.outcome import Cleanup, Denials, Evidence, Stop, Usage, decide
from gateway.sandbox.output_text import Capture, Stream
from gateway.sandbox.run_result import RunResult

M = TypeVar("M")

CALLED_OFF = "called_off"
NO_DESCRIPTORS = "no_descriptors"
NO_TIME = "deadline"
SETUP_TIMEOUT = "setup_timeout"


@attrs.frozen(eq=False)
class Command:
    """What is to be run, and when.

    Attributes:
        run: names it; the launcher knows no other of that name.
        arguments: as the kernel takes them.
        stdin: all of its standard input.
        deadline: on trio's clock; what cannot be over by then is not begun.
        release: `Work.release`.
        caller: `Work.caller`.
    """

    run: str
    arguments: tuple[bytes, ...] = attrs.field(repr=False)
    stdin: bytes = attrs.field(repr=False)
    limits: Limits
    deadline: float
    release: Callable[[], Awaitable[None]]
    caller: str = attrs.field(default="", repr=False)

    def begins_by(self, end_s: float) -> float:
        """Return when it has to be let go at the latest, where what comes after it takes up to twice `end_s`."""
        return self.deadline - self.limits.wall_time_ms / 1000 - 2 * end_s


@attrs.define(eq=False)
class Run:
    """A run in a slot, under the filter `program`.

    Attributes:
        setup_s: how long it may take until it is ready.
        end_s: how long each step after its last process may take.
        again: another sandbox of its kind is to be laid ahead in its slot when it is over.
        look: called while it is set up; raises `GatewayError` where nothing may run.
        released: the command may have run.
        clean: nothing of it is left, as far as the launcher told.
    """

    command: Command
    slot: int
    link: Link = attrs.field(repr=False)
    program: bytes = attrs.field(repr=False)
    setup_s: float
    end_s: float
    again: bool = False
    look: Callable[[], object] = attrs.field(default=lambda: None, repr=False)
    released: bool = False
    clean: bool = True
    _called_off: bool = False
    _left: Heard | None = None

    def call_off(self) -> None:
        """Have it end as soon as it can; what it comes to is no result then."""
        self._called_off = True
        self._stop(Stop.CANCELLED)

    async def live(self) -> RunResult:
        """Make the run and return what it came to.

        Raises `ExecutionFailed` with the reason where it never ran, `ExecutionReconciliation` where it may have and
        what it came to is lost, and whatever `look` and `release` raise.
        """
        command = self.command
        if self._called_off:
            raise never_ran(CALLED_OFF)
        with self.link.line(command.run) as line:
            try:
                opened = open_pipes(command.arguments, command.stdin, self.program, command.limits.output_bytes)
            except OSError as error:
                raise never_ran(NO_DESCRIPTORS) from error
            with closing(opened) as pipes:
                ready = await self._set_up(pipes, line)
                try:
                    await self._release(line)
                    ended, capture = await self._run(pipes, line)
                    files = await self._files()
                finally:
                    await self._let_go()
            cleanup = await self._clear(line, ended)
            return self._result(ended, capture, files, cleanup, ready)

    async def _set_up(self, pipes: Pipes, line: Line) -> Ready:
        """Have it made ready, and made durable that it may run."""
        command = self.command
        if command.begins_by(self.end_s) <= trio.current_time():
            raise never_ran(NO_TIME)
        bounds = bounds_of(command.limits)
        self.clean, laid = False, self.link.gives(self.slot, bounds)
        self.link.say(Spawn(command.run, self.slot, bounds, self.again), pipes.given)
        pipes.hand_over()
        try:
            self.look()
        except GatewayError:
            await self._never(line, CALLED_OFF)
            raise
        if laid:
            await self._commit(line)
            return await self._ready(line)
        ready = await self._ready(line)
        await self._commit(line)
        return ready

    async def _ready(self, line: Line) -> Ready:
        """Wait until it is ready."""
        heard = await self._heard(line, min(self.setup_s, self.command.begins_by(self.end_s) - trio.current_time()))
        match heard:
            case Heard(Ready() as ready, ()):
                return ready
            case Heard(Failed() as failed):
                self.clean = failed.left is None
                raise never_ran(CALLED_OFF if self._called_off else failed.reason, failed.detail)
            case None:
                raise await self._never(line, SETUP_TIMEOUT)
        heard.close()
        self.link.give_up(LAUNCHER_BROKEN)
        raise never_ran(LAUNCHER_BROKEN)

    async def _commit(self, line: Line) -> None:
        """Make durable that it may have run."""
        try:
            with trio.move_on_at(self.command.begins_by(self.end_s)) as in_time:
                await self.command.release()
        except Exception:
            await self._never(line, CALLED_OFF)
            raise
        if in_time.cancel_called:
            raise await self._never(line, CALLED_OFF if self._called_off else NO_TIME)

    async def _release(self, line: Line) -> None:
        """Let it go: from here on it has run."""
        if self._called_off:
            raise await self._never(line, CALLED_OFF)
        if self.link.lost is not None:
            raise never_ran(self.link.lost)
        self.released = True
        self.link.say(Release(self.command.run))

    async def _run(self, pipes: Pipes, line: Line) -> tuple[Ended, Capture]:
        """Feed it and read it until it is over."""
        limits = self.command.limits
        capture, drained = Capture(limits.output_bytes), trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pipes.write)
            nursery.start_soon(self._read, pipes, capture, drained)
            over = await self._over(line, limits.wall_time_ms / 1000 + self.end_s)
            if isinstance(over, Ended) and not drained.is_set():
                with trio.move_on_after(self.end_s):
                    await drained.wait()
            nursery.cancel_scope.cancel()
        match over:
            case Ended():
                return over, capture
            case Failed():  # it had died before it could be let go, and the launcher let nothing go
                self.clean = over.left is None
                raise never_ran(over.reason, over.detail)
        self.link.give_up(LAUNCHER_HUNG)
        raise lost(self.link.lost or LAUNCHER_HUNG)

    async def _over(self, line: Line, within: float) -> Ended | Failed | None:
        """Return what tells of its end, like `_heard`, and keep what it has left."""
        until = trio.current_time() + within
        while (heard := await self._heard(line, until - trio.current_time())) is not None:
            match heard:
                case Heard(Ended() | Failed() as over):
                    return over
                case Heard(Left(), (_, _)) if self._left is None:
                    self._left = heard
                case Heard(Left()):
                    heard.close()
                    self.link.give_up(LAUNCHER_BROKEN)
                    return None
                case _:
                    heard.close()
        return None

    async def _read(self, pipes: Pipes, capture: Capture, drained: trio.Event) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_one, pipes.stdout, "stdout", capture)
            nursery.start_soon(self._read_one, pipes.stderr, "stderr", capture)
        drained.set()

    async def _read_one(self, descriptor: int, stream: Stream, capture: Capture) -> None:
        """Read to the end, or until it has written more than it may: nothing is read after that."""
        while True:
            await trio.lowlevel.wait_readable(descriptor)
            if capture.passed:
                return
            try:
                chunk = os.read(descriptor, capture.next_read)
            except BlockingIOError:
                continue
            if not chunk:
                capture.text(stream)  # no work any more when all else waits for it
                return
            if capture.feed(stream, chunk):
                self._stop(Stop.OUTPUT)

    async def _files(self) -> Listing:
        """Return what stands in `/out`, all of its processes being dead."""
        if self._left is None:
            return Listing((), complete=True)
        _, out = self._left.descriptors
        try:
            return await trio.to_thread.run_sync(listing, out, Bounds(self.command.limits.artifact_bytes))
        except OSError:
            return Listing((), complete=False)

    async def _let_go(self) -> None:
        """Close its directories: with their last descriptors the kernel takes away all that was written.

        It takes a second for half a million files, in which the loop must not stand still.
        """
        if self._left is not None:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._left.close)

    async def _clear(self, line: Line, ended: Ended) -> Cleanup:
        """Have removed what is left, once no descriptor of it is held here."""
        if self._left is not None:
            self.link.say(Clear(self.command.run))
        cleared = await self._heard_of(line, Cleared, self.end_s)
        if cleared is None:
            return Cleanup(ended.processes, None, None)
        cleanup = Cleanup(ended.processes, cleared.mounts, cleared.cgroups)
        self.clean = cleanup.verified
        return cleanup

    def _result(
        self,
        ended: Ended,
        capture: Capture,
        files: Listing,
        cleanup: Cleanup,
        ready: Ready,
    ) -> RunResult:
        stopped = None if ended.stopped is None else Stop(ended.stopped)
        if stopped is None and capture.passed:
            stopped = Stop.OUTPUT  # it ended by itself before it could be stopped for what it had written already
        evidence = Evidence(
            stopped=stopped,
            exit_code=ended.exit_code,
            sandbox_status=ended.sandbox_status,
            oom_kills=ended.oom_kills or 0,
            cpu_us=ended.cpu_us,
            command_status=ended.command_status,
        )
        return RunResult(
            ending=decide(evidence, self.command.limits),
            stdout=capture.text("stdout"),
            stderr=capture.text("stderr"),
            artifacts=files,
            usage=Usage(
                cpu_millis=_ms(ended.cpu_us),
                peak_memory_bytes=ended.peak_memory,
                processes_peak=ended.peak_tasks,
                wall_ms=_ms(ended.wall_us),
                disk_bytes=ended.disk_bytes,
                output_bytes=capture.kept_bytes,
                artifact_bytes=files.total_bytes,
            ),
            denials=Denials(ended.task_denials, ended.oom_kills),
            cleanup=cleanup,
            setup_ms=_ms(ready.setup_us),
            laid_ahead=ready.ahead,
        )

    async def _never(self, line: Line, reason: str) -> ExecutionFailed:
        """End a run that was not let go, and return the failure that tells of it."""
        if self.link.lost is not None:
            return never_ran(self.link.lost)
        self._stop(Stop.CANCELLED)
        failed = await self._heard_of(line, Failed, self.end_s)
        if failed is None:
            self.link.give_up(LAUNCHER_HUNG)
        else:
            self.clean = failed.left is None
        return never_ran(reason)

    def _stop(self, why: Stop) -> None:
        self.link.say(messages.Stop(self.command.run, why.value))

    async def _heard(self, line: Line, within: float) -> Heard | None:
        """Return what the launcher says next of it, None where it says nothing in time, or nothing more at all."""
        with trio.move_on_after(within):
            return await line.receive()
        return None

    async def _heard_of(self, line: Line, kind: type[M], within: float) -> M | None:
        """Return the next message of this kind, like `_heard`."""
        until = trio.current_time() + within
        while (heard := await self._heard(line, until - trio.current_time())) is not None:
            if isinstance(heard.message, kind):
                return heard.message
            heard.close()
        return None


def bounds_of(limits: Limits) -> messages.Bounds:
    """Return what the launcher holds a run with these limits to."""
    return messages.Bounds(
        cpu_us=limits.cpu_millis * 1000,
        memory_bytes=limits.memory_bytes,
        host_bytes=limits.host_bytes,
        tasks=limits.tasks,
        disk_bytes=limits.disk_bytes,
        artifact_bytes=limits.artifact_bytes,
        wall_us=limits.wall_time_ms * 1000,
        single=limits.single,
    )


def lay_ahead(link: Link, bounds: messages.Bounds, program: bytes) -> None:
    """Have sandboxes with these bounds, under this filter, laid ahead in every slot.  Raises `OSError`."""
    file = os.memfd_create("filter")
    try:
        os.pwrite(file, program, 0)
        link.say(messages.Lay(bounds), [file])
    finally:
        os.close(file)


def never_ran(reason: str, detail: str = "") -> ExecutionFailed:
    """Return the failure of a run that never ran; `detail` is for the node's log."""
    told = ExecutionFailed(f"The command was not run ({reason}).", extra={"reason": reason})
    if detail:
        told.add_note(detail)
    return told


def lost(reason: str) -> ExecutionReconciliation:
    """Return the failure of a run that may have run, and of which nothing is known."""
    return ExecutionReconciliation(f"The command may have run ({reason}).", extra={"reason": reason})


def _ms(us: int) -> int:
    return round(us / 1000)
