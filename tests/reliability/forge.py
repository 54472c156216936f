"""Forks nodes from one process that has imported all of a node, so that each starts in a fraction of a second.

`python forge.py` reads an order a line, as JSON, and answers each with a line: `{"config", "log", "environment"}` with
a process id, `{"poll": pid}` with how that process ended (null while it runs).  When its input closes it kills what it
forked and ends.

With `CLOCK_DIAL` in its environment, the path of a `Dial`, a node has a clock that is ahead by what that says.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import random
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

PR_SET_PDEATHSIG = 1


# -- in the test -------------------------------------------------------------------------------------------------------


@attrs.frozen
class Dial:
    """How far the clock of a node's machine is ahead, to be turned while the node runs."""

    path: Path

    @classmethod
    def at(cls, path: Path) -> Dial:
        path.write_bytes(struct.pack("<q", 0))
        return cls(path)

    def turn(self, ahead_s: int) -> None:
        with self.path.open("r+b") as file:
            file.write(struct.pack("<q", ahead_s))

    @property
    def environment(self) -> dict[str, str]:
        return {"CLOCK_DIAL": str(self.path)}


@attrs.define(eq=False)
class Forge:
    """The process that forks."""

    program: subprocess.Popen[str]
    turn: threading.Lock = attrs.field(factory=threading.Lock)

    def ask(self, order: Mapping[str, Any]) -> Any:
        assert self.program.stdin is not None
        assert self.program.stdout is not None
        with self.turn:
            self.program.stdin.write(json.dumps(order) + "\n")
            self.program.stdin.flush()
            return json.loads(self.program.stdout.readline())

    def launch(self, config: Path, log: Path, environment: Mapping[str, str]) -> Forged:
        """Start a node; what `NodeProcess` launches with."""
        return Forged(self, self.ask({"config": str(config), "log": str(log), "environment": dict(environment)}))


@attrs.define(eq=False)
class Forged:
    """A node that was forked; it is waited for by its id."""

    forge: Forge
    pid: int
    code: int | None = None

    def poll(self) -> int | None:
        if self.code is None:
            self.code = self.forge.ask({"poll": self.pid})
        return self.code

    def wait(self, timeout: float | None = None) -> int:
        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                select.select([descriptor], [], [], timeout)
            finally:
                os.close(descriptor)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("node", timeout or 0)
        return code

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)


@contextmanager
def open_forge() -> Iterator[Forge]:
    """Start a forge; it and its nodes have ended when the block is left."""
    with subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        forge = Forge(program)
        assert forge.ask({"poll": 0}) is None
        try:
            yield forge
        finally:
            assert program.stdin is not None
            program.stdin.close()


# -- in the forge ------------------------------------------------------------------------------------------------------


DIALS: list[mmap.mmap] = []


def bend_time() -> None:
    """Let this process's wall clock go by its dial; before anything keeps the real one."""
    real_s, real_ns = time.time, time.time_ns

    def ahead_s() -> int:
        return int(struct.unpack("<q", DIALS[0][:8])[0]) if DIALS else 0

    time.time = lambda: real_s() + ahead_s()
    time.time_ns = lambda: real_ns() + ahead_s() * 10**9


def main() -> None:
    """Take orders until there are none."""
    bend_time()
    import eth_account
    import web3

    import gateway.cli
    import gateway.node

    assert all((eth_account, web3, gateway.cli, gateway.node))
    forked: set[int] = set()
    for line in sys.stdin:
        order = json.loads(line)
        if "poll" in order:
            print(json.dumps(_ended(order["poll"], forked)), flush=True)
            continue
        pid = os.fork()
        if not pid:
            _become_node(order)
        forked.add(pid)
        print(pid, flush=True)
    for pid in forked:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _ended(pid: int, forked: set[int]) -> int | None:
    if pid not in forked:
        return None
    found, status = os.waitpid(pid, os.WNOHANG)
    if not found:
        return None
    forked.discard(pid)
    return os.waitstatus_to_exitcode(status)


def _become_node(order: Mapping[str, Any]) -> None:
    """Become `gateway serve`; the failpoint is armed as a fresh process would arm it from its environment."""
    from gateway.actors import failpoints
    from gateway.cli import main as gateway

    code = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        os.environ.update(order["environment"])
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for descriptor, standard in ((null, 0), (log, 1), (log, 2)):
            os.dup2(descriptor, standard)
        if "CLOCK_DIAL" in os.environ:
            with Path(os.environ["CLOCK_DIAL"]).open("rb") as file:
                DIALS.append(mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ))
        random.seed()
        failpoints.armed = failpoints.Armed.of(os.environ.get("GATEWAY_FAILPOINT"))
        gateway(["serve", "--config", order["config"]])
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:  # noqa: BLE001 - told in the log, and by the exit code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
