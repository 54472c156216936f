from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import httpx
import psutil
import pytest
import trio

from gateway.actors.store import StoreRefused
from gateway.config import Configuration, ConfigurationError, structure
from gateway.keys import KeysRefused, rotate
from gateway.node import Running, bound_recursion, open_node
from gateway.world.door import Call, Door, Reply, Silence, url_of
from gateway.world.faults import SEARCH_MODES, Faults
from gateway.world.search_engine import SearchEngine

START_S = 60.0
REST_MB = 150


def configured(data_dir: Path, **sections: Mapping[str, Any]) -> Configuration:
    tree: dict[str, dict[str, Any]] = {
        "node": {"data_dir": str(data_dir), "listen": ["127.0.0.1:0"], "operator_listen": "127.0.0.1:0"},
        "sandbox": {"enabled": False},
    }
    for name, section in sections.items():
        tree[name] = tree.get(name, {}) | dict(section)
    return structure(tree)


@asynccontextmanager
async def opened(configuration: Configuration, *, operator: bool = False) -> AsyncIterator[Running]:
    """A node in this loop; failures come out bare, not in the groups of its nurseries."""
    try:
        async with open_node(configuration, operator=operator) as running:
            yield running
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        raise error from None


def free_search(url: str, key: str = "a key of a test") -> httpx.Response:
    body = {"query": "idempotency", "synthesize": False}
    return httpx.post(f"{url}/v1/search/free", json=body, headers={"Idempotency-Key": key}, timeout=30, trust_env=False)


async def test_a_node_without_configuration_serves_free_search_from_its_own_documentation(tmp_path: Path) -> None:
    async with opened(configured(tmp_path)) as node:
        answer = await trio.to_thread.run_sync(free_search, node.urls[0])
        assert answer.status_code == 200
        assert answer.json()["output"]["coverage"] == "local"


async def test_port_0_is_replaced_by_the_port_that_the_kernel_chose(tmp_path: Path) -> None:
    async with opened(configured(tmp_path)) as node, httpx.AsyncClient() as client:
        assert not node.urls[0].endswith(":0")
        problem = (await client.get(f"{node.urls[0]}/nothing")).json()
        assert problem["type"] == f"{node.urls[0]}/problems/not_found"


async def test_the_operators_listener_is_another_one_and_only_where_it_is_wanted(tmp_path: Path) -> None:
    async with opened(configured(tmp_path)) as node:
        assert node.operator is None
    async with opened(configured(tmp_path), operator=True) as node, httpx.AsyncClient() as client:
        assert node.operator is not None
        assert node.operator not in node.urls
        token = (tmp_path / "operator.token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        assert (await client.get(f"{node.operator}/actors", headers=headers)).status_code == 200
        assert (await client.get(f"{node.urls[0]}/actors", headers=headers)).status_code == 404


async def test_actors_start_in_the_order_in_which_they_may_be_asked(tmp_path: Path) -> None:
    async with opened(configured(tmp_path)) as node:
        assert [each.actor for each in node.runtime.health()] == [
            "store",
            "store-watch",
            "leases",
            "idempotency",
            "quota",
            "ledger",
            "upstream",
            "probe-history",
            "prober",
            "embedded-model",
            "operations",
        ]


async def test_an_address_in_use_is_a_configuration_error_that_names_it(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        with pytest.raises(
            ConfigurationError, match=rf"/node/listen: cannot listen on {address}: Address already in use"
        ):
            async with opened(configured(tmp_path, node={"listen": [address]})):
                pass
        with pytest.raises(ConfigurationError, match="/node/operator_listen: cannot listen on"):
            async with opened(configured(tmp_path, node={"operator_listen": address}), operator=True):
                pass
    assert not (tmp_path / "gateway.db").exists()


async def test_a_second_node_on_the_same_data_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    async with opened(configured(tmp_path)) as node:
        with pytest.raises(StoreRefused, match=f"another node \\(process {os.getpid()}\\) has it open"):
            async with opened(configured(tmp_path)):
                pass
        assert (await trio.to_thread.run_sync(free_search, node.urls[0])).status_code == 200


async def test_a_store_of_a_newer_release_is_refused_and_nothing_is_left_running(tmp_path: Path) -> None:
    async with opened(configured(tmp_path)) as node:
        port = int(node.urls[0].rpartition(":")[2])
    with sqlite3.connect(tmp_path / "gateway.db") as store:
        store.execute("INSERT INTO schema_migrations VALUES (9999, 'later', 'x', 0)")
    store.close()
    with pytest.raises(StoreRefused, match="schema"):
        async with opened(configured(tmp_path, node={"listen": [f"127.0.0.1:{port}"]})):
            pass
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))


