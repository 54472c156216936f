"""A node that sells sandboxed runs, bought one after the other, and how much of each purchase was its settlement.

The node talks to facilitator and chain through a `Stopwatch` each.  Signing, the price question before it and making
the request are the buyer's time: a purchase takes from the first byte that leaves to the last of the answer.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import attrs
import httpx
import psutil

from gateway.world.world import World
from tests.benchmarks.load import post
from tests.world.scenarios.node_process import NodeProcess, pause
from tests.world.scenarios.purchase import Challenge, fresh_key, x402, x402_payload

EXECUTE = "/v1/sandbox/execute"
OPENS_S = 60.0


@attrs.frozen
class Call:
    """One call of the node: when it came, when its answer was there, and what was asked, a path or a method."""

    began: float
    ended: float
    asked: str


class Stopwatch(ThreadingHTTPServer):
    """A door before a facilitator or a chain, which notes each call."""

    daemon_threads = True

    def __init__(self, behind: str) -> None:
        super().__init__(("127.0.0.1", 0), _Timed)
        self.behind = urlsplit(behind)
        self.calls: list[Call] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{self.behind.path}"


class _Timed(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    _began = 0.0
    _behind: HTTPConnection | None = None

    def parse_request(self) -> bool:
        """Note when a call came, before it is understood."""
        self._began = time.perf_counter()
        return super().parse_request()

    def _pass_on(self) -> None:
        assert isinstance(self.server, Stopwatch)
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self._behind is None:
            self._behind = HTTPConnection(self.server.behind.netloc, timeout=60)
        self._behind.request(self.command, self.path, content, {"Content-Type": "application/json"})
        answer = self._behind.getresponse()
        body = answer.read()
        asked = json.loads(content).get("method", self.path) if content else self.path
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.getheader("Content-Type", "application/json"))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.server.calls.append(Call(self._began, time.perf_counter(), asked))
        self.wfile.write(body)
        self.wfile.flush()

    do_GET = do_POST = _pass_on  # noqa: N815 - the standard library's

    def finish(self) -> None:
        """Close both connections."""
        super().finish()
        if self._behind is not None:
            self._behind.close()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the standard library's
        pass


@contextmanager
def stopwatch(behind: str) -> Iterator[Stopwatch]:
    with Stopwatch(behind) as door:
        thread = threading.Thread(target=door.serve_forever, name="stopwatch")
        thread.start()
        try:
            yield door
        finally:
            door.shutdown()
            thread.join()


@attrs.frozen
class Bought:
    """One purchase in seconds, and what the node told of its run.

    Attributes:
        whole: from the first byte of the request to the last of the answer.
        busy: how much of it facilitator and chain were busy: verified it, settled it, proved that it is settled.
        settling: the verification, and all that lasted from the call that settles to the last answer that proves it,
            the node's own part in that included.
    """

    whole: float
    busy: float
    settling: float
    execution: Mapping[str, Any]


@attrs.define
class Seller:
    """A node that sells sandboxed runs of `body`, and what is needed to buy them."""

    node: NodeProcess
    world: World
    facilitator: Stopwatch
    chain: Stopwatch
    client: httpx.Client
    body: Mapping[str, Any]
    bought: int = 0

    def buy(self) -> Bought:
        named, payer = [("Idempotency-Key", fresh_key())], self.world.payers[self.bought % len(self.world.payers)]
        self.bought += 1
        with socket.create_connection(("127.0.0.1", self.node.port), timeout=60) as buyer:
            buyer.sendall(self._request(named))
            credential = x402(x402_payload(Challenge.of(answer_of(received(buyer))), payer))
            request = self._request([*named, *credential.items()])
            self.facilitator.calls.clear()
            self.chain.calls.clear()
            began = time.perf_counter()
            buyer.sendall(request)
            content = received(buyer)
            whole = time.perf_counter() - began
        answer = answer_of(content)
        assert answer.status_code == 200, answer.text
        return Bought(whole, self._busy(), self._settling(), answer.json()["execution"])

    def _request(self, headers: Sequence[tuple[str, str]]) -> bytes:
        return post(f"127.0.0.1:{self.node.port}", EXECUTE, json.dumps(self.body).encode(), headers)

    def _busy(self) -> float:
        settled = self._asked("/settle").ended
        spans = [*self.facilitator.calls, *(each for each in self.chain.calls if each.began >= settled)]
        return covered([(each.began, each.ended) for each in spans])

    def _settling(self) -> float:
        """Return the seconds of the verification and of the phase of settlement.

        The proof is the first of each kind of question to the chain after it settled; what else is asked meanwhile is
        of calls that were settled before.
        """
        verify, settle = self._asked("/verify"), self._asked("/settle")
        proof = {each.asked: each.ended for each in reversed(self.chain.calls) if each.began >= settle.ended}
        proved = max(ended for asked, ended in proof.items() if asked in PROOF)
        return verify.ended - verify.began + proved - settle.began

    def _asked(self, what: str) -> Call:
        (found,) = (each for each in self.facilitator.calls if each.asked.endswith(what))
        return found

    def wait_until_open(self) -> None:
        for _ in range(int(OPENS_S / 0.1)):
            asked = self.client.post(EXECUTE, json=self.body, headers={"Idempotency-Key": fresh_key()})
            if asked.status_code == 402:
                return
            pause(0.1)
        raise AssertionError(f"the sandbox did not open within {OPENS_S:g} s:\n{self.node.log[-3000:]}")

    @property
    def launcher(self) -> psutil.Process:
        (found,) = (each for each in psutil.Process(self.node.pid).children() if "launcher.py" in str(each.cmdline()))
        return found


PROOF = frozenset({"eth_chainId", "eth_getBlockByNumber", "eth_getTransactionReceipt"})


def received(connection: socket.socket) -> bytes:
    """Return one answer, read to its last byte."""
    content, length = b"", -1
    while True:
        head, whole, body = content.partition(b"\r\n\r\n")
        if whole and length < 0:
            length = next(int(line[15:]) for line in head.lower().splitlines() if line.startswith(b"content-length:"))
        if len(body) >= length >= 0:
            return content
        chunk = connection.recv(65536)
        assert chunk, f"the answer ends after {content!r}"
        content += chunk


def answer_of(content: bytes) -> httpx.Response:
    head, _, body = content.partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    headers = [(name, value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    return httpx.Response(int(status.split()[1]), headers=headers, content=body)


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """Return how long at least one of them lasts: some calls are made together."""
    total, until = 0.0, 0.0
    for begins, ends in sorted(spans):
        total += max(ends - max(begins, until), 0.0)
        until = max(until, ends)
    return total
