from __future__ import annotations

from functools import partial
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.actors.operations import Ended, Exposure, Join, Limits, actor
from gateway.actors.settlement import Verdict, Verification
from gateway.errors import (
    CapacityExhausted,
    ExecutorFailed,
    ExposureLimit,
    GatewayError,
    IdempotencyKeyReused,
    OperationInProgress,
    PaymentAlreadyBound,
    PaymentRefused,
)
from tests.actors.operations.scene import OTHER_PAYER, PRICE, Node, Scene, all_of, order, outcome_of, payment, until


async def test_a_free_operation_is_executed_and_receipted(scene: Scene, autojump_clock: MockClock) -> None:
    async with scene.node() as node:
        ended = await node.call(order())
        assert (ended.replayed, ended.receipt["funding"], ended.receipt["settlement"]["status"]) == (
            False,
            "free",
            "not_required",
        )
        assert await node.history(ended.operation_id) == ["claimed", "executing", "executed", "receipted"]
        assert await node.count("ledger_entries") == 0


async def test_a_paid_operation_is_verified_executed_settled_and_receipted(
    scene: Scene, autojump_clock: MockClock
) -> None:
    paid_by = payment()
    async with scene.node() as node:
        ended = await node.call(order(paid_by=paid_by))
        assert ended.receipt["settlement"]["transaction"] == scene.chain.mined[paid_by.key][0]
        assert ended.receipt["charge"]["amountAtomic"] == str(PRICE)
        assert await node.history(ended.operation_id) == [
            "claimed",
            "verified",
            "executing",
            "executed",
            "settling",
            "settled",
            "receipted",
        ]
    assert scene.chain.transfers == {paid_by.key: 1}


async def test_the_same_key_replays_without_any_call(scene: Scene, autojump_clock: MockClock) -> None:
    async with scene.node() as node:
        first = await node.call(order(paid_by=payment()))
        again = await node.call(order(paid_by=payment()))
        assert again == attrs.evolve(first, replayed=True)
    assert (len(scene.chain.verified), len(scene.executor.runs)) == (1, 1)


async def test_64_identical_paid_orders_are_one_execution_one_settlement_and_64_equal_answers(
    scene: Scene, autojump_clock: MockClock
) -> None:
    made = order(paid_by=payment())
    async with scene.node() as node:
        results = await all_of(*[partial(node.call, made)] * 64)
        assert all(isinstance(each, Ended) for each in results)
        assert len({each.operation_id for each in results if isinstance(each, Ended)}) == 1
        assert sum(not each.replayed for each in results if isinstance(each, Ended)) == 1
    assert (len(scene.executor.runs), len(scene.chain.submitted)) == (1, 1)


