from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import h11
import pytest
import trio

from gateway.actors.http_connection import Body, Connection, Head, Origin, authorities, connect
from gateway.registry.http_call import AnswerTooLarge, UpstreamBroken
from tests.actors.back_ends import OK, Authority, Server, sends, serving


def no_trust() -> ssl.SSLContext:
    raise AssertionError


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[Connection]:
    connection = await connect(origin(server), no_trust)
    try:
        yield connection
    finally:
        connection.close()


def origin(server: Server) -> Origin:
    return Origin(server.url.startswith("https"), "127.0.0.1", int(server.url.rstrip("/").rpartition(":")[2]))


async def ask(connection: Connection, content: bytes = b"", method: str = "POST") -> tuple[int, bytes]:
    body = Body("t", 2**20)
    headers = [("host", "127.0.0.1"), ("content-length", str(len(content)))]
    head = Head.of(h11.Request(method=method, target="/", headers=headers))
    answer = await connection.exchange(head, content, body)
    return answer.status_code, body.whole()


async def test_a_connection_carries_one_exchange_after_another() -> None:
    async with serving(sends(OK)) as server, connected(server) as connection:
        for content in (b"", b"a", bytes(2**20)):
            assert await ask(connection, content) == (200, b"ok")
            assert connection.usable
    assert [head.partition(b"\r\n\r\n")[2] for head in server.heads] == [b"", b"a", bytes(2**20)]


def test_a_head_goes_over_the_wire_as_h11_writes_it_and_is_shown_nowhere() -> None:
    request = h11.Request(method="POST", target="/a?b", headers=[("Host", "h"), ("Authorization", "Basic secret")])
    head = Head.of(request)
    assert head.wire == b"POST /a?b HTTP/1.1\r\nHost: h\r\nAuthorization: Basic secret\r\n\r\n"
    assert "secret" not in repr(head)


async def test_a_connection_over_tls_is_made_with_a_back_end_that_is_vouched_for() -> None:
    authority = Authority()
    async with serving(sends(OK), authority) as server:
        connection = await connect(origin(server), authority.trust)
        assert await ask(connection, b"a") == (200, b"ok")
        assert await ask(connection, b"b") == (200, b"ok")
        connection.close()


async def test_a_back_end_that_nobody_vouches_for_is_not_talked_to() -> None:
    async with serving(sends(OK), Authority()) as server:
        with pytest.raises(trio.BrokenResourceError):
            await connect(origin(server), Authority().trust)
        assert server.heads == []


def test_the_authorities_are_read_once() -> None:
    assert authorities() is authorities()
    assert authorities().verify_mode is ssl.CERT_REQUIRED


async def test_an_answer_without_a_body_is_whole() -> None:
    async with serving(sends(b"HTTP/1.1 204 No Content\r\n\r\n")) as server, connected(server) as connection:
        assert await ask(connection) == (204, b"")
        assert connection.usable
    said = b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n"
    async with serving(sends(said)) as server, connected(server) as connection:
        assert await ask(connection, method="HEAD") == (200, b"")


async def test_early_words_are_passed_over() -> None:
    said = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
    async with serving(sends(said, said, OK)) as server, connected(server) as connection:
        assert await ask(connection) == (200, b"ok")


async def test_an_answer_that_ends_with_its_connection_is_whole_and_the_last() -> None:
    async with serving(sends(b"HTTP/1.1 200 OK\r\n\r\nall", close=True)) as server, connected(server) as connection:
        assert await ask(connection) == (200, b"all")
        assert not connection.usable


async def test_a_connection_that_is_to_close_is_not_used_again() -> None:
    said = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok"
    async with serving(sends(said)) as server, connected(server) as connection:
        assert await ask(connection) == (200, b"ok")
        assert not connection.usable


@pytest.mark.parametrize("together", [True, False])
async def test_who_says_more_than_was_asked_is_not_asked_again(together: bool) -> None:
    parts = (OK + b"HTTP",) if together else (OK, b"HTTP")
    async with serving(sends(*parts)) as server, connected(server) as connection:
        assert await ask(connection) == (200, b"ok")
        with trio.fail_after(5):
            while connection.usable:
                await trio.lowlevel.checkpoint()


async def test_what_the_socket_does_not_take_at_once_follows() -> None:
    async with serving(sends(OK)) as server, connected(server) as connection:
        connection._transport.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_SNDBUF, 1)
        content = bytes(range(256)) * 240
        for _ in range(3):
            assert await ask(connection, content) == (200, b"ok")
    assert [head.partition(b"\r\n\r\n")[2] for head in server.heads] == [content] * 3


async def test_a_reset_between_request_and_answer_breaks_the_connection() -> None:
    async def reset(stream: trio.SocketStream) -> None:
        stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await stream.aclose()

    async with serving(reset) as server, connected(server) as connection:
        with pytest.raises(trio.BrokenResourceError):
            await ask(connection, b"a")
        assert not connection.usable


async def test_an_idle_connection_whose_back_end_left_is_not_used() -> None:
    async with serving(sends(OK, close=True)) as server, connected(server) as connection:
        assert await ask(connection) == (200, b"ok")
        with trio.fail_after(5):
            while connection.usable:
                await trio.lowlevel.checkpoint()


async def test_a_back_end_that_refuses_a_request_before_it_is_whole_is_heard() -> None:
    class Refusing(trio.abc.Stream):
        async def send_all(self, data: bytes | bytearray | memoryview) -> None:
            raise trio.BrokenResourceError

        async def wait_send_all_might_not_block(self) -> None:
            raise NotImplementedError

        async def receive_some(self, max_bytes: int | None = None) -> bytes:
            return b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno"

        async def aclose(self) -> None:
            raise NotImplementedError

    async with serving(sends()) as server, connected(server) as connection:
        connection._stream = Refusing()
        assert await ask(connection, bytes(2**20)) == (413, b"no")
        assert not connection.usable


@pytest.mark.parametrize(
    "said",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nupgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx",
    ],
)
async def test_what_is_no_answer_ends_the_connection(said: bytes) -> None:
    async with serving(sends(said, close=True)) as server, connected(server) as connection:
        with pytest.raises(h11.RemoteProtocolError):
            await ask(connection)
        assert not connection.usable


async def test_an_exchange_that_is_cancelled_leaves_the_connection_unusable() -> None:
    async with serving(sends()) as server, connected(server) as connection:
        with trio.move_on_after(0.01) as left:
            await ask(connection)
        assert left.cancelled_caught
        assert not connection.usable


async def test_whoever_waits_for_a_connection_that_is_closed_is_told() -> None:
    async with serving(sends()) as server, connected(server) as connection, trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await ask(connection)

        nursery.start_soon(wait)
        while not server.heads:
            await trio.lowlevel.checkpoint()
        connection.close()


def test_a_body_takes_as_much_as_it_may_and_no_more() -> None:
    body = Body("t", 4)
    body.decode([])
    body.take(b"ab")
    body.take(b"cd")
    assert body.whole() == b"abcd"
    with pytest.raises(AnswerTooLarge):
        body.take(b"e")


def test_a_body_in_an_unasked_coding_is_none() -> None:
    body = Body("t", 4)
    body.decode([(b"content-encoding", b"br")])
    with pytest.raises(UpstreamBroken):
        body.whole()
    with pytest.raises(UpstreamBroken):
        body.take(b"a")
