"""The program that runs the embedded model: one task on standard input, chat completions on a port of the loopback.

The task is a line of JSON, {"key", "threads", "memoryMib"}, perhaps "weights" for other ones than the installed; the
answer is a line, {"port"} once the model is loaded or {"error"} with `model_not_installed` or `load_failed`.  Standard
input then stays open: the program is over, whatever it does, as soon as it is closed, and so with the node's death.

Every request needs the key.  One whose connection is closed is stopped, and gives its slot to the next.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import resource
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import attrs
import h11
import orjson

from gateway.registry.ai.embedded_engine import MODEL, SLOTS, Engine, NotInstalled, Reply, refusal, weights

QUEUE = 8
"""Requests that may wait for a slot."""
WAIT_S = 60.0
LOOK_S = 0.05
"""How often a request that waits for a slot looks whether its caller is still there."""
CONNECTIONS = 64
RECEIVE_S = 5.0
SEND_S = 5.0
BODY_BYTES = 2 * 2**20
HEAD_BYTES = 16 * 2**10
NICE = 10
OPEN_FILES = 256
DIES_FIRST = "800"
"""What the kernel is told for when memory runs out, of 1000: this program is to die before the node."""


def main() -> None:
    """Serve until standard input is closed."""
    told = os.dup(1)
    os.dup2(2, 1)  # what the engine prints is no answer
    task = orjson.loads(_line())
    threading.Thread(target=_end_with_the_node, daemon=True).start()
    limit(task["memoryMib"], task["threads"])
    try:
        engine = Engine.load(Path(task["weights"]) if "weights" in task else weights(), task["threads"])
    except NotInstalled as missing:
        _refuse(told, "model_not_installed", missing)
    except (RuntimeError, MemoryError) as failure:
        _refuse(told, "load_failed", failure)
    with socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS) as listener:
        os.write(told, orjson.dumps({"port": listener.getsockname()[1]}) + b"\n")
        Door(engine, task["key"]).serve(listener)


def limit(memory_mib: int, threads: int) -> None:
    """Bound what the process may take: memory beside the mapped weights, open files, no file written, no core.

    It yields to the node only where it could take every core: with one to spare nobody waits for it.
    """
    with contextlib.suppress(OSError):  # another system's /proc
        Path("/proc/self/oom_score_adj").write_text(DIES_FIRST)
    if threads >= len(os.sched_getaffinity(0)):
        os.nice(NICE)
    for kind, most in (
        (resource.RLIMIT_DATA, memory_mib * 2**20),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))


def _line() -> bytes:
    """Return the first line of standard input, and leave the rest there."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            os._exit(0)
        line += byte
    return line


def _end_with_the_node() -> NoReturn:
    while os.read(0, 4096):
        pass
    os._exit(0)


def _refuse(told: int, word: str, why: Exception) -> NoReturn:
    sys.stderr.write(f"{word}: {type(why).__name__}: {why}\n")
    os.write(told, orjson.dumps({"error": word}) + b"\n")
    os._exit(3)


@attrs.define(eq=False)
class Slots:
    """Who may use the engine: as many as it has slots, and a bounded number that waits."""

    waiting: int = 0
    _free: threading.Semaphore = attrs.field(factory=lambda: threading.Semaphore(SLOTS))
    _counting: threading.Lock = attrs.field(factory=threading.Lock)

    @contextlib.contextmanager
    def one(self, connection: socket.socket) -> Iterator[bool]:
        """Hold a slot for the length of a block; False: there is none to be had, or nobody waits for it any more."""
        with self._counting:
            patient = self.waiting < QUEUE
            self.waiting += patient
        try:
            held = self._free.acquire(blocking=False) or (patient and self._wait(connection))
        finally:
            with self._counting:
                self.waiting -= patient
        try:
            yield held
        finally:
            if held:
                self._free.release()

    def _wait(self, connection: socket.socket) -> bool:
        ends = time.monotonic() + WAIT_S
        while not is_gone(connection) and time.monotonic() < ends:
            if self._free.acquire(timeout=LOOK_S):
                return True
        return False


