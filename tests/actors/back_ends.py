"""Back ends on ports of the kernel's choice that answer, byte by byte, what a test wants, with and without TLS."""

from __future__ import annotations

import datetime as dt
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import attrs
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
Answer = Callable[[Any], Awaitable[None]]


@attrs.define
class Server:
    """What a server has seen: `heads` are the requests it read, one entry a request."""

    url: str = ""
    heads: list[bytes] = attrs.field(factory=list)
    connections: int = 0
    open: int = 0


@asynccontextmanager
async def serving(answer: Answer, authority: Authority | None = None) -> AsyncIterator[Server]:
    """Serve: each request that arrives is read whole, then `answer` has the connection."""
    server = Server()
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    server.url = f"{'https' if authority else 'http'}://127.0.0.1:{port}/"
    listening: Any = trio.SSLListener(listener, authority.identity(), https_compatible=True) if authority else listener
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, partial(_converse, answer, server), [listening])
        yield server
        nursery.cancel_scope.cancel()


async def _converse(answer: Answer, server: Server, stream: Any) -> None:
    server.connections += 1
    server.open += 1
    try:
        while True:
            head = bytearray()
            while not _whole(head):
                chunk = await stream.receive_some(65536)
                if not chunk:
                    return
                head += chunk
            server.heads.append(bytes(head))
            await answer(stream)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return
    finally:
        server.open -= 1


def _whole(request: bytearray) -> bool:
    head, end, body = bytes(request).partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    return bool(end) and len(body) >= length


def sends(*parts: bytes, close: bool = False) -> Answer:
    async def answer(stream: Any) -> None:
        for part in parts:
            await stream.send_all(part)
        if close:
            await stream.aclose()

    return answer


async def hang(stream: Any) -> None:
    await stream.receive_some(1)


class Authority:
    """Vouches for 127.0.0.1."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
        now = dt.datetime.now(dt.UTC)
        self._certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def trust(self) -> ssl.SSLContext:
        """Return what a caller who believes this authority holds back ends against."""
        pem = self._certificate.public_bytes(serialization.Encoding.PEM).decode()
        return ssl.create_default_context(cadata=pem)

    def identity(self) -> ssl.SSLContext:
        """Return what a server shows."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory() as folder:
            both = Path(folder) / "identity.pem"
            both.write_bytes(
                self._key.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.NoEncryption(),
                )
                + self._certificate.public_bytes(serialization.Encoding.PEM)
            )
            context.load_cert_chain(both)
        return context
