from __future__ import annotations

from functools import partial

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from gateway.actors.operations import Ended, Join, life, live
from gateway.errors import GatewayError, OperationInProgress, PaymentRequired, SettlementPending, StoreUnavailable
from tests.actors.operations.scene import Node, Scene, order, outcome_of, payment, until


def test_every_effect_but_the_last_two_can_be_run() -> None:
    assert set(life.Effect) - set(live.EFFECTS) == {life.Effect.END, life.Effect.REST}


async def drained(scene: Scene, asked: object, happened: object, **options: object) -> Ended | GatewayError:
    """What one is told who waits while the node drains."""
    told: list[Ended | GatewayError] = []

    async def ask(node: Node) -> None:
        told.append(await outcome_of(partial(node.call, asked)))  # type: ignore[arg-type]

    async with trio.open_nursery() as nursery, scene.node(**options) as node:  # type: ignore[arg-type]
        nursery.start_soon(ask, node)
        await until(happened)  # type: ignore[arg-type]
    return told[0]


async def test_a_drain_lets_an_execution_end_and_settle(scene: Scene, autojump_clock: MockClock) -> None:
    scene.executor.plan.append(5.0)
    made = order(paid_by=payment())
    assert isinstance(await drained(scene, made, lambda: scene.executor.runs), Ended)
    async with scene.node() as node:
        assert (await node.call(made)).replayed


async def test_a_drain_while_the_settlement_is_undecided_says_so_and_the_restart_decides(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.chain.settles.append("dropped")
    made = order(paid_by=payment())
    told = await drained(scene, made, lambda: len(scene.chain.looked) >= 3)
    assert isinstance(told, SettlementPending)
    assert told.operation_id is not None
    async with scene.node() as node:
        assert isinstance(await node.call(made), Ended)
    assert len(scene.executor.runs) == 1


async def test_a_drain_that_takes_too_long_cuts_an_execution_off_and_the_restart_runs_it(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.executor.plan.append(11.0)
    made = order(paid_by=payment())
    told = await drained(scene, made, lambda: scene.executor.runs, grace=2.0)
    assert isinstance(told, StoreUnavailable)
    async with scene.node() as node:
        assert isinstance(await node.call(made), Ended)
    assert (len(scene.executor.runs), len(scene.chain.submitted)) == (2, 1)


async def test_a_drain_that_cuts_a_settlement_off_says_that_it_is_pending(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.chain.settles.append("slow")
    scene.chain.looks.extend(["away"] * 3)
    made = order(paid_by=payment())
    told = await drained(scene, made, lambda: scene.chain.mined, grace=1.0)
    assert isinstance(told, SettlementPending)
    async with scene.node() as node:
        assert isinstance(await node.call(made), Ended)
    assert len(scene.chain.submitted) == 1


async def test_a_drain_with_the_store_away_gives_up_at_once(scene: Scene, autojump_clock: MockClock) -> None:
    made = order(paid_by=payment())
    scene.executor.plan.append(5.0)
    told: list[Ended | GatewayError] = []
    async with trio.open_nursery() as nursery, scene.node() as node:

        async def ask() -> None:
            told.append(await outcome_of(partial(node.call, made)))

        nursery.start_soon(ask)
        await until(lambda: scene.executor.runs)
        node.store.full = lambda _: True
        began = trio.current_time()
    assert trio.current_time() - began < 10
    assert isinstance(told[0], SettlementPending)
    async with scene.node() as node:
        assert isinstance(await node.call(made), Ended)


async def test_a_free_call_is_abandoned_too_where_the_store_stays_away_from_a_draining_node(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.executor.plan.append(5.0)
    told: list[Ended | GatewayError] = []
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery, scene.node() as node:

            async def ask() -> None:
                told.append(await outcome_of(partial(node.call, order())))

            nursery.start_soon(ask)
            await until(lambda: scene.executor.runs)
            node.store.full = lambda _: True
    assert isinstance(told[0], GatewayError)
    events = [each["event"] for each in logs]
    assert ("operation_abandoned" in events, "life_crashed" in events) == (True, False)


async def test_whoever_waits_for_an_operation_that_was_taken_on_gets_its_result(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.executor.plan.append(5.0)
    made = order(paid_by=payment())
    async with scene.crashing() as node, trio.open_nursery() as nursery:
        nursery.start_soon(outcome_of, partial(node.call, made))
        await until(lambda: scene.executor.runs)
        nursery.cancel_scope.cancel()
    scene.executor.plan.append(3.0)
    async with scene.node() as node:
        operation_id = await node.only("operation_id")
        ended = await node.operations.ask(Join(operation_id), within=60)
        assert ended.operation_id == operation_id


async def test_whoever_only_looked_an_operation_up_is_never_asked_to_pay(
    scene: Scene, autojump_clock: MockClock
) -> None:
    paid_by = payment()
    scene.executor.plan.append(1.0)
    async with scene.node() as node, trio.open_nursery() as nursery:
        results: list[Ended | GatewayError] = []

        async def wait() -> None:
            results.append(await outcome_of(partial(node.call, order(paid_by=paid_by))))

        nursery.start_soon(outcome_of, partial(node.call, order(paid_by=paid_by)))
        await scene.executor.running.wait()
        nursery.start_soon(wait)
        scene.chain.cancelled.add(paid_by.key)
        await until(lambda: results)
        assert isinstance(results[0], OperationInProgress)
        assert not isinstance(results[0], PaymentRequired)


async def test_a_late_joiner_of_a_slow_settlement_keeps_its_own_patience(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.chain.settles.extend(["hang"] * 5)
    made = order(paid_by=payment())
    async with scene.node() as node, trio.open_nursery() as nursery:
        nursery.start_soon(outcome_of, partial(node.call, made))
        await until(lambda: scene.chain.submitted)
        await trio.sleep(14)
        began = trio.current_time()
        assert isinstance(await outcome_of(partial(node.call, made, wait_s=20)), SettlementPending)
        assert trio.current_time() - began == pytest.approx(1, abs=0.5)
        began = trio.current_time()
        assert isinstance(await outcome_of(partial(node.call, made, wait_s=6)), SettlementPending)
        assert trio.current_time() - began == pytest.approx(6, abs=0.1)
        nursery.cancel_scope.cancel()


async def test_a_paid_life_leaves_no_task_behind(scene: Scene, autojump_clock: MockClock) -> None:
    def tasks() -> int:
        every = [trio.lowlevel.current_root_task()]
        for task in every:
            every += [child for nursery in (task.child_nurseries if task else ()) for child in nursery.child_tasks]
        return len(every)

    async with scene.node() as node:
        await trio.sleep(0.1)
        before = tasks()
        for _ in range(3):
            assert isinstance(await node.call(order(paid_by=payment())), Ended)
        scene.chain.settles.append("dropped")
        assert isinstance(await outcome_of(partial(node.call, order(paid_by=payment()))), Ended | SettlementPending)
        await trio.sleep(600)
        assert tasks() == before