@attrs.frozen(eq=False)
class Door:
    """Lets in who has the key: a thread a connection, a request a connection."""

    engine: Engine
    key: str = attrs.field(repr=False)
    slots: Slots = attrs.field(factory=Slots)
    room: threading.Semaphore = attrs.field(factory=lambda: threading.Semaphore(CONNECTIONS))

    def serve(self, listener: socket.socket) -> NoReturn:
        """Accept connections for ever; one too many is closed."""
        while True:
            connection, _ = listener.accept()
            if self.room.acquire(blocking=False):
                threading.Thread(target=self._converse, args=(connection,), daemon=True).start()
            else:
                connection.close()

    def _converse(self, connection: socket.socket) -> None:
        try:
            with connection, contextlib.suppress(OSError, h11.ProtocolError):
                wire = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
                request, content = receive(wire, connection)
                reply = self.answer(request, content, connection)
                if reply is not None:
                    send(wire, connection, reply)
        finally:
            self.room.release()

    def answer(self, request: h11.Request, content: bytes | None, connection: socket.socket) -> Reply | None:
        """Return the answer to a request; None where nobody waits for it any more.  `content` is None if too large."""
        given = dict(request.headers).get(b"authorization", b"")
        if not hmac.compare_digest(given, f"Bearer {self.key}".encode()):
            return refusal(401, "authentication_error", "the key is missing or wrong")
        match request.method, request.target:
            case b"GET", b"/v1/models":
                self.engine.answers()
                return Reply(200, {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "gateway"}]})
            case b"POST", b"/v1/chat/completions":
                return self._complete(content, connection)
        return refusal(404, "not_found_error", "there is no such thing here")

    def _complete(self, content: bytes | None, connection: socket.socket) -> Reply | None:
        if content is None:
            return refusal(413, "invalid_request_error", f"over {BODY_BYTES} bytes")
        try:
            asked: Any = orjson.loads(content)
        except orjson.JSONDecodeError:
            asked = None
        if not isinstance(asked, dict):
            return refusal(400, "invalid_request_error", "the body is not a JSON object")
        if asked.get("model") != MODEL:
            return refusal(404, "model_not_found", f"the model is {MODEL}")
        with self.slots.one(connection) as held:
            if held:
                return self.engine.complete(asked, lambda: is_gone(connection))
        return None if is_gone(connection) else refusal(503, "busy", "every slot is taken")


def is_gone(connection: socket.socket) -> bool:
    """Return True if the other side has closed the connection."""
    poll = select.poll()
    poll.register(connection, select.POLLIN | select.POLLRDHUP)
    return any(what & (select.POLLRDHUP | select.POLLHUP | select.POLLERR) for _, what in poll.poll(0))


def receive(wire: h11.Connection, connection: socket.socket) -> tuple[h11.Request, bytes | None]:
    """Return a request and its content, None if that is too large; raises OSError when it does not come in time."""
    ends, request, content = time.monotonic() + RECEIVE_S, None, bytearray()
    while True:
        match wire.next_event():
            case h11.Request() as begun:
                request = begun
            case h11.Data() as part:
                content += part.data
            case h11.EndOfMessage() if request is not None:
                return request, bytes(content)
            case h11.ConnectionClosed():
                raise ConnectionError("no request came")
            case h11.NEED_DATA:
                left = ends - time.monotonic()
                if left <= 0:
                    raise TimeoutError("no request came in time")
                connection.settimeout(left)
                wire.receive_data(connection.recv(65536))
        if request is not None and len(content) > BODY_BYTES:
            return request, None


def send(wire: h11.Connection, connection: socket.socket, reply: Reply) -> None:
    """Send an answer; the connection ends with it."""
    content = orjson.dumps(reply.members)
    headers = [
        ("content-type", "application/json"),
        ("content-length", str(len(content))),
        ("connection", "close"),
    ]
    parts = (h11.Response(status_code=reply.status, headers=headers), h11.Data(data=content), h11.EndOfMessage())
    connection.settimeout(SEND_S)
    connection.sendall(b"".join(wire.send(part) or b"" for part in parts))


if __name__ == "__main__":
    main()
