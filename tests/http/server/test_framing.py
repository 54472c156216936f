"""Facts about the lines and chunks of requests: each malformed form is refused, however its bytes arrive."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import attrs
import pytest
import trio
from hypercorn.config import Config
from hypercorn.events import RawData
from hypercorn.trio.worker_context import WorkerContext

from gateway.errors import GatewayError
from gateway.http import problems
from gateway.http.server.connection import RequestTasks
from gateway.http.server.http11 import Http11, Phase
from gateway.http.server.limits import BodyMemory, ServerLimits

CAP = 1000
HELLO = b"GET /hello HTTP/1.1\r\nHost: t\r\n\r\n"
POST = b"POST /echo HTTP/1.1\r\nHost: t\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


class Floor:
    """Renders failures, and caps every body."""

    @staticmethod
    def body_cap(path: str) -> int:
        return 2**20 if path == "/upload" else CAP

    @staticmethod
    def render(error: GatewayError, instance: str) -> problems.Answer:
        return problems.render(error, base_url="https://node.example", instance=instance)


@attrs.frozen
class Heard:
    """What became of some bytes: statuses of all answers, the handled requests, and whether the connection closed."""

    statuses: list[int]
    handled: list[tuple[str, bytes, bytes, bytes]]  # method, target, host, body
    closed: bool


async def hear(pieces: Iterable[bytes]) -> Heard:
    """Give the pieces to the protocol of one connection, each once it has done what it can with those before."""
    handled: list[tuple[str, bytes, bytes, bytes]] = []
    sent = bytearray()
    phases = [Phase.IDLE]

    def phase() -> Phase:
        return phases[-1]

    async def app(scope: Any, receive: Any, send: Any, sync_spawn: Any, call_soon: Any) -> None:
        message = await receive()
        if "gateway.refusal" in scope["extensions"]:
            status = scope["extensions"]["gateway.refusal"]["error"].status
        else:
            status = 200
            target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
            hosts = b"|".join(value for name, value in scope["headers"] if name == b"host")
            handled.append((scope["method"], target, hosts, message["body"]))
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def collect(event: Any) -> None:
        if isinstance(event, RawData):
            sent.extend(event.data)

    config = Config()
    config.include_server_header = False
    limits = ServerLimits()
    async with trio.open_nursery() as nursery:
        protocol = Http11(
            app,
            config,
            WorkerContext(None),
            RequestTasks(nursery, None),  # type: ignore[arg-type]
            (None, None),
            collect,
            floor=Floor(),  # type: ignore[arg-type]
            limits=limits,
            memory=BodyMemory(limits.body_memory_bytes),
            turn=phases.append,
            ending=lambda: False,
        )
        for piece in pieces:
            await protocol.handle(RawData(piece))
            while phase() is Phase.BUSY:
                await trio.testing.wait_all_tasks_blocked()
                if phase() is Phase.HEAD:
                    await protocol.advance()
            if phase() is Phase.CLOSED:
                break
    statuses = [int(line.split(b" ")[1]) for line in bytes(sent).split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
    return Heard([status for status in statuses if status != 100], handled, phase() is Phase.CLOSED)


def arrivals(data: bytes) -> Iterator[list[bytes]]:
    """Yield the ways in which bytes may arrive: whole, one at a time, and cut in two anywhere."""
    yield [data]
    yield [bytes([byte]) for byte in data]
    step = max(1, len(data) // 100)  # every cut of what is short
    for cut in range(1, len(data), step):
        yield [data[:cut], data[cut:]]


REFUSED_HEADS = {
    "bare LF everywhere": b"POST /echo HTTP/1.1\nHost: t\nContent-Length: 2\n\n{}",
    "bare LF after the request line": b"POST /echo HTTP/1.1\nHost: t\r\nContent-Length: 2\r\n\r\n{}",
    "bare LF after a field": b"POST /echo HTTP/1.1\r\nHost: t\nContent-Length: 2\r\n\r\n{}",
    "bare LF as the empty line": b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\n{}\r\n\r\n",
    "bare LF before the empty line": b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 2\n\r\n{}\r\n\r\n",
    "bare LF before the request": b"\n" + HELLO,
    "bare CR before the request": b"\r" + HELLO,
    "bare CR in a value": POST + b"X: a\rb\r\nContent-Length: 2\r\n\r\n{}",
    "bare CR before a CRLF": POST + b"X: a\r\r\nContent-Length: 2\r\n\r\n{}",
    "bare CR that hides a field": POST + b"X: a\rContent-Length: 2\r\n\r\n",
    "bare CR in the request line": b"POST /echo\r HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n{}",
    "bare CR in a name": POST + b"X\r: a\r\nContent-Length: 2\r\n\r\n{}",
    "obs-fold by a space": POST + b"X: a\r\n b\r\nContent-Length: 2\r\n\r\n{}",
    "obs-fold by a tab": POST + b"X: a\r\n\tb\r\nContent-Length: 2\r\n\r\n{}",
    "obs-fold of the length": POST + b"Content-Length:\r\n 2\r\n\r\n{}",
    "obs-fold of the coding": POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "obs-fold of blanks only": POST + b"X: a\r\n \r\nContent-Length: 2\r\n\r\n{}",
    "a blank before the first field": b"POST /echo HTTP/1.1\r\n Host: t\r\nContent-Length: 2\r\n\r\n{}",
    "NUL in a value": POST + b"X: a\x00b\r\nContent-Length: 2\r\n\r\n{}",
    "NUL in a name": POST + b"X\x00: a\r\nContent-Length: 2\r\n\r\n{}",
    "a control byte in a value": POST + b"X: a\x01b\r\nContent-Length: 2\r\n\r\n{}",
    "a vertical tab before the coding": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "a form feed behind the length": POST + b"Content-Length: 2\x0c\r\n\r\n{}",
    "DEL in a value": POST + b"X: a\x7fb\r\nContent-Length: 2\r\n\r\n{}",
    "a space before the colon": POST + b"Content-Length : 2\r\n\r\n{}",
    "a tab before the colon": POST + b"Content-Length\t: 2\r\n\r\n{}",
    "a space before the colon of the coding": POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "a field without a colon": POST + b"Content-Length 2\r\n\r\n{}",
    "a field without a name": POST + b": 2\r\nContent-Length: 2\r\n\r\n{}",
    "a name with a parenthesis": POST + b"X(: 2\r\nContent-Length: 2\r\n\r\n{}",
    "a name that is not ASCII": POST + b"X\xe9: 2\r\nContent-Length: 2\r\n\r\n{}",
    "length with a plus": POST + b"Content-Length: +2\r\n\r\n{}",
    "length with a minus": POST + b"Content-Length: -2\r\n\r\n{}",
    "length in hex": POST + b"Content-Length: 0x2\r\n\r\n{}",
    "length with an underscore": POST + b"Content-Length: 0_2\r\n\r\n{}",
    "length with a space": POST + b"Content-Length: 0 2\r\n\r\n{}",
    "length of nothing": POST + b"Content-Length:\r\n\r\n{}",
    "length of 21 digits": POST + b"Content-Length: 000000000000000000002\r\n\r\n{}",
    "length twice, different": POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "length twice, equal": POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "length twice, in other letters": POST + b"content-length: 2\r\nCONTENT-LENGTH: 2\r\n\r\n{}",
    "length as a list": POST + b"Content-Length: 2, 2\r\n\r\n{}",
    "length with a comma": POST + b"Content-Length: 2,\r\n\r\n{}",
    "length and coding": POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding and length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
    "coding of HTTP/1.0": b"POST /echo HTTP/1.0\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding twice in a list": POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "coding with another behind it": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "coding with another before it": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "another coding": POST + b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "a coding alike": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a coding with a parameter": POST + b"Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n",
    "a coding in quotes": POST + b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n',
    "no coding": POST + b"Transfer-Encoding:\r\n\r\n0\r\n\r\n",
    "no host": b"POST /echo HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
    "two hosts": POST + b"Host: u\r\nContent-Length: 2\r\n\r\n{}",
    "two equal hosts": POST + b"Host: t\r\nContent-Length: 2\r\n\r\n{}",
    "two hosts of HTTP/1.0": b"POST /echo HTTP/1.0\r\nHost: t\r\nHost: u\r\nContent-Length: 2\r\n\r\n{}",
    "two spaces before the target": b"POST  /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n{}",
    "two spaces behind the target": b"POST /echo  HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n{}",
    "a space behind the version": b"POST /echo HTTP/1.1 \r\nHost: t\r\nContent-Length: 2\r\n\r\n{}",
    "a space before the method": b" POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n{}",
    "tabs in the request line": b"POST\t/echo\tHTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n{}",
    "a tab in the target": b"POST /ec\tho HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n{}",
    "a space in the target": b"POST /ec ho HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n{}",
    "a control byte in the target": b"POST /ec\x01ho HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n{}",
    "DEL in the target": b"POST /ec\x7fho HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n{}",
    "a target that is not ASCII": b"POST /ec\xe9ho HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n{}",
    "no version": b"POST /echo\r\nHost: t\r\nContent-Length: 2\r\n\r\n{}",
    "a version in small letters": b"POST /echo http/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n{}",
    "another version": b"POST /echo HTTP/1.2\r\nHost: t\r\nContent-Length: 2\r\n\r\n{}",
    "a version of two digits": b"POST /echo HTTP/1.10\r\nHost: t\r\nContent-Length: 2\r\n\r\n{}",
    "a method in small letters": b"post /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n{}",
    "a method with a colon": b"PO:ST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n{}",
    "asterisk for POST": b"POST * HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n{}",
    "asterisk with a query": b"OPTIONS *?a HTTP/1.1\r\nHost: t\r\n\r\n",
    "authority for GET": b"GET t:80 HTTP/1.1\r\nHost: t\r\n\r\n",
    "CONNECT": b"CONNECT t:80 HTTP/1.1\r\nHost: t\r\n\r\n",
    "a fragment": b"GET /hello#x HTTP/1.1\r\nHost: t\r\n\r\n",
    "a fragment behind a query": b"GET /hello?a#x HTTP/1.1\r\nHost: t\r\n\r\n",
    "a fragment in a URL": b"GET http://t#/hello HTTP/1.1\r\nHost: t\r\n\r\n",
    "a relative target": b"GET hello HTTP/1.1\r\nHost: t\r\n\r\n",
    "a query alone": b"GET ?x/hello HTTP/1.1\r\nHost: t\r\n\r\n",
    "another scheme": b"GET ftp://t/hello HTTP/1.1\r\nHost: t\r\n\r\n",
    "a scheme with one slash": b"GET http:/hello HTTP/1.1\r\nHost: t\r\n\r\n",
    "a scheme without a slash": b"GET http:hello HTTP/1.1\r\nHost: t\r\n\r\n",
    "a URL without a host": b"GET http:///hello HTTP/1.1\r\nHost: t\r\n\r\n",
    "a URL of a port alone": b"GET http://:80/hello HTTP/1.1\r\nHost: t\r\n\r\n",
    "a URL with userinfo": b"GET http://u@t/hello HTTP/1.1\r\nHost: t\r\n\r\n",
    "a URL with a backslash": b"GET http://t\\hello HTTP/1.1\r\nHost: t\r\n\r\n",
    "a host with userinfo": b"GET /hello HTTP/1.1\r\nHost: u@t\r\n\r\n",
    "a host with a path": b"GET /hello HTTP/1.1\r\nHost: t/hello\r\n\r\n",
    "a host with a query": b"GET /hello HTTP/1.1\r\nHost: t?x\r\n\r\n",
    "a host list": b"GET /hello HTTP/1.1\r\nHost: t, u\r\n\r\n",
    "a host with a space": b"GET /hello HTTP/1.1\r\nHost: t u\r\n\r\n",
    "a host with a port too high": b"GET /hello HTTP/1.1\r\nHost: t:65536\r\n\r\n",
    "a host with a signed port": b"GET /hello HTTP/1.1\r\nHost: t:+80\r\n\r\n",
    "a host that is no IPv6": b"GET /hello HTTP/1.1\r\nHost: [::1::2]\r\n\r\n",
    "a head over the bound": POST + b"X: " + b"x" * 17_000 + b"\r\nContent-Length: 2\r\n\r\n{}",
    "a head over the bound that arrives with more": POST + b"X: x\r\n" * 3000 + b"Content-Length: 2\r\n\r\n{}",
}

REFUSED_BODIES = {
    "bare LF behind the size": b"2\n{}\r\n0\r\n\r\n",
    "bare LF behind the data": b"2\r\n{}\n0\r\n\r\n",
    "bare LF behind the last size": b"2\r\n{}\r\n0\n\r\n",
    "bare LF as the end": b"2\r\n{}\r\n0\r\n\n\r\n\r\n",
    "bare CR behind the size": b"2\r{}\r\n0\r\n\r\n",
    "bare CR behind the data": b"2\r\n{}\r0\r\n\r\n",
    "two CR behind the size": b"2\r\r\n{}\r\n0\r\n\r\n",
    "CR in an extension": b"2;a\rb\r\n{}\r\n0\r\n\r\n",
    "LF in an extension": b"2;a\nb\r\n{}\r\n0\r\n\r\n",
    "NUL in an extension": b"2;a\x00b\r\n{}\r\n0\r\n\r\n",
    "a control byte in an extension": b"2;a=\x01\r\n{}\r\n0\r\n\r\n",
    "an open quote in an extension": b'2;a="b\r\n{}\r\n0\r\n\r\n',
    "an extension that hides a chunk": b"2;a\n{}\r\n0\r\n\r\n",
    "an extension without a name": b"2;\r\n{}\r\n0\r\n\r\n",
    "a long extension": b"2;a=" + b"x" * 2000 + b"\r\n{}\r\n0\r\n\r\n",
    "a longer extension": b"2;a=" + b"x" * 60_000 + b"\r\n{}\r\n0\r\n\r\n",
    "many extensions": b"1;a=%b\r\n{\r\n" % (b"x" * 100) * 30 + b"0\r\n\r\n",
    "a space before the size": b" 2\r\n{}\r\n0\r\n\r\n",
    "a space behind the size": b"2 \r\n{}\r\n0\r\n\r\n",
    "a tab behind the size": b"2\t\r\n{}\r\n0\r\n\r\n",
    "a size with a plus": b"+2\r\n{}\r\n0\r\n\r\n",
    "a size with a minus": b"-2\r\n{}\r\n0\r\n\r\n",
    "a size with a prefix": b"0x2\r\n{}\r\n0\r\n\r\n",
    "a size with an underscore": b"0_2\r\n{}\r\n0\r\n\r\n",
    "a size that is no hex": b"g\r\n{}\r\n0\r\n\r\n",
    "no size": b"\r\n{}\r\n0\r\n\r\n",
    "an extension alone": b";a\r\n{}\r\n0\r\n\r\n",
    "a size over 64 bits": b"1" + b"0" * 16 + b"\r\n{}\r\n0\r\n\r\n",
    "a size with endless zeros": b"0" * 40 + b"2\r\n{}\r\n0\r\n\r\n",
    "a size of 63 bits": b"7fffffffffffffff\r\n{}\r\n0\r\n\r\n",
    "a size over the cap": b"3e9\r\n{}",
    "sizes over the cap": b"2\r\n{}\r\n3e7\r\n{",
    "no CRLF behind the data": b"2\r\n{}0\r\n\r\n",
    "more data than said": b"2\r\n{}}\r\n0\r\n\r\n",
    "a trailer of length": b"2\r\n{}\r\n0\r\nContent-Length: 9\r\n\r\n",
    "a trailer of coding": b"2\r\n{}\r\n0\r\ntransfer-encoding: chunked\r\n\r\n",
    "a trailer of host": b"2\r\n{}\r\n0\r\nHost: u\r\n\r\n",
    "a trailer of trailers": b"2\r\n{}\r\n0\r\nTrailer: x\r\n\r\n",
    "a trailer of authorization": b"2\r\n{}\r\n0\r\nAuthorization: Payment abc\r\n\r\n",
    "a trailer of payment": b"2\r\n{}\r\n0\r\nPAYMENT-SIGNATURE: abc\r\n\r\n",
    "a trailer of another payment": b"2\r\n{}\r\n0\r\nPayment-Authorization: abc\r\n\r\n",
    "a trailer of an old payment": b"2\r\n{}\r\n0\r\nX-Payment: abc\r\n\r\n",
    "a trailer of the key": b"2\r\n{}\r\n0\r\nIdempotency-Key: abcdefgh\r\n\r\n",
    "a trailer of the caller": b"2\r\n{}\r\n0\r\nX-Forwarded-For: 9.9.9.9\r\n\r\n",
    "a trailer of type": b"2\r\n{}\r\n0\r\nContent-Type: text/plain\r\n\r\n",
    "a trailer of funding": b"2\r\n{}\r\n0\r\nX-Gateway-Funding: paid\r\n\r\n",
    "a trailer with a space before the colon": b"2\r\n{}\r\n0\r\nX : 1\r\n\r\n",
    "a trailer with an obs-fold": b"2\r\n{}\r\n0\r\nX: 1\r\n 2\r\n\r\n",
    "a trailer with a bare LF": b"2\r\n{}\r\n0\r\nX: 1\nY: 2\r\n\r\n",
    "a trailer with NUL": b"2\r\n{}\r\n0\r\nX: \x00\r\n\r\n",
    "a trailer without a colon": b"2\r\n{}\r\n0\r\nGET /hello HTTP/1.1\r\n\r\n",
    "trailers over the bound": b"2\r\n{}\r\n0\r\n" + b"X: y\r\n" * 3000 + b"\r\n",
}
REFUSED = REFUSED_HEADS | {f"chunks: {name}": CHUNKED + body for name, body in REFUSED_BODIES.items()}
REFUSALS = {400, 405, 411, 413, 431}

SERVED: dict[str, tuple[bytes, tuple[str, bytes, bytes, bytes]]] = {
    "a plain request": (HELLO, ("GET", b"/hello", b"t", b"")),
    "an empty line before it": (b"\r\n" + HELLO, ("GET", b"/hello", b"t", b"")),
    "several empty lines before it": (b"\r\n" * 5 + HELLO, ("GET", b"/hello", b"t", b"")),
    "a body": (POST + b"Content-Length: 2\r\n\r\n{}", ("POST", b"/echo", b"t", b"{}")),
    "a body of line ends": (POST + b"Content-Length: 4\r\n\r\n\n\r\n\x00", ("POST", b"/echo", b"t", b"\n\r\n\x00")),
    "blanks around a value": (POST + b"Content-Length: \t 2 \t\r\n\r\n{}", ("POST", b"/echo", b"t", b"{}")),
    "a value that is not ASCII": (POST + b"X: caf\xc3\xa9\r\nContent-Length: 0\r\n\r\n", ("POST", b"/echo", b"t", b"")),
    "a tab in a value": (POST + b"X: a\tb\r\nContent-Length: 0\r\n\r\n", ("POST", b"/echo", b"t", b"")),
    "a field about lengths": (POST + b"X: content-length: 2, 3\r\n\r\n", ("POST", b"/echo", b"t", b"")),
    "chunks": (CHUNKED + b"1\r\n{\r\n01\r\n}\r\n0\r\n\r\n", ("POST", b"/echo", b"t", b"{}")),
    "a chunk of line ends": (CHUNKED + b"4\r\n\n\r\n\x00\r\n0\r\n\r\n", ("POST", b"/echo", b"t", b"\n\r\n\x00")),
    "chunks in capitals": (CHUNKED + b"A\r\n0123456789\r\n000\r\n\r\n", ("POST", b"/echo", b"t", b"0123456789")),
    "chunks with extensions": (
        CHUNKED + b'2;a;b=c;d="e\\" ;f"\r\n{}\r\n0;last\r\n\r\n',
        ("POST", b"/echo", b"t", b"{}"),
    ),
    "chunks with a trailer": (
        CHUNKED + b"2\r\n{}\r\n0\r\nServer-Timing: a\r\nContent-Digest: b\r\n\r\n",
        ("POST", b"/echo", b"t", b"{}"),
    ),
    "a chunk up to the cap": (CHUNKED + b"3e8\r\n%b\r\n0\r\n\r\n" % (b"x" * CAP), ("POST", b"/echo", b"t", b"x" * CAP)),
    "a URL": (b"GET http://u:80/hello?a=b HTTP/1.1\r\nHost: t\r\n\r\n", ("GET", b"/hello?a=b", b"u:80", b"")),
    "a URL of another scheme": (b"GET HTTPS://u/hello HTTP/1.1\r\nHost: u\r\n\r\n", ("GET", b"/hello", b"u", b"")),
    "a URL without a path": (b"GET http://u HTTP/1.1\r\nHost: t\r\n\r\n", ("GET", b"/", b"u", b"")),
    "a URL whose query holds a path": (
        b"GET http://evil.example?x/hello HTTP/1.1\r\nHost: t\r\n\r\n",
        ("GET", b"/?x/hello", b"evil.example", b""),
    ),
    "a URL in the query": (
        b"GET /hello?u=http://u/v HTTP/1.1\r\nHost: t\r\n\r\n",
        ("GET", b"/hello?u=http://u/v", b"t", b""),
    ),
    "a URL of HTTP/1.0 without a host": (b"GET http://u/hello HTTP/1.0\r\n\r\n", ("GET", b"/hello", b"u", b"")),
    "a host by address": (b"GET /hello HTTP/1.1\r\nHost: [::1]:65535\r\n\r\n", ("GET", b"/hello", b"[::1]:65535", b"")),
    "options of all": (b"OPTIONS * HTTP/1.1\r\nHost: t\r\n\r\n", ("OPTIONS", b"*", b"t", b"")),
}


@pytest.mark.parametrize("form", REFUSED)
async def test_a_malformed_request_is_refused_however_it_arrives(form: str) -> None:
    data = REFUSED[form] + HELLO
    first = await hear([data])
    assert len(first.statuses) == 1
    assert first.statuses[0] in REFUSALS
    assert first.handled == []
    assert first.closed
    ways = arrivals(data) if len(data) < 4000 else [[data], [data[:9000], data[9000:]], [data[:-60], data[-60:]]]
    for pieces in ways:
        assert await hear(pieces) == first


@pytest.mark.parametrize("form", REFUSED)
async def test_a_malformed_request_is_refused_behind_a_good_one(form: str) -> None:
    alone = await hear([REFUSED[form]])
    good = POST + b"Content-Length: 4\r\n\r\n{\n}\n"
    for before in (HELLO, good, CHUNKED + b"2\r\n{}\r\n0\r\n\r\n"):
        both = before + REFUSED[form]
        for pieces in ([both], [before, REFUSED[form]], [both[: len(before) + 3], both[len(before) + 3 :]]):
            heard = await hear(pieces)
            assert heard.statuses == [200, *alone.statuses]
            assert len(heard.handled) == 1
            assert heard.closed


@pytest.mark.parametrize("form", SERVED)
async def test_a_well_formed_request_is_served_however_it_arrives(form: str) -> None:
    data, request = SERVED[form]
    for pieces in arrivals(data):
        heard = await hear(pieces)
        assert heard.statuses == [200]
        assert heard.handled == [request]
    if b"HTTP/1.0" not in data:
        for pieces in arrivals(data + b"\r\n" + HELLO):  # some clients end a body with an empty line too many
            heard = await hear(pieces)
            assert heard.handled == [request, ("GET", b"/hello", b"t", b"")]
            assert not heard.closed


async def test_bytes_that_can_no_longer_become_a_request_are_refused_at_once() -> None:
    for sent in (
        b"GET /hello HTTP/1.1\nHost: t",
        HELLO[:-2] + b"\n",
        b"\x16\x03",
        CHUNKED + b"2\n",
        CHUNKED + b"2;a\x00",
    ):
        for pieces in ([sent], [bytes([byte]) for byte in sent]):
            heard = await hear(pieces)
            assert heard.statuses == [400]
            assert heard.closed


async def test_a_length_within_another_field_is_none() -> None:
    heard = await hear([POST + b"X-Content-Length: 1, 2\r\nContent-Length: 2\r\n\r\n{}"])
    assert heard.handled == [("POST", b"/echo", b"t", b"{}")]


async def test_a_flood_of_tiny_chunks_is_refused_however_it_arrives() -> None:
    for pieces in ([b"1\r\nx\r\n"], [b"1\r\n", b"x\r\n"], [b"1\r\nx", b"\r\n"]):
        heard = await hear([POST.replace(b"echo", b"upload") + b"Transfer-Encoding: chunked\r\n\r\n", *pieces * 1200])
        assert heard.statuses == [400]


NOISE = [b"\r\n", b"\n", b"\r", b"\r\r\n", b" ", b"\t", b"\x00", b":", b",", b";", b"0", b"#", b"//", b"\x7f", b"\xff"]


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.campaign) for seed in range(4, 100))]
)
async def test_any_bytes_mean_the_same_however_they_arrive(seed: int) -> None:
    chance = random.Random(seed)
    forms = [*REFUSED.values(), *(data for data, _ in SERVED.values())]
    forms = [form for form in forms if len(form) < 500]
    for _ in range(40):
        data = bytearray(b"".join(chance.choices(forms, k=chance.randint(1, 3))))
        for _ in range(chance.randint(0, 3)):
            at = chance.randrange(len(data))
            match chance.randrange(3):
                case 0:
                    data[at:at] = chance.choice(NOISE)
                case 1:
                    del data[at : at + chance.randint(1, 4)]
                case _:
                    data[at] = chance.randrange(256)
        whole = await hear([bytes(data)])
        for _ in range(4):
            cuts = sorted(chance.choices(range(len(data)), k=chance.randint(1, 30)))
            pieces = [bytes(data[start:end]) for start, end in pairwise([0, *cuts, len(data)]) if end > start]
            assert await hear(pieces) == whole, (bytes(data), pieces)
