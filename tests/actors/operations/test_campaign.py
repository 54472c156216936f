"""Buyers with their habits, a facilitator, a chain, an executor and a store with their faults, nodes that crash.

Each seed is one story on a mock clock, scheduled by the seed too.  Whatever happens: a key ends with one result, or
with a failure that charged nothing; an authorization pays at most once and for one operation; nobody is asked to pay
anew while the first payment may still settle; the ledger sums to zero and the chain agrees with it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import attrs
import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from gateway.actors.operations import Ended, Resolve
from gateway.actors.operations.paying import MADE
from gateway.actors.payment import Payment
from gateway.actors.runtime import ActorError
from gateway.actors.settlement import Standing, Verdict, Verification
from gateway.errors import (
    ExecutionReconciliation,
    ExecutorFailed,
    GatewayError,
    IdempotencyKeyReused,
    PaymentAlreadyBound,
    PaymentRequired,
)
from gateway.registry.execution import Served, Work
from gateway.registry.operation import Operation
from tests.actors.operations.scene import (
    FREE,
    ONCE,
    OTHER_PAYER,
    PAID,
    PAYER,
    Executor,
    Node,
    Scene,
    order,
    output,
    payment,
)

DEADLINE_S = 12.0
MARGIN_S = 15
LONG_S = 4 * 3600.0
ANSWER_LATE_S = 10.0
"""By how much a slow store may delay an answer."""


@attrs.define
class FaultyExecutor(Executor):
    """Takes its time, and fails in every way now and then."""

    chance: random.Random = attrs.field(factory=random.Random)
    faulty: bool = True
    perhaps: set[str] = attrs.field(factory=set)
    """The operations that a run may have happened for."""
    repeated: list[Work] = attrs.field(factory=list)

    async def execute(self, work: Work) -> Served:
        if work.operation == ONCE.id:
            await trio.sleep(self.chance.choice([0, 0, 0.1, 1]))
            await work.release()
            if work.operation_id in self.perhaps:
                self.repeated.append(work)
        self.perhaps.add(work.operation_id)
        self.runs.append(work)
        await trio.sleep(self.chance.choice([0, 0, 0.1, 1, 4, 11]))
        fate = self.chance.random() if self.faulty else 1.0
        if fate < 0.1:
            self.perhaps.discard(work.operation_id)
            raise ExecutorFailed("not started")
        if fate < 0.13:
            raise ValueError("a defect")
        if fate < 0.16:
            await trio.sleep(13)
        return Served(output(), {"searches": 1})


@attrs.define
class Buyer:
    """One that wants the result of a request, and signs what it must until it has it."""

    story: Story
    key: str
    what: Operation
    payer: str
    shares: Payment | None = None
    result: Ended | None = None
    burned: bool = False

    async def buy(self) -> None:
        signed = self.shares
        while self.result is None and not self.burned:
            node = self.story.door()
            if node is None:
                await trio.sleep(1)
                continue
            if self.what.paid and (signed is None or self.story.too_old(signed)):
                signed = self.story.sign(self.payer)
            try:
                with trio.move_on_after(self.story.chance.choice([0.3, 3, 30, 300])):
                    made = order(self.key, signed, what=self.what)
                    self.result = await node.call(made, wait_s=self.story.chance.choice([0, 5, 25]))
            except ExecutionReconciliation:
                self.burned = True
            except PaymentRequired:
                if signed is not None:
                    self.story.refuse(signed)
                signed = None
            except PaymentAlreadyBound:
                signed = None
            except IdempotencyKeyReused:
                raise
            except (GatewayError, ActorError):
                await trio.sleep(self.story.chance.choice([0.5, 2, 10]))
            if self.result is not None and self.result.receipt["funding"] == "paid":
                self.story.served.append(self.result)


@attrs.define
class Story:
    """One seed."""

    chance: random.Random
    scene: Scene
    executor: FaultyExecutor
    node: Node | None = None
    signed: list[Payment] = attrs.field(factory=list)
    shared: list[Payment] = attrs.field(factory=list)
    refused: list[Payment] = attrs.field(factory=list)
    by_others: list[Payment] = attrs.field(factory=list)
    lately: dict[str, float] = attrs.field(factory=dict)
    """When somebody else made a payment: between a refusal and its answer that is nobody's fault."""
    served: list[Ended] = attrs.field(factory=list)
    over: bool = False
    shared_store: ClassVar[bool] = False

    def door(self) -> Node | None:
        """Where the next request arrives."""
        return self.node

    def too_old(self, each: Payment) -> bool:
        return each.valid_before < self.scene.clock_ms() / 1000 + DEADLINE_S + MARGIN_S

    def refuse(self, each: Payment) -> None:
        lately = trio.current_time() - self.lately.get(each.nonce, -LONG_S) < ANSWER_LATE_S
        assert lately or self.scene.chain.standing(each) not in MADE, "asked to pay anew for what is paid"
        if each not in self.shared:
            self.refused.append(each)

    def sign(self, payer: str) -> Payment:
        made = payment(payer=payer)
        self.signed.append(made)
        return made

    def buyers(self) -> list[Buyer]:
        chance = self.chance
        made = []
        for number in range(chance.randint(4, 10)):
            key = f"key-number-{number:03}-of-this"
            what = chance.choice([FREE, PAID, PAID, PAID, ONCE])
            payer = chance.choice([PAYER, OTHER_PAYER])
            buyer = Buyer(self, key, what, payer)
            made.append(buyer)
            if chance.random() < 0.3:  # an impatient twin: the same key and request, a payment of its own
                made.append(Buyer(self, key, what, payer))
            if what.paid and chance.random() < 0.3:  # one payment for two keys
                buyer.shares = self.sign(payer)
                self.shared.append(buyer.shares)
                made.append(Buyer(self, key + "-again", what, payer, buyer.shares))
        return made

    async def tell(self) -> None:
        chain, buyers = self.scene.chain, self.buyers()
        self.trouble()
        async with trio.open_nursery() as nursery:
            for buyer in buyers:
                nursery.start_soon(self.come, buyer)
            nursery.start_soon(self.meddle)
            for _ in range(self.chance.randint(1, 4)):
                await self.live(self.chance.uniform(1, 40), self.chance.choice([0.0, 0.0, 0.5, 30.0]))
                await trio.sleep(self.chance.choice([0, 0.1, 5, 60]))
            self.over = True
            chain.verdicts.clear()
            chain.settles.clear()
            chain.looks.clear()
            self.executor.faulty = False
            await self.live(LONG_S, 30.0, until=lambda: all(each.result or each.burned for each in buyers))
        self.judge(buyers)
        await self.scene.check()

    async def come(self, buyer: Buyer) -> None:
        await trio.sleep(self.chance.uniform(0, 30))
        await buyer.buy()

    def trouble(self) -> None:
        chance, chain = self.chance, self.scene.chain
        hows = ["ok"] * 8 + ["lost", "slow", "dropped", "unsent", "refused", "hang", "late"]
        chain.settles.extend(chance.choices(hows, k=300))
        chain.looks.extend(chance.choices(["ok"] * 10 + ["away"], k=1000))
        verdicts = [None] * 10 + [
            Verification(Verdict.UNAVAILABLE, "timeout"),
            Verification(Verdict.INVALID, "insufficient_funds"),
        ]
        chain.verdicts.extend(chance.choices(verdicts, k=300))
        chain.confirmations = chance.choice([1, 1, 2])

    async def live(self, seconds: float, grace: float, *, until: Callable[[], object] = lambda: False) -> None:
        """Run a node for a while; it is killed, or drains."""
        async with self.scene.node(grace=grace, payer_hold_s=60.0, shared=self.shared_store) as node:
            self.trouble_store(node)
            self.node = node
            try:
                with trio.move_on_after(seconds):
                    while not until():
                        await trio.sleep(1)
                        self.scene.chain.head += 1
                    await self.come_to_rest(node)
            finally:
                self.node = None

    def trouble_store(self, node: Node) -> None:
        if self.over:
            return
        faults = ["ok"] * 30 + ["away", "lost", "unsure", "slow"]
        node.store.commits.extend(self.chance.choices(faults, k=500))
        if self.shared_store:
            node.store.late = lambda _: self.chance.choice([0, 0, 0, 0.1, 1, 5])

    async def come_to_rest(self, node: Node) -> None:
        """Wait until every operation has ended and every payment is deep enough; decide what waits for the operator."""
        for _ in range(1200):
            await trio.sleep(1)
            self.scene.chain.head += 1
        found = await node.store.fetch("SELECT operation_id, failure_code FROM operations")
        for operation_id, failure_code in found:
            if failure_code != "operator_needed":
                continue
            try:
                await node.operations.ask(Resolve(str(operation_id), None, "the operator's decision"), within=60)
            except GatewayError:
                await node.operations.ask(Resolve(str(operation_id), "0x" + "00" * 32, "found"), within=60)
        assert await node.store.fetch("SELECT 1 FROM operations WHERE ended_at IS NULL") == []

    async def meddle(self) -> None:
        """Strangers and payers that submit or cancel payments, and blocks that go away."""
        chain, chance = self.scene.chain, self.chance
        while not self.over:
            await trio.sleep(chance.uniform(0.5, 10))
            live = [each for each in self.signed if each not in self.refused]
            if not live:
                continue
            each, fate = chance.choice(live), chance.random()
            if chain.standing(each) is Standing.UNUSED:
                if fate < 0.1:
                    self.by_others.append(each)
                    self.lately[each.nonce] = trio.current_time()
                    chain.mine(each)
                elif fate < 0.2:
                    chain.cancelled.add(each.key)
            elif each.key in chain.mined and chain.head - chain.mined[each.key][1] < 5 and fate < 0.3:
                chain.reorganise(each)

    def judge(self, buyers: list[Buyer]) -> None:
        chain = self.scene.chain
        assert [each for each in self.scene.crashes if each.actor == "operations"] == []
        assert self.executor.repeated == [], "a run was repeated that must not be"
        unserved = [each for each in buyers if each.result is None and not each.burned]
        assert unserved == [], "a buyer was never served"
        for key in {each.key for each in buyers}:
            results = [each.result for each in buyers if each.key == key and each.result]
            assert len({each.operation_id for each in results}) <= 1, "a key names two operations"
            assert len({each.receipt["receiptId"] for each in results}) <= 1
        paid_for = {str(each.receipt["settlement"]["authorizationNonce"]) for each in self.served}
        operations = {each.operation_id for each in self.served}
        assert len(paid_for) == len(operations), "an authorization paid for two operations"
        others = {each.key for each in self.by_others}
        for each in self.refused:
            assert not chain.transfers[each.key] or each.key in others, "asked to pay anew, and the first one settled"
        for each in self.signed:
            charged = chain.transfers[each.key] and each.key not in others
            assert not charged or each.nonce in paid_for, "charged for nothing"


