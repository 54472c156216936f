"""The node's end of a launcher: starts it, says and hears messages with their descriptors, and tells of its end.

The launcher ends by itself when this end of the socket is closed, having killed what runs; where it does not in time,
it is killed, and the kernel then kills what it started (`PR_SET_PDEATHSIG`).
"""

from __future__ import annotations

import array
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from subprocess import DEVNULL, PIPE

import attrs
import structlog
import trio

from gateway.actors.sandbox.closed import LAUNCHER_BROKEN, LAUNCHER_DIED, LAUNCHER_HUNG
from gateway.sandbox.launcher_messages import (
    LONGEST,
    MOST_DESCRIPTORS,
    Bounds,
    Laid,
    Message,
    Unfit,
    Up,
    message_of,
    packet,
)

log = structlog.get_logger(__name__)

ENVIRONMENT = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8"}
MOST_UNHEARD = 16
LONGEST_LINE = 2000
ROOM_FOR_RIGHTS = socket.CMSG_SPACE(MOST_DESCRIPTORS * array.array("i").itemsize)


@attrs.frozen
class Heard:
    """A message of the launcher's, and the descriptors that came with it: the hearer's, to be closed."""

    message: Message
    descriptors: tuple[int, ...] = ()

    def close(self) -> None:
        """Close the descriptors."""
        _close(self.descriptors)


@attrs.define(eq=False)
class Line:
    """What is heard of one run, for the one task that listens; it ends with the launcher.

    Not a memory channel, whose four objects take longer to be made than all that a run has to hear.
    """

    _heard: deque[Heard] = attrs.field(factory=deque)
    _ended: bool = False
    _listener: trio.lowlevel.Task | None = None

    async def receive(self) -> Heard | None:
        """Return what is heard next, at once where it was heard before; None at the end."""
        while not self._heard and not self._ended:
            self._listener = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._leave)
        return self._heard.popleft() if self._heard else None

    def put(self, heard: Heard) -> bool:
        """Let it be heard; returns False where there is too much unheard."""
        if len(self._heard) == MOST_UNHEARD:
            return False
        self._heard.append(heard)
        self._wake()
        return True

    def end(self) -> None:
        """Let nothing more be heard than what is there."""
        self._ended = True
        self._wake()

    def close(self) -> None:
        """Close what is not heard any more."""
        self._ended = True
        while self._heard:
            self._heard.popleft().close()

    def _wake(self) -> None:
        if self._listener is not None:
            trio.lowlevel.reschedule(self._listener)
            self._listener = None

    def _leave(self, _: object) -> trio.lowlevel.Abort:
        self._listener = None
        return trio.lowlevel.Abort.SUCCEEDED


