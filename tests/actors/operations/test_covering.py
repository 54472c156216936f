"""One balance buys what it covers: however many authorizations come at once, on one node or two."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from gateway.actors.operations import Ended, Order
from gateway.actors.operations.order import Exposure
from gateway.actors.settlement import ReadFunds
from gateway.errors import FacilitatorUnavailable, InsufficientFunds
from tests.actors.operations.scene import OTHER_PAYER, PAYER, PRICE, Scene, all_of, crash_when, order, payment, until

CALLS = 60


def orders(count: int, start: int = 0) -> list[Order]:
    return [order(f"key-number-{number:04}-of-this", payment()) for number in range(start, start + count)]


async def test_of_60_authorizations_over_one_balance_one_is_served_and_59_are_told_that_funds_lack(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.chain.minted[PAYER.lower()] = PRICE
    scene.executor.plan.append(1.0)
    async with scene.node() as node:
        results = await all_of(*[partial(node.call, each) for each in orders(CALLS)])
        assert Counter(type(each) for each in results) == {Ended: 1, InsufficientFunds: CALLS - 1}
        assert all(not isinstance(each, InsufficientFunds) or each.operation_id for each in results)
        open_now = await node.store.fetch("SELECT COUNT(*) FROM operations WHERE ended_at IS NULL")
        assert open_now == [(0,)]
        assert await node.operations.ask(Exposure()) == {}
        assert await node.count("payer_holds") == 0
    assert (len(scene.executor.runs), len(scene.chain.submitted)) == (1, 1)
    assert len(scene.chain.verified) == CALLS
    closer = [each for each in scene.chain.balances_read if isinstance(each, ReadFunds)]
    assert len(scene.chain.balances_read) - len(closer) == CALLS
    assert len(closer) <= 3


async def test_a_balance_of_exactly_n_calls_serves_n_concurrent_ones_however_they_overlap(
    scene: Scene, autojump_clock: MockClock
) -> None:
    count = 20
    scene.chain.minted[PAYER.lower()] = count * PRICE
    async with scene.node() as node:
        results = await all_of(*[partial(node.call, each) for each in orders(count)], apart_s=0.07)
        assert Counter(type(each) for each in results) == {Ended: count}
        (told,) = await all_of(partial(node.call, order("a-key-that-comes-too-late", payment())))
        assert isinstance(told, InsufficientFunds)


async def test_a_payment_that_is_mined_and_not_receipted_counts_once(scene: Scene, autojump_clock: MockClock) -> None:
    scene.chain.minted[PAYER.lower()] = 2 * PRICE
    scene.chain.confirmations = 2
    async with scene.node() as node, trio.open_nursery() as nursery:
        nursery.start_soon(all_of, partial(node.call, order("the-first-key-of-two", payment())))
        await until(lambda: scene.chain.mined)
        assert scene.chain.balance(PAYER) == PRICE
        nursery.start_soon(all_of, partial(node.call, order("the-second-key-of-two", payment())))
        await until(lambda: len(scene.chain.mined) == 2)
        scene.chain.head += 1
    assert len(scene.executor.runs) == 2
    assert sum(isinstance(each, ReadFunds) for each in scene.chain.balances_read) == 1


async def test_a_balance_that_cannot_be_read_runs_nothing_and_the_same_credential_serves_later(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.chain.unreadable = True
    made = order(paid_by=payment())
    async with scene.node() as node:
        with pytest.raises(FacilitatorUnavailable, match="balance"):
            await node.call(made)
        assert (scene.executor.runs, scene.chain.submitted) == ([], [])
        scene.chain.unreadable = False
        assert isinstance(await node.call(made), Ended)


async def test_a_balance_that_could_not_be_read_at_once_is_asked_for_again(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.chain.unreadable = True

    async def comes_back() -> None:
        await until(lambda: len(scene.chain.balances_read) == 2, within_s=5)
        scene.chain.unreadable = False

    async with scene.node() as node, trio.open_nursery() as nursery:
        nursery.start_soon(comes_back)
        assert isinstance(await node.call(order(paid_by=payment())), Ended)
    assert len(scene.chain.balances_read) == 3


async def test_the_balance_is_read_beside_the_verification(scene: Scene, autojump_clock: MockClock) -> None:
    scene.chain.gate = trio.Event()
    async with scene.node() as node, trio.open_nursery() as nursery:
        nursery.start_soon(all_of, partial(node.call, order(paid_by=payment())))
        await scene.chain.verifying.wait()
        await until(lambda: scene.chain.balances_read, within_s=1)
        scene.chain.gate.set()
    assert (len(scene.executor.runs), len(scene.chain.balances_read)) == (1, 1)


async def test_a_payment_that_somebody_else_made_meanwhile_needs_no_balance(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.chain.minted[PAYER.lower()] = PRICE
    scene.chain.gate = trio.Event()
    paid_by = payment()
    async with scene.node() as node, trio.open_nursery() as nursery:
        nursery.start_soon(all_of, partial(node.call, order(paid_by=paid_by)))
        await scene.chain.verifying.wait()
        scene.chain.mine(paid_by)
        scene.chain.gate.set()
        await until(lambda: scene.executor.runs)
    assert scene.chain.submitted == []


async def test_what_a_crash_left_open_still_counts(scene: Scene, autojump_clock: MockClock) -> None:
    scene.chain.minted[PAYER.lower()] = PRICE
    scene.chain.settles.append("hang")
    made = order("the-first-key-of-two", payment())
    await crash_when(scene, made, lambda _: scene.chain.submitted)
    scene.chain.settles.extend(["dropped"] * 2)
    async with scene.node() as node:
        (told,) = await all_of(partial(node.call, order("the-second-key-of-two", payment())))
        assert isinstance(told, InsufficientFunds)
        await until(lambda: scene.chain.mined)
    assert len(scene.executor.runs) == 1


async def test_what_other_nodes_have_open_counts_and_what_they_have_settled_counts_once(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.chain.minted[PAYER.lower()] = 2 * PRICE
    scene.chain.confirmations = 2
    async with scene.node(shared=True) as one, scene.another(one) as two, trio.open_nursery() as nursery:
        scene.chain.settles.append("hang")
        nursery.start_soon(all_of, partial(one.call, order("the-first-key-of-all", payment())))
        await until(lambda: scene.chain.submitted)
        nursery.start_soon(all_of, partial(two.call, order("the-second-key-of-all", payment())))
        await until(lambda: len(scene.executor.runs) == 2)
        (told,) = await all_of(partial(two.call, order("the-third-key-of-all", payment())))
        assert isinstance(told, InsufficientFunds)
        await until(lambda: len(scene.chain.mined) == 2)
        scene.chain.minted[PAYER.lower()] += PRICE
        nursery.start_soon(all_of, partial(one.call, order("the-fourth-key-of-all", payment())))
        await until(lambda: len(scene.executor.runs) == 3)
        await until(lambda: len(scene.chain.mined) == 3)
        scene.chain.head += 1


async def test_60_authorizations_over_one_balance_on_two_nodes_run_at_most_once(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.chain.minted[PAYER.lower()] = PRICE
    async with scene.node(shared=True) as one, scene.another(one) as two:
        made = orders(CALLS)
        results = await all_of(*[partial((one, two)[n % 2].call, each) for n, each in enumerate(made)])
        assert {type(each) for each in results} <= {Ended, InsufficientFunds}
        assert len(scene.executor.runs) <= 1
        assert isinstance(await one.call(order("one-more-key-of-another", payment(payer=OTHER_PAYER))), Ended)
        if not scene.executor.runs[1:]:
            assert isinstance(await two.call(order("a-key-that-comes-alone", payment())), Ended)
