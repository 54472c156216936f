from __future__ import annotations

from functools import partial

import pytest
import trio
from trio.testing import MockClock

from gateway.actors.operations import Ended
from gateway.actors.settlement import Standing
from gateway.actors.store import Statement
from gateway.registry.receipts import verify_receipt
from tests.actors.operations.scene import SIGNER, Node, Scene, all_of, order, payment, until


async def transaction_is(node: Node, transaction: str) -> bool:
    return bool(await node.only("transaction_hash") == transaction)


async def test_a_payment_that_a_reorganisation_moved_gets_a_receipt_of_its_new_transaction(
    scene: Scene, autojump_clock: MockClock
) -> None:
    paid_by = payment()
    made = order(paid_by=paid_by)
    async with scene.node() as node:
        first = await node.call(made)
        scene.chain.reorganise(paid_by)
        moved = scene.chain.mine(paid_by)
        await until(lambda: transaction_is(node, moved))
        await trio.sleep(20)
        again = await node.call(made)
        assert again.receipt["settlement"]["transaction"] == moved
        assert again.receipt["issuedAt"] == first.receipt["issuedAt"]
        verify_receipt(again.receipt, SIGNER.key_set)
        assert (await node.history(first.operation_id))[-2:] == ["receipted", "settled"]
    assert len(scene.chain.submitted) == 1


async def test_a_payment_that_a_reorganisation_took_is_submitted_again_and_charged_once(
    scene: Scene, autojump_clock: MockClock
) -> None:
    paid_by = payment()
    async with scene.node() as node:
        await node.call(order(paid_by=paid_by))
        scene.chain.reorganise(paid_by)
        await until(lambda: scene.chain.mined)
        await until(lambda: transaction_is(node, scene.chain.mined[paid_by.key][0]))
    assert scene.chain.submitted == [paid_by, paid_by]
    assert scene.chain.transfers == {paid_by.key: 1}


@pytest.mark.parametrize("how", ["expired", "cancelled", "untraced"])
async def test_a_payment_that_is_lost_for_good_is_told_to_the_operator_and_the_result_stands(
    scene: Scene, autojump_clock: MockClock, how: str
) -> None:
    paid_by = payment(valid_for_s=60)
    made = order(paid_by=paid_by)
    async with scene.node() as node:
        await node.call(made)
        scene.chain.reorganise(paid_by)
        scene.chain.settles.extend(["dropped"] * 100)
        if how == "cancelled":
            scene.chain.cancelled.add(paid_by.key)
        if how == "untraced":
            scene.chain.looks.extend([Standing.UNTRACED] * 1000)
        await until(lambda: alarmed(node))
        assert await node.only("state", "settlement") == ("receipted", "unknown")
        await trio.sleep(60)
        assert (await node.call(made)).replayed
        assert (await node.history(await node.only("operation_id")))[-1] == "needs_operator"


@pytest.mark.parametrize("comes_back", [True, False])
async def test_a_payment_that_cannot_be_opened_is_looked_for_until_it_is_dead(
    scene: Scene, autojump_clock: MockClock, *, comes_back: bool
) -> None:
    paid_by = payment(valid_for_s=60)
    async with scene.node() as node:
        await node.call(order(paid_by=paid_by))
        await node.store.commit(Statement("UPDATE operations SET sealed_payment = :odd", {"odd": b"nothing to open"}))
        scene.chain.reorganise(paid_by)
        await trio.sleep(20)
        assert await node.only("settlement", "failure_code") == ("settled", None)
        if comes_back:
            moved = scene.chain.mine(paid_by)
            await until(lambda: transaction_is(node, moved))
        else:
            await until(lambda: alarmed(node))
            assert "dead" in await node.only("failure_detail")
    assert len(scene.chain.submitted) == 1


