"""What a call costs, against a peer or a floor measured in the same run.  Prints; never gates."""

from __future__ import annotations

import base64
import secrets
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import tomli_w
import trio
from eth_account import Account

from gateway.world.world import World, world_in_thread
from tests.benchmarks.load import Load, cpu_seconds, drive, post, resident_mib

pytestmark = [pytest.mark.benchmark, pytest.mark.world]

PATH = "/v1/search/paid"
BODY = orjson.dumps({"query": "what is a tide", "synthesize": False})
ROUNDS = 3
PEER = Path(__file__).parent / "x402_peer.py"
TYPES = {
    "TransferWithAuthorization": [
        {"name": "from", "type": "address"},
        {"name": "to", "type": "address"},
        {"name": "value", "type": "uint256"},
        {"name": "validAfter", "type": "uint256"},
        {"name": "validBefore", "type": "uint256"},
        {"name": "nonce", "type": "bytes32"},
    ]
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world_in_thread(tmp_path_factory.mktemp("world"), block_time=None) as opened:
        yield opened


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(command: list[str], port: int, path: str, log: Path) -> Iterator[int]:
    """Run a server until the block ends; yield its pid once it answers."""
    with log.open("wb") as out:
        running = subprocess.Popen([sys.executable, *command], stdout=out, stderr=out)
    try:
        for _ in range(600):
            try:
                httpx.post(f"http://127.0.0.1:{port}{path}", json={})
                break
            except httpx.ConnectError:
                assert running.poll() is None, log.read_text()
                time.sleep(0.05)
        yield running.pid
    finally:
        running.terminate()
        running.wait(60)


@pytest.fixture(scope="module")
def node(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    directory, port = tmp_path_factory.mktemp("node"), free_port()
    settings = world.node_settings(directory, port)
    settings["quota"] = {"unpaid_quotes": 10_000_000, "payment_attempts": 10_000_000, "paid": 10_000_000}
    config = directory / "gateway.toml"
    config.write_text(tomli_w.dumps(settings))
    with process(["-m", "gateway", "serve", "--config", str(config)], port, PATH, directory / "log") as pid:
        yield port, pid


@pytest.fixture(scope="module")
def peer(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    port = free_port()
    command = [str(PEER), str(port), world.facilitator_url, world.pay_to]
    with process(command, port, PATH, tmp_path_factory.mktemp("peer") / "log") as pid:
        yield port, pid


def measured(port: int, pid: int, requests: list[bytes], *, connections: int, seconds: float) -> tuple[Load, float]:
    """Return the load and the answers a CPU second of the server."""
    before = cpu_seconds(pid)
    load = trio.run(lambda: drive(port, requests, connections=connections, seconds=seconds))
    return load, load.answers / (cpu_seconds(pid) - before)


def test_a_challenge_against_the_sdk_middleware(
    node: tuple[int, int], peer: tuple[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    ratios = []
    for _ in range(ROUNDS):
        ours = [post("x", PATH, BODY, [("Idempotency-Key", secrets.token_hex(16))]) for _ in range(500)]
        load, rate = measured(*node, ours, connections=16, seconds=4)
        theirs, peer_rate = measured(*peer, [post("x", PATH, BODY)], connections=16, seconds=4)
        assert load.statuses == theirs.statuses == frozenset({402})
        ratios.append(rate / peer_rate)
        with capsys.disabled():
            print(
                f"\n402: node {rate:,.0f}, SDK middleware {peer_rate:,.0f} answers a CPU second"
                f" (wall {load.rate:,.0f} and {theirs.rate:,.0f}/s, p99 {load.p99_ms:.0f} and {theirs.p99_ms:.0f} ms)"
            )
    with capsys.disabled():
        print(f"402 ratio, median of {ROUNDS}: {statistics.median(ratios):.2f}; at rest and after: {_memory(node)}")


def test_a_replay(node: tuple[int, int], world: World, capsys: pytest.CaptureFixture[str]) -> None:
    requests = []
    with httpx.Client(base_url=f"http://127.0.0.1:{node[0]}", timeout=60) as client:
        for index in range(8):
            key = secrets.token_hex(16)
            assert buy(client, world, index, key).status_code == 200
            requests.append(post("x", PATH, BODY, [("Idempotency-Key", key)]))
    load, rate = measured(*node, requests, connections=32, seconds=6)
    assert load.statuses == frozenset({200})
    with capsys.disabled():
        print(
            f"\nreplay: {rate:,.0f} a CPU second, {load.rate:,.0f}/s wall at 32 connections,"
            f" p50 {load.p50_ms:.0f} ms, p99 {load.p99_ms:.0f} ms; memory {_memory(node)}"
        )


def test_a_paid_call_over_the_facilitator_itself(
    node: tuple[int, int], world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    calls, floors = [], []
    facilitator = httpx.Client(base_url=world.facilitator_url, timeout=60)
    with httpx.Client(base_url=f"http://127.0.0.1:{node[0]}", timeout=60) as client:
        for index in range(40):
            challenge = _challenge(client, secrets.token_hex(16))
            payload = signed(challenge, world, index)
            body = {
                "x402Version": 2,
                "paymentPayload": payload,
                "paymentRequirements": challenge["accepts"][0],
            }
            started = time.perf_counter()
            assert facilitator.post("/verify", json=body).json()["isValid"]
            assert facilitator.post("/settle", json=body).json()["success"]
            floors.append(time.perf_counter() - started)
            key = secrets.token_hex(16)
            credential = _encoded(signed(_challenge(client, key), world, index))
            started = time.perf_counter()
            answer = client.post(PATH, content=BODY, headers=_headers(key) | {"PAYMENT-SIGNATURE": credential})
            calls.append(time.perf_counter() - started)
            assert answer.status_code == 200
    facilitator.close()
    call, floor = statistics.median(calls) * 1e3, statistics.median(floors) * 1e3
    with capsys.disabled():
        print(f"\npaid call p50 {call:.1f} ms, verify + settle alone {floor:.1f} ms, over it {call - floor:.1f} ms")


def _memory(node: tuple[int, int]) -> str:
    return f"{resident_mib(node[1]):.0f} MiB"


def _headers(key: str) -> dict[str, str]:
    return {"Content-Type": "application/json", "Idempotency-Key": key}


def _challenge(client: httpx.Client, key: str) -> dict[str, Any]:
    answer = client.post(PATH, content=BODY, headers=_headers(key))
    challenge: dict[str, Any] = orjson.loads(base64.b64decode(answer.headers["PAYMENT-REQUIRED"]))
    return challenge


def _encoded(payload: dict[str, Any]) -> str:
    return base64.b64encode(orjson.dumps(payload)).decode()


def buy(client: httpx.Client, world: World, index: int, key: str) -> httpx.Response:
    credential = _encoded(signed(_challenge(client, key), world, index))
    return client.post(PATH, content=BODY, headers=_headers(key) | {"PAYMENT-SIGNATURE": credential})


def signed(challenge: dict[str, Any], world: World, index: int) -> dict[str, Any]:
    """Sign the one offer of a challenge with one of the world's payers."""
    offer = challenge["accepts"][0]
    payer = Account.from_key(world.payers[index % len(world.payers)].private_key)
    nonce = secrets.token_bytes(32)
    valid_before = int(time.time()) + offer["maxTimeoutSeconds"]
    message = {
        "from": payer.address,
        "to": offer["payTo"],
        "value": int(offer["amount"]),
        "validAfter": 0,
        "validBefore": valid_before,
        "nonce": nonce,
    }
    domain = {
        "name": offer["extra"]["name"],
        "version": offer["extra"]["version"],
        "chainId": world.chain_id,
        "verifyingContract": offer["asset"],
    }
    signature = payer.sign_typed_data(domain, TYPES, message).signature
    authorization = {name: str(value) for name, value in message.items()} | {"nonce": "0x" + nonce.hex()}
    return {
        "x402Version": 2,
        "payload": {"authorization": authorization, "signature": "0x" + bytes(signature).hex()},
        "accepted": offer,
        "resource": challenge["resource"],
        "extensions": challenge["extensions"],
    }