@attrs.define
class StoryOfTwo(Story):
    """Two nodes over one store: either loses its lease now and then and goes on, reads late, or is killed."""

    other: Node | None = None
    shared_store: ClassVar[bool] = True

    def door(self) -> Node | None:
        return self.chance.choice([self.node, self.other])

    async def live(self, seconds: float, grace: float, *, until: Callable[[], object] = lambda: False) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.live_beside)
            nursery.start_soon(self.lose_leases)
            await Story.live(self, seconds, grace, until=until)
            nursery.cancel_scope.cancel()

    async def live_beside(self) -> None:
        """Run the other node again and again."""
        while True:
            await trio.sleep(self.chance.uniform(0.1, 3))
            if self.node is None:
                continue
            async with self.scene.another(self.node, grace=0, payer_hold_s=60.0) as other:
                self.trouble_store(other)
                self.other = other
                try:
                    await trio.sleep(LONG_S if self.over else self.chance.uniform(1, 40))
                finally:
                    self.other = None

    async def lose_leases(self) -> None:
        while not self.over:
            await trio.sleep(self.chance.uniform(0.1, 5))
            name = self.chance.choice(["node-1", "node-2"])
            if await self.leased(name, alive=False):
                await trio.sleep(self.chance.choice([0.1, 1, 8, 8]))
                await self.leased(name, alive=True)

    async def leased(self, name: str, *, alive: bool) -> bool:
        """Give a node that runs its lease, or take it; False where there is none of that name."""
        store = self.node
        if store is None or (name == "node-2" and self.other is None):
            return False
        await self.scene.lease(store, name, alive=alive)
        return True


