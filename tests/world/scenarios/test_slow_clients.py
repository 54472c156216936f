"""Clients that send slowly or not at all: they take neither health nor the requests of others (issue: bodies)."""

from __future__ import annotations

import contextlib
import random
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import attrs
import orjson
import pytest
import trio

from gateway.world.world import World
from tests.world.scenarios.node_process import NodeProcess, running
from tests.world.scenarios.purchase import CHAT, EXECUTE, PAID, body, fresh_key

pytestmark = pytest.mark.world

STRANGER = "127.0.0.2"
LARGE = 16 * 1024 * 1024
WITHIN_S = 5.0  # on a machine that does much else; it is hundredths of a second on a quiet one, and was over ten


@pytest.fixture(scope="module")
def node(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with running(NodeProcess.of(world, tmp_path_factory.mktemp("node"))) as started:
        yield started


def head(path: str, length: int) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: node\r\nContent-Type: application/json\r\n"
        f"Idempotency-Key: {fresh_key()}\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


def order() -> bytes:
    """Return an unpaid request, which an honest node answers with 402."""
    sent = orjson.dumps(body())
    return head(PAID, len(sent)) + sent


async def connect(port: int, source: str = "") -> trio.SocketStream:
    raw = trio.socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if source:
            await raw.bind((source, 0))
        await raw.connect(("127.0.0.1", port))
    except BaseException:
        raw.close()
        raise
    return trio.SocketStream(raw)


@attrs.define
class Seen:
    """What honest clients got while others attacked: statuses and the slowest answer, by what they asked."""

    statuses: dict[str, Counter[int]] = attrs.field(factory=dict)
    slowest: dict[str, float] = attrs.field(factory=dict)

    async def ask(self, port: int, label: str, request: bytes, source: str = "", limit: float = 10) -> None:
        """Ask once as a fresh client; no answer within the limit counts as status 0."""
        began, received = trio.current_time(), b""
        with trio.move_on_after(limit), contextlib.suppress(OSError, trio.BrokenResourceError):
            async with await connect(port, source) as stream:
                await stream.send_all(request)
                received = bytes(await stream.receive_some(65536))
        status = int(received[9:12]) if received.startswith(b"HTTP/1.1 ") else 0
        self.statuses.setdefault(label, Counter())[status] += 1
        self.slowest[label] = max(self.slowest.get(label, 0), trio.current_time() - began)

    async def ask_all(self, port: int) -> None:
        """Ask for health and for a price, from the address of the attack and from another one."""
        health = b"GET /healthz HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n"
        await self.ask(port, "health", health)
        await self.ask(port, "health, another address", health, STRANGER)
        await self.ask(port, "price, another address", order(), STRANGER)


@asynccontextmanager
async def upload_and_stall(port: int, number: int) -> AsyncIterator[None]:
    """Hold uploads of 16 MiB that lack their last byte."""
    async with contextlib.AsyncExitStack() as held:

        async def upload() -> None:
            stream = await held.enter_async_context(await connect(port))
            with contextlib.suppress(trio.BrokenResourceError):
                await stream.send_all(head(EXECUTE, LARGE) + b" " * (LARGE - 1))

        with trio.move_on_after(20):
            async with trio.open_nursery() as nursery:
                for _ in range(number):
                    nursery.start_soon(upload)
        yield


async def test_sixteen_stalled_uploads_of_16_mib_stop_nothing(node: NodeProcess) -> None:
    seen = Seen()
    async with upload_and_stall(node.port, 16):
        for _ in range(5):
            await seen.ask_all(node.port)
            await seen.ask(node.port, "price", order())
        await trio.sleep(1.2)  # the patience with stalled uploads
        large = b"{" + b" " * (LARGE - 2) + b"}"
        await seen.ask(node.port, "16 MiB", head(EXECUTE, LARGE) + large)
    print(f"\nsixteen stalled uploads: {seen}")
    assert {label: set(found) for label, found in seen.statuses.items()} == {
        "health": {200},
        "health, another address": {200},
        "price": {402},
        "price, another address": {402},
        "16 MiB": {400},  # it was read
    }
    assert max(time for label, time in seen.slowest.items() if label != "16 MiB") < WITHIN_S
    assert node.defects() == []


async def test_1060_slow_bodies_of_one_address_stop_nothing(node: NodeProcess) -> None:
    seen = Seen()
    async with contextlib.AsyncExitStack() as held:
        for number in range(1060):
            with trio.move_on_after(1):
                slow = await connect(node.port)
                await slow.send_all(head(CHAT, 1000) + b"{")
                await held.enter_async_context(slow)
            if number % 106 == 0:
                await seen.ask_all(node.port)
        for _ in range(10):
            await seen.ask_all(node.port)
    print(f"\n1060 slow bodies: {seen}")
    assert {label: set(found) for label, found in seen.statuses.items()} == {
        "health": {200},
        "health, another address": {200},
        "price, another address": {402},
    }
    assert max(seen.slowest.values()) < WITHIN_S
    assert node.defects() == []


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(3))
async def test_a_minute_of_slow_clients_of_every_kind_stops_nothing(node: NodeProcess, seed: int) -> None:
    chance, seen = random.Random(seed), Seen()

    async def attack(source: str) -> None:
        while True:
            kind = chance.choice(["silent", "head", "body", "upload", "reader", "leaver"])
            with contextlib.suppress(OSError, trio.BrokenResourceError):
                async with await connect(node.port, source) as stream:
                    if kind == "head":
                        await stream.send_all(head(CHAT, 9)[: chance.randint(1, 60)])
                    elif kind == "body":
                        await stream.send_all(head(CHAT, 9) + b"{")
                    elif kind == "upload":
                        await stream.send_all(head(EXECUTE, LARGE) + b" " * chance.randint(0, 2**20))
                    elif kind == "reader":
                        await stream.send_all(b"GET /v1/models HTTP/1.1\r\nHost: node\r\n\r\n")
                    if kind != "leaver":
                        await trio.sleep(chance.uniform(0.1, 20))
            await trio.sleep(chance.uniform(0, 4))  # a flood of requests would be another matter

    async with trio.open_nursery() as nursery:
        for _ in range(1400):
            nursery.start_soon(attack, "127.0.0.1")
        with trio.move_on_after(60):
            while True:
                await seen.ask_all(node.port)
                await trio.sleep(0.2)
        nursery.cancel_scope.cancel()
    print(f"\na minute of slow clients: {seen}")
    assert set(seen.statuses["health"]) == set(seen.statuses["health, another address"]) == {200}
    assert set(seen.statuses["price, another address"]) == {402}
    assert node.defects() == []
