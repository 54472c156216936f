"""The descriptors that a run is begun with, and the node's ends of its pipes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress

import attrs
import trio

from gateway.sandbox.output_text import CHUNK


@attrs.define(eq=False)
class Pipes:
    """This end of a run's standard input, output and error, and `given`, what the launcher is given (`Spawn`).

    `unsent` is what of the input the pipe has no room for; a short one is in the pipe before the run begins, and costs
    nothing more.
    """

    stdin: int
    stdout: int
    stderr: int
    given: tuple[int, ...]
    unsent: memoryview = attrs.field(repr=False)

    def push(self) -> None:
        """Write on; the input ends where all is written, or nobody will read it."""
        try:
            while self.unsent:
                self.unsent = self.unsent[os.write(self.stdin, self.unsent[:CHUNK]) :]
        except BlockingIOError:
            return
        except OSError:  # nobody reads it any more, which is theirs to decide
            self.unsent = self.unsent[len(self.unsent) :]
        self.stdin = _closed(self.stdin)

    async def write(self) -> None:
        """Write all that is left of the input."""
        while self.unsent:
            await trio.lowlevel.wait_writable(self.stdin)
            self.push()

    def hand_over(self) -> None:
        """Close what the launcher was given: with its own copies, a pipe ends where the run does."""
        for each in self.given:
            os.close(each)
        self.given = ()

    def close(self) -> None:
        """Close all of it."""
        self.hand_over()
        self.stdin, self.stdout, self.stderr = map(_closed, (self.stdin, self.stdout, self.stderr))


def open_pipes(command: Sequence[bytes], stdin: bytes, program: bytes, output_bytes: int = 0) -> Pipes:
    """Return the descriptors of a run, to be closed; `program` is that of its filter.

    The pipes of its output hold `output_bytes` where the kernel allows it: a program that exits drops what its pipe had
    no room for (`process.exit()` of Node.js).  Raises `OSError` where there are no more descriptors.
    """
    opened: list[int] = []

    def pipe() -> tuple[int, int]:
        ends = os.pipe()
        opened.extend(ends)
        return ends

    def file(name: str, content: bytes) -> int:
        descriptor = os.memfd_create(name)
        opened.append(descriptor)
        os.pwrite(descriptor, content, 0)  # `write` would move the place that the launcher reads from
        return descriptor

    try:
        (reads, ours), (out, writes_out), (err, writes_err) = pipe(), pipe(), pipe()
        for each in (ours, out, err):
            os.set_blocking(each, False)
        if output_bytes >= CHUNK:
            _widen(out, output_bytes)
            _widen(err, output_bytes)
        arguments = file("command", b"".join(each + b"\0" for each in command))
        given = (reads, writes_out, writes_err, arguments, file("filter", program))
        pipes = Pipes(ours, out, err, given, memoryview(stdin))
        pipes.push()
    except BaseException:
        for each in opened:
            os.close(each)
        raise
    return pipes


def _widen(pipe: int, wanted: int) -> None:
    """Give a pipe room for `wanted` bytes and one more, or for as many as an unprivileged user may have."""
    for size in (wanted + 1, wanted):
        with suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, size)
            return


def _closed(descriptor: int) -> int:
    if descriptor >= 0:
        os.close(descriptor)
    return -1
