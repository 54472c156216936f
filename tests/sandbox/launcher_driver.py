"""A launcher driven from a test, one message after the other: the node's end of the socket, without a loop.

    with pinned_image() as image, launcher(image) as driver:
        ran = driver.run(["node", "-e", "console.log(1)"])
        assert (ran.stdout, ran.ended.exit_code) == (b"1\\n", 0)

`run` goes the whole way; `spawn`, `release`, `stop`, `ended` and `clear` go it step by step, several runs at a time.
Every wait is bounded.  A launcher that was killed is given back by `gone`.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from gateway.sandbox import launcher as launcher_program
from gateway.sandbox.cgroups import Cgroups, find
from gateway.sandbox.image import closed_to_others, load_lock
from gateway.sandbox.image_building import build, remove_tree
from gateway.sandbox.image_refusal import PinGone
from gateway.sandbox.launcher_messages import (
    LONGEST,
    Bounds,
    Clear,
    Cleared,
    Ended,
    Failed,
    Left,
    Message,
    Ready,
    Release,
    Settings,
    Spawn,
    Stop,
    Unfit,
    Up,
    message_of,
    packet,
)
from gateway.sandbox.seccomp import load_filter
from tests.sandbox.in_groups import a_prefix, unavailable

BUBBLEWRAP = shutil.which("bwrap") or ""
KEPT_DOWNLOADS = Path(__file__).parents[2] / ".gateway" / "sandbox-downloads"
FIRST_UID = 64500 + 2 * (os.getpid() % 500)
"""Of two slots; other tests that run at the same time have others."""
WAIT_S = 20.0
MIB = 1 << 20
ROOMY = Bounds(
    cpu_us=5_000_000,
    memory_bytes=256 * MIB,
    host_bytes=321 * MIB,
    tasks=258,
    disk_bytes=64 * MIB,
    artifact_bytes=MIB,
    wall_us=10_000_000,
    single=False,
)
M = TypeVar("M", bound=Message)


def bounded(**bounds: Any) -> Bounds:
    """Return roomy bounds but for these; the host's follow those of memory, disk and artifacts."""
    with_these = replace(ROOMY, **bounds)
    if "host_bytes" in bounds:
        return with_these
    return replace(with_these, host_bytes=with_these.memory_bytes + with_these.disk_bytes + with_these.artifact_bytes)


def require_a_sandbox() -> None:
    """Skip where no sandbox can be had, but not in CI."""
    if os.geteuid() != 0:
        unavailable("only root gives each slot a user of its own")
    if not BUBBLEWRAP:
        unavailable("bubblewrap is not installed (apt-get install bubblewrap)")


@contextmanager
def pinned_image() -> Iterator[Path]:
    """Build the pinned image where the users of slots may enter, and remove it afterwards."""
    place = Path(tempfile.mkdtemp(prefix="gateway-image-"))
    try:
        place.chmod(0o755)
        if closed := closed_to_others(place):
            unavailable(f"other users may not enter {closed}")
        try:
            yield build(place, load_lock(), downloads=KEPT_DOWNLOADS).image.path
        except PinGone as gone:
            unavailable(str(gone))
    finally:
        for each in place.iterdir():
            if each.is_dir():
                remove_tree(each)
        shutil.rmtree(place)


