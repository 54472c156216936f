from __future__ import annotations

import errno
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
import trio
import trio.testing

from gateway.world import door as doors
from gateway.world.door import Call, Door, Late, Reply, Silence, url_of


@asynccontextmanager
async def opened(answer: doors.Answerer) -> AsyncIterator[Door]:
    async with trio.open_nursery() as nursery:
        door = Door(nursery, answer)
        door.open()
        try:
            yield door
        finally:
            door.release()


async def echo(call: Call) -> Reply | Silence:
    if call.path == "/silence":
        return Silence()
    return Reply.json({"method": call.method, "path": call.path, "query": call.query, "body": call.body.decode()})


async def test_a_call_is_read_whole() -> None:
    async with opened(echo) as door, httpx.AsyncClient() as client:
        told = (await client.post(url_of(door.port, "/a%20b?q=x%26y"), content="hello")).json()
    assert told == {"method": "POST", "path": "/a%20b", "query": {"q": "x&y"}, "body": "hello"}


async def test_a_connection_serves_many_calls() -> None:
    async with opened(echo) as door, httpx.AsyncClient() as client:
        ports = set()
        for _ in range(5):
            answer = await client.get(url_of(door.port))
            ports.add(answer.extensions["network_stream"].get_extra_info("client_addr"))
    assert len(ports) == 1


async def test_a_shut_door_refuses_connections_and_opens_again_on_its_port() -> None:
    async with opened(echo) as door:
        port = door.port
        for _ in range(3):
            async with httpx.AsyncClient() as client:
                assert (await client.get(url_of(port))).status_code == 200
            door.shut()
            assert not door.is_open
            with socket.socket() as peer:
                assert peer.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED
            door.open()
            assert door.port == port


async def test_shutting_drops_a_call_that_is_being_answered() -> None:
    came = trio.Event()

    async def hold(_: Call) -> Reply | Silence:
        came.set()
        await trio.sleep_forever()
        raise AssertionError

    async with opened(hold) as door, trio.open_nursery() as nursery:

        async def ask() -> None:
            async with httpx.AsyncClient() as client:
                with pytest.raises(httpx.RemoteProtocolError):
                    await client.get(url_of(door.port))

        nursery.start_soon(ask)
        await came.wait()
        door.shut()


async def test_silence_blocks_nobody_else() -> None:
    async with opened(echo) as door, httpx.AsyncClient() as client, trio.open_nursery() as nursery:

        async def wait_in_vain() -> None:
            async with httpx.AsyncClient(timeout=0.3) as impatient:
                with pytest.raises(httpx.ReadTimeout):
                    await impatient.get(url_of(door.port, "/silence"))

        for _ in range(20):
            nursery.start_soon(wait_in_vain)
        assert (await client.get(url_of(door.port))).status_code == 200


async def test_silence_ends_when_the_peer_leaves() -> None:
    async with opened(echo) as door, await trio.open_tcp_stream("127.0.0.1", door.port) as stream:
        await stream.send_all(b"GET /silence HTTP/1.1\r\nhost: x\r\n\r\n")
        await stream.send_eof()
        with trio.fail_after(5):
            assert await stream.receive_some() == b""


async def test_a_body_over_the_cap_is_refused() -> None:
    async with opened(echo) as door, httpx.AsyncClient() as client:
        answer = await client.post(url_of(door.port), content=b"x" * (doors.MAX_BODY + 1))
    assert answer.status_code == 413


async def test_nonsense_ends_the_connection() -> None:
    async with opened(echo) as door, await trio.open_tcp_stream("127.0.0.1", door.port) as stream:
        await stream.send_all(b"\x00\x01nonsense\r\n\r\n")
        with trio.fail_after(5):
            assert await stream.receive_some() == b""


# -- answers that take their time --------------------------------------------------------------------------------------


def slow(after_s: float, left: trio.Event) -> doors.Answerer:
    async def answer(call: Call) -> Late | Silence:
        if call.path == "/silence":
            return Silence(left.set)
        return Late(Reply.json({"path": call.path}), after_s, left.set)

    return answer


async def test_a_late_reply_comes_when_its_time_is_up() -> None:
    left = trio.Event()
    async with opened(slow(0.05, left)) as door, httpx.AsyncClient() as client:
        began = trio.current_time()
        assert (await client.get(url_of(door.port, "/a"))).json() == {"path": "/a"}
        assert trio.current_time() - began >= 0.05
        assert (await client.get(url_of(door.port, "/b"))).json() == {"path": "/b"}
    assert not left.is_set()


@pytest.mark.parametrize("path", ["/late", "/silence"])
@pytest.mark.parametrize("reset", [False, True])
async def test_a_peer_that_leaves_before_its_answer_is_told(path: str, reset: bool) -> None:
    left = trio.Event()
    async with opened(slow(60, left)) as door:
        stream = await trio.open_tcp_stream("127.0.0.1", door.port)
        await stream.send_all(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        await trio.testing.wait_all_tasks_blocked(0.05)
        if reset:
            stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await stream.aclose()
        with trio.fail_after(5):
            await left.wait()


async def test_what_a_peer_sends_before_a_late_reply_is_its_next_call() -> None:
    left = trio.Event()
    async with opened(slow(0.05, left)) as door, await trio.open_tcp_stream("127.0.0.1", door.port) as stream:
        await stream.send_all(b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n")
        await trio.testing.wait_all_tasks_blocked(0.01)
        await stream.send_all(b"GET /b HTTP/1.1\r\nhost: x\r\n\r\n")
        got = b""
        with trio.fail_after(5):
            while b"/b" not in got:
                got += await stream.receive_some()
    assert got.index(b"/a") < got.index(b"/b")
    assert not left.is_set()
