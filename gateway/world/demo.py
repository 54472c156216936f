"""`gateway demo`: the local world, a node in it, an agent's round of purchases, and the proof that it all adds up."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import sys
import tempfile
import time
import tomllib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import trio

from gateway import operator_token
from gateway.world import npm
from gateway.world.chain import Rpc
from gateway.world.child import Child, ChildFailed, open_child
from gateway.world.npm import ToolUnavailable
from gateway.world.report import Report
from gateway.world.tally import Tally, judge, tally
from gateway.world.world import World, open_world

NODE = (sys.executable, "-P", "-m", "gateway", "serve")
AGENT = (sys.executable, "-P", "-m", "gateway.world.agent")
NODE_START_S = 90.0
NODE_DRAIN_S = 90.0
ROUND_S = 300.0
STEPS = 5
"""Lines of a whole round: a free search, two paid ones, each of those a second time."""
ENDING = (signal.SIGINT, signal.SIGTERM)


@attrs.frozen
class DemoOptions:
    """What `gateway demo` was asked for.

    Attributes:
        strict: a closed family is a failure.
        stay: keep the world up after the round, until Ctrl-C or SIGTERM.
        agent: let the agent make its round.
        ready: file that is written, at once, when the node can be used and the round is over; removed at the end.
        port: of the node; 0 for any.
        json: print one JSON object at the end instead of the table.
    """

    strict: bool = False
    stay: bool = False
    agent: bool = True
    ready: Path | None = None
    port: int = 0
    json: bool = False


async def demo(options: DemoOptions, *, report: Report | None = None, node_command: Sequence[str] = NODE) -> int:
    """Run the demonstration.

    Returns 0 when all of it held, 1 when something did not, 2 when an option cannot be used, 130 when interrupted.

    Everything it started has ended when it returns.  `node_command` starts the node, given `--config FILE`.
    """
    report = report or Report()
    if options.ready is not None and not options.ready.absolute().parent.is_dir():
        report.say(f"--ready {options.ready}: there is no folder {options.ready.absolute().parent}")
        return 2
    directory = Path(tempfile.mkdtemp(prefix="gateway-world-"))
    shown = Demonstration(options, directory, report, node_command)
    try:
        with trio.open_signal_receiver(*ENDING) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_on, signals, nursery.cancel_scope)
                await shown.run()
                nursery.cancel_scope.cancel()
    except* (ToolUnavailable, ChildFailed) as failures:
        for failure in _leaves(failures):
            shown.report.say(str(failure))
        shown.code = 1
    finally:
        if options.ready is not None:
            options.ready.unlink(missing_ok=True)
    if shown.code == 1:
        shown.report.say(f"the logs are in {directory}")
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return shown.code


@attrs.define
class Demonstration:
    """One run of the demo; `code` is what it would exit with now."""

    options: DemoOptions
    directory: Path
    report: Report
    node_command: Sequence[str]
    code: int = 130

    async def run(self) -> None:
        """Live through the demo; returns when there is nothing left to do."""
        began = time.monotonic()
        if self.options.ready is not None:
            await trio.Path(self.options.ready).unlink(missing_ok=True)
        if not npm.anvil_path().exists():
            self.report.say("fetching the local chain (once, about 20 MB)")
            await trio.to_thread.run_sync(npm.anvil_binary)
        self.report.say("starting the local world: chain, token, facilitator, search engine")
        async with open_world(self.directory) as world:
            self.report.say(f"  chain {world.rpc_url}, facilitator {world.facilitator_url}, faults {world.faults_url}")
            with _held_port(self.options.port) as port, _held_port(0) as operator_port:
                config = world.node_config(self.directory / "node", port, operator_port)
                await self._sell(world, config, began)

    async def _sell(self, world: World, config: Path, began: float) -> None:
        async with self._open_node(config) as node, trio.open_nursery() as nursery:
            self.report.say(f"the node sells at {_base_url(config)}, ready after {time.monotonic() - began:.1f} s")
            nursery.start_soon(self._tell_the_nodes_end, node, config)
            self.code = await self._round(world, _base_url(config)) if self.options.agent else 0
            if self.options.ready is not None:
                await _write_at_once(self.options.ready, json.dumps(ready_file(world, config, node.pid), indent=1))
            if self.options.stay:
                self.report.say(f"the world stays up until Ctrl-C; the node is process {node.pid}, its log {node.log}")
                await trio.sleep_forever()
            nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def _open_node(self, config: Path) -> AsyncIterator[Child]:
        command = (*self.node_command, "--config", str(config))
        # If the demo is killed the node is asked to end, so that it can drain.
        last = signal.SIGTERM
        async with open_child(
            "the node", command, log=self.directory / "node.log", grace=NODE_DRAIN_S, last_signal=last
        ) as node:
            await _await_ready(node, _base_url(config))
            yield node

    async def _tell_the_nodes_end(self, node: Child, config: Path) -> None:
        self.report.say(f"the node ended ({_how(await node.wait())})")
        if self.options.stay:
            self.report.say(f"the world stays up; to bring the node back: ./run serve --config {config}")

    async def _round(self, world: World, gateway: str) -> int:
        self.report.say("the agent makes its round")
        lines = await self._lines_of_agent(world, gateway)
        async with httpx.AsyncClient(timeout=30) as client:
            transfers = await Rpc(world.rpc_url, client).transfers(world.pay_to)
        found = tally(lines, transfers, STEPS)
        if self.options.json:
            self.report.json(found)
        else:
            self.report.table(found)
        return 0 if _passes(found, strict=self.options.strict) else 1

    async def _lines_of_agent(self, world: World, gateway: str) -> list[dict[str, Any]]:
        key_file = self.directory / "agent.key"
        key_file.touch(mode=0o600)
        key_file.write_text(world.payers[0].private_key)
        command = (*AGENT, "--gateway", gateway, "--key-file", str(key_file))
        lines: list[dict[str, Any]] = []
        with trio.move_on_after(ROUND_S):
            async with open_child("the agent", command, log=self.directory / "agent.log", read=True) as agent:
                while (line := await agent.line()) is not None:
                    lines.append(json.loads(line))
                    self.report.step(judge(lines[-1], {}))
                if await agent.wait():
                    self.report.say(str(await agent.failure()))
        return lines


def ready_file(world: World, config: Path, pid: int) -> dict[str, Any]:
    """Return what the ready file says (spec: operating, "The ready file"); parts that are not built are absent."""
    node = _node_section(config)
    token_file = Path(node["data_dir"]) / operator_token.NAME
    return {
        "gateway": node["base_url"],
        "operator": f"http://{node['operator_listen']}",
        "operatorToken": token_file.read_text().strip(),
        "config": str(config),
        "pid": pid,
        "chains": {world.network: {"rpc": world.rpc_url, "ws": world.ws_url}},
        "facilitator": world.facilitator_url,
        "token": world.token,
        "payTo": world.pay_to,
        "payers": [{"address": payer.address, "privateKey": payer.private_key} for payer in world.payers],
        "faults": world.faults_url,
    }


def _passes(found: Tally, *, strict: bool) -> bool:
    return found.complete if strict else found.holds


async def _await_ready(node: Child, gateway: str) -> None:
    deadline = trio.current_time() + NODE_START_S
    async with httpx.AsyncClient(base_url=gateway, timeout=5) as client:
        while trio.current_time() < deadline:
            if node.returncode is not None:
                raise await node.failure()
            try:
                if (await client.get("/readyz")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await trio.sleep(0.05)
    raise ChildFailed(f"the node was not ready after {NODE_START_S:.0f} s; its log: {node.log}")


async def _cancel_on(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    async for _ in signals:
        scope.cancel()
        return


async def _write_at_once(path: Path, text: str) -> None:
    beside = trio.Path(path.with_name(f".{path.name}.part"))
    await beside.write_text(text)
    await beside.replace(path)


def _base_url(config: Path) -> str:
    return str(_node_section(config)["base_url"])


def _node_section(config: Path) -> dict[str, Any]:
    section: dict[str, Any] = tomllib.loads(config.read_text())["node"]
    return section


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


def _how(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for each in group.exceptions:
        if isinstance(each, BaseExceptionGroup):
            yield from _leaves(each)
        else:
            yield each
