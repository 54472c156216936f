"""The take-over: a node is killed while an operation of its settles, another one finishes it, the first comes back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import attrs
import httpx
import trio

from gateway.world import faults
from gateway.world.chain import Rpc
from gateway.world.child import Child
from gateway.world.nodes import Node
from gateway.world.tally import TakeOver
from gateway.world.world import World

FAULT = "settle_hang_after"
"""The payment reaches the chain, and the node that asked for it is not told."""
LOOK_S = 0.05

Start = Callable[[Node], Awaitable[None]]
Told = Callable[[dict[str, Any]], None]
Say = Callable[[str], None]
OpenAgent = Callable[[], AbstractAsyncContextManager[Child]]


@attrs.define(eq=False)
class Victim:
    """The node that is killed, and when: seconds on trio's clock, None while it lives."""

    node: Node
    killed_at: float | None = None

    async def kill_once_paid(self, world: World, client: httpx.AsyncClient, paid: int, say: Say) -> None:
        """Wait until the chain shows more than `paid` payments, and kill the node, which has not heard of the last."""
        chain = Rpc(world.rpc_url, client)
        while True:
            if len(await chain.transfers(world.pay_to)) > paid:
                break
            await trio.sleep(LOOK_S)
        say(f"  a payment is on the chain, {self.node.name} waits for the answer and is killed")
        self.killed_at = trio.current_time()
        await self.node.kill()
        await _put(world, client, faults.OK)


async def show_take_over(
    world: World, first: Node, second: Node, open_agent: OpenAgent, *, start: Start, told: Told, say: Say
) -> TakeOver | None:
    """Kill `first` while an operation of its settles, and start it again once `second` has served the same request.

    The agent buys from the dying (`gateway.world.agent`); `told` hears each of its lines.  Returns None where nothing
    was taken over; the lines say why.
    """
    victim, shown = Victim(first), None
    async with _healed(world) as client:
        paid = len(await Rpc(world.rpc_url, client).transfers(world.pay_to))
        await _put(world, client, FAULT)
        async with open_agent() as agent, trio.open_nursery() as nursery:
            nursery.start_soon(victim.kill_once_paid, world, client, paid, say)
            while (text := await agent.line()) is not None:
                line = json.loads(text)
                told(line)
                if victim.killed_at is not None and shown is None and line["status"] == 200:
                    took, began = trio.current_time() - victim.killed_at, trio.current_time()
                    await start(first)
                    shown = TakeOver(first.name, second.name, _ms(took), _ms(trio.current_time() - began))
            nursery.cancel_scope.cancel()
    return shown


@asynccontextmanager
async def _healed(world: World) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of the world, whose facilitator is well again after the block."""
    async with httpx.AsyncClient(timeout=30) as client:
        try:
            yield client
        finally:
            with trio.move_on_after(5, shield=True), suppress(httpx.TransportError):
                await _put(world, client, faults.OK)


async def _put(world: World, client: httpx.AsyncClient, mode: str) -> None:
    (await client.put(f"{world.faults_url}/{faults.FACILITATOR}", json={"mode": mode})).raise_for_status()


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
