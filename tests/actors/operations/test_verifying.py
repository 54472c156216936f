"""What a facilitator and a chain say of a payment before anything runs, and what becomes of the operation."""

from __future__ import annotations

from functools import partial

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.actors.operations import Ended
from gateway.actors.settlement import Standing, Verdict, Verification
from gateway.errors import (
    AuthorizationExpiresTooSoon,
    AuthorizationUsed,
    FacilitatorUnavailable,
    InsufficientFunds,
    PayerHasCode,
    PaymentAlreadyBound,
    PaymentRejected,
    PaymentRequired,
    SettlementPending,
    SignatureInvalid,
)
from tests.actors.operations.scene import (
    START_MS,
    Scene,
    order,
    outcome_of,
    payment,
    state_is,
    until,
)


def refused(reason: str) -> Verification:
    return Verification(Verdict.INVALID, reason)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("insufficient_funds", InsufficientFunds),
        ("invalid_exact_evm_payload_signature", SignatureInvalid),
        ("invalid_network", PaymentRejected),
    ],
)
async def test_a_refused_payment_is_refused_and_nothing_runs(
    scene: Scene, autojump_clock: MockClock, reason: str, kind: type[PaymentRequired]
) -> None:
    scene.chain.verdicts.append(refused(reason))
    paid_by = payment()
    async with scene.node() as node:
        with pytest.raises(kind) as told:
            await node.call(order(paid_by=paid_by))
        assert await node.only("state", "settlement", "failure_code") == ("failed", "not_settled", kind.code)
        assert told.value.operation_id == await node.only("operation_id")
        assert await node.count("ledger_entries") == 0
        ended = await node.call(order(paid_by=paid_by))
        assert (ended.execution["attempt"], ended.operation_id) == (2, told.value.operation_id)
    assert (len(scene.executor.runs), len(scene.chain.submitted)) == (1, 1)


async def test_the_next_attempt_may_bring_another_payment(scene: Scene, autojump_clock: MockClock) -> None:
    scene.chain.verdicts.append(refused("insufficient_funds"))
    first, second = payment(), payment()
    async with scene.node() as node:
        with pytest.raises(InsufficientFunds):
            await node.call(order(paid_by=first))
        ended = await node.call(order(paid_by=second))
        assert ended.receipt["quoteId"] == second.quote_id
        assert await node.only("nonce", "quote_id") == (second.nonce, second.quote_id)
    assert scene.chain.submitted == [second]