def play(seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Story] = Story) -> None:
    monkeypatch.setattr("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING", True)
    monkeypatch.setattr("trio._core._run._r", random.Random(seed))
    chance = random.Random(seed)
    folder.mkdir()

    async def tell() -> None:
        executor = FaultyExecutor(chance=random.Random(seed + 1))
        scene = Scene(folder, executor=executor)
        await kind(chance, scene, executor).tell()

    with capture_logs() as logs:
        trio.run(tell, clock=MockClock(autojump_threshold=0))
    defects = [
        each for each in logs if each["event"] in {"life_crashed", "claim_failed", "duty_failed", "resolution_failed"}
    ]
    assert defects == []


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_nobody_is_charged_twice_or_for_nothing(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(seed, tmp_path / "store", monkeypatch)


@pytest.mark.campaign
@pytest.mark.parametrize("hundred", range(10))
def test_whatever_happens_in_a_thousand_stories(hundred: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(1000 + 100 * hundred, 1100 + 100 * hundred):
        try:
            play(seed, tmp_path / str(seed), monkeypatch)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("seed", range(15))
def test_whatever_happens_on_two_nodes_nobody_is_charged_twice_or_for_nothing(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(seed, tmp_path / "store", monkeypatch, StoryOfTwo)


@pytest.mark.campaign
@pytest.mark.parametrize("hundred", range(10))
def test_whatever_happens_in_a_thousand_stories_of_two_nodes(
    hundred: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(1000 + 100 * hundred, 1100 + 100 * hundred):
        try:
            play(seed, tmp_path / str(seed), monkeypatch, StoryOfTwo)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
