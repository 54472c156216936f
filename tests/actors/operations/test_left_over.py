"""What is in nobody's hands is found and taken on, once, and not for ever."""

from __future__ import annotations

from functools import partial
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.actors.operations import Ended, Limits
from gateway.actors.operations.order import Exposure
from gateway.actors.operations.recovery import TRIES
from gateway.errors import ExposureLimit, GatewayError, PaymentRequired, SettlementPending
from tests.actors.operations.scene import (
    ASSET,
    PAYER,
    PRICE,
    Node,
    Scene,
    crash_when,
    order,
    outcome_of,
    payment,
    state_is,
    until,
)


@pytest.mark.parametrize("state", ["claimed", "executed"])
@pytest.mark.parametrize("change", [{"sells": False}, {"asset": attrs.evolve(ASSET, network="eip155:1", chain_id=1)}])
async def test_a_paid_operation_waits_for_a_node_on_its_own_chain(
    scene: Scene, autojump_clock: MockClock, state: str, change: dict[str, Any]
) -> None:
    made = order(paid_by=payment())
    if state == "claimed":
        scene.chain.gate = trio.Event()
        await crash_when(scene, made, lambda _: scene.chain.verified)
    else:
        scene.chain.settles.append("lost")
        await crash_when(scene, made, lambda _: scene.chain.submitted)
    async with scene.node(**change) as node:
        await trio.sleep(30)
        assert await node.only("state", "epoch") == (state, 1)
        told = await outcome_of(partial(node.call, made))
        assert isinstance(told, GatewayError)
        assert not isinstance(told, PaymentRequired)
        assert isinstance(await node.call(order("another-key-than-that")), Ended)
    async with scene.node() as node:
        assert isinstance(await node.call(made), Ended)


async def test_every_open_operation_is_taken_on_at_the_start_however_many_there_are(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.chain.gate = trio.Event()
    async with scene.crashing() as node, trio.open_nursery() as nursery:
        for i in range(150):
            made = order(f"key-number-{i:03}-of-this", payment())
            nursery.start_soon(outcome_of, partial(node.call, made))
        await until(lambda: len(scene.chain.verified) == 150)
        nursery.cancel_scope.cancel()
    scene.chain.gate = None
    began = trio.current_time()
    async with scene.node() as node:
        await until(lambda: all_receipted(node, 150))
        assert trio.current_time() - began < 2
    assert len(scene.chain.submitted) == 150


async def all_receipted(node: Node, count: int) -> bool:
    found = await node.store.fetch("SELECT COUNT(*) FROM operations WHERE state = 'receipted'")
    return found == [(count,)]


async def test_after_a_restart_every_open_operation_counts_as_unsettled_however_few_can_be_taken_on(
    scene: Scene, autojump_clock: MockClock
) -> None:
    count = 20
    scene.chain.settles.extend(["hang"] * count)
    async with scene.crashing() as node, trio.open_nursery() as nursery:
        for i in range(count):
            nursery.start_soon(outcome_of, partial(node.call, order(f"key-number-{i:03}-of-this", payment())))
        await until(lambda: len(scene.chain.submitted) == count)
        nursery.cancel_scope.cancel()
    scene.chain.looks.extend(["away"] * 2 * count)
    async with scene.node(limits=Limits(operations=1, settling=2, unsettled_per_payer=count * PRICE)) as node:
        assert await node.operations.ask(Exposure()) == {PAYER.lower(): count * PRICE}
        with pytest.raises(ExposureLimit):
            await node.call(order("one-key-more-than-those", payment()))
        scene.chain.looks.clear()
        await until(lambda: all_receipted(node, count), within_s=3600)
        await until(lambda: exposed(node, {}))


async def exposed(node: Node, expected: dict[str, int]) -> bool:
    return await node.operations.ask(Exposure()) == expected


async def test_a_life_that_crashes_is_taken_on_again_by_the_running_node(
    scene: Scene, autojump_clock: MockClock
) -> None:
    made = order(paid_by=payment())
    signs = iter([True])

    @attrs.frozen
    class CrashesOnce:
        real: Any

        def sign(self, receipt: Any) -> Any:
            if next(signs, False):
                raise ZeroDivisionError
            return self.real.sign(receipt)

    async with scene.node() as plain:
        signer = plain.around.signer
    async with scene.node(signer=CrashesOnce(signer)) as node:
        assert isinstance(await outcome_of(partial(node.call, made)), SettlementPending)
        await until(lambda: state_is(node, "receipted"))
    assert (len(scene.executor.runs), len(scene.chain.submitted)) == (1, 1)


async def test_a_life_that_always_crashes_is_tried_ever_more_rarely(scene: Scene, autojump_clock: MockClock) -> None:
    class Crashes:
        def sign(self, receipt: Any) -> Any:
            raise ZeroDivisionError

    async with scene.node(signer=Crashes()) as node:
        told = await outcome_of(partial(node.call, order()))
        assert isinstance(told, GatewayError)
        await trio.sleep(3600)
        assert await node.only("state", "failure_code") == ("failed", "execution_failed")
    assert len(scene.executor.runs) == TRIES + 1


async def test_a_claim_that_is_just_being_committed_is_not_taken_over(scene: Scene, autojump_clock: MockClock) -> None:
    """The answer to a commit may come long after the row can be read: that row is in this node's hands."""
    async with scene.node() as node:
        committed = node.store.real.commit

        class SlowToAnswer:
            async def commit(self, *statements: Any, relaxed: bool = False) -> Any:
                done = await committed(*statements, relaxed=relaxed)
                if any("INSERT INTO operations" in each.sql for each in statements):
                    await trio.sleep(12)
                return done

            fetch = node.store.real.fetch
            fetch_many = node.store.real.fetch_many
            tell, hear, shared = node.store.real.tell, node.store.real.hear, False

        node.store.real = SlowToAnswer()  # type: ignore[assignment]
        ended = await node.call(order(paid_by=payment()))
        assert not ended.replayed
        assert await node.only("epoch") == 1
    assert len(scene.executor.runs) == 1
