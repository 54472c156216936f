from __future__ import annotations

from functools import partial

import orjson
import pytest
import trio
from trio.testing import MockClock

from gateway.actors.operations import Resolve
from gateway.actors.payment import Payment
from gateway.actors.settlement import Standing
from gateway.errors import OperationNotFound, ResolutionRefused, StoreUnavailable
from gateway.registry.receipts import verify_receipt
from gateway.registry.sealing import NodeSeal
from tests.actors.operations.scene import SIGNER, Node, Scene, order, outcome_of, payment, until

LOST = "0x" + "dd" * 32


async def hand_over(scene: Scene, node: Node, paid_by: Payment) -> str:
    """Let an operation come to the operator: spent on chain, and no trace of it."""
    scene.chain.settles.append("dropped")
    scene.chain.looks.extend([Standing.UNTRACED] * 2000)
    await outcome_of(partial(node.call, order(paid_by=paid_by)))
    await until(lambda: state_is(node, "needs_operator"))
    scene.chain.looks.clear()
    return str(await node.only("operation_id"))


async def state_is(node: Node, state: str) -> bool:
    return bool(await node.only("state") == state)


async def test_an_operation_that_was_paid_is_receipted_and_its_key_gets_the_result(
    scene: Scene, autojump_clock: MockClock
) -> None:
    paid_by = payment()
    async with scene.node() as node:
        operation_id = await hand_over(scene, node, paid_by)
        transaction = scene.chain.mine(paid_by)
        assert await node.operations.ask(Resolve(operation_id, transaction, "found by hand")) == "receipted"
        receipt = orjson.loads(await node.only("receipt"))
        verify_receipt(receipt, SIGNER.key_set)
        assert receipt["settlement"]["transaction"] == transaction
        assert receipt["resultHash"] == await node.only("result_hash")
        assert (receipt["payer"], receipt["quoteId"]) == (paid_by.payer, paid_by.quote_id)
        ended = await node.call(order(paid_by=paid_by))
        assert (ended.replayed, dict(ended.receipt), ended.output["results"]) == (True, receipt, ["tides"])
        history = await node.store.fetch("SELECT state, note FROM operation_events ORDER BY step DESC LIMIT 1")
        assert history == [("receipted", "operator: found by hand")]
        assert scene.chain.looked[-1].hints == (transaction,)