async def test_64_identical_free_orders_are_one_execution_however_late_some_come(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.node() as node:

        async def late(delay: float) -> Ended:
            made = order()
            known = await node.look_up(made)
            await trio.sleep(delay)
            assert known is None
            return await node.submit(made)

        results = await all_of(*[partial(late, index * 0.05) for index in range(64)])
        assert all(isinstance(each, Ended) for each in results)
    assert len(scene.executor.runs) == 1


async def test_64_orders_with_one_authorization_and_different_keys_are_one_operation(
    scene: Scene, autojump_clock: MockClock
) -> None:
    paid_by = payment()
    async with scene.node() as node:
        results = await all_of(*[partial(node.call, order(f"key-number-{i:03}-of-this", paid_by)) for i in range(64)])
        assert sum(isinstance(each, Ended) for each in results) == 1
        assert sum(isinstance(each, PaymentAlreadyBound) for each in results) == 63
        assert await node.count() == await node.count("authorizations") == await node.count("idempotency_keys") == 1
        assert await node.operations.ask(Exposure()) == {}
    assert len(scene.executor.runs) == 1


async def test_of_two_credentials_for_one_key_the_loser_is_neither_claimed_nor_settled(
    scene: Scene, autojump_clock: MockClock
) -> None:
    one, other = payment(), payment()
    async with scene.node() as node:
        first, second = await all_of(partial(node.call, order(paid_by=one)), partial(node.call, order(paid_by=other)))
        assert isinstance(first, Ended)
        assert isinstance(second, Ended)
        assert second.receipt == first.receipt
        assert await node.count("authorizations") == 1
    assert scene.chain.verified == scene.chain.submitted
    assert scene.chain.verified in ([one], [other])


async def test_a_joined_order_is_not_told_that_its_payment_is_refused_when_another_one_was(
    scene: Scene, autojump_clock: MockClock
) -> None:
    poor, rich = payment(), payment(payer=OTHER_PAYER)
    scene.chain.gate = trio.Event()
    scene.chain.verdicts.append(Verification(Verdict.INVALID, "insufficient_funds"))
    async with scene.node() as node, trio.open_nursery() as nursery:
        results: list[Ended | GatewayError] = []

        async def ask() -> None:
            calls = partial(node.call, order(paid_by=poor)), partial(node.call, order(paid_by=rich))
            results.extend(await all_of(*calls, apart_s=0.01))

        nursery.start_soon(ask)
        await scene.chain.verifying.wait()
        await trio.sleep(0.1)
        scene.chain.gate.set()
        await until(lambda: results)
        assert isinstance(results[0], PaymentRefused)
        assert isinstance(results[1], OperationInProgress)
        ended = await node.call(order(paid_by=rich))
        assert ended.receipt["payer"] == OTHER_PAYER
    assert scene.chain.submitted == [rich]


async def test_each_of_many_who_wait_gets_a_failure_of_its_own(scene: Scene, autojump_clock: MockClock) -> None:
    scene.executor.plan.append(ExecutorFailed("down"))
    made = order(paid_by=payment())
    async with scene.node() as node:
        results = await all_of(*[partial(node.call, made)] * 8)
        assert all(isinstance(each, ExecutorFailed) for each in results)
        assert len({id(each) for each in results}) == 8
        assert len({id(each.headers) for each in results if isinstance(each, GatewayError)}) == 8


async def test_whoever_lost_a_race_for_one_payment_does_not_take_those_along_who_wait_on_its_key(
    scene: Scene, autojump_clock: MockClock
) -> None:
    bound, good = payment(), payment(payer=OTHER_PAYER)
    async with scene.node() as node:
        await node.call(order("the-first-key-of-all", bound))
        calls = partial(node.submit, order(paid_by=bound)), partial(node.submit, order(paid_by=good))
        bad, fine = await all_of(*calls, apart_s=0)
        assert isinstance(bad, PaymentAlreadyBound)
        assert isinstance(fine, Ended)
        assert fine.receipt["payer"] == OTHER_PAYER


async def test_a_caller_who_used_the_key_before_does_not_take_another_along(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.node() as node:
        await node.call(order(body={"query": "another"}))
        calls = partial(node.submit, order()), partial(node.submit, order(network="198.51.100.7"))
        mine, theirs = await all_of(*calls, apart_s=0)
        assert isinstance(mine, IdempotencyKeyReused)
        assert isinstance(theirs, Ended)


async def test_a_key_and_an_identifier_that_name_two_running_operations_are_a_conflict(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.executor.plan.extend([1.0, 1.0])
    async with scene.node() as node:
        results = await all_of(
            partial(node.call, order("the-first-key-of-all")),
            partial(node.call, order("the-second-key-of-all")),
            partial(node.submit, order("the-first-key-of-all", names=["the-second-key-of-all"])),
            apart_s=0.1,
        )
        assert [type(each) for each in results] == [Ended, Ended, IdempotencyKeyReused]


async def test_a_second_name_of_an_operation_that_runs_joins_it(scene: Scene, autojump_clock: MockClock) -> None:
    async with scene.node() as node:
        first, second = await all_of(
            partial(node.call, order("the-first-key-of-all", names=["an-identifier-of-it"])),
            partial(node.call, order("an-identifier-of-it")),
        )
        assert isinstance(first, Ended)
        assert isinstance(second, Ended)
        assert first.operation_id == second.operation_id


async def test_a_cancelled_asker_takes_nothing_along(scene: Scene, autojump_clock: MockClock) -> None:
    made = order(paid_by=payment())
    async with scene.node() as node:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(node.call, made)
                await scene.chain.settling.wait()
                scope.cancel()
        ended = await node.call(made)
        assert isinstance(ended, Ended)
    assert (len(scene.executor.runs), len(scene.chain.submitted)) == (1, 1)


async def test_no_more_operations_are_open_than_the_limit_allows(scene: Scene, autojump_clock: MockClock) -> None:
    scene.executor.plan.extend([5.0] * 2)
    async with scene.node(limits=Limits(operations=2)) as node:
        results = await all_of(
            *[
                partial(node.call, order(f"key-number-{i:03}-of-this", names=[f"name-number-{i:03}-x"]))
                for i in range(3)
            ],
            apart_s=0.1,
        )
        assert [type(each) for each in results] == [Ended, Ended, CapacityExhausted]
        assert await node.count() == 2
        assert isinstance(await node.call(order("key-number-002-of-this")), Ended)


async def test_what_waits_for_its_settlement_takes_no_slot_of_what_runs(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.chain.settles.extend(["hang"] * 3)
    async with scene.node(limits=Limits(operations=2, settling=3)) as node, trio.open_nursery() as nursery:
        for i in range(3):
            nursery.start_soon(outcome_of, partial(node.call, order(f"key-number-{i:03}-of-this", payment())))
            await until(partial(submitted, scene, i + 1))
        for i in range(3):
            assert isinstance(await node.call(order(f"free-number-{i:03}-of-this")), Ended)
        with pytest.raises(CapacityExhausted, match="settlements"):
            await node.call(order("key-number-003-of-this", payment()))
        await until(lambda: len(scene.chain.mined) == 3)
        await until(lambda: exposed(node, {}))
        assert isinstance(await node.call(order("key-number-003-of-this", payment())), Ended)


def submitted(scene: Scene, count: int) -> bool:
    return len(scene.chain.submitted) == count


async def test_unsettled_exposure_is_capped_for_a_payer(scene: Scene, autojump_clock: MockClock) -> None:
    scene.chain.settles.extend(["hang", "hang"])
    async with scene.node(limits=Limits(unsettled_per_payer=2 * PRICE)) as node, trio.open_nursery() as nursery:
        for i in range(2):
            nursery.start_soon(outcome_of, partial(node.call, order(f"key-number-{i:03}-of-this", payment())))
        await until(lambda: len(scene.chain.submitted) == 2)
        assert sum((await node.operations.ask(Exposure())).values()) == 2 * PRICE
        third = payment()
        with pytest.raises(ExposureLimit):
            await node.call(order("key-number-003-of-this", third))
        assert await node.count("authorizations") == 2
        other = await node.call(order("key-number-004-of-this", payment(payer=OTHER_PAYER)))
        assert other.receipt["payer"] == OTHER_PAYER
        await until(lambda: len(scene.chain.mined) == 3)
        assert (await node.call(order("key-number-003-of-this", third))).receipt["payer"] == third.payer
        await until(lambda: exposed(node, {}))


async def exposed(node: Node, expected: dict[str, int]) -> bool:
    return await node.operations.ask(Exposure()) == expected


async def test_unsettled_exposure_is_capped_for_the_node(scene: Scene, autojump_clock: MockClock) -> None:
    scene.chain.settles.append("hang")
    async with scene.node(limits=Limits(unsettled=PRICE)) as node, trio.open_nursery() as nursery:
        nursery.start_soon(outcome_of, partial(node.call, order(paid_by=payment())))
        await until(lambda: scene.chain.submitted)
        with pytest.raises(ExposureLimit):
            await node.call(order("another-key-than-that", payment(payer=OTHER_PAYER)))


async def test_a_joiner_is_told_when_it_has_waited_long_enough(scene: Scene, autojump_clock: MockClock) -> None:
    scene.executor.plan.append(10.0)
    async with scene.node() as node, trio.open_nursery() as nursery:
        nursery.start_soon(node.call, order())
        await scene.executor.running.wait()
        began = trio.current_time()
        with pytest.raises(OperationInProgress) as told:
            await node.call(order(), wait_s=3)
        assert trio.current_time() - began == pytest.approx(3)
        assert told.value.operation_id == await node.only("operation_id")
        with pytest.raises(OperationInProgress):
            await node.call(order(), wait_s=0)
        assert isinstance(await node.call(order()), Ended)


async def test_an_unknown_operation_is_not_waited_for(scene: Scene, autojump_clock: MockClock) -> None:
    async with scene.node() as node:
        with pytest.raises(OperationInProgress):
            await node.operations.ask(Join("op_unknown"))


async def test_nothing_is_left_in_hand_when_all_has_ended(scene: Scene, autojump_clock: MockClock) -> None:
    desks: list[actor.Desk] = []

    class KeptDesk(actor.Desk):
        def __init__(self, *parts: Any) -> None:
            super().__init__(*parts)
            desks.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(actor, "Desk", KeptDesk)
        async with scene.node() as node:
            await all_of(*[partial(node.call, order(f"key-number-{i:03}-of-this", payment())) for i in range(8)])
            await all_of(*[partial(node.call, order(f"free-number-{i:03}-of-this")) for i in range(8)])
            scene.executor.plan.append(ValueError("a defect"))
            await outcome_of(partial(node.call, order("one-that-fails-of-this")))
            await trio.sleep(30)
            (desk,) = desks
            assert not desk.claims
            assert not desk.lives
            assert not desk.by_key
            assert not desk.keys_of
            assert desk.unsettled.total == 0
