"""A node that sells runs: as its customers meet it, as its operator sees it, and what can be seen of it from beside."""

from __future__ import annotations

import os
import signal
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import httpx
import trio

from gateway.config import default_data_dir, load
from gateway.sandbox.image import directory_of_images, load_lock, locate
from gateway.sandbox.image_refusal import ImageRefused
from gateway.sandbox_settings import prefix_of
from gateway.world.chain import Account
from gateway.world.world import World
from tests.sandbox.battery import outside
from tests.sandbox.launcher_driver import pinned_image, require_a_sandbox
from tests.world.scenarios.node_process import Launch, NodeProcess, by_interpreter, free_port
from tests.world.scenarios.purchase import Protocol, Purchase, Shop

RUN = "/v1/sandbox/execute"
SHORT, STANDARD = 10_000, 60_000
SLOTS = 2
OPENS_S = 60.0
UNHURRIED = {"verify_timeout_s": 20, "settle_timeout_s": 20, "settle_wait_s": 20}
"""Runs load a small machine; who waits here is not told that the settlement is pending."""
uids = count(40_000 + os.getpid() % 512 * 40, SLOTS)
"""Users of the host for the slots of one node after the other, and of no other program that tests at the same time."""


@contextmanager
def images() -> Iterator[Path]:
    """The directory of this machine's image, or one with an image that is built for as long as it is needed."""
    require_a_sandbox()
    usual = directory_of_images(default_data_dir())
    try:
        locate(usual, load_lock())
    except ImageRefused:
        with pinned_image() as built:
            yield built.parent
    else:
        yield usual


def program(code: str, **members: Any) -> dict[str, Any]:
    """Return a request that runs a line of JavaScript."""
    return {"command": ["node", "-e", code], **members}


@attrs.frozen
class SandboxNode:
    """A node that sells runs; its slots are users of the host, from `first_uid` on, that nobody else is."""

    node: NodeProcess
    first_uid: int

    @classmethod
    def of(
        cls, world: World, directory: Path, images: Path, *, launch: Launch = by_interpreter, **sandbox: Any
    ) -> SandboxNode:
        """Configure one, with some keys of `[sandbox]` changed."""
        address, first_uid = f"127.0.0.1:{free_port()}", next(uids)
        section = {"enabled": True, "image": str(images), "first_uid": first_uid, "slots": SLOTS} | sandbox
        operated = {"operator_listen": address}
        node = NodeProcess.of(world, directory, launch=launch, node=operated, sandbox=section, payment=UNHURRIED)
        return cls(node, first_uid)

    def shop(self, customer: httpx.AsyncClient, world: World) -> Shop:
        return Shop(customer, self.node.url, world)

    # -- what its operator sees ----------------------------------------------------------------------------------------

    async def shown(self, customer: httpx.AsyncClient) -> dict[str, Any]:
        """Return the operator's page of the sandbox."""
        address = tomllib.loads(self.node.config.read_text())["node"]["operator_listen"]
        token = (self.node.data_dir / "operator.token").read_text().strip()
        answer = await customer.get(f"http://{address}/sandbox", headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    async def until(self, customer: httpx.AsyncClient, wanted: Callable[[dict[str, Any]], bool], within: float) -> None:
        """Wait until the operator's page is as wanted, and no longer than so many seconds."""
        told: dict[str, Any] = {}
        with trio.move_on_after(within):
            while True:
                told = await self.shown(customer)
                if wanted(told):
                    return
                await trio.sleep(0.02)
        raise AssertionError(f"after {within:g} s the sandbox is still {told}\n{self.node.log[-3000:]}")

    async def until_open(self, customer: httpx.AsyncClient, within: float = OPENS_S) -> None:
        """Wait until runs are sold: the sandbox is open and the registry has heard of it."""
        await self.until(customer, lambda told: bool(told["open"]), within)
        named = {"Idempotency-Key": "is it open?"}
        for _ in range(200):
            asked = await customer.post(self.node.url + RUN, json=program("1"), headers=named)
            if asked.status_code == 402:
                return
            await trio.sleep(0.05)
        raise AssertionError(f"open, and still not sold:\n{self.node.log[-3000:]}")

    async def ended(self, customer: httpx.AsyncClient) -> Counter[str]:
        """Return how many sold runs ended how since the node was started."""
        return Counter((await self.shown(customer))["runs"])

    # -- what can be seen from beside it -------------------------------------------------------------------------------

    @property
    def users(self) -> range:
        return range(self.first_uid, self.first_uid + SLOTS)

    def processes(self) -> dict[int, str]:
        """Return the processes of its sandboxes, but for the dead that were left to the machine to be reaped."""
        return outside.processes_of(self.users, zombies=False)

    def of_runs(self) -> dict[int, str]:
        """Return those of its runs: not those of a sandbox that waits, for a run or for the order of one."""
        laid = self.laid()
        return {pid: name for pid, name in self.processes().items() if outside.group_of(pid, self.prefix) not in laid}

    def laid(self) -> set[str]:
        """Return the names of the groups of sandboxes that wait."""
        return {outside.group_of(pid, self.prefix) for pid in self.processes() if outside.waits(pid)} - {""}

    @property
    def prefix(self) -> str:
        return prefix_of(load(self.node.config, {}))

    def unreaped(self) -> dict[int, str]:
        """Return the processes of its runs, those too that are dead and wait to be reaped."""
        return outside.processes_of(self.users)

    def leavings(self, *, but_laid: bool) -> list[object]:
        """Return the processes and the groups of its sandboxes, but for those that wait if so."""
        laid = self.laid() if but_laid else set()
        found = [each for each in outside.groups(self.prefix) if Path(each).name not in laid]
        return [*(self.of_runs() if but_laid else self.processes()).items(), *found]

    async def until_running(self) -> None:
        """Wait until the command of a run is executed: `node` beside the sandbox's own processes."""
        for _ in range(2000):
            if any(name.startswith(("node", "MainThread")) for name in self.of_runs().values()):
                return
            await trio.sleep(0.005)
        raise AssertionError(f"no command runs: {self.processes()}")

    async def until_nothing_is_left(self, within: float, *, but_laid: bool = False) -> None:
        """Wait until no process and no group of its sandboxes is left, and no longer than so many seconds.

        With `but_laid` those may stand that wait for the next run, which a node has that lives.
        """
        until = trio.current_time() + within
        while True:
            seen, left = trio.current_time(), self.leavings(but_laid=but_laid)
            if not left:
                return
            assert seen < until, f"after {within:g} s there is still {left}"
            await trio.sleep(0.01)

    def kill_bubblewrap(self) -> None:
        """Kill every bubblewrap of its sandboxes."""
        found = [pid for pid, name in self.processes().items() if name == "bwrap"]
        assert found, self.processes()
        for each in found:
            try:
                os.kill(each, signal.SIGKILL)
            except ProcessLookupError:  # one dies with the other
                continue


async def bought(
    shop: Shop, payer: Account, sent: dict[str, Any], protocol: Protocol = "x402"
) -> tuple[Purchase, httpx.Response]:
    """Buy a run, and return the purchase and its first answer."""
    purchase = await shop.order(payer, protocol, sent=sent, path=RUN)
    return purchase, await shop.send(purchase)