async def test_a_store_whose_pepper_is_another_one_is_refused(tmp_path: Path) -> None:
    async with opened(configured(tmp_path)):
        pass
    pepper = tmp_path / "keys" / "pepper-1.key"
    pepper.write_bytes(bytes(32))
    with pytest.raises(KeysRefused, match="pepper-1"):
        async with opened(configured(tmp_path)):
            pass


async def test_keys_are_not_made_anew_for_a_store_that_has_lost_them(tmp_path: Path) -> None:
    async with opened(configured(tmp_path)):
        pass
    for each in (tmp_path / "keys").iterdir():
        each.unlink()
    with pytest.raises(KeysRefused, match="restore"):
        async with opened(configured(tmp_path)):
            pass
    assert list((tmp_path / "keys").glob("pepper*")) == []


async def test_a_rotated_pepper_joins_the_older_one(tmp_path: Path) -> None:
    async with opened(configured(tmp_path)) as node:
        first = await trio.to_thread.run_sync(free_search, node.urls[0], "a key from before the rotation")
    rotate(tmp_path / "keys", "pepper")
    async with opened(configured(tmp_path)) as node:
        again = await trio.to_thread.run_sync(free_search, node.urls[0], "a key from before the rotation")
        assert again.json()["operationId"] == first.json()["operationId"]
        assert again.headers["Idempotency-Replayed"] == "true"


async def test_an_unusable_operator_token_is_a_configuration_error(tmp_path: Path) -> None:
    missing = configured(tmp_path / "data", node={"operator_token_file": str(tmp_path / "none")})
    with pytest.raises(ConfigurationError, match="/node/operator_token_file"):
        async with opened(missing, operator=True):
            pass


async def test_a_data_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreRefused, match="cannot be made"):
        async with opened(configured(tmp_path / "file" / "data")):
            pass


async def test_readiness_names_what_is_not_ready(tmp_path: Path) -> None:
    async with opened(configured(tmp_path)) as node, httpx.AsyncClient() as client:
        assert (await client.get(f"{node.urls[0]}/readyz")).json() == {"status": "ready", "faults": []}
        (tmp_path / "gateway.db").rename(tmp_path / "elsewhere.db")
        answer = await client.get(f"{node.urls[0]}/readyz")
        with trio.fail_after(30):
            while answer.status_code != 503:
                await trio.sleep(0.05)
                answer = await client.get(f"{node.urls[0]}/readyz")
        assert answer.json()["faults"] == [{"part": "store", "reason": "file_replaced"}]
        (tmp_path / "elsewhere.db").rename(tmp_path / "gateway.db")


# -- as a process ------------------------------------------------------------------------------------------------------


