"""A payer is held at the first settlement that is refused through its own fault, and for nothing else."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from trio.testing import MockClock

from gateway.actors.operations import Ended
from gateway.actors.operations.holding import PAYERS_FAULT
from gateway.errors import InsufficientFunds, PayerOnHold
from tests.actors.operations.scene import (
    OTHER_PAYER,
    PAYER,
    PRICE,
    Node,
    Scene,
    all_of,
    order,
    outcome_of,
    payment,
    state_is,
    until,
)


@pytest.mark.parametrize(
    ("reason", "at_fault"),
    [
        ("insufficient_funds", True),
        ("invalid_exact_evm_insufficient_balance", True),
        ("invalid_exact_evm_payload_signature", True),
        ("payer_blacklisted", True),
        ("insufficient_gas", False),
        ("insufficient_funds_for_gas", False),
        ("transaction_failed", False),
        ("invalid_transaction_state", False),
        ("unexpected_settle_error", False),
        ("unspecified", False),
    ],
)
def test_some_reasons_tell_that_the_payer_is_at_fault(reason: str, at_fault: bool) -> None:
    assert (PAYERS_FAULT.search(reason) is not None) is at_fault


async def drained(scene: Scene, node: Node, nursery: trio.Nursery, key: str = "the-first-key-of-two") -> None:
    """Buy with a balance that is gone before the settlement, and wait until that was refused once."""
    scene.executor.plan.append(1.0)
    scene.chain.minted[PAYER.lower()] = PRICE
    nursery.start_soon(outcome_of, partial(node.call, order(key, payment(valid_for_s=460))))
    await until(lambda: scene.executor.runs)
    scene.chain.minted[PAYER.lower()] = 0
    await until(lambda: scene.chain.submitted)
    await until(partial(held, node))


async def held(node: Node) -> bool:
    return await node.count("payer_holds") == 1


async def test_a_payer_who_drains_its_balance_between_verify_and_settle_is_held_at_once_until_that_settles(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.node() as node, trio.open_nursery() as nursery:
        await drained(scene, node, nursery)
        assert trio.current_time() < 3
        assert len(scene.chain.submitted) == 1
        with pytest.raises(PayerOnHold):
            await node.call(order("the-second-key-of-two", payment()))
        assert isinstance(await node.call(order("of-somebody-else-this", payment(payer=OTHER_PAYER))), Ended)
        scene.chain.minted[PAYER.lower()] = 10 * PRICE
        await until(lambda: state_is_receipted(node))
        assert await node.count("payer_holds") == 0
        assert isinstance(await node.call(order("the-second-key-of-two", payment())), Ended)


async def state_is_receipted(node: Node) -> bool:
    found = await node.store.fetch("SELECT COUNT(*) FROM operations WHERE state <> 'receipted'")
    return found == [(0,)]


async def test_what_was_verified_but_not_begun_when_the_payer_was_held_does_not_run(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.node() as node, trio.open_nursery() as nursery:
        scene.executor.plan.append(1.0)
        scene.chain.minted[PAYER.lower()] = 2 * PRICE
        nursery.start_soon(outcome_of, partial(node.call, order("the-first-key-of-two", payment())))
        await until(lambda: scene.executor.runs)
        scene.chain.gate = trio.Event()
        told: list[object] = []

        async def second() -> None:
            told.extend(await all_of(partial(node.call, order("the-second-key-of-two", payment()))))

        nursery.start_soon(second)
        await until(lambda: len(scene.chain.verified) == 2)
        scene.chain.settles.append("refused")
        scene.chain.minted[PAYER.lower()] = 0
        await until(partial(held, node))
        scene.chain.minted[PAYER.lower()] = 2 * PRICE
        scene.chain.gate.set()
        await until(lambda: told)
        assert [type(each) for each in told] == [PayerOnHold]
    assert len(scene.executor.runs) == 1


async def test_a_refusal_that_is_not_the_payers_fault_and_an_outage_hold_nobody(
    scene: Scene, autojump_clock: MockClock
) -> None:
    for number, fault in enumerate(("refused", "dropped", "unsent", "lost", "slow")):
        scene.chain.settles.append(fault)
        async with scene.node() as node:
            await outcome_of(partial(node.call, order(f"key-number-{number:03}-of-this", payment())))
            await until(partial(state_is_receipted, node))
            assert await node.count("payer_holds") == 0


async def test_an_outage_that_outlives_the_authorization_holds_nobody(scene: Scene, autojump_clock: MockClock) -> None:
    scene.chain.settles.extend(["dropped"] * 60)
    async with scene.node() as node:
        await outcome_of(partial(node.call, order(paid_by=payment())))
        await until(lambda: state_is(node, "failed"))
        assert await node.count("payer_holds") == 0


async def test_a_hold_outlives_a_restart_and_ends_when_the_payment_settles(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.crashing() as node, trio.open_nursery() as nursery:
        await drained(scene, node, nursery)
        nursery.cancel_scope.cancel()
    async with scene.node() as node:
        with pytest.raises(PayerOnHold):
            await node.call(order("the-second-key-of-two", payment()))
        scene.chain.minted[PAYER.lower()] = PRICE
        await until(partial(state_is_receipted, node))
        assert await node.count("payer_holds") == 0


async def test_a_payer_with_nothing_is_refused_and_not_held(scene: Scene, autojump_clock: MockClock) -> None:
    scene.chain.minted[PAYER.lower()] = PRICE - 1
    async with scene.node() as node:
        with pytest.raises(InsufficientFunds):
            await node.call(order(paid_by=payment()))
        assert await node.count("payer_holds") == 0
        assert scene.executor.runs == []
