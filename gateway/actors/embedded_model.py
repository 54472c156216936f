"""The supervisor of the embedded model's worker: starts it, tells where it answers, and starts it again when it fails.

The worker is a program of its own, without the node's environment and files: its crash, or the memory that it takes,
costs one route.  It ends by itself when its standard input is closed, and so with the node, however that ends; here it
is killed, for it has nothing to lose.  The node does not wait for it: until it answers, its place says why not.
"""

from __future__ import annotations

import secrets
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any, Never, Protocol

import attrs
import orjson
import structlog
import trio

from gateway.actors.runtime import ActorError, Inbox
from gateway.registry.ai.embedded import EmbeddedAdapter, Endpoint
from gateway.registry.http_call import HttpAnswer, HttpCall, UpstreamFailed

log = structlog.get_logger(__name__)

WORKER = (sys.executable, "-I", "-m", "gateway.registry.ai.embedded_worker")
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}

STARTING = "starting"
NOT_INSTALLED = "model_not_installed"
STOPPED = "stopped"
OUT_OF_MEMORY = "out_of_memory"
KILLED = "killed"
CRASHED = "crashed"
HUNG = "hung"
START_TIMEOUT = "start_timeout"

SIGNS_OF_NO_MEMORY = (b"bad_alloc", b"MemoryError", b"failed to allocate", b"Cannot allocate memory")
TAIL_CHUNKS = 16
CHUNK = 512
LAST_WORDS_S = 1.0
TOLD = 2000


class Call(Protocol):
    """Makes an `HttpCall`; raises `UpstreamFailed`."""

    def __call__(self, call: HttpCall, *, stops: bool = False) -> Awaitable[HttpAnswer]:
        """Make the call; with `stops`, an asker that is cancelled takes the exchange with it."""
        ...


@attrs.frozen
class WorkerSettings:
    """How the worker is run; all times are in seconds.

    Attributes:
        threads: threads that reckon; as many as there are cores are slower than one fewer.
        memory_mib: what it may allocate beside the mapped weights.
        weights: another file than the installed one.
        start_s: how long it may load.
        check_s: how often it is looked at, and how long it may take to answer.
        failures_to_kill: looks in a row that fail.
        retry_first_s: pause after it ended; doubles up to `retry_most_s`, and is forgotten once it has run that long.
    """

    threads: int = 1
    memory_mib: int = 1024
    weights: Path | None = None
    command: tuple[str, ...] = WORKER
    start_s: float = 120.0
    check_s: float = 5.0
    failures_to_kill: int = 2
    retry_first_s: float = 1.0
    retry_most_s: float = 60.0

    def back_off(self, failures: int) -> float:
        """Return the pause after the `failures`-th end in a row."""
        return min(self.retry_first_s * 2.0 ** min(failures - 1, 16), self.retry_most_s)


@attrs.define(eq=False)
class ModelPlace:
    """Where the embedded model answers now, or why not.  Read by anyone in the loop, written by its supervisor alone.

    Attributes:
        changed: called after every change; it must not wait.
        pid: of the worker, while there is one.
        starts: how often a worker has been started.
    """

    endpoint: Endpoint | str = STARTING
    changed: Callable[[], object] = attrs.field(default=lambda: None)
    pid: int | None = None
    starts: int = 0

    def now(self) -> Endpoint | str:
        """Return the endpoint, or the machine word for why there is none."""
        return self.endpoint

    def tell(self, endpoint: Endpoint | str) -> None:
        """Publish."""
        if endpoint != self.endpoint:
            self.endpoint = endpoint
            self.changed()


async def embedded_model(
    inbox: Inbox[Never], *, place: ModelPlace, call: Call, settings: WorkerSettings | None = None
) -> None:
    """Keep a worker running until the mailbox closes; become ready before it is."""
    supervisor = _Supervisor(place, call, settings or WorkerSettings())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.keep)
        inbox.ready()
        async for _ in inbox:
            pass
        nursery.cancel_scope.cancel()


