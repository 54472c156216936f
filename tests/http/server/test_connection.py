"""Facts about one connection, told over real sockets."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.http.server import GatewayApp
    from tests.http.server.conftest import Node

    Start = Callable[..., Awaitable[Node]]

SLOW = b"POST /slow HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n{}"


# -- hang-ups ---------------------------------------------------------------------------------------------------------


async def test_a_hang_up_cancels_the_handler_and_nothing_else(start: Start) -> None:
    node = await start()
    client = await node.connect()
    await client.send(SLOW)
    await node.doings.until(lambda doings: doings.entered == 1)
    client.hang_up()
    await node.doings.until(lambda doings: doings.cancelled == 1)
    assert await node.is_healthy()
    assert node.log == []


async def test_a_reset_cancels_the_handler_at_once(start: Start) -> None:
    node = await start()
    client = await node.connect()
    await client.send(SLOW)
    await node.doings.until(lambda doings: doings.entered == 1)
    client.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.hang_up()
    with trio.fail_after(0.2):
        await node.doings.until(lambda doings: doings.cancelled == 1)
    assert node.log == []


async def test_a_hang_up_behind_pipelined_bytes_is_seen(start: Start) -> None:
    node = await start()
    client = await node.connect()
    await client.send(SLOW + b"GET /hello HTTP/1.1\r\nHost: t\r\n\r\n")
    await node.doings.until(lambda doings: doings.entered == 1)
    client.hang_up()
    await node.doings.until(lambda doings: doings.cancelled == 1)


async def test_a_client_that_has_finished_sending_gets_its_answer(start: Start, clock: MockClock) -> None:
    node = await start()
    client = await node.connect()
    await client.send(SLOW)
    await client.stream.send_eof()
    await node.doings.until(lambda doings: doings.entered == 1)
    await trio.sleep(5)  # many looks at a client that says nothing more
    node.doings.gate.set()
    answer = await client.answer()
    assert (answer.status, answer.json) == (200, {"slow": "done"})
    assert await client.is_closed()
    assert node.doings.cancelled == 0


async def test_all_requests_sent_before_the_end_of_input_are_answered(start: Start) -> None:
    node = await start()
    client = await node.connect()
    await client.send(b"GET /hello HTTP/1.1\r\nHost: t\r\n\r\n" * 3)
    await client.stream.send_eof()
    assert [(await client.answer()).status for _ in range(3)] == [200] * 3
    assert await client.is_closed()


async def test_two_hundred_hang_ups_leave_nothing_behind(start: Start) -> None:
    node = await start()
    for number in range(200):
        client = await node.connect()
        await client.send(SLOW if number % 2 else SLOW[: number % len(SLOW)])
        client.hang_up()
    await node.doings.until(lambda doings: doings.entered == doings.cancelled)
    assert await node.is_healthy()
    node.stop.set()
    with trio.fail_after(2):
        await node.ended.wait()
    assert node.log == []


async def test_a_hang_up_during_a_stream_cancels_it(start: Start) -> None:
    node = await start()
    client = await node.connect()
    await client.send(b"GET /stream HTTP/1.1\r\nHost: t\r\n\r\n")
    assert b"first" in await client.stream.receive_some(65536)
    client.hang_up()
    await node.doings.until(lambda doings: doings.cancelled == 1)
    assert node.log == []


# -- deadlines --------------------------------------------------------------------------------------------------------


async def test_idle_connections_are_reaped_after_an_answer(start: Start, clock: MockClock) -> None:
    node = await start(keep_alive_s=3)
    clients = [await node.connect() for _ in range(10)]
    for client in clients:
        assert (await client.get("/hello")).status == 200
    seconds = [await client.until_closed() for client in clients]
    assert sum(seconds) == pytest.approx(3, abs=0.2)


async def test_idle_connections_are_reaped_after_many_requests(start: Start, clock: MockClock) -> None:
    node = await start(keep_alive_s=3)
    client = await node.connect()
    for _ in range(100):
        assert (await client.get("/hello")).status == 200
    assert await client.until_closed() == pytest.approx(3, abs=0.1)


async def test_the_time_of_a_handler_is_not_idle_time(start: Start, clock: MockClock) -> None:
    node = await start(keep_alive_s=1, header_timeout_s=1, body_timeout_s=1)
    client = await node.connect()
    await client.send(SLOW)
    await node.doings.until(lambda doings: doings.entered == 1)
    await trio.sleep(100)
    node.doings.gate.set()
    assert (await client.answer()).status == 200
    assert (await client.get("/hello")).status == 200


async def test_a_connection_without_a_request_is_closed_silently(start: Start, clock: MockClock) -> None:
    node = await start(header_timeout_s=4)
    client = await node.connect()
    assert await client.until_closed() == pytest.approx(4, abs=0.1)


@pytest.mark.parametrize(
    ("sent", "limit"),
    [
        (b"GE", 4),
        (b"GET /hello HTTP/1.1\r\nHost: t\r\n", 4),
        (b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\nx", 7),
    ],
)
async def test_a_request_that_stays_incomplete_is_408(
    start: Start, clock: MockClock, sent: bytes, limit: float
) -> None:
    node = await start(header_timeout_s=4, body_timeout_s=7)
    client = await node.connect()
    began = trio.current_time()
    await client.send(sent)
    answer = await client.answer()
    assert (answer.status, answer.code) == (408, "request_timeout")
    assert answer.headers["connection"] == "close"
    assert await client.is_closed()
    assert trio.current_time() - began == pytest.approx(limit, abs=0.1)
    assert node.doings.entered == 0


async def test_dripped_headers_do_not_extend_the_deadline(start: Start, clock: MockClock) -> None:
    node = await start(header_timeout_s=4)
    client = await node.connect()
    began = trio.current_time()

    async def drip() -> None:
        for byte in b"GET /hello HTTP/1.1\r\nHost: " + b"x" * 60:
            await client.send(bytes([byte]))
            await trio.sleep(0.5)

    with pytest.raises(trio.BrokenResourceError):
        await drip()
    assert trio.current_time() - began < 8


async def test_a_dripped_body_does_not_extend_the_deadline(start: Start, clock: MockClock) -> None:
    node = await start(body_timeout_s=4)
    client = await node.connect()
    await client.send(b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 900\r\n\r\n")
    for _ in range(7):
        await client.send(b"x")
        await trio.sleep(0.5)
    assert (await client.answer()).code == "request_timeout"


async def test_a_reader_that_stalls_is_dropped(start: Start, clock: MockClock) -> None:
    node = await start(write_timeout_s=5)
    client = await node.connect(receive_buffer=65536)
    await client.send(b"GET /large HTTP/1.1\r\nHost: t\r\n\r\n")
    await client.stream.receive_some(1)
    await trio.sleep(6)
    with pytest.raises(trio.BrokenResourceError):
        await client.rest()
    assert await node.is_healthy()
    assert node.log == []


async def test_a_slow_reader_that_reads_gets_everything(start: Start, clock: MockClock) -> None:
    node = await start(write_timeout_s=5)
    client = await node.connect(receive_buffer=65536)
    await client.send(b"GET /large HTTP/1.1\r\nHost: t\r\n\r\n")
    received, pauses = 0, 0
    while received < 50 * 2**20:
        received += len(await client.stream.receive_some(2**20))
        if received > (pauses + 1) * 2**20:
            pauses += 1
            await trio.sleep(1)
    assert pauses > 40


# -- what one request leaves to the next ------------------------------------------------------------------------------


async def test_context_variables_of_a_request_never_reach_the_next(start: Start, app: GatewayApp) -> None:
    from contextvars import ContextVar

    mark: ContextVar[str] = ContextVar("mark", default="clean")

    @app.get("/mark")
    async def read_and_set() -> dict[str, str]:
        found = mark.get()
        mark.set("dirty")
        return {"found": found}

    node = await start()
    client = await node.connect()
    assert [(await client.get("/mark")).json["found"] for _ in range(3)] == ["clean"] * 3


async def test_a_connection_is_closed_after_its_share_of_requests(start: Start) -> None:
    node = await start(requests_per_connection=20)
    client = await node.connect()
    answers = [await client.get("/hello") for _ in range(20)]
    assert [answer.headers.get("connection") for answer in answers] == [None] * 19 + ["close"]
    assert await client.is_closed()
