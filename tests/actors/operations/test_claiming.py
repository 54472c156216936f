from __future__ import annotations

from functools import partial

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.actors.operations import Earlier, Ended
from gateway.errors import (
    ExecutorFailed,
    IdempotencyKeyReused,
    InternalError,
    OperationInProgress,
    OperatorNeeded,
    PaymentAlreadyBound,
    StoreUnavailable,
)
from gateway.registry.sealing import unseal
from tests.actors.operations.scene import (
    ASSET,
    OTHER_PAYER,
    PAY_TO,
    SEAL,
    Node,
    Scene,
    all_of,
    order,
    outcome_of,
    payment,
    until,
)


async def test_a_claim_binds_key_caller_and_authorization_in_one_step(scene: Scene, autojump_clock: MockClock) -> None:
    paid_by = payment()
    made = order(paid_by=paid_by, names=["an-identifier-of-it"])
    scene.chain.gate = trio.Event()
    async with scene.node() as node, trio.open_nursery() as nursery:
        nursery.start_soon(outcome_of, partial(node.call, made))
        await scene.chain.verifying.wait()
        operation_id = await node.only("operation_id")
        assert await node.store.fetch("SELECT key_hmac, operation_id FROM idempotency_keys ORDER BY rowid") == [
            (name[0].hmac, operation_id) for name in made.names
        ]
        assert await node.count("idempotency_callers") == 4
        assert await node.store.fetch("SELECT * FROM authorizations") == [
            (*paid_by.key, operation_id, await node.only("claimed_at"), paid_by.valid_before)
        ]
        assert await node.history(operation_id) == ["claimed"]
        nursery.cancel_scope.cancel()


async def test_the_store_shows_neither_request_nor_signature(scene: Scene, autojump_clock: MockClock) -> None:
    scene.chain.gate = trio.Event()
    async with scene.node() as node, trio.open_nursery() as nursery:
        nursery.start_soon(outcome_of, partial(node.call, order(paid_by=payment())))
        await scene.chain.verifying.wait()
        operation_id, request, wrap, paid = await node.only(
            "operation_id", "sealed_request", "node_wrap", "sealed_payment"
        )
        assert b"tide" not in request
        assert b"paymentPayload" not in paid
        assert b"tide" in unseal(SEAL.unwrap(operation_id, wrap), operation_id, "request", request)
        nursery.cancel_scope.cancel()


async def test_a_claim_that_loses_leaves_nothing(scene: Scene, autojump_clock: MockClock) -> None:
    paid_by = payment()
    async with scene.node() as node:
        await node.call(order(paid_by=paid_by))
        tables = ("operations", "idempotency_keys", "idempotency_callers", "authorizations", "operation_events")
        before = [await node.count(table) for table in tables]
        with pytest.raises(PaymentAlreadyBound):
            await node.call(order("another-key-than-that", paid_by))
        with pytest.raises(IdempotencyKeyReused):
            await node.submit(order(paid_by=payment(), body={"query": "another"}))
        assert [await node.count(table) for table in tables] == before


async def test_the_same_key_from_elsewhere_may_name_another_request(scene: Scene, autojump_clock: MockClock) -> None:
    async with scene.node() as node:
        first = await node.call(order())
        other = await node.call(order(body={"query": "another"}, network="198.51.100.7"))
        assert first.operation_id != other.operation_id


async def test_a_store_that_is_away_claims_nothing_and_the_same_order_serves_later(
    scene: Scene, autojump_clock: MockClock
) -> None:
    made = order(paid_by=payment())
    async with scene.node() as node:
        node.store.commits.append("away")
        with pytest.raises(StoreUnavailable):
            await node.call(made)
        assert await node.count() == 0
        assert isinstance(await node.call(made), Ended)


async def test_a_defect_in_a_claim_costs_this_order_only(scene: Scene, autojump_clock: MockClock) -> None:
    broken = order("a-key-that-is-broken", payment(valid_before=2**70))
    running = order(paid_by=payment())
    scene.executor.plan.append(2.0)
    async with scene.node() as node:
        results = await all_of(
            partial(node.call, running), partial(node.call, broken), partial(node.call, broken), apart_s=0.1
        )
        assert [type(each) for each in results] == [Ended, InternalError, InternalError]
        assert node.operations.health().crashes == 0


async def test_one_failed_operation_is_taken_on_again_once_whatever_names_it(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.executor.plan.append(ExecutorFailed("down"))
    paid_by = payment()
    async with scene.node() as node:
        with pytest.raises(ExecutorFailed):
            await node.call(order(paid_by=paid_by, names=["an-identifier-of-it"]))
        results = await all_of(
            *[partial(node.call, order(paid_by=paid_by))] * 4,
            *[partial(node.call, order("an-identifier-of-it", paid_by))] * 4,
        )
        assert all(isinstance(each, Ended) for each in results)
        assert await node.only("attempt") == 2
    assert len(scene.executor.runs) == 2


async def test_an_attempt_that_another_has_taken_on_meanwhile_is_in_progress(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.executor.plan.append(ExecutorFailed("down"))
    made = order()
    async with scene.node() as node:
        with pytest.raises(ExecutorFailed):
            await node.call(made)
        stale = await node.look_up(made)
        assert isinstance(stale, Earlier)
        scene.executor.plan.append(ExecutorFailed("down"))
        with pytest.raises(ExecutorFailed):
            await node.call(made)
        with pytest.raises(OperationInProgress):
            await node.submit(attrs.evolve(made, earlier=stale))
        assert isinstance(await node.call(made), Ended)


async def test_the_row_tells_the_payment_of_the_present_attempt(scene: Scene, autojump_clock: MockClock) -> None:
    scene.executor.plan.append(ExecutorFailed("down"))
    async with scene.node() as node:
        with pytest.raises(ExecutorFailed):
            await node.call(order(paid_by=payment(pay_to=OTHER_PAYER)))
        second = payment(payer=OTHER_PAYER, protocol="mpp", challenge_id="ch_1")
        ended = await node.call(order(paid_by=second))
        assert await node.only("pay_to", "payer", "protocol", "network", "asset", "valid_before") == (
            PAY_TO,
            OTHER_PAYER,
            "mpp",
            ASSET.network,
            ASSET.address,
            second.valid_before,
        )
        assert (ended.protocol, ended.challenge_id) == ("mpp", "ch_1")


async def test_a_kept_output_that_cannot_be_opened_is_not_sold(scene: Scene, autojump_clock: MockClock) -> None:
    scene.chain.settles.extend(["dropped"] * 60)
    made = order(paid_by=payment())
    async with scene.node() as node:
        await outcome_of(partial(node.call, made))
        await until(lambda: failed(node))
        stale = await node.look_up(made)
        assert isinstance(stale, Earlier)
        with pytest.raises(OperatorNeeded):
            await node.submit(order(paid_by=payment(), earlier=attrs.evolve(stale, sealed_output=b"x" * 64)))
        assert await node.only("state") == "failed"


async def failed(node: Node) -> bool:
    return bool(await node.only("state") == "failed")
