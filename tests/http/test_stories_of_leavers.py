"""Callers of a free operation who come, join and leave at any moment, over one node or two, down the whole road.

Each seed is one story on a mock clock, scheduled by the seed too.  Whatever happens: who stays gets the one result of
its key, an execution ends soon after the last of its callers has left and not before, and nothing is left in hand.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
import trio
from trio.testing import MockClock

from gateway.actors.operations import actor
from gateway.actors.quota import Policy, quota
from gateway.actors.settlement import SettlementPath
from gateway.http import pipeline
from gateway.http.pipeline import Incoming, Pipeline
from gateway.http.request_headers import CallerAddress
from gateway.registry.execution import Served, Work
from gateway.registry.operation import Operation
from gateway.registry.payment.quote import QuoteSecrets
from tests.actors.operations.scene import FREE, NAMING, Executor, Node, Scene, operation, output

LEFT = attrs.evolve(FREE, stops_when_left=True, key_required=False)
KEPT = operation("search.kept", paid=False, price=lambda _: 0, stops_when_left=False)
TABLE: Mapping[str, Operation] = {each.id: each for each in (LEFT, KEPT)}
NOTICED_S = 0.8
"""How long after the last caller an execution may go on: the node waits a moment for one who comes back."""


@attrs.define
class Slow(Executor):
    """Takes its time; notes when each run began and ended, and whether it was stopped."""

    chance: random.Random = attrs.field(factory=random.Random)
    stopped: Callable[[Work], None] = lambda _: None
    ends: list[tuple[Work, bool]] = attrs.field(factory=list)

    async def execute(self, work: Work) -> Served:
        self.runs.append(work)
        stopped = True
        try:
            await trio.sleep(self.chance.choice([0, 0.05, 0.2, 0.21, 1, 3, 8]))
            stopped = False
        finally:
            self.ends.append((work, stopped))
            if stopped:
                self.stopped(work)
        return Served(output(work.request["query"]), {})


@attrs.define
class Story:
    """One seed.

    Of each query, `present` tells how many callers there are, `here_since` when there began to be some, and `left_at`
    when the last one was there.
    """

    chance: random.Random
    executor: Slow
    doors: list[Mapping[str, Pipeline]] = attrs.field(factory=list)
    present: dict[str, int] = attrs.field(factory=dict)
    here_since: dict[str, float] = attrs.field(factory=dict)
    left_at: dict[str, float] = attrs.field(factory=dict)
    answers: dict[str, list[dict[str, Any]]] = attrs.field(factory=dict)
    lates: list[tuple[str, float]] = attrs.field(factory=list)
    hasty: list[str] = attrs.field(factory=list)

    async def tell(self) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(self.chance.randint(3, 8)):
                what = self.chance.choice([LEFT, LEFT, LEFT, KEPT])
                for _ in range(self.chance.randint(1, 4)):
                    nursery.start_soon(self.come, what, f"query {number}")
            nursery.start_soon(self.watch)
            await trio.sleep(90)
            nursery.cancel_scope.cancel()

    async def watch(self) -> None:
        """Note every execution that goes on without callers."""
        while True:
            await trio.sleep(0.05)
            ended = [work for work, _ in self.executor.ends]
            running = [each for each in self.executor.runs if all(each is not work for work in ended)]
            for work in running:
                query = work.request["query"]
                gone = trio.current_time() - self.left_at.get(query, trio.current_time())
                if work.operation == LEFT.id and not self.present.get(query) and gone > NOTICED_S:
                    self.lates.append((query, gone))

    def note(self, work: Work) -> None:
        """Note an execution that is stopped although somebody waits for it, and has for a while."""
        query = work.request["query"]
        if self.present.get(query) and trio.current_time() - self.here_since[query] > NOTICED_S:
            self.hasty.append(query)

    async def come(self, what: Operation, query: str) -> None:
        """Ask, perhaps leave and come back, until it is answered or one has lost interest."""
        await trio.sleep(self.chance.choice([0, 0.001, 0.1, 0.2, 0.3, 2]))
        for _ in range(self.chance.randint(1, 5)):
            patience = self.chance.choice([0, 0.0001, 0.01, 0.06, 0.2, 0.25, 1, 4, 60, 60])
            with trio.move_on_after(patience) as stay:
                await self.ask(what, query)
                return
            assert stay.cancelled_caught
            await trio.sleep(self.chance.choice([0, 0.01, 0.19, 0.2, 0.21, 0.5, 3]))

    async def ask(self, what: Operation, query: str) -> None:
        if not self.present.get(query):
            self.here_since[query] = trio.current_time()
        self.present[query] = self.present.get(query, 0) + 1
        body = orjson.dumps({"query": query})
        headers = [("content-type", "application/json"), ("idempotency-key", f"the key of {query}")]
        try:
            answer = await self.chance.choice(self.doors)[what.id].call(Incoming(headers, body, "192.0.2.1"))
            self.answers.setdefault(query, []).append(orjson.loads(answer.body))
        finally:
            self.present[query] -= 1
            self.left_at[query] = trio.current_time()


@asynccontextmanager
async def door(node: Node, scene: Scene) -> AsyncIterator[Mapping[str, Pipeline]]:
    """Open the road of each operation over a node."""
    policies = {name: Policy(name, 10_000) for name in ("paid", "payment_attempts", "unpaid_quotes")}
    counted = partial(quota, policies=policies, store=node.store.real, clock_ms=scene.clock_ms)
    road = pipeline.Node(
        terms=None,
        secrets=QuoteSecrets({"1": b"q" * 32}, "1"),
        naming=NAMING,
        callers=CallerAddress.of(()),
        price_version="1",
        families={"search": scene.executor},
        path=SettlementPath(),
        want_path=lambda: None,
        settlement=None,
        idempotency=node.idempotency,
        quota=await node.runtime.start("quota", counted, capacity=1024),
        operations=node.operations,
        clock_ms=scene.clock_ms,
    )
    yield {each.id: Pipeline.of(each, road) for each in TABLE.values()}


@pytest.fixture
def desks(monkeypatch: pytest.MonkeyPatch) -> list[actor.Desk]:
    kept: list[actor.Desk] = []

    class KeptDesk(actor.Desk):
        def __init__(self, *parts: Any) -> None:
            super().__init__(*parts)
            kept.append(self)

    monkeypatch.setattr(actor, "Desk", KeptDesk)
    return kept


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("seed", range(15))
async def test_who_stays_is_served_and_what_all_have_left_is_stopped(
    tmp_path: Path, autojump_clock: MockClock, desks: list[actor.Desk], nodes: int, seed: int
) -> None:
    chance = random.Random(seed)
    story = Story(chance, Slow(chance=chance))
    scene = Scene(tmp_path)
    scene.executor = story.executor
    if nodes == 1:  # of several, each knows its own callers only
        story.executor.stopped = story.note
    async with scene.node(table=TABLE, shared=nodes > 1) as node, door(node, scene) as first:
        story.doors.append(first)
        if nodes == 1:
            await story.tell()
        else:
            async with scene.another(node, table=TABLE) as other, door(other, scene) as second:
                story.doors.append(second)
                await story.tell()
        assert await node.store.fetch("SELECT operation_id FROM operations WHERE ended_at IS NULL") == []
        for desk in desks:
            assert (desk.claims, desk.lives, desk.by_key, desk.keys_of) == ({}, {}, {}, {})
            assert len(desk.nursery.child_tasks) <= 3  # those that last as long as the desk
        receipts = await node.store.fetch("SELECT COUNT(*) FROM operations WHERE receipt IS NOT NULL")
    assert story.lates == [], "an execution went on without callers"
    assert story.hasty == [], "an execution was stopped under its callers"
    assert [each for each in scene.crashes if each.actor == "operations"] == []
    assert int(receipts[0][0] or 0) >= len(story.answers)
    for query, answers in story.answers.items():
        assert len({each["receipt"]["receiptId"] for each in answers}) == 1
        assert all(each["output"]["results"] == [query] for each in answers)
        assert sum(not each["replayed"] for each in answers) <= 1
    kept = [stopped for work, stopped in story.executor.ends if work.operation == KEPT.id]
    assert not any(kept), "a run that is to go on was stopped"
    await scene.check()
