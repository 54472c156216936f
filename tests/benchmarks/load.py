"""A load generator that costs little: raw sockets, one prepared request, answers read by their Content-Length."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import attrs
import trio

TICK = os.sysconf("SC_CLK_TCK")


@attrs.frozen
class Load:
    """What a run showed: answers a second, milliseconds at p50 and p99, the statuses seen."""

    answers: int
    seconds: float
    p50_ms: float
    p99_ms: float
    statuses: frozenset[int]

    @property
    def rate(self) -> float:
        return self.answers / self.seconds


def post(host: str, path: str, body: bytes, headers: Sequence[tuple[str, str]] = ()) -> bytes:
    """Return the bytes of a POST of JSON."""
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def drive(port: int, requests: Sequence[bytes], *, connections: int, seconds: float) -> Load:
    """Send the requests in turn over keep-alive connections for a while."""
    times: list[float] = []
    statuses: set[int] = set()
    turn = 0

    async def one(ends: float) -> None:
        nonlocal turn
        stream = None
        while time.perf_counter() < ends:
            if stream is None:
                stream = await trio.open_tcp_stream("127.0.0.1", port)
            request = requests[turn % len(requests)]
            turn += 1
            started = time.perf_counter()
            await stream.send_all(request)
            status, again = await _answer(stream)
            times.append(time.perf_counter() - started)
            statuses.add(status)
            if not again:
                await stream.aclose()
                stream = None
        if stream is not None:
            await stream.aclose()

    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(connections):
            nursery.start_soon(one, began + seconds)
    took = time.perf_counter() - began
    times.sort()
    return Load(
        len(times), took, times[len(times) // 2] * 1e3, times[int(len(times) * 0.99)] * 1e3, frozenset(statuses)
    )


async def _answer(stream: trio.SocketStream) -> tuple[int, bool]:
    """Read one answer; return its status and whether the connection can be used again."""
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = await stream.receive_some(65536)
        if not chunk:
            raise ConnectionError("closed before an answer")
        data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").lower().split("\r\n")
    length = next((int(line.partition(":")[2]) for line in lines if line.startswith("content-length:")), 0)
    left = length - len(body)
    while left > 0:
        chunk = await stream.receive_some(65536)
        if not chunk:
            raise ConnectionError("closed inside an answer")
        left -= len(chunk)
    return int(lines[0].split()[1]), "connection: close" not in lines
