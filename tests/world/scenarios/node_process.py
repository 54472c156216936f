"""A real node, `python -m gateway serve`, as a process of its own that a test may restart, rob and kill."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import attrs
import httpx
import psycopg
import tomli_w

from gateway.world.world import World

START_S = 60.0
PATIENT = {
    "free_search": 100_000,
    "free_ai": 100_000,
    "unpaid_quotes": 100_000,
    "payment_attempts": 100_000,
    "paid": 100_000,
}
LIGHT = {"embedded": False}
"""Few scenarios need the model inside the node, which takes a core while it answers."""
QUICK = {"verify_timeout_s": 2, "settle_timeout_s": 4, "settle_wait_s": 3}
TABLES = (
    "operations",
    "operation_events",
    "idempotency_keys",
    "idempotency_callers",
    "authorizations",
    "payer_holds",
    "ledger_entries",
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def pause(seconds: float) -> None:
    """Wait between two looks of a bounded poll."""
    select.select([], [], [], seconds)


class Process(Protocol):
    """What is asked of a running program; `subprocess.Popen` is one."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...
    def send_signal(self, sig: int) -> None: ...


Launch = Callable[[Path, Path, Mapping[str, str]], Process]
"""Starts a node of a configuration, with a log, in an environment."""


def by_interpreter(config: Path, log: Path, environment: Mapping[str, str]) -> Process:
    """Start `python -m gateway serve`."""
    with log.open("ab") as sink:
        return subprocess.Popen(
            [sys.executable, "-m", "gateway", "serve", "--config", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env={**os.environ, **environment},
        )


@attrs.define(eq=False)
class NodeProcess:
    """One node: its configuration and data stay, the process comes and goes."""

    directory: Path
    port: int
    config: Path
    launch: Launch = by_interpreter
    process: Process | None = None
    store_url: str = ""

    @classmethod
    def of(
        cls, world: World, directory: Path, *, launch: Launch = by_interpreter, **sections: Mapping[str, Any]
    ) -> NodeProcess:
        """Write the configuration of a node that never says 429 and does not wait long, some keys changed."""
        port = free_port()
        settings = world.node_settings(directory, port)
        changes: list[tuple[str, Mapping[str, Any]]] = [
            ("quota", PATIENT),
            ("payment", QUICK),
            ("ai", LIGHT),
            *sections.items(),
        ]
        for name, section in changes:
            settings[name] = settings.get(name, {}) | dict(section)
        directory.mkdir(parents=True, exist_ok=True)
        config = directory / "gateway.toml"
        config.write_text(tomli_w.dumps(settings))
        store_url = str(settings.get("store", {}).get("url", ""))
        return cls(directory, port, config, launch, store_url=store_url)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def data_dir(self) -> Path:
        return self.directory / "data"

    @property
    def log(self) -> str:
        """What it has said so far."""
        return (self.directory / "node.log").read_text(errors="replace")

    # -- coming and going ----------------------------------------------------------------------------------------------

    def start(self, **environment: str) -> None:
        """Start it and wait until it is ready."""
        self.spawn(**environment)
        self.wait_ready()

    def spawn(self, **environment: str) -> None:
        self.process = self.launch(self.config, self.directory / "node.log", environment)

    def wait_ready(self) -> None:
        for _ in range(int(START_S / 0.05)):
            if self.returncode is not None:
                raise AssertionError(f"the node ended with {self.returncode}:\n{self.log[-3000:]}")
            if self.ready():
                return
            pause(0.05)
        raise AssertionError(f"the node was not ready after {START_S:g} s:\n{self.log[-3000:]}")

    def ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=5, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    @property
    def returncode(self) -> int | None:
        return None if self.process is None else self.process.poll()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """End it as a power cut would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def terminate(self) -> None:
        """Ask it to end."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float = 100) -> int:
        """Return how it ended."""
        assert self.process is not None
        code = self.process.wait(seconds)
        self.process = None
        return code

    def restart(self, **environment: str) -> None:
        """End it in order and start it again."""
        self.terminate()
        assert self.wait() == 0
        self.start(**environment)

    def limit_file_size(self, limit: int) -> None:
        """Let no file of the running process grow over `limit` bytes, as a full disk would; -1 lifts the limit."""
        _, hard = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY if limit < 0 else limit, hard))

    # -- looking into its store, without writing -----------------------------------------------------------------------

    def rows(self) -> dict[str, int]:
        """Return how many rows each table has, but for quota counters and what has happened to the ledger's chain."""
        return {name: self.select(f"SELECT COUNT(*) FROM {name}")[0][0] for name in TABLES}

    def select(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        if self.store_url:
            with psycopg.connect(self.store_url) as database:
                return database.execute(sql.replace("?", "%s").encode(), parameters).fetchall()
        with self._store() as store:
            return store.execute(sql, parameters).fetchall()

    def balances(self) -> dict[str, int]:
        """Return the balance of each account, all payers as one; every step of every operation must sum to zero."""
        crooked = self.select(
            "SELECT operation_id, step FROM ledger_entries GROUP BY 1, 2, asset HAVING SUM(amount) != 0"
        )
        assert crooked == []
        found: dict[str, int] = {"payers": 0, "hold": 0, "revenue": 0}
        for account, amount in self.select("SELECT account, SUM(amount) FROM ledger_entries GROUP BY 1"):
            found["payers" if account.startswith("payer:") else account] += amount
        return found

    def at_rest(self) -> bytes:
        """Return every byte of the store as it lies on the disk."""
        return b"".join(path.read_bytes() for path in sorted(self.data_dir.glob("gateway.db*")))

    def defects(self) -> list[str]:
        """Return the log lines that tell of a defect: tracebacks, and anything that is no line of JSON."""
        found = []
        for line in self.log.splitlines():
            try:
                told = json.loads(line)
            except ValueError:
                found.append(line)
                continue
            if "exception" in told or told.get("level") in {"error", "critical"}:
                found.append(line)
        return found

    @contextmanager
    def _store(self) -> Iterator[sqlite3.Connection]:
        path = self.data_dir / "gateway.db"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as store:
            yield store


@contextmanager
def running(node: NodeProcess, **environment: str) -> Iterator[NodeProcess]:
    """Start a node for the length of a block."""
    try:
        node.start(**environment)
        yield node
    finally:
        node.kill()