async def test_an_operation_that_was_not_paid_ends_and_its_key_can_buy_the_result(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.node() as node:
        operation_id = await hand_over(scene, node, payment())
        scene.chain.looks.append(Standing.UNTRACED)
        assert await node.operations.ask(Resolve(operation_id, None, "the payer was refunded")) == "failed"
        assert await node.only("settlement", "failure_code", "failure_detail") == (
            "not_settled",
            "settlement_failed",
            "the payer was refunded",
        )
        second = payment()
        ended = await node.call(order(paid_by=second))
        assert ended.receipt["quoteId"] == second.quote_id
    assert len(scene.executor.runs) == 1


@pytest.mark.parametrize("standing", [Standing.UNTRACED, Standing.UNUSED, Standing.EXPIRED, Standing.CANCELLED, "away"])
async def test_a_payment_that_the_chain_does_not_show_is_not_recorded(
    scene: Scene, autojump_clock: MockClock, standing: Standing | str
) -> None:
    async with scene.node() as node:
        operation_id = await hand_over(scene, node, payment())
        scene.chain.looks.append(standing)
        with pytest.raises(ResolutionRefused):
            await node.operations.ask(Resolve(operation_id, LOST, "I think so"))
        assert await node.only("state") == "needs_operator"


async def test_a_payment_that_is_not_deep_enough_is_not_recorded(scene: Scene, autojump_clock: MockClock) -> None:
    paid_by = payment()
    scene.chain.confirmations = 5
    async with scene.node() as node:
        operation_id = await hand_over(scene, node, paid_by)
        transaction = scene.chain.mine(paid_by)
        with pytest.raises(ResolutionRefused, match="not yet deep enough"):
            await node.operations.ask(Resolve(operation_id, transaction, "found"))


async def test_what_the_chain_shows_paid_is_not_ended_as_unpaid(scene: Scene, autojump_clock: MockClock) -> None:
    paid_by = payment()
    async with scene.node() as node:
        operation_id = await hand_over(scene, node, paid_by)
        transaction = scene.chain.mine(paid_by)
        with pytest.raises(ResolutionRefused, match=transaction):
            await node.operations.ask(Resolve(operation_id, None, "never paid"))
        scene.chain.looks.append(Standing.UNUSED)
        with pytest.raises(ResolutionRefused, match="still valid"):
            await node.operations.ask(Resolve(operation_id, None, "never paid"))
        scene.chain.looks.append("away")
        with pytest.raises(ResolutionRefused, match="rpc_timeout"):
            await node.operations.ask(Resolve(operation_id, None, "never paid"))
        assert await node.only("state") == "needs_operator"


async def test_a_diverted_payment_whose_result_was_never_made_ends_unpaid_and_moves_no_money(
    scene: Scene, autojump_clock: MockClock
) -> None:
    paid_by = payment()
    scene.chain.diverted.add(paid_by.key)
    async with scene.node() as node:
        await outcome_of(partial(node.call, order(paid_by=paid_by)))
        operation_id = str(await node.only("operation_id"))
        with pytest.raises(ResolutionRefused, match="another transfer"):
            await node.operations.ask(Resolve(operation_id, LOST, "it paid a part"))
        assert await node.operations.ask(Resolve(operation_id, None, "the payer was refunded")) == "failed"
        assert await node.count("ledger_entries") == 0
        second = payment()
        assert (await node.call(order(paid_by=second))).receipt["quoteId"] == second.quote_id


async def test_only_what_waits_for_a_decision_can_be_decided(scene: Scene, autojump_clock: MockClock) -> None:
    async with scene.node() as node:
        with pytest.raises(OperationNotFound):
            await node.operations.ask(Resolve("op_unknown", None, "why"))
        ended = await node.call(order(paid_by=payment()))
        for paid_by in (None, ended.receipt["settlement"]["transaction"]):
            with pytest.raises(ResolutionRefused, match="receipted"):
                await node.operations.ask(Resolve(ended.operation_id, paid_by, "why"))


async def test_a_decision_is_recorded_once(scene: Scene, autojump_clock: MockClock) -> None:
    async with scene.node() as node:
        operation_id = await hand_over(scene, node, payment())
        scene.chain.looks.extend([Standing.EXPIRED] * 2)
        assert await node.operations.ask(Resolve(operation_id, None, "never paid")) == "failed"
        with pytest.raises(ResolutionRefused):
            await node.operations.ask(Resolve(operation_id, None, "never paid"))


async def test_a_store_that_is_away_records_nothing(scene: Scene, autojump_clock: MockClock) -> None:
    async with scene.node() as node:
        operation_id = await hand_over(scene, node, payment())
        node.store.commits.append("away")
        with pytest.raises(StoreUnavailable):
            await node.operations.ask(Resolve(operation_id, None, "never paid"))
        assert await node.operations.ask(Resolve(operation_id, None, "never paid")) == "failed"


async def test_an_operation_whose_node_key_is_gone_is_receipted_from_its_row(
    scene: Scene, autojump_clock: MockClock
) -> None:
    paid_by = payment()
    made = order(paid_by=paid_by)
    scene.chain.settles.append("slow")
    async with scene.crashing() as node, trio.open_nursery() as nursery:
        nursery.start_soon(outcome_of, partial(node.call, made))
        await until(lambda: scene.chain.mined)
        nursery.cancel_scope.cancel()
    async with scene.node(seal=NodeSeal({2: b"x" * 32})) as node:
        operation_id = await node.only("operation_id")
        assert await node.only("state") == "needs_operator"
        transaction = scene.chain.mined[paid_by.key][0]
        assert await node.operations.ask(Resolve(operation_id, transaction, "the key was lost")) == "receipted"
        assert (await node.call(made)).output["results"] == ["tides"]


# -- after a reorganisation --------------------------------------------------------------------------------------------


async def take_back(scene: Scene, node: Node, paid_by: Payment) -> str:
    """Let a reorganisation take a settled payment away for good."""
    await node.call(order(paid_by=paid_by))
    scene.chain.reorganise(paid_by)
    scene.chain.settles.extend(["dropped"] * 100)
    await until(lambda: alarmed(node))
    return str(await node.only("operation_id"))


async def alarmed(node: Node) -> bool:
    return bool(await node.only("failure_code") == "operator_needed")


async def test_a_receipted_operation_whose_payment_is_found_again_gets_its_receipt(
    scene: Scene, autojump_clock: MockClock
) -> None:
    paid_by = payment()
    async with scene.node() as node:
        operation_id = await take_back(scene, node, paid_by)
        transaction = scene.chain.mine(paid_by)
        assert await node.operations.ask(Resolve(operation_id, transaction, "found")) == "receipted"
        assert await node.only("settlement", "failure_code", "transaction_hash") == ("settled", None, transaction)
        receipt = orjson.loads(await node.only("receipt"))
        verify_receipt(receipt, SIGNER.key_set)
        assert receipt["settlement"]["transaction"] == transaction


async def test_a_receipted_operation_whose_payment_is_lost_keeps_its_result_and_the_ledger_forgets_the_revenue(
    scene: Scene, autojump_clock: MockClock
) -> None:
    paid_by = payment()
    async with scene.node() as node:
        operation_id = await take_back(scene, node, paid_by)
        assert await node.operations.ask(Resolve(operation_id, None, "written off")) == "receipted"
        assert await node.only("settlement", "failure_code") == ("not_settled", "settlement_failed")
        found = await node.store.fetch("SELECT account, SUM(amount) FROM ledger_entries GROUP BY account ORDER BY 1")
        assert [amount for _, amount in found] == [0, 0, 0]
        assert (await node.call(order(paid_by=paid_by))).replayed