@dataclass
class Run:
    """One run as the test holds it: the pipes, what came of them, and what the launcher said.

    `unread` is the read end of its standard error, which is read from its release on, as the node does.  `left` are its
    `/scratch` and `/out`, where it has left something there.
    """

    name: str
    stdin: int
    unread: int = -1
    ready: Ready | None = None
    left: tuple[int, ...] = ()
    _read: dict[int, bytearray] = field(default_factory=dict)
    _readers: list[threading.Thread] = field(default_factory=list)
    ended: Ended | None = None
    cleared: Cleared | None = None
    failed: Failed | None = None

    def read(self, *descriptors: int) -> None:
        """Read these in threads of their own until their end."""
        for each in descriptors:
            self._read[each] = bytearray()
            reader = threading.Thread(target=self._drain, args=(each,), daemon=True)
            reader.start()
            self._readers.append(reader)

    def read_on(self) -> None:
        """Read what was held back, too."""
        if self.unread >= 0:
            self.read(self.unread)
            self.unread = -1

    def _drain(self, descriptor: int) -> None:
        while chunk := os.read(descriptor, 1 << 16):
            self._read[descriptor] += chunk
        os.close(descriptor)

    def _all(self, which: int) -> bytes:
        for each in self._readers:
            each.join(WAIT_S)
            assert not each.is_alive(), "its output has no end"
        return bytes(list(self._read.values())[which])

    @property
    def stdout(self) -> bytes:
        """All it wrote to standard output; waits for its end."""
        return self._all(0)

    @property
    def stderr(self) -> bytes:
        """All it wrote to standard error, unless the launcher read it before its release; waits for its end."""
        self.read_on()
        return self._all(1)

    def so_far(self, which: int = 0) -> bytes:
        """What it wrote to standard output until now, or to standard error (1) once that is read."""
        return bytes(list(self._read.values())[which])

    def told(self) -> Ended:
        """How it ended, which must be known by now."""
        assert self.ended is not None
        return self.ended

    def close(self) -> None:
        """Let go of its descriptors."""
        for each in (*self.left, self.stdin):
            if each >= 0:
                os.close(each)
        self.read_on()
        self.left, self.stdin = (), -1


