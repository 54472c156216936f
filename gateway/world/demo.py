"""`gateway demo`: the local world, nodes in it, an agent's round of purchases, and the proof that it all adds up."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import httpx
import trio

from gateway.world import nodes, npm
from gateway.world.chain import Rpc
from gateway.world.child import Child, ChildFailed, open_child
from gateway.world.nodes import Node, configured, start_all
from gateway.world.npm import ToolUnavailable
from gateway.world.report import Report
from gateway.world.store import StoreUnusable, is_shared
from gateway.world.takeover import show_take_over
from gateway.world.tally import TakeOver, Tally, judge, tally
from gateway.world.world import World, open_world

AGENT = (sys.executable, "-P", "-m", "gateway.world.agent")
ROUND_S = 300.0
STEPS = 12
"""Lines of a whole round: a free search and a free chat; two searches, two chats and a command that are paid, twice."""
TAKE_OVER_STEPS = 2
"""Lines of a take-over: what another node served, and the same of the node that was killed."""
ENDING = (signal.SIGINT, signal.SIGTERM)


@attrs.frozen
class DemoOptions:
    """What `gateway demo` was asked for.

    Attributes:
        strict: a closed family is a failure.
        stay: keep the world up after the round, until Ctrl-C or SIGTERM.
        agent: let the agent make its round.
        ready: file that is written, at once, when the nodes can be used and the round is over; removed at the end.
        port: of the first node; 0 for any.
        json: print one JSON object at the end instead of the table.
        nodes: how many; more than one need a store that they can share.
        store: as in `open_store`.
    """

    strict: bool = False
    stay: bool = False
    agent: bool = True
    ready: Path | None = None
    port: int = 0
    json: bool = False
    nodes: int = 1
    store: str = ""

    def refusal(self) -> str | None:
        """Return why these options cannot be used, None where they can."""
        if self.ready is not None and not self.ready.absolute().parent.is_dir():
            return f"--ready {self.ready}: there is no folder {self.ready.absolute().parent}"
        if self.store and not is_shared(self.store):
            return f"--store {self.store}: say postgresql, or postgresql://USER@HOST/DATABASE"
        if self.nodes > 1 and not self.store:
            return (
                f"--nodes {self.nodes}: several nodes need a store that they can share; add --store postgresql, "
                "or --store postgresql://USER@HOST/DATABASE"
            )
        return None


async def demo(
    options: DemoOptions, *, report: Report | None = None, node_command: Sequence[str] = nodes.COMMAND
) -> int:
    """Run the demonstration.

    Returns 0 when all of it held, 1 when something did not, 2 when an option cannot be used, 3 when the store cannot be
    had, 130 when interrupted.

    Everything it started has ended when it returns.  `node_command` starts a node, given `--config FILE`.
    """
    report = report or Report()
    if refusal := options.refusal():
        report.say(refusal)
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
        shown.fail(1, failures)
    except* StoreUnusable as failures:
        shown.fail(3, failures)
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
        store = ", store" if self.options.store else ""
        self.report.say(f"starting the local world: chain, token, facilitator, search engine, models{store}")
        async with open_world(self.directory, store=self.options.store) as world:
            self.report.say(f"  chain {world.rpc_url}, facilitator {world.facilitator_url}, faults {world.faults_url}")
            if world.store is not None:
                self.report.say(f"  store {world.store.shown}")
            count, port = self.options.nodes, self.options.port
            with configured(world, self.directory, count, port=port, command=self.node_command) as sellers:
                await self._sell(world, sellers, began)

    def fail(self, code: int, failures: BaseExceptionGroup[BaseException]) -> None:
        """Tell of failures that end the demo, with `code`."""
        self.code = code
        for failure in _leaves(failures):
            self.report.say(str(failure))

    async def _sell(self, world: World, sellers: Sequence[Node], began: float) -> None:
        async with trio.open_nursery() as nursery, _resumed(world):
            await start_all(sellers, nursery, self._tell_the_end)
            took = time.monotonic() - began
            places = [node.gateway if len(sellers) == 1 else f"{node.name} at {node.gateway}" for node in sellers]
            who = "the node sells at" if len(sellers) == 1 else "the nodes sell:"
            self.report.say(f"{who} {', '.join(places)}, ready after {took:.1f} s")
            self.code = await self._round(world, sellers, nursery) if self.options.agent else 0
            for node in sellers:
                await node.until_started()
            if self.options.ready is not None:
                await _write_at_once(self.options.ready, json.dumps(ready_file(world, sellers), indent=1))
            if self.options.stay:
                for node in sellers:
                    self.report.say(f"{node.name} is process {node.pid}, its log {node.log}")
                config = sellers[0].config
                self.report.say(f"look at it: ./run registry list --config {config}")
                self.report.say(f"            ./run operations list --config {config}")
                self.report.say(f"            ./run ledger verify --chain --config {config}")
                self.report.say("the world stays up until Ctrl-C")
                await trio.sleep_forever()
            nursery.cancel_scope.cancel()

    def _tell_the_end(self, node: Node, how: str) -> None:
        self.report.say(f"{node.name} ended ({how})")
        if self.options.stay:
            self.report.say(f"the world stays up; to bring {node.name} back: ./run serve --config {node.config}")

    # -- the round -----------------------------------------------------------------------------------------------------

    async def _round(self, world: World, sellers: Sequence[Node], nursery: trio.Nursery) -> int:
        lines: list[dict[str, Any]] = []
        shown: TakeOver | None = None
        names = {node.gateway: node.name for node in sellers}

        def told(line: dict[str, Any]) -> None:
            lines.append(line | {"node": names[line["gateway"]]} if len(names) > 1 else line)
            self.report.step(judge(lines[-1], {}))

        async def start(node: Node) -> None:
            await nursery.start(node.run, self._tell_the_end)

        with trio.move_on_after(ROUND_S):
            self.report.say("the agent makes its round")
            async with self._open_agent(world, sellers) as agent:
                while (text := await agent.line()) is not None:
                    line = json.loads(text)
                    if "waits" in line:
                        self.report.say(f"  {line['waits']}")
                    else:
                        told(line)
            if len(sellers) > 1:
                self.report.say("a node is killed, and another takes over")
                first, second = sellers[:2]
                buying = partial(self._open_agent, world, (first, second), "--take-over")
                shown = await show_take_over(world, first, second, buying, start=start, told=told, say=self.report.say)
        async with httpx.AsyncClient(timeout=30) as client:
            transfers = await Rpc(world.rpc_url, client).transfers(world.pay_to)
        planned = STEPS + (TAKE_OVER_STEPS if len(sellers) > 1 else 0)
        found = tally(lines, transfers, planned, shown)
        if self.options.json:
            self.report.json(found)
        else:
            self.report.table(found)
        return 0 if _passes(found, strict=self.options.strict) else 1

    @asynccontextmanager
    async def _open_agent(self, world: World, sellers: Sequence[Node], *options: str) -> AsyncIterator[Child]:
        """Run an agent that buys from the sellers, for as long as it does."""
        key_file = self.directory / "agent.key"
        key_file.touch(mode=0o600)
        key_file.write_text(world.payers[0].private_key)
        command = [*AGENT, "--key-file", str(key_file), *options]
        command += [part for node in sellers for part in ("--gateway", node.gateway)]
        async with open_child("the agent", command, log=self.directory / "agent.log", read=True) as agent:
            yield agent
            if await agent.wait():
                self.report.say(str(await agent.failure()))


def ready_file(world: World, sellers: Sequence[Node]) -> dict[str, Any]:
    """Return what the ready file says (spec: operating, "The ready file"); parts that are not built are absent."""
    listings = [node.listing() for node in sellers]
    store = {"store": {"url": world.store.url, "pid": world.store.pid}} if world.store else {}
    return {
        **listings[0],
        "nodes": [{"name": node.name, **listing} for node, listing in zip(sellers, listings, strict=True)],
        **store,
        "chains": {world.network: {"rpc": world.rpc_url, "ws": world.ws_url}},
        "facilitator": world.facilitator_url,
        "token": world.token,
        "payTo": world.pay_to,
        "payers": [{"address": payer.address, "privateKey": payer.private_key} for payer in world.payers],
        "faults": world.faults_url,
    }


@asynccontextmanager
async def _resumed(world: World) -> AsyncIterator[None]:
    """Let a paused store go on at the end of the block, so that nodes which drain need not wait for it in vain."""
    try:
        yield
    finally:
        if world.store is not None and world.store.server is not None:
            await world.store.server.resume()


def _passes(found: Tally, *, strict: bool) -> bool:
    return found.complete if strict else found.holds


async def _cancel_on(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    async for _ in signals:
        scope.cancel()
        return


async def _write_at_once(path: Path, text: str) -> None:
    beside = trio.Path(path.with_name(f".{path.name}.part"))
    await beside.unlink(missing_ok=True)
    await beside.touch(mode=0o600)  # it holds keys
    await beside.write_text(text)
    await beside.replace(path)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for each in group.exceptions:
        if isinstance(each, BaseExceptionGroup):
            yield from _leaves(each)
        else:
            yield each
