"""Nodes that count on one store, on trio's mock clock, each with its own way to the store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import trio

from gateway.actors.quota import Allowance, GiveBack, Message, Policy, Spend, quota
from gateway.actors.runtime import Ref, Runtime, open_runtime
from gateway.actors.store import Engine, Membership, NodeStore, Row, Statement, StoreUncertain, Value, open_sqlite
from gateway.actors.store.sqlite import inline
from gateway.errors import StoreUnavailable

START_S = 1_795_816_156
START = START_S * 1000

Queries = Sequence[tuple[str, Mapping[str, Value]]]


@attrs.define(eq=False)
class Road:
    """A node's way to a store that others share; it can be long, be cut, or lose answers.

    `steps` are those that were sent; `until_open` holds the answers back.
    """

    engine: NodeStore
    delay: Callable[[], float] = lambda: 0.0
    cut: bool = False
    answers_lost: bool = False
    until_open: trio.Event | None = None
    steps: list[tuple[Statement, ...]] = attrs.field(factory=list)
    shared: bool = True

    async def commit(self, *statements: Statement, relaxed: bool = False) -> list[list[Row]]:
        self.steps.append(statements)
        await trio.sleep(self.delay())
        if self.cut:
            raise StoreUnavailable("The disk of the store is full.", extra={"reason": "disk_full"}, retry_after=7)
        results = await self.engine.commit(*statements, relaxed=relaxed)
        if self.until_open is not None:
            await self.until_open.wait()
        if self.answers_lost:
            raise StoreUncertain("The store did not answer in time.", extra={"reason": "stalled"}, retry_after=2)
        await trio.sleep(self.delay())
        return results

    async def fetch(self, sql: str, parameters: Mapping[str, Value] = {}) -> list[Row]:
        return await self.engine.fetch(sql, parameters)

    async def fetch_many(self, queries: Queries) -> list[list[Row]]:
        return await self.engine.fetch_many(queries)

    async def look_up(self, queries: Queries) -> list[list[Row]]:
        return await self.engine.look_up(queries)

    @property
    def membership(self) -> Membership:
        return self.engine.membership

    def tell(self, *topics: str) -> None:
        self.engine.tell(*topics)

    def hear(self, topic: str) -> AbstractContextManager[trio.Event]:
        return self.engine.hear(topic)


@attrs.define(eq=False)
class Node:
    """A node's quota actor, and its way to the store."""

    ref: Ref[Message]
    road: Road

    async def spend(self, policy: str = "free", caller: str = "a", *, within: float = 60) -> Allowance:
        return await self.ref.ask(Spend(policy, caller), within=within)

    async def spent(self, policy: str = "free", caller: str = "a", *, times: int = 1) -> int:
        """How many of so many calls, one after another, were granted."""
        return sum([(await self.spend(policy, caller)).granted for _ in range(times)])

    def give_back(self, policy: str = "free", caller: str = "a", *, counted_ms: int | None = None) -> None:
        self.ref.tell(GiveBack(policy, caller, counted_ms))


@attrs.define(eq=False)
class Scene:
    """One store and the nodes that count on it."""

    runtime: Runtime
    store: Engine
    policies: Mapping[str, Policy]
    started: int = 0

    async def node(
        self, *, delay: Callable[[], float] = lambda: 0.0, clock_apart_ms: int = 0, runtime: Runtime | None = None
    ) -> Node:
        """Start a node whose own clock is apart from the store's, in a runtime of its own if it is to be stopped."""
        self.started += 1
        road = Road(self.store, delay)
        body = partial(
            quota, policies=self.policies, store=road, clock_ms=lambda: int(store_now() * 1000) + clock_apart_ms
        )
        ref = await (runtime or self.runtime).start(f"quota-{self.started}", body, capacity=2_000)
        return Node(ref, road)

    async def used(self, policy: str = "free", caller: str = "a") -> int | None:
        """What the store has of a caller's window, or None."""
        rows = await self.store.fetch(
            "SELECT used FROM quota_counters WHERE quota = :quota AND caller = :caller",
            {"quota": policy, "caller": caller},
        )
        return int(rows[0][0] or 0) if rows else None


def store_now() -> float:
    return START_S + trio.current_time()


@asynccontextmanager
async def shared(directory: Path, *policies: Policy) -> AsyncIterator[Scene]:
    """Open a store in the directory; time passes on trio's clock alone."""
    async with (
        open_runtime() as runtime,
        open_sqlite(runtime, directory / "gateway.db", run=inline, now=store_now) as store,
    ):
        yield Scene(runtime, store, {policy.name: policy for policy in policies})


async def at_once(calls: int, spend: Callable[[int], Awaitable[Allowance]]) -> list[Allowance]:
    """The allowances of so many calls that are made together; `spend` makes the one of a number."""
    found: list[Allowance] = []

    async def one(number: int) -> None:
        found.append(await spend(number))

    async with trio.open_nursery() as nursery:
        for number in range(calls):
            nursery.start_soon(one, number)
    return found
