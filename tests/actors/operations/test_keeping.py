from __future__ import annotations

from functools import partial

import attrs
import orjson
import pytest
import trio
from trio.testing import MockClock

from gateway.actors.operations import Ended, rows
from gateway.actors.operations.keeping import settled_in, unsigned_receipt
from gateway.actors.settlement import Sighting, Standing
from gateway.errors import ExecutorFailed, PayerOnHold, SettlementFailed, SettlementPending, StoreUnavailable
from gateway.registry.receipts import verify_receipt
from tests.actors.operations.scene import (
    ASSET,
    FREE,
    ONCE,
    OTHER_PAYER,
    PAY_TO,
    SIGNER,
    Node,
    Scene,
    order,
    outcome_of,
    payment,
    until,
)


async def state_is(node: Node, state: str) -> bool:
    return bool(await node.only("state") == state)


async def test_the_receipt_binds_request_result_payment_and_transaction(
    scene: Scene, autojump_clock: MockClock
) -> None:
    paid_by = payment()
    async with scene.node() as node:
        ended = await node.call(order(paid_by=paid_by))
        receipt = dict(ended.receipt)
        verify_receipt(receipt, SIGNER.key_set)
        assert receipt["requestHash"] == order(paid_by=paid_by).request_hash
        assert receipt["resultHash"] == await node.only("result_hash")
        assert (receipt["payer"], receipt["payTo"], receipt["quoteId"]) == (paid_by.payer, PAY_TO, paid_by.quote_id)
        assert receipt["settlement"] == {
            "status": "settled",
            "transaction": scene.chain.mined[paid_by.key][0],
            "network": ASSET.network,
            "authorizationNonce": paid_by.nonce,
        }
        assert receipt["route"] == {"routeId": "search/index", "qualificationId": "q_1"}
        assert orjson.loads(await node.only("receipt")) == receipt


async def test_what_must_never_run_twice_is_let_go_of_by_a_flushed_step_even_where_it_is_free(
    scene: Scene, autojump_clock: MockClock
) -> None:
    free = attrs.evolve(ONCE, paid=False, price=lambda _: 0)
    async with scene.node(table={free.id: free}) as node:
        await node.call(order(what=free))
        assert node.store.relaxed == [True, False, True]


async def test_of_a_paid_call_only_the_claim_is_relaxed_which_a_flush_follows_before_anything_is_settled(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.node() as node:
        await node.call(order(what=FREE))
        assert node.store.relaxed == [True, True]
        node.store.relaxed.clear()
        await node.call(order("a-key-of-another-call", paid_by=payment()))
        assert node.store.relaxed == [True, False, False]


async def test_the_ledger_follows_the_life(scene: Scene, autojump_clock: MockClock) -> None:
    async with scene.node() as node:
        await node.call(order(paid_by=payment()))
        found = await node.store.fetch("SELECT step, account, amount FROM ledger_entries ORDER BY step, account")
        payer = "payer:0x70997970c51812dc3a010c7d01b50e0d17dc79c8"
        assert found == [
            ("executed.1", "hold", 6000),
            ("executed.1", payer, -6000),
            ("receipted", "hold", -6000),
            ("receipted", "revenue", 6000),
        ]


async def test_an_output_leaves_the_nodes_own_key_with_the_receipt(scene: Scene, autojump_clock: MockClock) -> None:
    async with scene.node() as node:
        await node.call(order(paid_by=payment()))
        assert await node.only("node_wrap") is None
        scene.executor.plan.append(ExecutorFailed("down"))
        with pytest.raises(ExecutorFailed):
            await node.call(order("another-key-than-that"))
        assert await node.store.fetch("SELECT 1 FROM operations WHERE node_wrap IS NOT NULL") == []


async def test_a_request_is_kept_no_longer_than_its_operation_is_open(scene: Scene, autojump_clock: MockClock) -> None:
    scene.chain.gate = trio.Event()
    async with scene.node() as node:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(node.call, order(paid_by=payment())))
            await scene.chain.verifying.wait()
            assert await node.only("length(sealed_request)") > 0
            scene.chain.gate.set()
        assert await node.only("state", "length(sealed_request)") == ("receipted", 0)