@attrs.frozen(eq=False)
class _Worker:
    """A running worker, and the end of what it said on its standard error."""

    process: trio.Process
    tail: deque[bytes] = attrs.field(factory=lambda: deque(maxlen=TAIL_CHUNKS))
    silent: trio.Event = attrs.field(factory=trio.Event)

    @property
    def said(self) -> bytes:
        return b"".join(self.tail)

    async def listen(self) -> None:
        """Keep the end of its standard error, so that it never waits for a reader."""
        if self.process.stderr is not None:
            async for chunk in self.process.stderr:
                self.tail.extend(bytes(chunk[at : at + CHUNK]) for at in range(0, len(chunk), CHUNK))
        self.silent.set()

    async def ask(self, task: Mapping[str, Any]) -> Mapping[str, Any]:
        """Give it its task and return its answer, an empty one where it ended without."""
        stdin, stdout = self.process.stdin, self.process.stdout
        if stdin is None or stdout is None:
            raise TypeError("the worker was started without pipes")
        line = b""
        try:
            await stdin.send_all(orjson.dumps(task) + b"\n")
            while not line.endswith(b"\n"):
                chunk = await stdout.receive_some(CHUNK)
                if not chunk:
                    return {}
                line += chunk
        except trio.BrokenResourceError:
            return {}
        answer: Mapping[str, Any] = orjson.loads(line)
        return answer

    async def end(self) -> str:
        """Wait until it ends by itself and return the word for how it did."""
        await self.process.wait()
        with trio.move_on_after(LAST_WORDS_S):
            await self.silent.wait()
        if any(sign in self.said for sign in SIGNS_OF_NO_MEMORY):
            return OUT_OF_MEMORY
        return KILLED if self.process.returncode == -signal.SIGKILL else CRASHED


@attrs.frozen(eq=False)
class _Supervisor:
    place: ModelPlace
    call: Call
    settings: WorkerSettings

    async def keep(self) -> None:
        """Run one worker after another; one that is not installed is not tried again."""
        failures = 0
        try:
            while True:
                began = trio.current_time()
                word = await self.run_one()
                if trio.current_time() - began > self.settings.retry_most_s:
                    failures = 0
                failures += 1
                self.place.tell(word)
                if word == NOT_INSTALLED:
                    await trio.sleep_forever()
                await trio.sleep(self.settings.back_off(failures))
        finally:
            self.place.tell(STOPPED)

    async def run_one(self) -> str:
        """Run a worker until it ends or has to be ended; return the word for why."""
        key, began = secrets.token_urlsafe(32), trio.current_time()
        async with _open_worker(self.settings.command) as worker:
            self.place.pid, self.place.starts = worker.process.pid, self.place.starts + 1
            word = await self.start(worker, key)
            if isinstance(word, Endpoint):
                took = round(trio.current_time() - began, 3)
                log.info("embedded_model_answers", pid=worker.process.pid, seconds=took)
                self.place.tell(word)
                word = await self.watch(worker)
                said = None  # it may hold what callers asked
            else:
                said = worker.said.decode(errors="replace")[-TOLD:]
        self.place.pid = None
        log.warning("embedded_model_ended", reason=word, code=worker.process.returncode, said=said)
        return word

    async def start(self, worker: _Worker, key: str) -> Endpoint | str:
        """Return where a worker answers once it does, or the word for why it does not."""
        settings = self.settings
        task: dict[str, Any] = {"key": key, "threads": settings.threads, "memoryMib": settings.memory_mib}
        if settings.weights is not None:
            task["weights"] = str(settings.weights)
        with trio.move_on_after(settings.start_s):
            answer = await worker.ask(task)
            if "port" not in answer:
                word = await worker.end()
                return NOT_INSTALLED if answer.get("error") == NOT_INSTALLED else word
            there = Endpoint(f"http://127.0.0.1:{answer['port']}", key)
            while not await self.answers(there):
                if worker.process.returncode is not None:
                    return await worker.end()
                await trio.sleep(0.1)
            return there
        return START_TIMEOUT

    async def watch(self, worker: _Worker) -> str:
        """Return the word for why a worker that answered does not any more."""
        endpoint = self.place.endpoint
        if isinstance(endpoint, str):
            raise TypeError(endpoint)
        failures = 0
        while failures < self.settings.failures_to_kill:
            with trio.move_on_after(self.settings.check_s):
                await worker.process.wait()
            if worker.process.returncode is not None:
                return await worker.end()
            failures = 0 if await self.answers(endpoint) else failures + 1
        return HUNG

    async def answers(self, endpoint: Endpoint) -> bool:
        """Return False if the worker does not answer; a node that has its own hands full says nothing of it."""
        adapter = EmbeddedAdapter(lambda: endpoint)
        (question,) = adapter.probe_calls()
        try:
            answer = await self.call(attrs.evolve(question, timeout_s=self.settings.check_s), stops=True)
        except UpstreamFailed as problem:
            return isinstance(problem.__cause__, ActorError)
        return adapter.read_probe([answer]).ok


@asynccontextmanager
async def _open_worker(command: tuple[str, ...]) -> AsyncIterator[_Worker]:
    """Run a worker for the length of a block."""
    start = partial(trio.lowlevel.open_process, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    worker = _Worker(await start(command, env=ENVIRONMENT, cwd="/", start_new_session=True))
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.listen)
            yield worker
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            worker.process.kill()
            await worker.process.wait()
            for stream in (worker.process.stdin, worker.process.stdout, worker.process.stderr):
                if stream is not None:
                    await stream.aclose()