@attrs.frozen
class Process:
    """`python -m gateway serve` with its configuration and its log."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    async def until_ready(self) -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            with trio.fail_after(START_S):
                while True:
                    assert self.process.poll() is None, self.log.read_text()
                    try:
                        if (await client.get(f"{self.url}/readyz")).status_code == 200:
                            return
                    except httpx.TransportError:
                        await trio.sleep(0.02)

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return await trio.to_thread.run_sync(partial(self.process.wait, 60))

    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.log.read_text().splitlines()]


Start = Callable[..., Process]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def start(tmp_path: Path) -> Any:
    started: list[subprocess.Popen[bytes]] = []

    def spawn(more: str = "", port: int | None = None) -> Process:
        port = free_port() if port is None else port
        config, log = tmp_path / f"{len(started)}.toml", tmp_path / f"{len(started)}.log"
        node = f'[node]\nlisten = ["127.0.0.1:{port}"]\noperator_listen = "127.0.0.1:0"\ndata_dir = "{tmp_path}/data"\n'
        config.write_text(node + more)
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(config)]
        with log.open("wb") as file:
            started.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file))
        return Process(started[-1], url_of(port), log)

    yield spawn
    for each in started:
        each.kill()
        each.wait()


async def test_sigterm_lets_a_call_in_flight_end_and_exits_0(start: Start) -> None:
    asked, gate = trio.Event(), trio.Event()
    engine = SearchEngine(Faults({"search": SEARCH_MODES}, {"search": ("search",)}))

    async def slow(call: Call) -> Reply | Silence:
        if call.path == "/search":
            asked.set()
            await gate.wait()
        return await engine.answer(call)

    answers: list[httpx.Response] = []
    async with trio.open_nursery() as nursery:
        door = Door(nursery, slow)
        door.open()
        node = start(f'[[search.adapter]]\nkind = "searxng"\nbase_url = "{url_of(door.port)}"\nsimulated = true\n')
        await node.until_ready()
        began = time.monotonic()

        async def call() -> None:
            answers.append(await trio.to_thread.run_sync(free_search, node.url))

        async with trio.open_nursery() as calling:
            calling.start_soon(call)
            await asked.wait()
            node.process.send_signal(signal.SIGTERM)
            await until(lambda: "stopping" in node.events())
            with pytest.raises(httpx.ConnectError):
                await trio.to_thread.run_sync(free_search, node.url, "too late for this node")
            gate.set()
        assert await trio.to_thread.run_sync(partial(node.process.wait, 60)) == 0
        assert time.monotonic() - began < 30
        door.release()
        nursery.cancel_scope.cancel()
    assert answers[0].status_code == 200
    assert node.events()[-1] == "drained"


async def test_a_node_at_rest_is_small_and_either_signal_ends_it_with_0(start: Start) -> None:
    node = start()
    await node.until_ready()
    assert psutil.Process(node.process.pid).memory_info().rss < REST_MB * 10**6
    assert await node.end(signal.SIGINT) == 0
    again = start()
    await again.until_ready()
    assert await again.end() == 0


@pytest.mark.parametrize("after", [0.05, 0.6, 1.2, 1.8])
async def test_sigterm_while_the_node_starts_exits_0_and_leaves_a_store_that_opens(start: Start, after: float) -> None:
    node = start()
    await trio.sleep(after)
    assert await node.end() in ({0, -signal.SIGTERM} if after < 0.5 else {0})  # before Python runs nobody can answer
    assert "Traceback" not in node.log.read_text()


async def test_a_second_signal_ends_a_node_that_drains_at_once(start: Start) -> None:
    asked = trio.Event()
    engine = SearchEngine(Faults({"search": SEARCH_MODES}, {"search": ("search",)}))

    async def never(call: Call) -> Reply | Silence:
        if call.path != "/search":
            return await engine.answer(call)
        asked.set()
        return Silence()

    async with trio.open_nursery() as nursery:
        door = Door(nursery, never)
        door.open()
        node = start(f'[[search.adapter]]\nkind = "searxng"\nbase_url = "{url_of(door.port)}"\nsimulated = true\n')
        await node.until_ready()
        body = {"query": "idempotency", "synthesize": False}
        async with httpx.AsyncClient(timeout=60) as client:

            async def call() -> None:
                with pytest.raises(httpx.TransportError):
                    await client.post(
                        f"{node.url}/v1/search/free", json=body, headers={"Idempotency-Key": "a key of a test"}
                    )

            async with trio.open_nursery() as calling:
                calling.start_soon(call)
                await asked.wait()
                node.process.send_signal(signal.SIGTERM)
                await until(lambda: "stopping" in node.events())
                assert await node.end() == -signal.SIGTERM
        door.release()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("wrong", "code", "told"),
    [
        ("[node]\n", 2, "is not TOML"),
        ("[nodes]\nx = 1\n", 2, "/nodes: unknown section"),
        ('[store]\nurl = "sqlite:////proc/none/gateway.db"\n', 3, "/proc/none/gateway.db: "),
        ('[[search.adapter]]\nkind = "altavista"\n', 2, "altavista"),
    ],
)
async def test_a_node_that_cannot_start_says_so_in_one_line(start: Start, wrong: str, code: int, told: str) -> None:
    node = start(wrong)
    assert await trio.to_thread.run_sync(partial(node.process.wait, 60)) == code
    (line,) = node.log.read_text().splitlines()
    assert told in line


async def test_a_node_whose_file_is_found_damaged_ends_non_zero_and_is_refused_at_its_next_start(
    start: Start, tmp_path: Path
) -> None:
    node = start()
    await node.until_ready()
    path = tmp_path / "data" / "gateway.db"
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    other.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        with trio.fail_after(60), suppress(httpx.TransportError):
            for number in range(1000):
                headers = {"Idempotency-Key": f"a key of a test {number}"}
                body = {"query": "idempotency", "synthesize": False}
                answer = await client.post(f"{node.url}/v1/search/free", json=body, headers=headers)
                assert answer.status_code in {200, 503}
                await trio.sleep(0.05)
    assert await trio.to_thread.run_sync(partial(node.process.wait, 60)) == 3
    assert "it was found damaged while the node ran" in node.log.read_text().splitlines()[-1]
    again = start()
    assert await trio.to_thread.run_sync(partial(again.process.wait, 60)) == 3
    assert "restore a backup" in again.log.read_text().splitlines()[-1]


async def test_an_occupied_port_is_told_in_one_line(start: Start) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        node = start(port=holder.getsockname()[1])
        assert await trio.to_thread.run_sync(partial(node.process.wait, 60)) == 2
    (line,) = node.log.read_text().splitlines()
    assert "Address already in use" in line


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(30):
        while not condition():  # noqa: ASYNC110 - another process has no event of ours
            await trio.sleep(0.02)


def test_a_node_takes_the_recursion_limit_back_from_its_libraries() -> None:
    before = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(100_000)  # what py_ecc does: a deep document would then overflow the C stack
        bound_recursion()
        assert sys.getrecursionlimit() == 1000
        with pytest.raises(RecursionError):
            json.loads("[" * 90_000)
    finally:
        sys.setrecursionlimit(before)
