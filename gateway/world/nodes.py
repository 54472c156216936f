"""The nodes of a world: each a `gateway serve` process that comes and goes, while its configuration and ports stay."""

from __future__ import annotations

import secrets
import signal
import socket
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import httpx
import trio

from gateway import operator_token
from gateway.world.child import Child, ChildFailed, open_child
from gateway.world.world import World

COMMAND = (sys.executable, "-P", "-m", "gateway", "serve")
START_S = 90.0
STARTED_S = 60.0
DRAIN_S = 90.0


@attrs.define(eq=False)
class Node:
    """One node; `pid` is that of its latest process, 0 before the first."""

    name: str
    config: Path
    command: Sequence[str] = COMMAND
    pid: int = 0
    _child: Child | None = attrs.field(default=None, init=False)
    _ended: trio.Event = attrs.field(factory=trio.Event, init=False)
    _killed: bool = attrs.field(default=False, init=False)

    @property
    def gateway(self) -> str:
        """The address that it is reached at; what it says of itself is the `base_url` of all nodes."""
        return f"http://{self._section['listen'][0]}"

    @property
    def log(self) -> Path:
        """What its processes say."""
        return self.config.with_name("node.log")

    def listing(self) -> dict[str, Any]:
        """Return how it is found, as the ready file tells it; its operator's token is there once it has started."""
        section = self._section
        token = Path(section["data_dir"]) / operator_token.NAME
        return {
            "gateway": self.gateway,
            "operator": f"http://{section['operator_listen']}",
            "operatorToken": token.read_text().strip(),
            "config": str(self.config),
            "pid": self.pid,
        }

    async def run(
        self,
        ended: Callable[[Node, str], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Live through one process of it, started once it is ready; tells `ended` how it ended, if we did not end it.

        Cancelled, it drains.  Raises `ChildFailed` when the process does not become ready.
        """
        command = (*self.command, "--config", str(self.config))
        # If the demo is killed the node is asked to end, so that it can drain.
        last = signal.SIGTERM
        async with open_child(self.name, command, log=self.log, grace=DRAIN_S, last_signal=last) as child:
            self._child, self.pid, self._ended, self._killed = child, child.pid, trio.Event(), False
            try:
                await self._await_ready(child)
                task_status.started()
                code = await child.wait()
            finally:
                self._ended.set()
            if not self._killed:
                ended(self, _how(code))

    async def kill(self) -> None:
        """End its running process at once (SIGKILL); returns when it has ended."""
        if self._child is not None:
            self._killed = True
            self._child.signal(signal.SIGKILL)
            await self._ended.wait()

    async def until_started(self) -> None:
        """Return once no model of the node is being started, nor its sandbox, or after a while: it may never be."""
        async with httpx.AsyncClient(base_url=self.gateway, timeout=5) as client:
            with trio.move_on_after(STARTED_S), suppress(httpx.HTTPError):
                while _starting(await client.get("/v1/models")) or await _proving(client):  # noqa: ASYNC110 - another process
                    await trio.sleep(0.2)

    async def _await_ready(self, child: Child) -> None:
        deadline = trio.current_time() + START_S
        async with httpx.AsyncClient(base_url=self.gateway, timeout=5) as client:
            while trio.current_time() < deadline:
                if child.returncode is not None:
                    raise await child.failure()
                try:
                    if (await client.get("/readyz")).status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                await trio.sleep(0.05)
        raise ChildFailed(f"{self.name} was not ready after {START_S:.0f} s; its log: {self.log}")

    @property
    def _section(self) -> dict[str, Any]:
        section: dict[str, Any] = tomllib.loads(self.config.read_text())["node"]
        return section


@contextmanager
def configured(
    world: World, directory: Path, count: int, *, port: int = 0, command: Sequence[str] = COMMAND
) -> Iterator[tuple[Node, ...]]:
    """Yield `count` nodes, configured and not started, whose ports are kept for them; `port` is that of the first.

    All have the first one's address as their `base_url`, as nodes behind a load balancer have the load balancer's.

    Raises `ChildFailed` when a port cannot be had.
    """
    with ExitStack() as held:
        nodes: list[Node] = []
        for number in range(1, count + 1):
            name = f"node-{number}"
            public, private = (held.enter_context(_held_port(each)) for each in (port if number == 1 else 0, 0))
            base_url = nodes[0].gateway if nodes else ""
            config = world.node_config(
                directory / name, public, private, name=name, sandbox=number - 1, base_url=base_url
            )
            nodes.append(Node(name, config, command))
        yield tuple(nodes)


async def start_all(nodes: Sequence[Node], nursery: trio.Nursery, ended: Callable[[Node, str], None]) -> None:
    """Start the first node, which prepares the store and makes the keys, then the others at once."""
    first, *others = nodes
    await nursery.start(first.run, ended)
    async with trio.open_nursery() as starts:
        for node in others:
            starts.start_soon(nursery.start, node.run, ended)


@contextmanager
def _held_port(port: int) -> Iterator[int]:
    """Keep a local port from everybody but listeners: the node may leave it and come back (0: any port)."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind(("127.0.0.1", port))
        except OSError as error:
            raise ChildFailed(f"the node cannot have port {port}: {error.strerror}") from error
        yield holder.getsockname()[1]


def _starting(listed: httpx.Response) -> bool:
    """Tell whether a list of models names one that is being started."""
    if listed.status_code != 200:
        return False
    return any(each["gateway"]["availabilityReason"] == "starting" for each in listed.json()["data"])


async def _proving(client: httpx.AsyncClient) -> bool:
    """Tell whether the sandbox is still being proved, by a price question: it is answered once it can be sold."""
    named = {"Idempotency-Key": f"world-{secrets.token_hex(16)}"}
    asked = await client.post("/v1/sandbox/execute", json={"command": ["node", "--version"]}, headers=named)
    return asked.status_code == 503 and asked.json().get("reason") == "starting"


def _how(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
