from __future__ import annotations

from functools import partial

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.actors.operations import Ended, Limits, Order
from gateway.actors.settlement import Verdict, Verification
from gateway.errors import (
    ExecutionReconciliation,
    ExecutorFailed,
    FacilitatorUnavailable,
    GatewayError,
    InsufficientFunds,
    InternalError,
    PaymentAlreadyBound,
    PaymentRequired,
)
from gateway.registry.execution import Served
from tests.actors.operations.scene import ONCE, PAID, PRICE, Node, Scene, order, outcome_of, output, payment, until


async def test_a_failed_execution_charges_nothing_and_the_next_attempt_may_succeed(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.executor.plan.append(ExecutorFailed("the engine is down"))
    made = order(paid_by=payment())
    async with scene.node() as node:
        with pytest.raises(ExecutorFailed) as told:
            await node.call(made)
        assert told.value.operation_id == await node.only("operation_id")
        assert scene.chain.submitted == []
        assert await node.count("ledger_entries") == 0
        ended = await node.call(made)
        assert ended.execution["attempt"] == 2
        assert await node.history(ended.operation_id) == [
            *("claimed", "verified", "executing", "failed"),
            *("claimed", "verified", "executing", "executed", "settling", "settled", "receipted"),
        ]
    assert [work.attempt for work in scene.executor.runs] == [1, 2]


async def test_an_execution_is_measured(scene: Scene, autojump_clock: MockClock) -> None:
    scene.executor.plan.append(1.5)
    async with scene.node() as node:
        ended = await node.call(order())
        assert ended.execution["durationMs"] == 1500
        assert dict(ended.execution) | {"startedAt": 0, "finishedAt": 0} == {
            "searches": 1,
            "startedAt": 0,
            "finishedAt": 0,
            "durationMs": 1500,
            "attempt": 1,
            "node": "node-1",
        }


async def test_an_execution_past_its_deadline_is_a_failure(scene: Scene, autojump_clock: MockClock) -> None:
    scene.executor.plan.append(12.5)
    async with scene.node() as node:
        with pytest.raises(ExecutorFailed, match="12 s"):
            await node.call(order(paid_by=payment()))


@pytest.mark.parametrize(
    "served",
    [
        ValueError("a defect"),
        InsufficientFunds("an executor asks for no money"),
        Served({"route": {}, "strange": object()}, {}),
        Served({"route": {}, "number": 2**60}, {}),
        Served({"route": {}, "number": float("nan")}, {}),
        Served({"route": {}}, None),  # type: ignore[arg-type]
    ],
)
async def test_a_defect_of_an_executor_costs_one_attempt(
    scene: Scene, autojump_clock: MockClock, served: Served | Exception
) -> None:
    scene.executor.plan.append(served)
    made = order(paid_by=payment())
    async with scene.node() as node:
        with pytest.raises(InternalError):
            await node.call(made)
        assert await node.only("state", "settlement") == ("failed", "not_settled")
        assert isinstance(await node.call(made), Ended)
    assert len(scene.chain.submitted) == 1


async def test_a_result_too_large_to_be_kept_is_a_failure(scene: Scene, autojump_clock: MockClock) -> None:
    scene.executor.plan.append(Served(output("x" * 2**21), {}))
    async with scene.node() as node:
        with pytest.raises(ExecutorFailed, match="too large"):
            await node.call(order(paid_by=payment()))
    assert scene.chain.submitted == []


@pytest.mark.parametrize(
    "happened",
    [
        ExecutionReconciliation("outcome unknown"),
        ValueError("a defect"),
        13.0,
        Served(output("x" * 2**21), {}),
        Served({"route": {}, "strange": object()}, {}),
    ],
)
async def test_a_run_that_may_have_happened_burns_its_key_and_frees_its_payment(
    scene: Scene, autojump_clock: MockClock, happened: Exception | float | Served
) -> None:
    scene.executor.plan.append(happened)
    paid_by = payment()
    made = order(paid_by=paid_by, what=ONCE)
    async with scene.node() as node:
        for _ in range(3):
            with pytest.raises(ExecutionReconciliation):
                await node.call(made)
        assert len(scene.executor.runs) == 1
        assert await node.count("authorizations") == 0
        ended = await node.call(order("another-key-than-that", paid_by, what=ONCE))
        assert ended.receipt["quoteId"] == paid_by.quote_id
        assert isinstance(
            await outcome_of(partial(node.call, order("a-third-key-of-it", paid_by))), PaymentAlreadyBound
        )


async def test_a_run_that_failed_for_certain_may_be_tried_again_even_if_it_must_not_be_repeated(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.executor.plan.append(ExecutorFailed("not started"))
    made = order(paid_by=payment(), what=ONCE)
    async with scene.node() as node:
        with pytest.raises(GatewayError):
            await node.call(made)
        assert isinstance(await node.call(made), Ended)


async def test_what_was_not_let_go_of_by_its_deadline_may_be_tried_again(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.executor.before.append(13.0)
    made = order(paid_by=payment(), what=ONCE)
    async with scene.node() as node:
        with pytest.raises(ExecutorFailed, match="not finished within 12 s"):
            await node.call(made)
        assert scene.executor.runs == []
        assert isinstance(await node.call(made), Ended)


async def test_what_must_run_once_does_not_begin_where_that_cannot_be_kept(
    scene: Scene, autojump_clock: MockClock
) -> None:
    made = order(paid_by=payment(), what=ONCE)
    async with scene.node() as node:
        node.store.full = lambda statements: any("SET released_attempt" in each.sql for each in statements)
        with pytest.raises(GatewayError):
            await node.call(made)
        assert scene.executor.runs == []
        node.store.full = lambda _: False
        assert isinstance(await node.call(made), Ended)
    assert len(scene.executor.runs) == 1


async def test_a_request_may_have_a_deadline_of_its_own(scene: Scene, autojump_clock: MockClock) -> None:
    slow = attrs.evolve(PAID, own_deadline_s=lambda _: 20.0)
    scene.executor.plan.append(15.0)
    async with scene.node(table={PAID.id: slow}) as node:
        assert isinstance(await node.call(order(paid_by=payment(), what=slow)), Ended)


async def test_a_payment_made_by_somebody_else_is_a_credit_when_the_execution_fails(
    scene: Scene, autojump_clock: MockClock
) -> None:
    paid_by, other = payment(), payment()
    scene.chain.mine(paid_by)
    scene.executor.plan.append(ExecutorFailed("down"))
    async with scene.node() as node:
        with pytest.raises(ExecutorFailed):
            await node.call(order(paid_by=paid_by))
        assert await node.only("state", "settlement", "transaction_hash") == (
            "failed",
            "settled",
            scene.chain.mined[paid_by.key][0],
        )
        ended = await node.call(order(paid_by=other))
        assert ended.receipt["quoteId"] == paid_by.quote_id
    assert scene.chain.submitted == []
    assert scene.chain.transfers == {paid_by.key: 1}


async def test_a_credit_outlives_its_authorization_and_needs_no_credential(
    scene: Scene, autojump_clock: MockClock
) -> None:
    paid_by = payment()
    scene.chain.mine(paid_by)
    scene.executor.plan.append(ExecutorFailed("down"))
    made = order(paid_by=paid_by)
    async with scene.node() as node:
        with pytest.raises(ExecutorFailed):
            await node.call(made)
        await trio.sleep(3600)
        ended = await node.call(attrs.evolve(made, payment=None))
        assert ended.receipt["settlement"]["transaction"] == scene.chain.mined[paid_by.key][0]


async def credited(scene: Scene, node: Node) -> Order:
    """An order without a payment that names a failed attempt which the chain shows paid."""
    made = order(paid_by=(paid_by := payment()))
    scene.chain.mine(paid_by)
    scene.executor.plan.append(ExecutorFailed("down"))
    with pytest.raises(ExecutorFailed):
        await node.call(made)
    return attrs.evolve(made, payment=None)


UNREACHABLE = Verification(Verdict.UNAVAILABLE, "unreachable")


async def test_a_credit_outlives_an_attempt_that_could_not_verify_it(scene: Scene, autojump_clock: MockClock) -> None:
    async with scene.node() as node:
        made = await credited(scene, node)
        before = await node.only("settlement", "transaction_hash", "block_number", "block_hash")
        for _ in range(2):
            scene.chain.verdicts.append(UNREACHABLE)
            with pytest.raises(FacilitatorUnavailable):
                await node.call(made)
            assert await node.only("settlement", "transaction_hash", "block_number", "block_hash") == before
        assert isinstance(await node.call(made), Ended)
    assert scene.chain.submitted == []


async def test_a_credit_outlives_the_crash_of_the_attempt_that_uses_it(scene: Scene, autojump_clock: MockClock) -> None:
    async with scene.crashing() as node, trio.open_nursery() as nursery:
        made = await credited(scene, node)
        scene.executor.plan.append(1000.0)
        nursery.start_soon(outcome_of, partial(node.call, made))
        await until(lambda: len(scene.executor.runs) == 2)
        nursery.cancel_scope.cancel()
    scene.executor.plan.clear()
    scene.chain.verdicts.append(UNREACHABLE)
    async with scene.node() as node:
        assert isinstance(await outcome_of(partial(node.call, made)), FacilitatorUnavailable)
        assert await node.only("state", "settlement") == ("failed", "settled")
        assert isinstance(await node.call(made), Ended)


async def test_a_credit_outlives_a_node_that_cannot_take_its_attempt_on(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.crashing() as node, trio.open_nursery() as nursery:
        made = await credited(scene, node)
        scene.executor.plan.append(1000.0)
        nursery.start_soon(outcome_of, partial(node.call, made))
        await until(lambda: len(scene.executor.runs) == 2)
        nursery.cancel_scope.cancel()
    async with scene.node(table={}) as node:
        assert await node.only("state", "settlement") == ("failed", "settled")


async def test_a_credit_that_a_reorganisation_took_is_none(scene: Scene, autojump_clock: MockClock) -> None:
    async with scene.node() as node:
        made = await credited(scene, node)
        (paid_by,) = scene.chain.verified
        scene.chain.reorganise(paid_by)
        scene.chain.verdicts.append(Verification(Verdict.INVALID, "insufficient_funds"))
        await outcome_of(partial(node.call, made))
        assert await node.only("state", "settlement", "transaction_hash") == ("failed", "not_settled", None)
        with pytest.raises(PaymentRequired):
            await node.call(made)


async def test_a_credit_is_at_nobodys_risk_and_held_against_no_limit(scene: Scene, autojump_clock: MockClock) -> None:
    async with scene.node(shared=True, limits=Limits(unsettled_per_payer=PRICE)) as node:
        made = await credited(scene, node)
        scene.chain.settles.append("hang")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outcome_of, partial(node.call, order("another-key-than-that", payment(), what=PAID)))
            await until(lambda: scene.chain.submitted)
            assert isinstance(await node.call(made), Ended)
            nursery.cancel_scope.cancel()


async def test_a_paid_operation_without_any_payment_is_not_run_for_free(
    scene: Scene, autojump_clock: MockClock
) -> None:
    made = attrs.evolve(order(paid_by=payment()), payment=None)
    async with scene.node() as node:
        with pytest.raises(PaymentRequired):
            await node.call(made)
        assert await node.count() == 0
    assert scene.executor.runs == []
