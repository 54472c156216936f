"""Programs that the world starts: each is ended by its own id, and ends with the world even if that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from gateway.config import ENVIRONMENT_PREFIX
from gateway.world.leash import leashed

GRACE_S = 5.0


class ChildFailed(Exception):
    """A program ended before it was ready; the text holds the end of its log."""


@attrs.define
class _Lines:
    stream: trio.lowlevel.FdStream
    _pending: bytes = b""

    async def line(self) -> str | None:
        while b"\n" not in self._pending:
            chunk = await self.stream.receive_some(65536)
            if not chunk:
                rest, self._pending = self._pending, b""
                return rest.decode(errors="replace") or None
            self._pending += chunk
        first, _, self._pending = self._pending.partition(b"\n")
        return first.decode(errors="replace")


@attrs.frozen
class Child:
    """A running program; its process id is `pid`, its standard error goes to `log`."""

    name: str
    log: Path
    _process: subprocess.Popen[bytes]
    _pidfd: int
    _stdout: _Lines | None

    @property
    def pid(self) -> int:
        """The process id, of the program itself and not of its leash."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative is the signal that ended it."""
        return self._process.poll()

    async def wait(self) -> int:
        """Return how it ended, once it has."""
        while (code := self._process.poll()) is None:
            await trio.lowlevel.wait_readable(self._pidfd)
        return code

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; nothing happens when it has ended."""
        self._process.send_signal(number)

    async def line(self) -> str | None:
        """Return the next line of its standard output, None once that is closed; for programs started with `read`."""
        if self._stdout is None:
            raise TypeError(f"{self.name} was started without `read`")
        return await self._stdout.line()

    async def failure(self) -> ChildFailed:
        """Return the error that tells how it ended and what it said last."""
        code = await self.wait()
        said = await trio.to_thread.run_sync(lambda: self.log.read_text(errors="replace"))
        return ChildFailed(f"{self.name} ended with {code}; {self.log} ends:\n" + "\n".join(said.splitlines()[-15:]))

    async def end(self, grace: float = GRACE_S) -> None:
        """Ask it to end, and end it when it has not done so after `grace` seconds."""
        with trio.CancelScope(shield=True):
            self.signal(signal.SIGTERM)
            with trio.move_on_after(grace):
                await self.wait()
                return
            self.signal(signal.SIGKILL)
            await self.wait()


@asynccontextmanager
async def open_child(
    name: str,
    command: Sequence[str],
    *,
    log: Path,
    read: bool = False,
    grace: float = GRACE_S,
    last_signal: signal.Signals = signal.SIGKILL,
) -> AsyncIterator[Child]:
    """Run `command`; it has ended when the block is left.

    Its standard error (and its output, unless `read`) is appended to `log`.  `last_signal` is what the kernel sends it
    when the world is killed.  A terminal's Ctrl-C does not reach it: it is a session of its own, so that the world ends
    its parts in its own order.  `GATEWAY_SECTION__KEY` of the environment configures other nodes and does not reach it.
    """
    # Started from this thread and not from a worker's: the leash follows the thread that forked (prctl(2)).
    with log.open("ab") as sink:
        process = subprocess.Popen(  # noqa: S603, ASYNC220 - see above; the command is ours
            leashed(command, last_signal),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if read else sink,
            stderr=sink,
            env={name: value for name, value in os.environ.items() if not _configures(name)},
            start_new_session=True,
        )
    pidfd = os.pidfd_open(process.pid)
    stdout = None
    if process.stdout is not None:
        stdout = _Lines(trio.lowlevel.FdStream(os.dup(process.stdout.fileno())))
        process.stdout.close()
    child = Child(name, log, process, pidfd, stdout)
    try:
        yield child
    finally:
        await child.end(grace)
        if stdout is not None:
            stdout.stream.close()
        os.close(pidfd)


def _configures(name: str) -> bool:
    return name.startswith(ENVIRONMENT_PREFIX) and "__" in name
