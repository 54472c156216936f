"""A crash in each durable state, and what the next start makes of it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from gateway.actors.operations import Ended
from gateway.actors.operations.recovery import TRIES
from gateway.errors import (
    ExecutionReconciliation,
    ExecutorFailed,
    OperatorNeeded,
    StoreUnavailable,
)
from gateway.registry.sealing import NodeSeal
from tests.actors.operations.scene import (
    ONCE,
    TABLE,
    Node,
    Scene,
    crash_when,
    order,
    outcome_of,
    payment,
    state_is,
    until,
)


async def test_a_claimed_operation_is_verified_and_goes_on(scene: Scene, autojump_clock: MockClock) -> None:
    made = order(paid_by=payment())
    scene.chain.gate = trio.Event()
    await crash_when(scene, made, lambda _: scene.chain.verified)
    async with scene.node() as node:
        ended = await node.call(made)
        assert ended.execution["attempt"] == 1
        history = await node.store.fetch("SELECT state, note, epoch FROM operation_events ORDER BY step")
        assert history[1] == ("claimed", "taken on by node-1", 2)
    assert (len(scene.chain.verified), len(scene.executor.runs), len(scene.chain.submitted)) == (2, 1, 1)


async def test_an_execution_that_was_cut_off_is_run_again(scene: Scene, autojump_clock: MockClock) -> None:
    made = order(paid_by=payment())
    scene.executor.plan.append(5.0)
    await crash_when(scene, made, lambda _: scene.executor.runs)
    async with scene.node() as node:
        assert isinstance(await node.call(made), Ended)
    assert (len(scene.executor.runs), len(scene.chain.submitted)) == (2, 1)


async def test_a_free_execution_that_was_cut_off_is_run_again(scene: Scene, autojump_clock: MockClock) -> None:
    scene.executor.plan.append(5.0)
    await crash_when(scene, order(), lambda _: scene.executor.runs)
    async with scene.node() as node:
        assert isinstance(await node.call(order()), Ended)


@pytest.mark.parametrize("how", ["hang", "slow", "dropped", "lost"])
async def test_a_settlement_that_was_cut_off_is_decided_by_the_chain(
    scene: Scene, autojump_clock: MockClock, how: str
) -> None:
    made = order(paid_by=payment())
    scene.chain.settles.append(how)
    await crash_when(scene, made, lambda _: scene.chain.submitted)
    async with scene.node() as node:
        assert isinstance(await node.call(made), Ended)
    assert len(scene.executor.runs) == 1


async def test_a_payment_settled_before_the_crash_is_not_submitted_again(
    scene: Scene, autojump_clock: MockClock
) -> None:
    made = order(paid_by=payment())
    scene.chain.settles.append("slow")
    await crash_when(scene, made, lambda _: scene.chain.mined)
    async with scene.node() as node:
        assert isinstance(await node.call(made), Ended)
    assert len(scene.chain.submitted) == 1


async def test_a_receipted_operation_replays_after_a_crash(scene: Scene, autojump_clock: MockClock) -> None:
    made = order(paid_by=payment())
    await crash_when(scene, made, partial(receipted))
    async with scene.node() as node:
        assert (await node.call(made)).replayed
        await trio.sleep(30)
    assert (len(scene.executor.runs), len(scene.chain.submitted)) == (1, 1)


async def receipted(node: Node) -> bool:
    return await node.count() == 1 and await node.only("state") == "receipted"


async def test_a_settlement_open_over_the_authorizations_end_ends_without_a_charge(
    scene: Scene, autojump_clock: MockClock
) -> None:
    made = order(paid_by=payment())
    scene.chain.settles.append("hang")
    await crash_when(scene, made, lambda _: scene.chain.submitted)
    await trio.sleep(3600)
    async with scene.node() as node:
        await until(lambda: state_is(node, "failed"))
        assert await node.only("settlement", "failure_code") == ("not_settled", "settlement_failed")


async def test_a_claim_that_is_taken_on_too_late_is_not_run_on_an_authorization_that_would_not_outlive_it(
    scene: Scene, autojump_clock: MockClock
) -> None:
    made = order(paid_by=payment(valid_for_s=60))
    scene.chain.gate = trio.Event()
    await crash_when(scene, made, lambda _: scene.chain.verified)
    await trio.sleep(40)
    async with scene.node() as node:
        await until(lambda: state_is(node, "failed"))
        assert await node.only("failure_code") == "authorization_expires_too_soon"
    assert scene.executor.runs == []


async def test_a_run_that_must_not_be_repeated_is_burned_without_asking_anybody(
    scene: Scene, autojump_clock: MockClock
) -> None:
    paid_by = payment()
    made = order(paid_by=paid_by, what=ONCE)
    scene.executor.plan.append(5.0)
    await crash_when(scene, made, lambda _: scene.executor.runs)
    async with scene.node() as node:
        with pytest.raises(ExecutionReconciliation):
            await node.call(made)
        assert await node.count("authorizations") == 0
        assert isinstance(await node.call(order("another-key-than-that", paid_by, what=ONCE)), Ended)
    assert (len(scene.executor.runs), len(scene.chain.verified)) == (2, 2)


async def test_what_must_run_once_is_run_after_a_crash_that_came_before_it_was_let_go_of(
    scene: Scene, autojump_clock: MockClock
) -> None:
    made = order(paid_by=payment(), what=ONCE)
    scene.executor.before.append(5.0)
    await crash_when(scene, made, lambda _: not scene.executor.before)
    assert scene.executor.runs == []
    async with scene.node() as node:
        ended = await node.call(made)
        assert ended.execution["attempt"] == 1
        assert await node.only("released_attempt") == 1
    assert len(scene.executor.runs) == 1


async def test_the_next_attempt_is_not_taken_for_let_go_of_since_the_one_before_was(
    scene: Scene, autojump_clock: MockClock
) -> None:
    made = order(paid_by=payment(), what=ONCE)
    scene.executor.plan.append(ExecutorFailed("not started"))
    async with scene.node() as node:
        await outcome_of(partial(node.call, made))
        assert await node.only("released_attempt", "attempt") == (1, 1)
    scene.executor.before.append(5.0)
    await crash_when(scene, made, lambda _: not scene.executor.before)
    async with scene.node() as node:
        ended = await node.call(made)
        assert ended.execution["attempt"] == 2
    assert len(scene.executor.runs) == 2


async def test_a_run_that_must_not_be_repeated_is_burned_even_where_it_is_not_sold_any_more(
    scene: Scene, autojump_clock: MockClock
) -> None:
    made = order(paid_by=payment(), what=ONCE)
    scene.executor.plan.append(5.0)
    await crash_when(scene, made, lambda _: scene.executor.runs)
    async with scene.node(table={}) as node:
        assert await node.only("state", "failure_code") == ("failed", "execution_reconciliation")
        assert await node.count("authorizations") == 0


async def test_a_result_kept_by_an_earlier_attempt_is_not_made_again_after_a_crash(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.chain.settles.extend(["dropped"] * 60)
    async with scene.node() as node:
        await outcome_of(partial(node.call, order(paid_by=payment())))
        await until(lambda: state_is(node, "failed"))
    second = payment()
    scene.chain.settles.clear()
    scene.chain.gate = trio.Event()
    asked = len(scene.chain.verified)
    await crash_when(scene, order(paid_by=second), lambda _: len(scene.chain.verified) > asked)
    async with scene.node() as node:
        assert isinstance(await node.call(order(paid_by=second)), Ended)
    assert len(scene.executor.runs) == 1
    assert scene.chain.transfers == {second.key: 1}


def has_run(scene: Scene, runs: int, _: Node) -> bool:
    return len(scene.executor.runs) > runs


async def test_an_attempt_that_crashes_the_node_again_and_again_is_given_up(
    scene: Scene, autojump_clock: MockClock
) -> None:
    made = order(paid_by=payment())
    for _ in range(TRIES + 1):
        scene.executor.plan.append(5.0)
        runs = len(scene.executor.runs)
        await crash_when(scene, made, partial(has_run, scene, runs))
    scene.executor.plan.clear()
    async with scene.node() as node:
        assert await node.only("state", "failure_code") == ("failed", "execution_failed")
        ended = await node.call(made)
        assert ended.execution["attempt"] == 2
    assert len(scene.executor.runs) == TRIES + 2


@pytest.mark.parametrize("state", ["claimed", "executed"])
async def test_a_row_that_cannot_be_opened_ends_or_goes_to_the_operator(
    scene: Scene, autojump_clock: MockClock, state: str
) -> None:
    made = order(paid_by=payment())
    if state == "claimed":
        scene.chain.gate = trio.Event()
        await crash_when(scene, made, lambda _: scene.chain.verified)
    else:
        scene.chain.settles.append("hang")
        await crash_when(scene, made, lambda _: scene.chain.submitted)
    async with scene.node(seal=NodeSeal({2: b"x" * 32})) as node:
        if state == "claimed":
            assert await node.only("state", "failure_code") == ("failed", "execution_failed")
            assert isinstance(await node.call(made), Ended)
        else:
            assert await node.only("state", "settlement") == ("needs_operator", "unknown")
            with pytest.raises(OperatorNeeded):
                await node.call(made)


async def test_a_row_of_another_shape_does_not_keep_the_node_from_starting(
    scene: Scene, autojump_clock: MockClock
) -> None:
    def reshaped(*_: object) -> Any:
        raise KeyError("region")

    made = order(paid_by=payment())
    scene.chain.gate = trio.Event()
    await crash_when(scene, made, lambda _: scene.chain.verified)
    async with scene.node(structure=reshaped) as node:
        assert await node.only("state", "failure_code") == ("failed", "execution_failed")
        assert isinstance(await node.call(made), Ended)


async def test_a_settlement_is_seen_to_even_if_the_operation_is_not_sold_any_more(
    scene: Scene, autojump_clock: MockClock
) -> None:
    made = order(paid_by=payment())
    scene.chain.settles.append("lost")
    await crash_when(scene, made, lambda _: scene.chain.submitted)
    async with scene.node(table={}) as node:
        await until(lambda: state_is(node, "receipted"))
        assert isinstance(await node.call(made), Ended)


async def test_an_operation_that_is_not_sold_any_more_ends_without_a_charge(
    scene: Scene, autojump_clock: MockClock
) -> None:
    paid_by = payment()
    scene.chain.gate = trio.Event()
    await crash_when(scene, order(paid_by=paid_by), lambda _: scene.chain.verified)
    table = {name: each for name, each in TABLE.items() if name != "search.paid"}
    async with scene.node(table=table) as node:
        assert await node.only("state", "settlement") == ("failed", "not_settled")
        assert await node.count("authorizations") == 0


async def test_who_looks_an_operation_up_while_it_is_being_claimed_waits_for_it(
    scene: Scene, autojump_clock: MockClock
) -> None:
    made = order(paid_by=payment())
    async with scene.node() as node:
        committed = node.store.real.commit

        class SlowToAnswer:
            async def commit(self, *statements: Any, relaxed: bool = False) -> Any:
                done = await committed(*statements, relaxed=relaxed)
                await trio.sleep(0.5)
                return done

            fetch = node.store.real.fetch
            fetch_many = node.store.real.fetch_many
            tell, hear, shared = node.store.real.tell, node.store.real.hear, False

        node.store.real = SlowToAnswer()  # type: ignore[assignment]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.call, made)
            await trio.sleep(0.2)
            ended = await node.call(made)
            assert ended.replayed


@pytest.mark.parametrize("how", ["lost", "unsure"])
async def test_a_claim_of_unknown_outcome_is_found_out(scene: Scene, autojump_clock: MockClock, how: str) -> None:
    made = order(paid_by=payment())
    async with scene.node() as node:
        node.store.commits.append(how)
        with pytest.raises(StoreUnavailable) as told:
            await node.call(made)
        assert told.value.operation_id is not None
        assert await node.count() == (how == "lost")
        if how == "lost":
            await until(lambda: state_is(node, "receipted"))
        assert isinstance(await node.call(made), Ended)
    assert (len(scene.executor.runs), len(scene.chain.submitted)) == (1, 1)


async def test_a_failed_attempt_of_a_lost_execution_keeps_its_failure(scene: Scene, autojump_clock: MockClock) -> None:
    scene.executor.plan.append(ExecutorFailed("down"))
    async with scene.crashing() as node:
        with pytest.raises(ExecutorFailed):
            await node.call(order(paid_by=payment()))
    async with scene.node() as node:
        await trio.sleep(30)
        assert await node.only("state", "failure_code", "attempt") == ("failed", "executor_failed", 1)
