"""What `show_take_over` does when there is nothing to take over; that it works is shown by the demo's own test."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from gateway.world.child import Child, open_child
from gateway.world.nodes import Node
from gateway.world.takeover import show_take_over
from gateway.world.world import World

pytestmark = pytest.mark.world


@asynccontextmanager
async def saying(lines: list[dict[str, Any]], log: Path) -> AsyncIterator[Child]:
    """An agent that says these lines and ends."""
    program = "import sys; sys.stdout.write(sys.argv[1])"
    text = "".join(json.dumps(line) + "\n" for line in lines)
    async with open_child("agent", [sys.executable, "-c", program, text], log=log, read=True) as agent:
        yield agent


async def never(node: Node) -> None:
    raise AssertionError(node)


def unheard(line: dict[str, Any]) -> None:
    raise AssertionError(line)


@pytest.fixture
def nodes(tmp_path: Path) -> tuple[Node, Node]:
    return Node("node-1", tmp_path / "1.toml"), Node("node-2", tmp_path / "2.toml")


def agent_saying(*lines: dict[str, Any], log: Path) -> Callable[[], AbstractAsyncContextManager[Child]]:
    return partial(saying, list(lines), log)


async def test_a_purchase_that_was_refused_is_told_and_takes_nothing_over(
    world: World, nodes: tuple[Node, Node], client: httpx.AsyncClient, tmp_path: Path
) -> None:
    refused = {"step": "taken over", "status": 503, "detail": "closed"}
    lines: list[dict[str, Any]] = []
    with trio.fail_after(30):
        shown = await show_take_over(
            world,
            *nodes,
            agent_saying(refused, log=tmp_path / "log"),
            start=never,
            told=lines.append,
            say=lambda _text: None,
        )
    assert (shown, lines) == (None, [refused])
    assert (await client.get(world.faults_url)).json()["modes"]["facilitator"] == "ok"


async def test_the_facilitator_is_well_again_when_it_is_given_up(
    world: World, nodes: tuple[Node, Node], client: httpx.AsyncClient, tmp_path: Path
) -> None:
    tormented = trio.Event()

    @asynccontextmanager
    async def silent() -> AsyncIterator[Child]:
        assert (await client.get(world.faults_url)).json()["modes"]["facilitator"] == "settle_hang_after"
        async with open_child("agent", ["/bin/sleep", "600"], log=tmp_path / "log", read=True) as agent:
            tormented.set()
            yield agent

    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            partial(show_take_over, world, *nodes, silent, start=never, told=unheard, say=lambda _text: None)
        )
        with trio.fail_after(30):
            await tormented.wait()
        nursery.cancel_scope.cancel()
    assert (await client.get(world.faults_url)).json()["modes"]["facilitator"] == "ok"