async def test_who_takes_a_failed_operation_on_again_brings_its_request(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.node() as node:
        scene.executor.plan.append(ExecutorFailed("not started"))
        await outcome_of(partial(node.call, order()))
        assert await node.only("state", "length(sealed_request)") == ("failed", 0)
        await node.call(order())
        assert await node.only("state", "attempt", "length(sealed_request)") == ("receipted", 2, 0)


async def test_a_payer_whose_payment_failed_waits_and_is_served_again_after_that(
    scene: Scene, autojump_clock: MockClock
) -> None:
    paid_by = payment()
    scene.executor.plan.append(1.0)
    async with scene.node(payer_hold_s=900.0) as node:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outcome_of, partial(node.call, order(paid_by=paid_by)))
            await scene.executor.running.wait()
            scene.chain.cancelled.add(paid_by.key)
            await until(lambda: state_is(node, "failed"))
        with pytest.raises(PayerOnHold) as told:
            await node.call(order("another-key-than-that", payment()))
        assert 890 < (told.value.retry_after or 0) <= 900
        assert await node.count("authorizations") == 1
        assert isinstance(await node.call(order("a-third-key-than-that", payment(payer=OTHER_PAYER))), Ended)
        await trio.sleep(901)
        assert isinstance(await node.call(order("another-key-than-that", payment())), Ended)


async def test_a_payer_on_hold_may_pay_for_the_result_that_is_there(scene: Scene, autojump_clock: MockClock) -> None:
    scene.chain.settles.extend(["refused"] * 60)
    async with scene.node() as node:
        await outcome_of(partial(node.call, order(paid_by=payment())))
        await until(lambda: state_is(node, "failed"))
        scene.chain.settles.clear()
        assert await node.count("payer_holds") == 1
        assert isinstance(await node.call(order(paid_by=payment())), Ended)
    assert len(scene.executor.runs) == 1


async def test_a_payment_that_never_reached_the_facilitator_is_not_the_payers_fault(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.chain.settles.extend(["unsent"] * 60)
    async with scene.node() as node:
        await outcome_of(partial(node.call, order(paid_by=payment())))
        await until(lambda: state_is(node, "failed"))
        assert await node.count("payer_holds") == 0


async def test_nothing_is_submitted_while_the_output_cannot_be_kept(scene: Scene, autojump_clock: MockClock) -> None:
    made = order(paid_by=payment())
    async with scene.node() as node:
        node.store.full = lambda statements: any("state = 'executed'" in each.sql for each in statements)
        told = await outcome_of(partial(node.call, made))
        assert isinstance(told, SettlementPending)
        assert await node.only("state", "settlement") == ("claimed", "not_settled")
        assert scene.chain.submitted == []
        node.store.full = lambda _: False
        await until(lambda: state_is(node, "receipted"))
        assert isinstance(await node.call(made), Ended)
    assert len(scene.chain.submitted) == 1


async def test_a_settled_payment_whose_receipt_cannot_be_kept_is_receipted_later(
    scene: Scene, autojump_clock: MockClock
) -> None:
    made = order(paid_by=payment())
    async with scene.node() as node:
        node.store.full = lambda statements: any("state = 'receipted'" in each.sql for each in statements)
        assert isinstance(await outcome_of(partial(node.call, made)), SettlementPending)
        await trio.sleep(60)
        assert await node.only("state") == "executed"
        node.store.full = lambda _: False
        await until(lambda: state_is(node, "receipted"))
    assert (len(scene.chain.submitted), len(scene.executor.runs)) == (1, 1)


async def test_a_refusal_that_is_not_durable_asks_nobody_to_pay_anew(scene: Scene, autojump_clock: MockClock) -> None:
    paid_by = payment()
    scene.chain.cancelled.add(paid_by.key)
    async with scene.node() as node:
        node.store.full = lambda statements: any("failure_code = :failure_code" in each.sql for each in statements)
        assert isinstance(await outcome_of(partial(node.call, order(paid_by=paid_by))), StoreUnavailable)
        node.store.full = lambda _: False
        await until(lambda: state_is(node, "failed"))


async def test_a_cancelled_authorization_never_shows_as_settled(scene: Scene, autojump_clock: MockClock) -> None:
    paid_by = payment()
    scene.executor.plan.append(1.0)
    async with scene.node() as node, trio.open_nursery() as nursery:
        results: list[object] = []

        async def ask() -> None:
            results.append(await outcome_of(partial(node.call, order(paid_by=paid_by))))

        nursery.start_soon(ask)
        await scene.executor.running.wait()
        scene.chain.cancelled.add(paid_by.key)
        await until(lambda: results)
        assert isinstance(results[0], SettlementFailed)
        assert await node.only("settlement", "transaction_hash") == ("not_settled", None)


def test_a_settlement_that_was_not_seen_is_none() -> None:
    with pytest.raises(RuntimeError):
        settled_in(None)
    with pytest.raises(RuntimeError):
        settled_in(Sighting(Standing.UNUSED, 7))
    assert settled_in(Sighting(Standing.PAID, 7, "0xaa", 6, "0xbb")) == rows.Settled("0xaa", 6, "0xbb")


def test_a_receipt_of_a_free_operation_names_no_payer() -> None:
    said = unsigned_receipt("op_1", "search.free", "sha256:0", rows.Result("sha256:1", "{}", 0), ASSET, None, None, 0)
    assert (said["funding"], said["charge"]["usd"], "payer" in said) == ("free", "0.000000", False)
