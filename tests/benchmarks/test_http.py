"""Requests per CPU second of the HTTP floor, against hypercorn-trio and quart-trio as they come, in the same run."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REQUESTS = 1500
ROUNDS = 3
CONNECTIONS = 8

FLOOR = """
import functools, sys, trio
from gateway.http.server import GatewayApp, bind, serve
app = GatewayApp(base_url="http://t", body_cap=lambda path: 65536)
async def main():
    listener = bind("127.0.0.1:0")
    async with trio.open_nursery() as nursery:
        await nursery.start(functools.partial(serve, app, [listener], stop=trio.Event()))
        print(listener.getsockname()[1], flush=True)
"""
STOCK = """
import functools, socket, sys, trio
from hypercorn.config import Config, Sockets
from hypercorn.trio.run import worker_serve
from hypercorn.utils import wrap_app
from quart_trio import QuartTrio
app = QuartTrio("stock")
async def main():
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    config = Config()
    config.errorlog = None
    config.keep_alive_max_requests = 10**9
    async with trio.open_nursery() as nursery:
        sockets = Sockets([], [listener], [])
        await nursery.start(functools.partial(worker_serve, wrap_app(app, 0, "asgi"), config, sockets=sockets))
        print(listener.getsockname()[1], flush=True)
"""
ROUTES = """
from quart import request
@app.get("/hello")
async def hello():
    return {"hello": "world"}
@app.post("/echo")
async def echo():
    return {"bytes": len(await request.get_data())}
trio.run(main)
"""
HELLO = b"GET /hello HTTP/1.1\r\nHost: t\r\n\r\n"
ECHO = b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: 200\r\n\r\n" + b"x" * 200


def cpu_seconds(process: subprocess.Popen[str]) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def drive(port: int, request: bytes) -> None:
    """Send `REQUESTS` requests over a few keep-alive connections, one at a time on each."""
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)]
    for _ in range(REQUESTS // CONNECTIONS):
        for client in clients:
            client.sendall(request)
        for client in clients:
            data = client.recv(65536)
            while not data.endswith(b"}\n"):
                data += client.recv(65536)
    for client in clients:
        client.close()


@pytest.mark.benchmark
@pytest.mark.parametrize(("label", "request_bytes"), [("GET hello", HELLO), ("POST echo", ECHO)])
def test_requests_per_cpu_second_against_the_stock_server(label: str, request_bytes: bytes) -> None:
    processes = {
        name: subprocess.Popen([sys.executable, "-c", code + ROUTES], stdout=subprocess.PIPE, text=True)
        for name, code in (("floor", FLOOR), ("stock", STOCK))
    }
    rates: dict[str, list[float]] = {name: [] for name in processes}
    try:
        ports = {name: int(process.stdout.readline()) for name, process in processes.items() if process.stdout}
        for number in range(ROUNDS + 1):
            for name, process in processes.items():
                before = cpu_seconds(process)
                drive(ports[name], request_bytes)
                if number:  # the first round warms up
                    rates[name].append(REQUESTS / (cpu_seconds(process) - before))
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()
    best = {name: max(found) for name, found in rates.items()}
    report: dict[str, Any] = {name: round(rate) for name, rate in best.items()}
    print(f"\n{label}, requests per CPU second: {json.dumps(report)}, ratio {best['floor'] / best['stock']:.2f}")