@attrs.define(eq=False)
class Link:
    """A launcher that was started.

    Attributes:
        process: the launcher.
        lost: why it is of no use any more, a machine word; None while it is.
        over: set once it is lost.
    """

    process: trio.Process
    _socket: socket.socket
    lost: str | None = None
    over: trio.Event = attrs.field(factory=trio.Event)
    _greeting: Up | Unfit | None = None
    _greeted: trio.Event = attrs.field(factory=trio.Event)
    _lines: dict[str, Line] = attrs.field(factory=dict)
    _laid: dict[int, Bounds] = attrs.field(factory=dict)
    _unsent: deque[tuple[bytes, tuple[int, ...]]] = attrs.field(factory=deque)
    _more: trio.Event = attrs.field(factory=trio.Event)

    async def greeting(self, within: float) -> Up | Unfit:
        """Return what it says first; one that ends before, or says nothing for so many seconds, is unfit, too."""
        with trio.move_on_after(within):
            await self._greeted.wait()
        if self._greeting is not None:
            return self._greeting
        self.give_up(LAUNCHER_HUNG)
        told = f"the launcher did not say within {within:g} s that it works"
        return Unfit(self.lost or LAUNCHER_HUNG, told, "look at what the node logged of it as `sandbox_launcher_said`")

    @contextmanager
    def line(self, run: str) -> Iterator[Line]:
        """Hear what the launcher says of a run, for the length of a block; what is not heard by its end is closed."""
        line = Line()
        if self.lost is None:
            self._lines[run] = line
        else:
            line.end()
        try:
            yield line
        finally:
            self._lines.pop(run, None)
            line.close()

    def say(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send a message; the descriptors stay the sender's.  A launcher that is lost hears nothing."""
        if self.lost is not None:
            return
        if self._unsent or not self._sent(packet(message), descriptors):
            self._unsent.append((packet(message), tuple(os.dup(each) for each in descriptors)))
            self._more.set()

    def gives(self, slot: int, bounds: Bounds) -> bool:
        """Return whether a run with these bounds that is spawned now in a slot is given what was laid there.

        That is what the launcher told of last; what has died since then, only the answer to the `Spawn` tells.
        """
        laid = self._laid.pop(slot, None)
        return laid is not None and laid.set_up_as(bounds)

    def give_up(self, why: str) -> None:
        """Have nothing more to do with it: all its runs are lost, and whoever holds the link ends it."""
        if self.lost is not None:
            return
        self.lost = why
        for each in self._lines.values():
            each.end()
        self._lines.clear()
        self._greeted.set()
        self.over.set()

    async def listen(self) -> None:
        """Take what it says, until it is lost."""
        while self.lost is None:
            try:
                await trio.lowlevel.wait_readable(self._socket)
            except trio.ClosedResourceError:
                return
            self._hear()

    async def watch(self) -> None:
        """Wait for its end, which the socket does not tell of while anybody else has the other end."""
        await self.process.wait()
        while self.lost is None and self._hear():
            pass
        self.give_up(LAUNCHER_DIED)

    async def speak(self) -> None:
        """Send what the socket had no room for."""
        while self.lost is None:
            await self._more.wait()
            self._more = trio.Event()
            while self._unsent:
                try:
                    await trio.lowlevel.wait_writable(self._socket)
                except trio.ClosedResourceError:
                    return
                said, descriptors = self._unsent[0]
                if self._sent(said, descriptors):
                    self._unsent.popleft()
                    _close(descriptors)

    async def note_log(self) -> None:
        """Log what it writes on its standard error, line by line, so that it never waits for a reader."""
        stderr = self.process.stderr
        if stderr is None:
            raise TypeError("the launcher was started without a log")
        rest = b""
        async for chunk in stderr:
            *lines, rest = (rest + bytes(chunk)).split(b"\n")
            for line in lines:
                log.info("sandbox_launcher_said", pid=self.process.pid, said=_shown(line))
            rest = rest[-LONGEST_LINE:]
        if rest:
            log.info("sandbox_launcher_said", pid=self.process.pid, said=_shown(rest))

    def close(self) -> None:
        """Close this end of the socket, and what could not be sent."""
        self.give_up(LAUNCHER_DIED)
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()
        for _, descriptors in self._unsent:
            _close(descriptors)
        self._unsent.clear()

    def _sent(self, said: bytes, descriptors: Sequence[int]) -> bool:
        """Send and return True, or False where the socket has no room now."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            self._socket.sendmsg([said], rights, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError:
            self.give_up(LAUNCHER_DIED)
        return True

    def _hear(self) -> bool:
        """Take one message; returns False where there is none now."""
        try:
            # Not `recv_fds`, which lets its flags drop: every program that is started would inherit the descriptors.
            said, rights, flags, _ = self._socket.recvmsg(LONGEST, ROOM_FOR_RIGHTS, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return False
        except OSError:
            said, rights, flags = b"", [], 0
        descriptors = array.array("i")
        for _, _, content in rights:
            descriptors.frombytes(content)
        if said:
            self._take(said, tuple(descriptors), flags)
        else:
            self.give_up(LAUNCHER_DIED)
        return True

    def _take(self, said: bytes, descriptors: tuple[int, ...], flags: int) -> None:
        try:
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise ValueError("a message was cut")
            message = message_of(said)
        except ValueError as error:
            _close(descriptors)
            log.error("sandbox_launcher_broken", pid=self.process.pid, error=str(error))  # noqa: TRY400 - no defect here
            self.give_up(LAUNCHER_BROKEN)
            return
        if isinstance(message, Laid):
            self._laid[message.slot] = message.bounds
            return
        if isinstance(message, Up | Unfit):
            self._greeting = message
            self._greeted.set()
            return
        # What only the node says is of no run, and is not heard.
        line = self._lines.get(getattr(message, "run", ""))
        if line is None or not line.put(Heard(message, descriptors)):
            _close(descriptors)


@asynccontextmanager
async def open_link(command: Sequence[str], *, end_s: float) -> AsyncIterator[Link]:
    """Run a launcher for the length of a block; it then has `end_s` seconds to end by itself.

    Raises `OSError` where there is no such program.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)  # noqa: FBT003 - the standard library's
    start = partial(trio.lowlevel.open_process, stdin=theirs.fileno(), stdout=DEVNULL, stderr=PIPE)
    try:
        process = await start(list(command), env=ENVIRONMENT, cwd="/", start_new_session=True)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    link = Link(process, ours)
    try:
        async with trio.open_nursery() as nursery:
            for each in (link.listen, link.speak, link.watch, link.note_log):
                nursery.start_soon(each)
            try:
                yield link
            finally:
                link.close()
                with trio.CancelScope(shield=True):
                    await _end(process, end_s)
                nursery.cancel_scope.cancel()
    finally:
        if process.stderr is not None:
            with trio.CancelScope(shield=True):
                await process.stderr.aclose()


async def _end(process: trio.Process, within: float) -> None:
    """Wait for its end, and bring it about after so many seconds; one that may not be killed is left to itself."""
    with trio.move_on_after(within):
        await process.wait()
    if process.returncode is not None:
        return
    try:
        process.kill()
    except PermissionError:  # it has more privilege than this node (`SandboxSettings.launcher`)
        log.error("sandbox_launcher_left", pid=process.pid, fix=f"as root: kill -9 {process.pid}")  # noqa: TRY400
        return
    log.error("sandbox_launcher_killed", pid=process.pid)
    await process.wait()


def _close(descriptors: Sequence[int]) -> None:
    for each in descriptors:
        os.close(each)


def _shown(line: bytes) -> str:
    return line[-LONGEST_LINE:].decode(errors="replace")
