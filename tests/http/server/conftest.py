"""A real server on a real socket, and a client that sends exactly the bytes it is told to."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import attrs
import h11
import orjson
import pytest
import structlog
import trio
from quart import request
from quart_trio.wrappers import TrioResponse
from structlog.testing import LogCapture
from trio.testing import MockClock

from gateway import errors
from gateway.http.server import GatewayApp, ServerLimits, bind, serve

SLICE = b"0123456789abcdef" * 4096  # 64 KiB
CAP = 1000
LARGE = 50 * 2**20


@attrs.define
class Doings:
    """What the handlers of the test application did, and the gate that the slow ones wait at."""

    entered: int = 0
    finished: int = 0
    cancelled: int = 0
    gate: trio.Event = attrs.field(factory=trio.Event)
    changed: trio.Event = attrs.field(factory=trio.Event)

    def tell(self, **changes: int) -> None:
        for name, by in changes.items():
            setattr(self, name, getattr(self, name) + by)
        self.changed.set()
        self.changed = trio.Event()

    async def until(self, condition: Callable[[Doings], bool]) -> None:
        with trio.fail_after(30):
            while not condition(self):
                await self.changed.wait()


@attrs.frozen
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def code(self) -> str:
        """The problem code; fails if this is no well-formed problem."""
        assert self.headers["content-type"] == "application/problem+json"
        assert self.headers["cache-control"] == "no-store"
        problem = self.json
        assert problem["status"] == self.status
        assert problem["type"] == f"https://node.example/problems/{problem['code']}"
        return str(problem["code"])


class Client:
    """A raw HTTP/1.1 client."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._parser = h11.Connection(h11.CLIENT)

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def get(self, path: str, *, method: str = "GET") -> Answer:
        await self.send(f"{method} {path} HTTP/1.1\r\nHost: t\r\n\r\n".encode())
        return await self.answer(method)

    async def post(self, path: str, body: bytes, headers: bytes = b"") -> Answer:
        head = b"POST %b HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n%b\r\n" % (path.encode(), len(body), headers)
        await self.send(head + body)
        return await self.answer()

    async def answer(self, method: str = "GET") -> Answer:
        """Read one final answer; informational ones are passed over."""
        parser = self._parser
        if parser.our_state is h11.DONE and parser.their_state is h11.DONE:
            parser.start_next_cycle()
        parser.send(h11.Request(method=method, target="/", headers=[("host", "t")]))
        parser.send(h11.EndOfMessage())
        status, headers, body = 0, {}, b""
        with trio.fail_after(60):
            while True:
                event = parser.next_event()
                if event is h11.NEED_DATA:
                    parser.receive_data(bytes(await self.stream.receive_some(65536)))
                elif isinstance(event, h11.Response):
                    status = event.status_code
                    headers = {name.decode(): value.decode() for name, value in event.headers}
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    return Answer(status, headers, body)
                elif isinstance(event, h11.ConnectionClosed):
                    raise EOFError

    async def rest(self) -> bytes:
        """Read until the server closes."""
        data = b""
        with trio.fail_after(120):
            while piece := await self.stream.receive_some(65536):
                data += piece
        return data

    async def is_closed(self) -> bool:
        """Wait for the close of the server: true if it said nothing before, by end or by reset."""
        try:
            return await self.rest() == b""
        except trio.BrokenResourceError:
            return True

    async def until_closed(self) -> float:
        """Return the seconds until the server closes without a word."""
        start = trio.current_time()
        assert await self.is_closed()
        return trio.current_time() - start

    def hang_up(self) -> None:
        self.stream.socket.close()