class Driver:
    """The node's end of one launcher."""

    def __init__(self, process: subprocess.Popen[bytes], end: socket.socket, cgroups: Cgroups, prefix: str) -> None:
        self.process = process
        self.prefix = prefix
        self.cgroups = cgroups
        self.up: Up | Unfit | None = None
        self._end = end
        self._end.settimeout(WAIT_S)
        self._heard: deque[tuple[Message, list[int]]] = deque()

    def say(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send a message."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))] if descriptors else []
        self._end.sendmsg([packet(message)], rights)

    def hear(self) -> tuple[Message, list[int]]:
        """Return the next message, whatever it is.  Raises `EOFError` at the end of the launcher."""
        # Not `recv_fds`, which lets its flags drop in Python 3.11.
        said, rights, _, _ = self._end.recvmsg(LONGEST, socket.CMSG_SPACE(32), socket.MSG_CMSG_CLOEXEC)
        if not said:
            raise EOFError("the launcher is gone")
        descriptors = array("i")
        for _, _, numbers in rights:
            descriptors.frombytes(numbers)
        return message_of(said), list(descriptors)

    def silent(self) -> bool:
        """Return whether the launcher has said nothing that was not heard."""
        return not select.select([self._end], [], [], 0)[0]

    def expect(self, kind: type[M], run: str) -> tuple[M, list[int]]:
        """Return the next message of this run, which has to be of this kind; those of other runs are kept."""
        message, descriptors = self.next_of(run)
        assert isinstance(message, kind), message
        return message, descriptors

    def next_of(self, run: str) -> tuple[Message, list[int]]:
        """Return the next message of this run; those of other runs are kept."""
        kept: deque[tuple[Message, list[int]]] = deque()
        while True:
            message, descriptors = self._heard.popleft() if self._heard else self.hear()
            if getattr(message, "run", None) == run:
                self._heard = kept + self._heard
                return message, descriptors
            kept.append((message, descriptors))

    def begin(
        self,
        command: Sequence[str | bytes],
        bounds: Bounds = ROOMY,
        *,
        stdin: bytes | None = b"",
        slot: int = 0,
        again: bool = False,
        name: str = "",
    ) -> Run:
        """Ask for a run; `stdin` of None leaves the pipe open.  Says nothing of how that goes on."""
        run = Run(name or f"run-{secrets.token_hex(4)}", -1)
        stdin_r, stdin_w = os.pipe()
        stdout_r, stdout_w = os.pipe()
        stderr_r, stderr_w = os.pipe()
        argv = os.memfd_create("command")
        os.write(argv, b"".join(os.fsencode(each) + b"\0" for each in command))
        filter_ = os.memfd_create("filter")
        os.write(filter_, load_filter(platform.machine(), single=bounds.single).program)
        theirs = [stdin_r, stdout_w, stderr_w, argv, filter_]
        self.say(Spawn(run.name, slot, bounds, again), theirs)
        for each in theirs:
            os.close(each)
        run.read(stdout_r)
        run.unread = stderr_r
        if stdin is None:
            run.stdin = stdin_w
        else:
            threading.Thread(target=_write, args=(stdin_w, stdin), daemon=True).start()
        return run

    def spawn(
        self,
        command: Sequence[str | bytes],
        bounds: Bounds = ROOMY,
        *,
        stdin: bytes | None = b"",
        slot: int = 0,
        again: bool = False,
        name: str = "",
    ) -> Run:
        """Ask for a run and wait until it is ready."""
        run = self.begin(command, bounds, stdin=stdin, slot=slot, again=again, name=name)
        run.ready, _ = self.expect(Ready, run.name)
        return run

    def release(self, run: Run) -> None:
        """Let its command be executed."""
        run.read_on()
        self.say(Release(run.name))

    def stop(self, run: Run, reason: str = "cancelled") -> None:
        """End it."""
        self.say(Stop(run.name, reason))

    def ended(self, run: Run) -> Ended:
        """Wait until every process of it is dead."""
        told, directories = self.next_of(run.name)
        if isinstance(told, Left):
            run.left = tuple(directories)
            told, _ = self.next_of(run.name)
        assert isinstance(told, Ended), told
        run.ended = told
        return told

    def failed(self, run: Run) -> Failed:
        """Wait until it is told that it never ran."""
        run.failed, _ = self.expect(Failed, run.name)
        run.close()
        return run.failed

    def clear(self, run: Run) -> Cleared:
        """Have it removed, where the launcher waits for that."""
        waits = bool(run.left)
        run.close()
        if waits:
            self.say(Clear(run.name))
        run.cleared, _ = self.expect(Cleared, run.name)
        return run.cleared

    def run(
        self,
        command: Sequence[str | bytes],
        bounds: Bounds = ROOMY,
        *,
        stdin: bytes | None = b"",
        slot: int = 0,
        again: bool = False,
    ) -> Run:
        """Go the whole way, and fail where anything is left."""
        run = self.spawn(command, bounds, stdin=stdin, slot=slot, again=again)
        self.release(run)
        assert self.ended(run).processes == 0
        cleared = self.clear(run)
        assert (cleared.mounts, cleared.cgroups) == (0, 0)
        return run

    def hang_up(self) -> None:
        """Close the node's end, as a node that dies does."""
        self._end.close()

    def gone(self) -> int:
        """Wait for the launcher's end and return its exit code."""
        return self.process.wait(WAIT_S)

    def close(self) -> None:
        """End the launcher, and remove what it left: nothing, unless it was killed."""
        self.hang_up()
        try:
            self.gone()
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            self.gone()
            raise
        finally:
            self.cgroups.sweep(self.prefix)


@contextmanager
def launcher(
    image: Path, *, slots: int = 2, prefix: str = "", bubblewrap: str = "", before: Sequence[str] = ()
) -> Iterator[Driver]:
    """Start a launcher, `before` being a command that it is started by, wait for what it says first, and end it."""
    settings = Settings(str(image), bubblewrap or BUBBLEWRAP, prefix or a_prefix(), FIRST_UID, slots)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program = [sys.executable, "-I", "-S", str(launcher_program.PROGRAM), json.dumps(asdict(settings))]
    process = subprocess.Popen([*before, *program], stdin=theirs.fileno(), env={"PATH": "/usr/bin:/bin"})
    theirs.close()
    driver = Driver(process, ours, find(), settings.prefix)
    try:
        up, _ = driver.hear()
        assert isinstance(up, Up | Unfit)
        driver.up = up
        yield driver
    finally:
        driver.close()


def _write(descriptor: int, content: bytes) -> None:
    with suppress(BrokenPipeError):
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
    os.close(descriptor)


def uids_alive(first: int = FIRST_UID, slots: int = 2, *, zombies: bool = False) -> list[int]:
    """Return the processes of the slots' users that live, with `zombies` also the dead that nobody has reaped.

    Seen in /proc, not by the launcher.
    """
    alive = []
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            with suppress(OSError):
                told = (each / "status").read_text()
                user = int(told.split("\nUid:\t")[1].split()[0])
                if first <= user < first + slots and (zombies or "\nState:\tZ" not in told):
                    alive.append(int(each.name))
    return alive


def none_alive(within: float = 1.0) -> bool:
    """Return True as soon as no process of a slot's user lives, False when one still does so many seconds later."""
    until = time.monotonic() + within
    while uids_alive():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True
