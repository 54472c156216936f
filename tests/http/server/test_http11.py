"""Facts about the protocol: what strangers may send, and what they hear."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING

import pytest
import trio
from quart_trio.wrappers import TrioResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from gateway.http.server import GatewayApp
    from tests.http.server.conftest import Node

    Start = Callable[..., Awaitable[Node]]

HELLO = b"GET /hello HTTP/1.1\r\nHost: t\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"NONSENSE\r\n\r\n", 400, "bad_request"),
        (b"GET /hello\r\n\r\n", 400, "bad_request"),
        (b"GET /hel\x00lo HTTP/1.1\r\nHost: t\r\n\r\n", 400, "bad_request"),
        (b"GET /hel\xfflo HTTP/1.1\r\nHost: t\r\n\r\n", 400, "bad_request"),
        (b"GET /hello HTTP/1.1\r\n\r\n", 400, "bad_request"),
        (b"GET /hello HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "bad_request"),
        (b"GET /hello HTTP/1.1\r\nHost: t\r\nBad Name: x\r\n\r\n", 400, "bad_request"),
        (b"GET /hello HTTP/1.1\r\nHost: t\r\nX: a\x00b\r\n\r\n", 400, "bad_request"),
        (b"GET hello HTTP/1.1\r\nHost: t\r\n\r\n", 400, "bad_request"),
        (b"GET * HTTP/1.1\r\nHost: t\r\n\r\n", 400, "bad_request"),
        (b"GET ftp://t/hello HTTP/1.1\r\nHost: t\r\n\r\n", 400, "bad_request"),
        (b"GET /hello HTTP/2.0\r\nHost: t\r\n\r\n", 400, "bad_request"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "bad_request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "bad_request"),
        (b"CONNECT t:443 HTTP/1.1\r\nHost: t\r\n\r\n", 405, "method_not_allowed"),
        (b"get /hello HTTP/1.1\r\nHost: t\r\n\r\n", 405, "method_not_allowed"),
        (b"TRACE /hello HTTP/1.1\r\nHost: t\r\n\r\n", 405, "method_not_allowed"),
        (b"BREW /hello HTTP/1.1\r\nHost: t\r\n\r\n", 405, "method_not_allowed"),
        (b"GET /hello HTTP/1.1\r\nHost: t\r\nExpect: a-miracle\r\n\r\n", 417, "expectation_failed"),
        (b"GET /%b HTTP/1.1\r\nHost: t\r\n\r\n" % (b"x" * 9000), 414, "uri_too_long"),
        (b"GET /hello HTTP/1.1\r\nHost: t\r\nX: %b\r\n\r\n" % (b"x" * 17000), 431, "header_fields_too_large"),
        (b"GET /hello HTTP/1.1\r\nHost: t\r\nX: %b" % (b"x" * 70000), 431, "header_fields_too_large"),
        (b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 1001\r\n\r\n", 413, "content_too_large"),
        (b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999999999999\r\n\r\n", 413, "content_too_large"),
        (b"POST /nope HTTP/1.1\r\nHost: t\r\nContent-Length: 1001\r\n\r\n", 404, "not_found"),
        (b"POST /hello HTTP/1.1\r\nHost: t\r\nContent-Length: 1001\r\n\r\n", 405, "method_not_allowed"),
    ],
)
async def test_what_cannot_be_served_is_a_problem(start: Start, sent: bytes, status: int, code: str) -> None:
    node = await start()
    client = await node.connect()
    await client.send(sent)
    answer = await client.answer()
    assert (answer.status, answer.code) == (status, code)
    if status == 405:
        assert "GET" in answer.headers["allow"]
    if sent.startswith((b"TRACE", b"BREW")):
        assert (await client.get("/hello")).status == 200
    else:
        assert answer.headers["connection"] == "close"
        assert await client.is_closed()
    assert node.doings.entered == 0
    assert node.log == []


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n",
        b"Content-Length: 4\r\nContent-Length: 5\r\n",
        b"Content-Length: +4\r\n",
        b"Content-Length: 4, 5\r\n",
        b"Content-Length: -1\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Transfer-Encoding: identity\r\n",
    ],
)
async def test_ambiguous_lengths_are_refused_and_what_follows_is_no_request(start: Start, head: bytes) -> None:
    node = await start()
    client = await node.connect()
    await client.send(b"POST /echo HTTP/1.1\r\nHost: t\r\n" + head + b"\r\n0\r\n\r\n" + HELLO)
    answer = await client.answer()
    assert answer.code in {"bad_request", "length_required"}
    assert await client.is_closed()
    assert node.doings.entered == 0


async def test_transfer_encoding_of_an_http_1_0_client_is_refused(start: Start) -> None:
    node = await start()
    client = await node.connect()
    await client.send(b"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    assert (await client.answer()).code == "bad_request"


@pytest.mark.parametrize("body", [b"zz\r\n", b"5\r\nhelloXX5", b"-1\r\n\r\n", b"5;" + b"x" * 20000])
async def test_a_malformed_chunk_is_refused(start: Start, body: bytes) -> None:
    node = await start()
    client = await node.connect()
    await client.send(b"POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
    assert (await client.answer()).status in {400, 431}
    assert await client.is_closed()
    assert node.doings.entered == 0


async def test_a_request_cut_off_in_its_body_never_reaches_the_handler(start: Start) -> None:
    node = await start()
    client = await node.connect()
    await client.send(b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\nhalf")
    await client.stream.send_eof()
    assert (await client.answer()).code == "bad_request"
    assert node.doings.entered == 0


@pytest.mark.parametrize(
    "host", ["", "t", "T.example.", "a-b.c_d:8402", "127.0.0.1:1", "[::1]", "[::1]:80", "t:", "xn--caf-dma.example"]
)
async def test_a_host_is_a_name_or_an_address_with_or_without_port(start: Start, host: str) -> None:
    node = await start()
    client = await node.connect()
    await client.send(b"GET /hello HTTP/1.1\r\nHost: %b\r\n\r\n" % host.encode())
    assert (await client.answer()).json == {"hello": "world"}


@pytest.mark.parametrize(
    "host",
    [
        "a b",
        "<x>",
        "t:999999",
        "[::1",
        "[::1]:x",
        "t,u",
        "é",
        "t/u",
        "a" * 64,
        "a." * 200,
        "@",
        "%00",
        ".",
        "a..b",
        "u@t",
    ],
)
async def test_an_odd_host_is_refused(start: Start, host: str) -> None:
    node = await start()
    client = await node.connect()
    await client.send(b"GET /hello HTTP/1.1\r\nHost: %b\r\n\r\n" % host.encode())
    assert (await client.answer()).code == "bad_request"
    assert node.log == []


async def test_an_application_that_fails_beneath_its_own_handlers_is_a_problem(
    start: Start, app: GatewayApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(app, "handle_request", fail)
    node = await start()
    client = await node.connect()
    answer = await client.get("/hello")
    assert (answer.status, answer.code) == (500, "internal_error")
    assert answer.json["instance"] == "/hello"
    assert [entry["event"] for entry in node.log] == ["http.defect"]
    assert await client.is_closed()


async def test_a_refused_head_request_is_answered_without_a_body(start: Start) -> None:
    node = await start()
    client = await node.connect()
    await client.send(b"HEAD /hello HTTP/1.1\r\nHost: t\r\nExpect: a-miracle\r\n\r\n")
    answer = await client.answer("HEAD")
    assert (answer.status, answer.body) == (417, b"")
    assert await client.is_closed()
    assert node.log == []


@pytest.mark.parametrize("seed", range(8))
async def test_noise_in_requests_never_becomes_a_defect(start: Start, seed: int) -> None:
    chance = random.Random(seed)
    samples = [
        HELLO,
        b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\nContent-Type: application/json\r\n\r\n" + b"x" * 9,
        b"POST /upload HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"x" * 20) + chunk(b""),
        b"POST /echo HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nCookie: a=b\r\nContent-Length: 1\r\n\r\nx",
        b"OPTIONS * HTTP/1.1\r\nHost: t\r\nConnection: keep-alive, upgrade\r\nUpgrade: h2c\r\n\r\n",
    ]
    node = await start()
    for _ in range(60):
        data = bytearray(b"".join(chance.choices(samples, k=chance.randint(1, 4))))
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(len(data))
            match chance.randrange(4):
                case 0:
                    data[at] = chance.randrange(256)
                case 1:
                    del data[at : at + chance.randint(1, 10)]
                case 2:
                    data[at:at] = chance.randbytes(chance.randint(1, 10))
                case _:
                    data[at:at] = chance.choice([b"\r\n", b"\n", b" ", b":", b"%", b"\x00", b"//", b"0", b","])
        client = await node.connect()
        await client.send(bytes(data))
        await client.stream.send_eof()
        with contextlib.suppress(trio.BrokenResourceError):
            received = await client.rest()
            assert received == b"" or received.startswith(b"HTTP/1.1 ")
    assert await node.is_healthy()
    assert node.log == []


# -- bodies -----------------------------------------------------------------------------------------------------------


async def test_a_body_of_just_the_cap_is_read(start: Start) -> None:
    node = await start()
    client = await node.connect()
    assert (await client.post("/echo", b"x" * 1000)).json == {"bytes": 1000}
    assert (await client.post("/echo", b"x" * 1001)).code == "content_too_large"


async def test_the_cap_is_the_routes_own(start: Start) -> None:
    node = await start()
    client = await node.connect()
    assert (await client.post("/upload", b"x" * 2**20)).json == {"bytes": 2**20}


async def test_a_chunked_body_is_read(start: Start) -> None:
    node = await start()
    client = await node.connect()
    pieces = b"".join(chunk(b"x" * 100) for _ in range(10)) + chunk(b"")
    await client.send(b"POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n" + pieces)
    assert (await client.answer()).json == {"bytes": 1000}
    assert (await client.get("/hello")).status == 200


async def test_a_chunked_body_is_refused_at_the_cap(start: Start) -> None:
    node = await start()
    client = await node.connect()
    await client.send(b"POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"x" * 1001))
    answer = await client.answer()
    assert (answer.status, answer.code) == (413, "content_too_large")
    assert node.doings.entered == 0


async def test_a_client_that_goes_on_sending_still_hears_why_it_was_refused(start: Start) -> None:
    node = await start()
    client = await node.connect()
    await client.send(b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 8000000\r\n\r\n")
    for _ in range(100):
        await client.send(b"x" * 80000)
    assert (await client.answer()).code == "content_too_large"
    assert await client.is_closed()


async def test_a_flood_of_tiny_chunks_is_refused(start: Start) -> None:
    node = await start()
    client = await node.connect()
    flood = chunk(b"x") * 2000
    await client.send(b"POST /upload HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n" + flood)
    assert (await client.answer()).code == "bad_request"


async def test_bodies_over_the_memory_of_the_node_are_503(start: Start) -> None:
    node = await start(body_memory_bytes=100_000, small_body_bytes=1)
    first = await node.connect()
    await first.send(b"POST /upload HTTP/1.1\r\nHost: t\r\nContent-Length: 90000\r\n\r\n" + b"x" * 80_000)
    second = await node.connect()
    await trio.testing.wait_all_tasks_blocked(0.05)
    answer = await second.post("/upload", b"x" * 50_000)
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "capacity_exhausted", "1")
    await first.send(b"x" * 10_000)
    assert (await first.answer()).json == {"bytes": 90_000}
    third = await node.connect()
    for _ in range(3):
        assert (await third.post("/upload", b"x" * 90_000)).status == 200


async def test_an_expected_continue_is_said_once_the_body_is_welcome(start: Start) -> None:
    node = await start()
    client = await node.connect()
    await client.send(b"POST /echo HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
    assert await client.stream.receive_some(65536) == b"HTTP/1.1 100 \r\n\r\n"
    await client.send(b"abc")
    assert (await client.answer()).json == {"bytes": 3}


async def test_an_expected_continue_is_not_said_to_a_body_over_the_cap(start: Start) -> None:
    node = await start()
    client = await node.connect()
    await client.send(b"POST /echo HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 3000\r\n\r\n")
    assert (await client.stream.receive_some(65536)).startswith(b"HTTP/1.1 413 ")


async def test_a_body_that_nobody_reads_leaves_the_connection_usable(start: Start) -> None:
    node = await start()
    client = await node.connect()
    for _ in range(30):
        head = b"POST /ignore HTTP/1.1\r\nHost: t\r\nContent-Length: 900\r\n\r\n"
        await client.send(head)  # the body comes after the handler could have answered
        await client.send(b"x" * 900)
        assert (await client.answer()).json == {"ignored": True}


@pytest.mark.parametrize("path", ["/nope", "/hello"])
async def test_an_early_refusal_leaves_the_connection_usable(start: Start, path: str) -> None:
    node = await start()
    client = await node.connect()
    for _ in range(30):
        assert (await client.post(path, b"x" * 900)).status in {404, 405}
    assert (await client.get("/hello")).status == 200


# -- pipelining and framing of answers --------------------------------------------------------------------------------


async def test_pipelined_requests_are_answered_in_order(start: Start) -> None:
    node = await start()
    client = await node.connect()
    posts = b"".join(
        b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n%b" % (n, b"x" * n) for n in range(50)
    )
    await client.send(posts + HELLO)
    assert [(await client.answer()).json["bytes"] for _ in range(50)] == list(range(50))
    assert (await client.answer()).json == {"hello": "world"}


async def test_bytes_are_taken_one_at_a_time(start: Start) -> None:
    node = await start()
    client = await node.connect()
    for byte in b"\r\n" + HELLO + b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nabc":
        await client.send(bytes([byte]))
    assert (await client.answer()).json == {"hello": "world"}
    assert (await client.answer()).json == {"bytes": 3}


async def test_a_flood_of_pipelined_requests_is_held_back(start: Start) -> None:
    node = await start()
    client = await node.connect()
    await client.send(b"GET /slow HTTP/1.1\r\nHost: t\r\n\r\n")
    await node.doings.until(lambda doings: doings.entered == 1)

    async def flood() -> None:
        with contextlib.suppress(trio.BrokenResourceError):
            while True:
                await client.send(HELLO * 10_000)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(flood)
        with trio.fail_after(10):
            await trio.testing.wait_all_tasks_blocked(0.1)  # the flood too: the server has stopped reading
        node.doings.gate.set()
        assert (await client.answer()).json == {"slow": "done"}
        assert (await client.answer()).json == {"hello": "world"}
        nursery.cancel_scope.cancel()


async def test_head_and_body_leave_in_one_write(start: Start) -> None:
    node = await start()
    client = await node.connect()
    for _ in range(20):
        await client.send(HELLO)
        data = await client.stream.receive_some(65536)
        assert data.startswith(b"HTTP/1.1 200 OK\r\n")
        assert data.endswith(b'{"hello":"world"}\n')


async def test_a_stream_is_sent_piece_by_piece(start: Start) -> None:
    node = await start()
    client = await node.connect()
    await client.send(b"GET /stream HTTP/1.1\r\nHost: t\r\n\r\n")
    assert (await client.stream.receive_some(65536)).endswith(b"first\r\n")
    assert (await client.stream.receive_some(65536)) == chunk(b": beat")


async def test_a_head_request_is_answered_without_a_body(start: Start) -> None:
    node = await start()
    client = await node.connect()
    for path in ("/hello", "/nope", "/hello"):
        answer = await client.get(path, method="HEAD")
        assert answer.body == b""
        assert int(answer.headers["content-length"]) > 0


async def test_options_names_the_methods_of_a_resource(start: Start) -> None:
    node = await start()
    client = await node.connect()
    answer = await client.get("/echo", method="OPTIONS")
    assert (answer.status, answer.headers["allow"], answer.body) == (204, "OPTIONS, POST", b"")
    answer = await client.get("*", method="OPTIONS")
    assert (answer.status, answer.headers["allow"]) == (204, "GET, HEAD, OPTIONS, POST")


async def test_a_target_in_absolute_form_is_served(start: Start) -> None:
    node = await start()
    client = await node.connect()
    assert (await client.get("http://node.example/hello?x=1")).json == {"hello": "world"}
    assert (await client.get("http://node.example")).code == "not_found"
    assert (await client.get("http://evil.example?x/hello")).code == "not_found"


@pytest.mark.parametrize("upgrade", [b"h2c", b"websocket"])
async def test_upgrades_are_not_offered(start: Start, upgrade: bytes) -> None:
    node = await start()
    client = await node.connect()
    head = (
        b"Upgrade: %b\r\nConnection: upgrade, http2-settings\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n" % upgrade
    )
    await client.send(b"GET /hello HTTP/1.1\r\nHost: t\r\n" + head + b"\r\n")
    assert (await client.answer()).json == {"hello": "world"}
    assert (await client.get("/hello")).status == 200


async def test_an_http_1_0_client_is_answered_and_closed(start: Start) -> None:
    node = await start()
    client = await node.connect()
    await client.send(b"GET /hello HTTP/1.0\r\n\r\n")
    assert (await client.answer()).json == {"hello": "world"}
    assert await client.is_closed()


async def test_a_client_that_asks_for_the_close_gets_it(start: Start) -> None:
    node = await start()
    client = await node.connect()
    await client.send(b"GET /hello HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
    answer = await client.answer()
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert await client.is_closed()


async def test_an_answer_that_breaks_off_is_never_taken_for_whole(start: Start, app: GatewayApp) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"some"
        raise OSError("disk")

    @app.get("/broken")
    async def broken() -> TrioResponse:
        return TrioResponse(pieces())

    node = await start()
    client = await node.connect()
    await client.send(b"GET /broken HTTP/1.1\r\nHost: t\r\n\r\n")
    data = await client.rest()
    assert b"some" in data
    assert not data.endswith(b"0\r\n\r\n")
    assert [entry["event"] for entry in node.log] == ["http.defect"]
    assert await node.is_healthy()
