"""What a facilitator and a chain can do to a payment, and what becomes of the operation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.actors.operations import Ended, Order
from gateway.actors.operations.pace import TURNS_A_SECOND, TURNS_AT_ONCE
from gateway.actors.payment import Payment
from gateway.actors.settlement import Standing, Verdict, Verification
from gateway.errors import (
    OperatorNeeded,
    PayerHasCode,
    SettlementFailed,
    SettlementPending,
)
from tests.actors.operations.scene import (
    OTHER_PAYER,
    PRICE,
    START_MS,
    Node,
    Scene,
    all_of,
    crash_when,
    order,
    outcome_of,
    payment,
    until,
)

# -- settle and look ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("faults", "submissions"),
    [
        (["lost"], 1),
        (["slow"], 1),
        (["dropped"], 2),
        (["unsent", "unsent"], 3),
        (["refused"], 2),
        (["hang"], 2),
        (["dropped", "hang", "unsent", "lost"], 4),
    ],
)
async def test_whatever_a_settlement_answers_the_payer_pays_once_and_gets_the_result(
    scene: Scene, autojump_clock: MockClock, faults: Sequence[str], submissions: int
) -> None:
    paid_by = payment()
    scene.chain.settles.extend(faults)
    async with scene.node() as node:
        told = await outcome_of(partial(node.call, order(paid_by=paid_by)))
        assert isinstance(told, Ended | SettlementPending)
        await until(lambda: scene.chain.mined)
        await until(lambda: receipted(node))
        assert isinstance(await node.call(order(paid_by=paid_by)), Ended)
    assert scene.chain.submitted == [paid_by] * submissions
    assert (len(scene.executor.runs), scene.chain.transfers[paid_by.key]) == (1, 1)


async def test_what_stays_open_is_submitted_and_looked_for_ever_more_rarely(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.chain.settles.extend(["refused"] * 99)
    async with scene.node() as node, trio.open_nursery() as nursery:
        nursery.start_soon(outcome_of, partial(node.call, order(paid_by=payment(valid_for_s=460))))
        await trio.sleep(20)
        assert (len(scene.chain.submitted), len(scene.chain.looked)) == (4, 4)
        await trio.sleep(400)
        assert len(scene.chain.submitted) <= 12
        assert len(scene.chain.looked) <= 12
        scene.chain.settles.clear()
        await until(lambda: receipted(node))


async def test_all_that_stays_open_is_submitted_and_looked_for_at_a_bounded_rate(
    scene: Scene, autojump_clock: MockClock
) -> None:
    count = 300
    scene.chain.settles.extend(["dropped"] * 9999)
    async with scene.node() as node, trio.open_nursery() as nursery:
        for i in range(count):
            nursery.start_soon(outcome_of, partial(node.call, order(f"key-number-{i:03}-of-this", payment())))
        await trio.sleep(5)
        assert len(scene.chain.submitted) == count
        began = len(scene.chain.submitted) + len(scene.chain.looked)
        await trio.sleep(60)
        asked = len(scene.chain.submitted) + len(scene.chain.looked) - began
        assert asked <= 60 * TURNS_A_SECOND + TURNS_AT_ONCE
        other = payment(payer=OTHER_PAYER)
        scene.chain.settles.clear()
        asked_at = trio.current_time()
        assert isinstance(await node.call(order("a-key-of-somebody-else", other)), Ended)
        assert trio.current_time() - asked_at < 1
        nursery.cancel_scope.cancel()


async def test_a_transaction_that_is_mined_long_after_its_answer_was_lost_still_counts(
    scene: Scene, autojump_clock: MockClock
) -> None:
    paid_by = payment()
    scene.chain.settles.extend(["late", *["dropped"] * 30])
    async with scene.node() as node:
        assert isinstance(await outcome_of(partial(node.call, order(paid_by=paid_by))), SettlementPending)
        await until(lambda: receipted(node))
        assert trio.current_time() >= 60
    assert set(map(str, scene.chain.submitted)) == {str(paid_by)}


async def receipted(node: Node) -> bool:
    return bool(await node.only("state") == "receipted")


async def test_while_the_settlement_is_unknown_everybody_is_told_that_it_is_pending_and_nobody_to_pay(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.chain.settles.extend(["hang"] * 3)
    made = order(paid_by=payment())
    async with scene.node() as node:
        began = trio.current_time()
        results = await all_of(*[partial(node.call, made)] * 3)
        assert trio.current_time() - began == pytest.approx(15, abs=0.1)
        assert all(isinstance(each, SettlementPending) for each in results)
        assert len({id(each) for each in results}) == 3
        later = await outcome_of(partial(node.call, made, wait_s=2))
        assert isinstance(later, SettlementPending)
        assert later.operation_id == await node.only("operation_id")
        await until(lambda: receipted(node))
        assert isinstance(await node.call(made), Ended)


async def test_a_chain_that_cannot_be_read_leaves_the_settlement_open_until_it_can(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.chain.looks.extend(["away"] * 8)
    made = order(paid_by=payment())
    async with scene.node() as node:
        assert isinstance(await outcome_of(partial(node.call, made)), SettlementPending)
        assert await node.only("state", "settlement") == ("executed", "unknown")
        await until(lambda: receipted(node))
        assert isinstance(await node.call(made), Ended)
    assert len(scene.chain.submitted) == 1


async def test_a_shallow_payment_is_not_released(scene: Scene, autojump_clock: MockClock) -> None:
    scene.chain.confirmations = 2
    made = order(paid_by=payment())
    async with scene.node() as node:
        assert isinstance(await outcome_of(partial(node.call, made)), SettlementPending)
        assert await node.only("state") == "executed"
        scene.chain.head += 1
        await until(lambda: receipted(node))
    assert len(scene.chain.submitted) == 1


async def test_an_authorization_that_expires_unused_ends_without_a_charge_and_the_result_can_be_bought_again(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.chain.settles.extend(["dropped"] * 60)
    first = payment()
    async with scene.node(payer_hold_s=5.0) as node:
        assert isinstance(await outcome_of(partial(node.call, order(paid_by=first))), SettlementPending)
        await until(lambda: failed(node))
        assert await node.only("settlement", "failure_code") == ("not_settled", "settlement_failed")
        assert await node.count("ledger_entries") == 4
        scene.chain.settles.clear()
        second = payment()
        ended = await node.call(order(paid_by=second))
        assert ended.receipt["quoteId"] == second.quote_id
        assert await node.count("ledger_entries") == 8
    assert len(scene.executor.runs) == 1
    assert scene.chain.transfers == {second.key: 1}


async def failed(node: Node) -> bool:
    return bool(await node.only("state") == "failed")


async def test_a_payment_cancelled_between_verify_and_settle_withholds_the_result(
    scene: Scene, autojump_clock: MockClock
) -> None:
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
        assert await node.only("state") == "failed"
        assert await node.count("payer_holds") == 1


async def test_a_spent_authorization_without_a_trace_goes_to_the_operator_at_last(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.chain.settles.append("dropped")
    scene.chain.looks.extend([Standing.UNTRACED] * 500)
    made = order(paid_by=payment())
    async with scene.node() as node:
        assert isinstance(await outcome_of(partial(node.call, made)), SettlementPending)
        await until(lambda: ended(node))
        assert await node.only("state", "settlement", "failure_code") == (
            "needs_operator",
            "unknown",
            "operator_needed",
        )
        with pytest.raises(OperatorNeeded):
            await node.call(made)
        held = await node.store.fetch("SELECT SUM(amount) FROM ledger_entries WHERE account = 'hold'")
        assert held == [(PRICE,)]
        assert await node.only("output_until", "tombstone_until") == (None, None)


@pytest.mark.parametrize("behind_days", [-401, 401])
async def test_no_payment_is_given_up_by_a_wrong_clock(
    scene: Scene, autojump_clock: MockClock, behind_days: int
) -> None:
    """Its authorization is spent and its transaction cannot be found yet: the chain's time tells how long to look."""
    scene.chain.looks.extend([Standing.UNTRACED] * 8)
    made = order(paid_by=payment())

    def clock_ms() -> int:
        return scene.clock_ms() - behind_days * 24 * 3600 * 1000

    async with scene.node(clock_ms=clock_ms) as node:
        await outcome_of(partial(node.call, made))
        await until(lambda: ended(node))
        assert await node.only("state", "settlement") == ("receipted", "settled")