@attrs.define
class Node:
    """A running server."""

    app: GatewayApp
    doings: Doings
    log: list[Any]
    address: tuple[str, int]
    stop: trio.Event
    ended: trio.Event
    clients: list[Client] = attrs.field(factory=list)

    async def connect(self, receive_buffer: int = 0, source: str = "") -> Client:
        raw = trio.socket.socket()
        if source:
            await raw.bind((source, 0))
        if receive_buffer:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            await raw.connect(self.address)
        except OSError:
            raw.close()
            raise
        client = Client(trio.SocketStream(raw))
        self.clients.append(client)
        return client

    async def is_healthy(self) -> bool:
        """Whether a fresh client is served."""
        client = await self.connect()
        answer = await client.get("/hello")
        client.hang_up()
        return answer.status == 200


@pytest.fixture
def log() -> Iterator[list[Any]]:
    """What the server logs."""
    capture = LogCapture()
    structlog.configure(processors=[capture])
    yield capture.entries
    structlog.reset_defaults()


@pytest.fixture
def clock() -> MockClock:
    """A clock that jumps once nothing happens; the threshold leaves the kernel time to move loopback packets."""
    return MockClock(autojump_threshold=0.02)


@pytest.fixture
def doings() -> Doings:
    return Doings()


@pytest.fixture
def app(doings: Doings) -> GatewayApp:
    caps = {"/upload": 2**20, "/big": 2**24}
    app = GatewayApp(
        base_url="https://node.example", body_cap=lambda path: caps.get(path, CAP), vital_paths=["/healthz"]
    )

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/hello")
    async def hello() -> dict[str, str]:
        return {"hello": "world"}

    @app.post("/echo")
    @app.post("/upload")
    @app.post("/big")
    async def echo() -> dict[str, int]:
        doings.tell(entered=1)
        return {"bytes": len(await request.get_data())}

    @app.post("/ignore")
    async def ignore() -> dict[str, bool]:
        return {"ignored": True}

    @app.get("/slow")
    @app.post("/slow")
    async def slow() -> dict[str, str]:
        doings.tell(entered=1)
        try:
            await doings.gate.wait()
        except trio.Cancelled:
            doings.tell(cancelled=1)
            raise
        doings.tell(finished=1)
        return {"slow": "done"}

    @app.get("/large")
    async def large() -> bytes:
        return SLICE * (LARGE // len(SLICE))

    @app.get("/stream")
    async def stream() -> TrioResponse:
        async def pieces() -> AsyncIterator[bytes]:
            try:
                yield b"first"
                while not doings.gate.is_set():
                    await trio.sleep(0.05)
                    yield b": beat"
            finally:
                doings.tell(cancelled=not doings.gate.is_set())

        doings.tell(entered=1)
        return TrioResponse(pieces())

    @app.get("/boom")
    async def boom() -> str:
        raise KeyError("secret")

    @app.get("/busy")
    async def busy() -> str:
        raise errors.CapacityExhausted("all lanes are taken", retry_after=1.2, extra={"lanes": 4})

    return app


@pytest.fixture
async def start(nursery: trio.Nursery, app: GatewayApp, doings: Doings, log: list[Any]) -> AsyncIterator[Any]:
    """Start a server: `await start(keep_alive_s=1, ...)`; `proxies` are peers that bring many callers."""
    nodes: list[Node] = []

    async def start(proxies: tuple[str, ...] = (), **limits: Any) -> Node:
        listener = bind("127.0.0.1:0")
        stop, ended = trio.Event(), trio.Event()
        bounds = ServerLimits(**limits)
        serving = partial(serve, app, [listener], stop=stop, limits=bounds, shared_by_many=proxies.__contains__)

        async def run(task_status: trio.TaskStatus[list[str]]) -> None:
            await serving(task_status=task_status)
            ended.set()

        address = listener.getsockname()
        urls = await nursery.start(run)
        assert urls == [f"http://127.0.0.1:{address[1]}"]
        nodes.append(Node(app, doings, log, address, stop, ended))
        return nodes[-1]

    yield start
    for node in nodes:
        node.stop.set()
        for client in node.clients:
            client.hang_up()
