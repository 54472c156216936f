"""Facts about a server's life: bind, accept, drain."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock

from gateway.http.server import GatewayApp, ServerLimits, bind, serve
from gateway.http.server.crowd import SPARE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.http.server.conftest import Node

    Start = Callable[..., Awaitable[Node]]

SLOW = b"POST /slow HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n{}"


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def drained(node: Node) -> float:
    """Stop the server and return the seconds until it has ended."""
    start = trio.current_time()
    node.stop.set()
    await node.ended.wait()
    return trio.current_time() - start


# -- bind -------------------------------------------------------------------------------------------------------------


def test_bind_takes_both_families() -> None:
    for address, host in (("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1")):
        with bind(address) as listener:
            assert listener.getsockname()[0] == host
            assert listener.getsockname()[1] > 0


@pytest.mark.parametrize("address", ["", "127.0.0.1", ":80", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:65536", "h:-1"])
def test_bind_refuses_what_is_no_address(address: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        bind(address)


def test_bind_names_the_address_that_is_taken() -> None:
    with bind("127.0.0.1:0") as first:
        first.listen()
        address = f"127.0.0.1:{first.getsockname()[1]}"
        with pytest.raises(OSError, match=f"cannot listen on {address}") as caught:
            bind(address)
    assert caught.value.errno == errno.EADDRINUSE


# -- drain ------------------------------------------------------------------------------------------------------------


async def test_an_idle_server_ends_at_once(start: Start, clock: MockClock) -> None:
    node = await start(drain_s=60)
    idle = [await node.connect() for _ in range(5)]
    for client in idle:
        await client.get("/hello")
    assert await drained(node) < 0.1
    for client in idle:
        assert await client.is_closed()


async def test_a_connection_without_a_request_has_a_moment_to_send_one(start: Start, clock: MockClock) -> None:
    node = await start(drain_s=60)
    late, silent = await node.connect(), await node.connect()
    node.stop.set()
    await trio.testing.wait_all_tasks_blocked()
    answer = await late.get("/hello")
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert await silent.until_closed() < 0.5


async def test_what_waits_in_the_backlog_is_answered(start: Start) -> None:
    node = await start()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(node.address)) for _ in range(5)]
        for client in clients:
            client.sendall(b"GET /hello HTTP/1.0\r\n\r\n")
        node.stop.set()  # before the server had a turn to accept any
        await node.ended.wait()
        assert [client.recv(13) for client in clients] == [b"HTTP/1.1 200 "] * 5


async def test_a_request_in_flight_is_answered_and_then_the_server_ends(start: Start, clock: MockClock) -> None:
    node = await start(drain_s=60)
    client = await node.connect()
    await client.send(SLOW)
    await node.doings.until(lambda doings: doings.entered == 1)
    node.stop.set()
    await trio.sleep(50)
    node.doings.gate.set()
    answer = await client.answer()
    assert (answer.status, answer.json, answer.headers["connection"]) == (200, {"slow": "done"}, "close")
    began = trio.current_time()
    await node.ended.wait()
    assert trio.current_time() - began < 0.5  # although the client keeps its end open
    assert node.doings.cancelled == 0


async def test_a_request_half_sent_is_answered(start: Start) -> None:
    node = await start()
    client = await node.connect()
    await client.get("/hello")
    await client.send(b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\nhalf")
    await trio.testing.wait_all_tasks_blocked(0.05)
    node.stop.set()
    await trio.testing.wait_all_tasks_blocked(0.05)
    await client.send(b"a body")
    answer = await client.answer()
    assert (answer.json, answer.headers["connection"]) == ({"bytes": 10}, "close")


async def test_fifty_requests_in_flight_are_all_answered(start: Start) -> None:
    node = await start()
    clients = [await node.connect() for _ in range(50)]
    for client in clients:
        await client.send(SLOW)
    await node.doings.until(lambda doings: doings.entered == 50)
    node.stop.set()
    await trio.testing.wait_all_tasks_blocked(0.05)
    node.doings.gate.set()
    assert [(await client.answer()).status for client in clients] == [200] * 50
    assert node.doings.cancelled == 0


async def test_connections_are_refused_while_the_server_drains(start: Start) -> None:
    node = await start()
    client = await node.connect()
    await client.send(SLOW)
    await node.doings.until(lambda doings: doings.entered == 1)
    node.stop.set()
    await trio.testing.wait_all_tasks_blocked(0.05)
    with pytest.raises(OSError, match="refused"):
        await node.connect()
    node.doings.gate.set()


async def test_what_is_in_flight_after_the_grace_is_cancelled(start: Start, clock: MockClock) -> None:
    node = await start(drain_s=7)
    client = await node.connect()
    await client.send(SLOW)
    await node.doings.until(lambda doings: doings.entered == 1)
    assert await drained(node) == pytest.approx(7, abs=0.1)
    assert node.doings.cancelled == 1
    assert node.log == []


async def test_a_reader_that_stalls_cannot_hold_the_server(start: Start, clock: MockClock) -> None:
    node = await start(write_timeout_s=5, drain_s=60)
    client = await node.connect(receive_buffer=65536)
    await client.send(b"GET /large HTTP/1.1\r\nHost: t\r\n\r\n")
    await client.stream.receive_some(1)
    assert await drained(node) == pytest.approx(5, abs=0.5)


async def test_a_reader_that_stalls_cannot_outlive_the_grace(start: Start, clock: MockClock) -> None:
    node = await start(write_timeout_s=500, drain_s=3)
    client = await node.connect(receive_buffer=65536)
    await client.send(b"GET /large HTTP/1.1\r\nHost: t\r\n\r\n")
    await client.stream.receive_some(1)
    assert await drained(node) == pytest.approx(3, abs=0.1)


async def test_a_cancelled_server_closes_its_sockets(app: GatewayApp) -> None:
    listener = bind("127.0.0.1:0")
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, app, [listener], stop=trio.Event()))
        nursery.cancel_scope.cancel()
    assert listener.fileno() == -1


async def test_what_an_app_opens_before_serving_is_closed_after(app: GatewayApp) -> None:
    steps: list[str] = []

    @app.before_serving
    async def opened() -> None:
        steps.append("opened")

    @app.after_serving
    async def closed() -> None:
        steps.append("closed")

    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, app, [bind("127.0.0.1:0")], stop=stop))
        steps.append("serving")
        stop.set()
    assert steps == ["opened", "serving", "closed"]


async def test_a_server_listens_on_several_sockets(app: GatewayApp) -> None:
    listeners = [bind("127.0.0.1:0"), bind("[::1]:0")]
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        urls = await nursery.start(partial(serve, app, listeners, stop=stop))
        for listener, url in zip(listeners, urls, strict=True):
            host, port, *_ = listener.getsockname()
            assert url in {f"http://{host}:{port}", f"http://[{host}]:{port}"}
            stream = await trio.open_tcp_stream(host, port)
            await stream.send_all(b"GET /hello HTTP/1.0\r\n\r\n")
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")
            await stream.aclose()
        stop.set()


# -- many connections -------------------------------------------------------------------------------------------------


async def test_over_the_bound_a_new_connection_takes_the_place_of_the_longest_idle(start: Start) -> None:
    node = await start(max_connections=3)
    idle = [await node.connect() for _ in range(3)]
    for client in idle:
        assert (await client.get("/hello")).status == 200
    newcomer = await node.connect()
    assert (await newcomer.get("/hello")).status == 200
    assert await idle[0].is_closed()
    assert (await idle[1].get("/hello")).status == 200


async def test_over_the_bound_busy_ones_stay_and_a_new_connection_is_asked_to_come_again(start: Start) -> None:
    node = await start(max_connections=3)
    busy = [await node.connect() for _ in range(3)]
    for client in busy:
        await client.send(SLOW)
    await node.doings.until(lambda doings: doings.entered == 3)
    newcomer = await node.connect()
    answer = await newcomer.get("/hello")
    assert (answer.status, answer.code) == (503, "capacity_exhausted")
    assert (answer.headers["retry-after"], answer.headers["connection"]) == ("1", "close")
    assert await newcomer.is_closed()
    node.doings.gate.set()
    assert [(await client.answer()).status for client in busy] == [200] * 3
    newcomer = await node.connect()
    assert (await newcomer.get("/hello")).status == 200


async def test_four_hundred_silent_connections_do_not_shut_out_a_client(start: Start, clock: MockClock) -> None:
    node = await start(max_connections=50)
    before = descriptors()
    for _ in range(400):
        await node.connect()
    await trio.sleep(0.3)  # the first request of each could be on its way
    assert await node.is_healthy()
    assert descriptors() - before < 400 + 50 + SPARE + 10  # 400 of them are the clients' own


async def test_the_server_survives_the_lack_of_file_descriptors(start: Start) -> None:
    node = await start()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    client = await node.connect()
    used = descriptors()
    hogs: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 8, hard))
    try:
        waiting = await node.connect()
        while True:
            try:
                hogs.append(os.dup(0))
            except OSError:
                break
        await waiting.send(b"GET /hello HTTP/1.1\r\nHost: t\r\n\r\n")
        assert (await client.get("/hello")).status == 200
        for fd in hogs:
            os.close(fd)
        assert (await waiting.answer()).status == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert {entry["event"] for entry in node.log} <= {"http.accept_failed"}


def test_the_limits_of_a_server_are_positive() -> None:
    with pytest.raises(ValueError, match="max_connections"):
        ServerLimits(max_connections=0)