async def ended(node: Node) -> bool:
    return bool(await node.only("ended_at") is not None)


async def test_a_facilitator_that_verifies_a_payment_of_before_the_quote_releases_nothing(
    scene: Scene, autojump_clock: MockClock
) -> None:
    old = payment()
    scene.chain.mine(old)
    scene.chain.times[scene.chain.head] = START_MS // 1000 - 61
    scene.chain.verdicts.append(Verification(Verdict.VALID))
    made = order(paid_by=attrs.evolve(old, quoted_head=scene.chain.head, quoted_at=START_MS // 1000))
    async with scene.node() as node:
        with pytest.raises(OperatorNeeded, match="before its quote"):
            await node.call(made)
        await waits_for_the_operator(node, made)


async def test_a_payment_that_settles_here_on_a_chain_that_became_shorter_is_delivered(
    scene: Scene, autojump_clock: MockClock
) -> None:
    made = order(paid_by=payment(quoted_head=scene.chain.head + 10, quoted_at=START_MS // 1000))
    scene.chain.times[scene.chain.head + 1] = START_MS // 1000 - 2
    async with scene.node() as node:
        assert (await node.call(made)).receipt["settlement"]["status"] == "settled"


async def test_a_payment_of_an_account_with_code_that_never_settles_is_told_as_that(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.chain.settles.extend(["refused"] * 60)
    paid_by = payment()
    scene.chain.with_code.add(paid_by.payer)
    async with scene.node(settle_wait_s=600.0) as node:
        told = await outcome_of(partial(node.call, order(paid_by=paid_by), wait_s=600.0))
        assert isinstance(told, PayerHasCode)
        assert await node.count("payer_holds") == 1


# -- a token that takes a fee -----------------------------------------------------------------------------------------


async def waits_for_the_operator(node: Node, made: Order) -> None:
    """The payer has lost tokens: no answer says that nothing was charged, and none asks for another payment."""
    assert await node.only("state", "settlement", "failure_code") == ("needs_operator", "unknown", "operator_needed")
    with pytest.raises(OperatorNeeded) as told:
        await node.call(made)
    assert told.value.operation_id == await node.only("operation_id")
    assert "Do not sign another payment" in (told.value.next or "")
    assert await node.count("payer_holds") == 0


async def test_a_payment_that_was_diverted_before_it_came_here_waits_for_the_operator(
    scene: Scene, autojump_clock: MockClock
) -> None:
    made = order(paid_by=payment())
    scene.chain.diverted.add(paid(made).key)
    async with scene.node() as node:
        with pytest.raises(OperatorNeeded, match="another transfer"):
            await node.call(made)
        await waits_for_the_operator(node, made)
        assert await node.count("ledger_entries") == 0
    assert (scene.executor.runs, scene.chain.submitted) == ([], [])


async def test_a_payment_that_is_diverted_when_it_settles_waits_for_the_operator(
    scene: Scene, autojump_clock: MockClock
) -> None:
    made = order(paid_by=payment())
    scene.executor.plan.append(1.0)
    async with scene.node() as node, trio.open_nursery() as nursery:
        results: list[object] = []

        async def ask() -> None:
            results.append(await outcome_of(partial(node.call, made)))

        nursery.start_soon(ask)
        await scene.executor.running.wait()
        scene.chain.diverted.add(paid(made).key)
        await until(lambda: results)
        assert isinstance(results[0], OperatorNeeded)
        await waits_for_the_operator(node, made)
        held = await node.store.fetch("SELECT SUM(amount) FROM ledger_entries WHERE account = 'hold'")
        assert held == [(PRICE,)]


async def test_a_diverted_payment_is_found_by_who_takes_the_operation_on(
    scene: Scene, autojump_clock: MockClock
) -> None:
    made = order(paid_by=payment())
    scene.chain.settles.append("hang")
    await crash_when(scene, made, lambda _: scene.chain.settling.is_set())
    scene.chain.diverted.add(paid(made).key)
    async with scene.node() as node:
        await until(lambda: ended(node))
        await waits_for_the_operator(node, made)


def paid(made: Order) -> Payment:
    assert made.payment is not None
    return made.payment