async def test_a_facilitator_that_is_away_refuses_nobody_and_the_same_credential_serves_later(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.chain.verdicts.append(Verification(Verdict.UNAVAILABLE, "timeout"))
    made = order(paid_by=payment())
    async with scene.node() as node:
        with pytest.raises(FacilitatorUnavailable):
            await node.call(made)
        assert isinstance(await node.call(made), Ended)
    assert len(scene.executor.runs) == 1


async def test_a_refusal_that_the_chain_cannot_explain_asks_for_no_other_payment(
    scene: Scene, autojump_clock: MockClock
) -> None:
    for standing in ("away", Standing.UNTRACED):
        scene.chain.verdicts.append(refused("invalid_transaction_state"))
        scene.chain.looks.append(standing)
    made = order(paid_by=payment())
    async with scene.node() as node:
        for _ in range(2):
            with pytest.raises(SettlementPending):
                await node.call(made)
            assert await node.only("state", "settlement") == ("failed", "unknown")
        assert isinstance(await node.call(made), Ended)


async def test_a_refusal_that_the_chain_contradicts_asks_for_no_other_payment(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.chain.verdicts.append(refused("invalid_exact_evm_nonce_already_used"))
    made = order(paid_by=payment())
    async with scene.node() as node:
        with pytest.raises(SettlementPending):
            await node.call(made)
        assert await node.only("state", "settlement") == ("failed", "unknown")
        assert isinstance(await node.call(made), Ended)


async def test_a_payment_that_somebody_else_submitted_is_served_once_and_not_submitted_again(
    scene: Scene, autojump_clock: MockClock
) -> None:
    paid_by = payment()
    scene.chain.mine(paid_by)
    async with scene.node() as node:
        ended = await node.call(order(paid_by=paid_by))
        assert ended.receipt["settlement"]["transaction"] == scene.chain.mined[paid_by.key][0]
    assert scene.chain.submitted == []
    assert len(scene.executor.runs) == 1


async def test_a_payment_that_was_made_before_its_quote_buys_nothing(scene: Scene, autojump_clock: MockClock) -> None:
    bought = payment()
    scene.chain.mine(bought)
    async with scene.node() as node:
        for blocks_later, key in enumerate(("a-first-key-of-a-thief", "a-second-key-of-a-thief")):
            quoted = attrs.evolve(bought, quote_id="qt_of_a_thief", quoted_head=scene.chain.head + blocks_later)
            with pytest.raises(PaymentAlreadyBound, match="before its quote"):
                await node.call(order(key, quoted))
        found = await node.store.fetch("SELECT DISTINCT state, settlement, transaction_hash FROM operations")
        assert found == [("failed", "not_settled", None)]
        assert await node.count("authorizations") == 0
        # whoever bought with it, and is unknown to this store, is served with the quote of then
        ended = await node.call(order(paid_by=attrs.evolve(bought, quoted_head=scene.chain.head - 1)))
        assert ended.receipt["settlement"]["transaction"] == scene.chain.mined[bought.key][0]
    assert (len(scene.executor.runs), scene.chain.submitted) == (1, [])


@pytest.mark.parametrize(("made_s", "earlier"), [(-1, True), (0, False), (3, False)])
async def test_a_quote_that_does_not_say_its_block_is_held_against_the_time_of_the_payments(
    scene: Scene, autojump_clock: MockClock, made_s: int, *, earlier: bool
) -> None:
    paid_by = payment(quoted_at=START_MS // 1000)
    scene.chain.mine(paid_by)
    scene.chain.times[scene.chain.head] = START_MS // 1000 + made_s
    async with scene.node() as node:
        told = await outcome_of(partial(node.call, order(paid_by=paid_by)))
    assert isinstance(told, PaymentAlreadyBound if earlier else Ended)


async def test_a_payment_whose_block_cannot_be_read_is_looked_at_again(scene: Scene, autojump_clock: MockClock) -> None:
    paid_by = payment(quoted_at=START_MS // 1000)
    scene.chain.mine(paid_by)
    scene.chain.times[scene.chain.head] = START_MS // 1000 + 1
    scene.chain.looks.extend([Standing.PAID, "away"])
    async with scene.node() as node:
        assert isinstance(await outcome_of(partial(node.call, order(paid_by=paid_by))), SettlementPending)
        assert isinstance(await node.call(order(paid_by=paid_by)), Ended)


async def test_a_result_that_was_kept_is_not_bought_with_a_payment_from_before_its_quote(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.chain.settles.extend(["dropped"] * 60)
    async with scene.node(payer_hold_s=0.0) as node:
        assert isinstance(await outcome_of(partial(node.call, order(paid_by=payment()))), SettlementPending)
        await until(lambda: state_is(node, "failed"))
        old = payment()
        scene.chain.mine(old)
        with pytest.raises(PaymentAlreadyBound):
            await node.call(order(paid_by=attrs.evolve(old, quoted_head=scene.chain.head)))


@pytest.mark.parametrize(("has_code", "kind"), [(True, PayerHasCode), (False, SignatureInvalid)])
async def test_a_refused_signature_of_an_account_with_code_is_told_as_that(
    scene: Scene, autojump_clock: MockClock, *, has_code: bool, kind: type[PaymentRequired]
) -> None:
    scene.chain.verdicts.append(refused("invalid_exact_evm_payload_signature"))
    paid_by = payment()
    if has_code:
        scene.chain.with_code.add(paid_by.payer)
    async with scene.node() as node:
        with pytest.raises(kind):
            await node.call(order(paid_by=paid_by))


async def test_a_payment_that_somebody_else_submitted_too_shallow_waits_for_its_depth(
    scene: Scene, autojump_clock: MockClock
) -> None:
    paid_by = payment()
    scene.chain.confirmations = 3
    scene.chain.mine(paid_by)
    async with scene.node() as node, trio.open_nursery() as nursery:
        nursery.start_soon(node.call, order(paid_by=paid_by))
        await scene.executor.running.wait()
        await trio.sleep(5)
        assert await node.only("state") == "executed"
        scene.chain.head += 2
        assert isinstance(await node.call(order(paid_by=paid_by)), Ended)


async def test_a_spent_authorization_that_paid_nothing_is_refused(scene: Scene, autojump_clock: MockClock) -> None:
    paid_by = payment()
    scene.chain.cancelled.add(paid_by.key)
    async with scene.node() as node:
        with pytest.raises(AuthorizationUsed):
            await node.call(order(paid_by=paid_by))
    assert scene.executor.runs == []


async def test_an_expired_authorization_is_refused(scene: Scene, autojump_clock: MockClock) -> None:
    async with scene.node() as node:
        with pytest.raises(AuthorizationExpiresTooSoon):
            await node.call(order(paid_by=payment(valid_for_s=-1)))
    assert scene.executor.runs == []


async def test_a_silent_settlement_actor_is_a_facilitator_that_is_away(scene: Scene, autojump_clock: MockClock) -> None:
    scene.chain.gate = trio.Event()
    async with scene.node() as node:
        with pytest.raises(FacilitatorUnavailable):
            await node.call(order(paid_by=payment()))
    assert scene.executor.runs == []
