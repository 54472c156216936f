"""Two nodes over one store, on a mock clock: each has the engine to itself in the tests of PostgreSQL."""

from __future__ import annotations

from functools import partial

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.actors.leases import ALONE, Duty, Hold
from gateway.actors.operations import (
    Earlier,
    Elsewhere,
    Ended,
    Exposure,
    Limits,
    Order,
    Overtaken,
    actor,
    exposure,
    left_over,
    rows,
)
from gateway.actors.settlement import Standing, Verdict, Verification
from gateway.errors import ExecutionReconciliation, ExecutorFailed, ExposureLimit, GatewayError, PaymentAlreadyBound
from gateway.registry.operation import Operation
from gateway.registry.sealing import NodeSeal
from tests.actors.operations.scene import (
    ONCE,
    OTHER_PAYER,
    PAID,
    PAYER,
    PRICE,
    Node,
    Scene,
    all_of,
    order,
    outcome_of,
    payment,
    until,
)


async def persist(node: Node, made: Order) -> Ended:
    """Go the pipeline's road until there is an answer, as a caller's request does."""
    while True:
        try:
            return await node.call(made)
        except (Overtaken, Elsewhere):
            await trio.sleep(0.1)


async def test_identical_orders_on_two_nodes_are_one_execution_and_one_settlement(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.node(shared=True) as one, scene.another(one) as two:
        for number in range(8):
            made = order(f"key-number-{number:03}-of-this", payment())
            scene.executor.plan.append(0.7)
            results = await all_of(*[partial(persist, node, made) for _ in range(32) for node in (one, two)])
            assert all(isinstance(each, Ended) for each in results)
            assert len({each.operation_id for each in results if isinstance(each, Ended)}) == 1
            assert sum(not each.replayed for each in results if isinstance(each, Ended)) == 1
    assert (len(scene.executor.runs), len(scene.chain.submitted)) == (8, 8)


async def test_one_authorization_under_many_keys_on_two_nodes_is_one_operation(
    scene: Scene, autojump_clock: MockClock
) -> None:
    paid_by = payment()
    async with scene.node(shared=True) as one, scene.another(one) as two:
        results = await all_of(
            *[partial(persist, (one, two)[i % 2], order(f"key-number-{i:03}-of-this", paid_by)) for i in range(64)]
        )
        assert sum(isinstance(each, Ended) for each in results) == 1
        assert sum(isinstance(each, PaymentAlreadyBound) for each in results) == 63
        assert await one.count() == 1


@pytest.mark.parametrize("settling", [False, True])
async def test_what_a_dead_node_left_is_taken_over_once_its_lease_has_run_out(
    scene: Scene, autojump_clock: MockClock, *, settling: bool
) -> None:
    made = order(paid_by=payment())
    if settling:
        scene.chain.settles.append("hang")
    else:
        scene.executor.plan.append(1000.0)
    async with scene.node(shared=True) as one:
        async with scene.another(one, grace=0) as two, trio.open_nursery() as nursery:
            nursery.start_soon(outcome_of, partial(two.call, made))
            await until(lambda: scene.chain.submitted if settling else scene.executor.runs)
            scene.executor.plan.clear()
            with trio.move_on_after(3) as waited:
                await persist(one, made)
            assert waited.cancelled_caught
            assert await one.only("node", "epoch") == ("node-2", 1)
            nursery.cancel_scope.cancel()
        began = trio.current_time()
        ended = await persist(one, made)
        assert trio.current_time() - began < (30 if settling else 2)
        assert await one.only("node", "epoch", "state") == ("node-1", 2, "receipted")
        assert ended.receipt["funding"] == "paid"
    assert len(scene.executor.runs) == (1 if settling else 2)
    assert list(scene.chain.transfers.values()) == [1]


async def test_a_node_that_stalled_past_its_lease_writes_nothing_of_what_was_taken_over(
    scene: Scene, autojump_clock: MockClock
) -> None:
    made = order(paid_by=payment())
    scene.executor.plan.append(20.0)
    async with scene.node(shared=True) as one, scene.another(one) as two:
        results: list[Ended | GatewayError] = []

        async def stalled() -> None:
            results.append(await outcome_of(partial(two.call, made)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stalled)
            await until(lambda: scene.executor.runs)
            await scene.lease(one, "node-2", alive=False)
            ended = await persist(one, made)
            assert ended.execution["node"] == "node-1"
            await scene.lease(one, "node-2", alive=True)
        assert [type(each) for each in results] == [Elsewhere]
        assert await one.only("node", "epoch", "state") == ("node-1", 2, "receipted")
        assert (await persist(two, made)).receipt == ended.receipt
    assert list(scene.chain.transfers.values()) == [1]


async def test_the_end_of_an_operation_is_heard_on_the_other_node(scene: Scene, autojump_clock: MockClock) -> None:
    made = order(paid_by=payment())
    scene.executor.plan.append(5.0)
    async with scene.node(shared=True) as one, scene.another(one) as two, trio.open_nursery() as nursery:
        nursery.start_soon(one.call, made)
        await until(lambda: scene.executor.runs)
        looks = 0
        while True:
            looks += 1
            try:
                ended = await two.call(made)
                break
            except Elsewhere:
                pass
        assert ended.replayed
        assert 5 / actor.LOOK_AGAIN_S - 2 <= looks <= 5 / actor.LOOK_AGAIN_S + 3


async def test_a_failure_is_told_with_the_row_of_its_attempt(scene: Scene, autojump_clock: MockClock) -> None:
    made = order(paid_by=payment())
    scene.executor.plan.append(ExecutorFailed("the engine is on fire"))
    async with scene.node(shared=True) as one, scene.another(one) as two:
        with pytest.raises(ExecutorFailed):
            await one.call(made)
        earlier = await two.look_up(made)
        assert isinstance(earlier, Earlier)
        assert earlier.failure is not None
        failure = earlier.failure.error("op_1")
        assert (type(failure), failure.detail, failure.operation_id) == (
            ExecutorFailed,
            "the engine is on fire",
            "op_1",
        )
        assert made.payment is not None
        assert earlier.failure.nonce == made.payment.nonce


async def test_a_payers_exposure_is_capped_over_all_nodes_however_they_race(
    scene: Scene, autojump_clock: MockClock
) -> None:
    limits = Limits(unsettled_per_payer=3 * PRICE)
    scene.chain.settles.extend(["hang"] * 20)
    async with (
        scene.node(shared=True, limits=limits) as one,
        scene.another(one, limits=limits) as two,
        trio.open_nursery() as nursery,
    ):
        for i in range(8):
            made = order(f"key-number-{i:03}-of-this", payment())
            nursery.start_soon(outcome_of, partial((one, two)[i % 2].call, made))
        await until(lambda: trio.current_time() > 3)
        assert len(scene.chain.submitted) <= 3
        ((unsettled,),) = await one.store.fetch("SELECT SUM(amount) FROM operations WHERE ended_at IS NULL")
        assert unsettled is None or int(unsettled) <= 3 * PRICE
        refused = await one.store.fetch("SELECT settlement FROM operations WHERE failure_code = 'exposure_limit'")
        assert set(refused) <= {("not_settled",)}
        nursery.cancel_scope.cancel()


async def test_what_the_other_nodes_have_unsettled_counts_before_anything_is_claimed(
    scene: Scene, autojump_clock: MockClock
) -> None:
    limits = Limits(unsettled_per_payer=PRICE, unsettled=2 * PRICE)
    scene.chain.settles.extend(["hang"] * 2)
    third = "0x" + "33" * 20
    async with (
        scene.node(shared=True, limits=limits) as one,
        scene.another(one, limits=limits) as two,
        trio.open_nursery() as nursery,
    ):
        for number, payer in enumerate((PAYER, OTHER_PAYER)):
            paid_by = payment(payer=payer)
            nursery.start_soon(outcome_of, partial(one.call, order(f"key-number-{number:03}-of-this", paid_by)))
        await until(lambda: len(scene.chain.submitted) == 2)
        await trio.sleep(actor.ELSEWHERE_EVERY_S + 0.1)
        with pytest.raises(ExposureLimit, match="payer"):
            await two.call(order("key-number-002-of-this", payment()))
        with pytest.raises(ExposureLimit, match="too much is unsettled"):
            await two.call(order("key-number-003-of-this", payment(payer=third)))
        assert await two.operations.ask(Exposure()) == {}
        assert await two.count() == 2
        nursery.cancel_scope.cancel()


async def test_an_operation_under_a_node_key_that_this_node_lacks_is_left_to_the_others(
    scene: Scene, autojump_clock: MockClock
) -> None:
    made = order(paid_by=payment())
    scene.executor.plan.append(1000.0)
    other_keys = NodeSeal({7: b"k" * 32})
    async with scene.node(shared=True, seal=other_keys) as one:
        async with scene.another(one, grace=0) as two, trio.open_nursery() as nursery:
            nursery.start_soon(outcome_of, partial(two.call, made))
            await until(lambda: scene.executor.runs)
            scene.executor.plan.clear()
            nursery.cancel_scope.cancel()
        await trio.sleep(60)
        assert await one.only("node", "epoch", "state") == ("node-2", 1, "claimed")
        async with scene.another(one, name="node-3") as three:
            assert isinstance(await persist(three, made), Ended)
            assert await one.only("node", "epoch", "state") == ("node-3", 2, "receipted")


async def test_one_node_watches_for_reorganisations_for_all(scene: Scene, autojump_clock: MockClock) -> None:
    paid_by = payment()
    made = order(paid_by=paid_by)
    chosen: dict[str, trio.Event] = {"node-1": trio.Event(), "node-2": trio.Event()}

    def hold(name: str) -> Hold:
        async def when_chosen(_lease: str, duty: Duty, /) -> None:
            await chosen[name].wait()
            await duty(ALONE)

        return when_chosen

    async def transaction_is(transaction: str) -> bool:
        return bool(await one.only("transaction_hash") == transaction)

    async with (
        scene.node(shared=True, hold=hold("node-1")) as one,
        scene.another(one, hold=hold("node-2")) as two,
    ):
        await one.call(made)
        scene.chain.reorganise(paid_by)
        moved = scene.chain.mine(paid_by)
        await trio.sleep(60)
        assert scene.chain.watched == []
        chosen["node-2"].set()
        await until(partial(transaction_is, moved))
        scene.chain.reorganise(paid_by)
        again = scene.chain.mine(paid_by)
        await until(partial(transaction_is, again))
        later = payment()
        await one.call(order("another-key-than-that", later))
        await trio.sleep(2 * left_over.RECONCILE_EVERY_S)
        assert scene.chain.mined[later.key][0] in {each.transaction for each in scene.chain.watched}
        assert (await two.call(made)).receipt["settlement"]["transaction"] == again
        for event in chosen.values():
            event.set()


# -- what is read is old by the time that it is acted upon -------------------------------------------------------------


async def test_a_claim_whose_payers_exposure_is_read_slowly_stays_in_hand(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.node(shared=True) as one:
        one.store.late = lambda sql: 3.0 * (sql == exposure.OF_PAYER)
        results = await all_of(*[partial(persist, one, order(paid_by=payment(), what=ONCE))] * 2)
        assert all(isinstance(each, Ended) for each in results), results
        assert await one.only("epoch", "state") == (1, "receipted")
    assert len(scene.executor.runs) == 1


@pytest.mark.parametrize("what", [PAID, ONCE])
async def test_what_its_owner_kept_while_it_was_being_taken_over_is_not_run_again(
    scene: Scene, autojump_clock: MockClock, what: Operation
) -> None:
    """The owner's last step may be committed after the row was read, and before it is taken over."""
    made = order(paid_by=payment(), what=what)
    scene.executor.plan.append(5.0)
    async with scene.node(shared=True) as one, scene.another(one) as two, trio.open_nursery() as nursery:
        one.store.late = lambda sql: 10.0 * (sql in {rows.OPEN_ROW, rows.HISTORY})
        nursery.start_soon(outcome_of, partial(two.call, made))
        await until(lambda: scene.executor.runs)
        scene.chain.verdicts.append(Verification(Verdict.UNAVAILABLE, "unreachable"))
        scene.chain.settles.append("hang")
        await scene.lease(one, "node-2", alive=False)
        await until(lambda: scene.chain.submitted)
        assert (await one.only("node", "state")) == ("node-2", "executed")
        ended = await persist(one, made)
        assert ended.execution["node"] == "node-2"
        assert await one.only("node", "epoch", "state") == ("node-1", 2, "receipted")
        nursery.cancel_scope.cancel()
    assert len(scene.executor.runs) == 1
    assert list(scene.chain.transfers.values()) == [1]


async def test_a_run_that_was_let_go_before_it_was_taken_over_is_burned_for_nothing_and_its_result_is_nobodys(
    scene: Scene, autojump_clock: MockClock
) -> None:
    made = order(paid_by=payment(), what=ONCE)
    scene.executor.plan.append(8.0)
    told: list[object] = []
    async with scene.node(shared=True) as one, scene.another(one) as two:

        async def first() -> None:
            told.append(await outcome_of(partial(two.call, made)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(first)
            await until(lambda: scene.executor.runs)
            await scene.lease(one, "node-2", alive=False)
            await until(partial(ended_as, one, "execution_reconciliation"))
            assert told == []
        assert isinstance(await outcome_of(partial(one.call, made)), ExecutionReconciliation)
        assert await one.count("ledger_entries") == 0
    assert not isinstance(told[0], Ended)
    assert len(scene.executor.runs) == 1
    assert scene.chain.submitted == []


async def test_a_run_that_was_taken_over_before_it_was_let_go_is_made_by_its_new_owner_alone(
    scene: Scene, autojump_clock: MockClock
) -> None:
    made = order(paid_by=payment(), what=ONCE)
    scene.executor.before.append(8.0)
    async with scene.node(shared=True) as one, scene.another(one) as two, trio.open_nursery() as nursery:
        nursery.start_soon(outcome_of, partial(two.call, made))
        await until(lambda: not scene.executor.before)
        await scene.lease(one, "node-2", alive=False)
        assert (await persist(one, made)).execution["node"] == "node-1"
        await trio.sleep(10)
    assert len(scene.executor.runs) == 1
    assert list(scene.chain.transfers.values()) == [1]


async def ended_as(node: Node, code: str) -> bool:
    return await node.store.fetch("SELECT failure_code FROM operations WHERE ended_at IS NOT NULL") == [(code,)]


async def test_what_is_taken_over_counts_with_what_its_payer_has_unsettled_elsewhere(
    scene: Scene, autojump_clock: MockClock
) -> None:
    """Its own node may have died before it looked."""
    limits = Limits(unsettled_per_payer=PRICE)
    scene.chain.settles.extend(["hang"] * 2)
    async with scene.node(shared=True, limits=limits) as one, trio.open_nursery() as nursery:
        async with scene.another(one, limits=limits, grace=0) as two:
            two.store.late = lambda sql: 100.0 * (sql == exposure.OF_PAYER)
            nursery.start_soon(outcome_of, partial(one.call, order("key-number-1-of-this", payment())))
            await until(lambda: scene.chain.submitted)
            nursery.start_soon(outcome_of, partial(two.call, order("key-number-2-of-this", payment())))
            await until(partial(there_are, 2, one))
        await trio.sleep(5)
        assert len(scene.chain.submitted) == 1
        found = await one.store.fetch("SELECT node, failure_code FROM operations WHERE ended_at IS NOT NULL")
        assert found == [("node-1", "exposure_limit")]
        nursery.cancel_scope.cancel()


async def test_who_lost_the_race_for_an_orphan_takes_it_over_as_soon_as_the_winner_has_died_too(
    scene: Scene, autojump_clock: MockClock
) -> None:
    made = order(paid_by=payment())
    scene.executor.plan.extend([1000.0, 1000.0])
    async with scene.node(shared=True) as one, trio.open_nursery() as nursery:
        async with scene.another(one, grace=0) as two:
            nursery.start_soon(outcome_of, partial(two.call, made))
            await until(lambda: scene.executor.runs)
            one.store.late = lambda sql: 1.0 * (sql == rows.OPEN_ROW)
        await trio.sleep(left_over.TAKE_OVER_EVERY_S + 0.1)
        async with scene.another(one, name="node-3", grace=0) as three:
            await until(partial(owned_by, three, "node-3"))
            await trio.sleep(1)
        began = trio.current_time()
        await until(partial(owned_by, one, "node-1"))
        assert trio.current_time() - began < 2.2
        assert isinstance(await persist(one, made), Ended)


async def there_are(count: int, node: Node) -> bool:
    return await node.count() == count


async def owned_by(node: Node, name: str) -> bool:
    return bool(await node.only("node") == name)


@pytest.mark.parametrize("settling", [False, True])
async def test_who_comes_second_to_a_credit_on_the_other_node_is_not_asked_to_pay(
    scene: Scene, autojump_clock: MockClock, *, settling: bool
) -> None:
    paid_by = payment()
    made = order(paid_by=paid_by)
    scene.chain.mine(paid_by)
    scene.executor.plan.append(ExecutorFailed("down"))
    async with scene.node(shared=True) as one, scene.another(one) as two, trio.open_nursery() as nursery:
        with pytest.raises(ExecutorFailed):
            await one.call(made)
        earlier = await two.look_up(made)
        assert isinstance(earlier, Earlier)
        again = attrs.evolve(made, payment=None, earlier=earlier)
        if settling:
            scene.chain.looks.extend([Standing.PAID, "away", "away", "away"])
        else:
            scene.executor.plan.append(5.0)
        nursery.start_soon(one.submit, again)
        await until(lambda: len(scene.executor.runs) == 2)
        if settling:
            await until(partial(stands_at, one, "executed"))
        with pytest.raises(Overtaken):
            await two.submit(again)
        assert isinstance(await persist(two, attrs.evolve(made, payment=None)), Ended)
    assert len(scene.executor.runs) == 2
    assert scene.chain.submitted == []


async def stands_at(node: Node, state: str) -> bool:
    return bool(await node.only("state") == state)