async def test_a_payment_that_a_reorganisation_turned_into_another_transfer_is_told_to_the_operator(
    scene: Scene, autojump_clock: MockClock
) -> None:
    paid_by = payment()
    async with scene.node() as node:
        await node.call(order(paid_by=paid_by))
        scene.chain.reorganise(paid_by)
        scene.chain.diverted.add(paid_by.key)
        await until(lambda: alarmed(node))
        assert "another transfer" in await node.only("failure_detail")


async def alarmed(node: Node) -> bool:
    return bool(await node.only("failure_code") == "operator_needed")


async def test_a_payment_that_is_missing_is_watched_until_it_is_decided_however_far_the_chain_goes(
    scene: Scene, autojump_clock: MockClock
) -> None:
    paid_by = payment(valid_for_s=3600)
    async with scene.node() as node:
        await node.call(order(paid_by=paid_by))
        scene.chain.reorganise(paid_by)
        scene.chain.settles.extend(["dropped"] * 5)
        await trio.sleep(8)
        scene.chain.head += 500
        await until(lambda: scene.chain.mined)
        await until(lambda: transaction_is(node, scene.chain.mined[paid_by.key][0]))


async def test_a_restarted_node_still_watches(scene: Scene, autojump_clock: MockClock) -> None:
    paid_by = payment()
    async with scene.node() as node:
        await node.call(order(paid_by=paid_by))
    scene.chain.reorganise(paid_by)
    async with scene.node() as node:
        await until(lambda: scene.chain.mined)
        await until(lambda: transaction_is(node, scene.chain.mined[paid_by.key][0]))


async def test_a_node_that_was_down_for_long_looks_once_at_what_it_had_settled(
    scene: Scene, autojump_clock: MockClock
) -> None:
    paid_by = payment(valid_for_s=3 * 3600)
    async with scene.node() as node:
        await node.call(order(paid_by=paid_by))
    scene.chain.reorganise(paid_by)
    scene.chain.head += 5000
    await trio.sleep(2 * 3600)
    async with scene.node() as node:
        await until(lambda: scene.chain.mined)
        await until(lambda: transaction_is(node, scene.chain.mined[paid_by.key][0]))


async def test_a_chain_that_cannot_be_read_alarms_nobody(scene: Scene, autojump_clock: MockClock) -> None:
    async with scene.node() as node:
        await node.call(order(paid_by=payment()))
        scene.chain.looks.extend(["away"] * 20)
        await trio.sleep(60)
        assert await node.only("settlement") == "settled"


async def test_the_payments_of_one_block_are_one_question(scene: Scene, autojump_clock: MockClock) -> None:
    async with scene.node() as node:
        paid = [payment() for _ in range(5)]
        results = await all_of(
            *[partial(node.call, order(f"key-number-{i:03}-of-this", each)) for i, each in enumerate(paid)]
        )
        assert all(isinstance(each, Ended) for each in results)
        for each in paid:
            transaction, _, _ = scene.chain.mined[each.key]
            scene.chain.mined[each.key] = transaction, scene.chain.head, "0xb10c"
            await node.store.commit(_moved(transaction, scene.chain.head))
    async with scene.node():
        scene.chain.watched.clear()
        await trio.sleep(7)
    assert len(scene.chain.watched) == 1


def _moved(transaction: str, head: int) -> Statement:
    return Statement(
        "UPDATE operations SET block_hash = '0xb10c', block_number = :head WHERE transaction_hash = :transaction",
        {"head": head, "transaction": transaction},
    )


async def test_a_payment_deep_enough_is_watched_no_more(scene: Scene, autojump_clock: MockClock) -> None:
    paid_by = payment()
    async with scene.node() as node:
        await node.call(order(paid_by=paid_by))
        scene.chain.head += 65
        await trio.sleep(20)
        moved = scene.chain.mined[paid_by.key]
        scene.chain.mined[paid_by.key] = "0x" + "ee" * 32, *moved[1:]
        await trio.sleep(60)
        assert await node.only("settlement", "transaction_hash") == ("settled", moved[0])
        scene.chain.mined[paid_by.key] = moved
