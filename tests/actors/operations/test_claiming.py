from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.actors import retention
from gateway.actors.operations import Earlier, Ended, rows
from gateway.actors.operations.claiming import Sealed, first_claim, next_claim
from gateway.actors.retention import sweep
from gateway.actors.runtime import open_runtime
from gateway.actors.settlement import Standing
from gateway.actors.store import (
    Conflict,
    PostgresqlSettings,
    Reason,
    Statement,
    Store,
    StoreHealth,
    open_postgresql,
)
from gateway.actors.store.postgresql_membership import BEGIN, COMMIT, accepted
from gateway.actors.store.postgresql_sql import command
from gateway.actors.store_time import confirmed
from gateway.errors import (
    ExecutorFailed,
    IdempotencyKeyReused,
    InternalError,
    OperationInProgress,
    OperatorNeeded,
    PaymentAlreadyBound,
    SettlementFailed,
    StoreUnavailable,
)
from gateway.registry.sealing import unseal
from tests.actors.operations.scene import (
    ASSET,
    ONCE,
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
from tests.actors.store.postgresql_parts import connected, run_at, somebody_waits

OF_A_CLAIM = ("operations", "idempotency_keys", "idempotency_callers", "operation_events")


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


async def test_a_failed_attempt_that_was_swept_after_its_look_up_is_taken_on_whole(
    scene: Scene, autojump_clock: MockClock
) -> None:
    """The sweep took its output, its request and its wrapped key; whoever looked it up still has the key to them."""
    made = order(paid_by=(paid_by := payment()))
    async with scene.node() as node:
        scene.chain.settles.append("unsent")
        scene.chain.looks.append(Standing.EXPIRED)
        with pytest.raises(SettlementFailed):
            await node.call(made)
        earlier = await node.look_up(made)
        assert isinstance(earlier, Earlier)
        assert earlier.sealed_output is not None
        await sweep(node.store, confirmed(scene.clock_ms() + rows.OUTPUT_LIFE_MS + 1))
        assert await node.only("sealed_output", "length(sealed_request)") == (None, 0)
        scene.chain.settles.append("hang")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.submit, attrs.evolve(made, earlier=earlier))
            await until(lambda: len(scene.chain.submitted) == 2)
            assert await node.only("length(sealed_request)") > 0
            scene.chain.mine(paid_by)
        replayed = await node.look_up(made)
        assert isinstance(replayed, Ended)
        assert replayed.output["results"] == ["tides"]
    assert len(scene.executor.runs) == 1


async def test_a_claim_that_has_no_rival_is_stored_with_the_end(scene: Scene, autojump_clock: MockClock) -> None:
    made = order(fresh=True)
    scene.executor.plan.append(2.0)
    async with scene.node() as node:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.call, made)
            await scene.executor.running.wait()
            assert [await node.count(each) for each in OF_A_CLAIM] == [0, 0, 0, 0]
        ended = await node.call(made)
        assert ended.replayed
        assert ended.operation_id == await node.only("operation_id")
        assert await node.only("state", "epoch", "attempt", "funding", "node_wrap", "sealed_request") == (
            *("receipted", 1, 1, "free", None, b""),
        )
        assert await node.history(ended.operation_id) == ["claimed", "executing", "executed", "receipted"]
        assert [await node.count(each) for each in OF_A_CLAIM] == [1, 1, 1, 4]
        assert node.store.relaxed == [True]


async def test_a_claim_that_has_no_rival_is_stored_with_a_failure_too(scene: Scene, autojump_clock: MockClock) -> None:
    made = order(fresh=True)
    scene.executor.plan.append(ExecutorFailed("not today"))
    async with scene.node() as node:
        with pytest.raises(ExecutorFailed) as caught:
            await node.call(made)
        assert await node.only("operation_id", "state") == (caught.value.operation_id, "failed")
        again = await node.call(attrs.evolve(made, fresh=False))
        assert again.operation_id == caught.value.operation_id
        assert await node.row(again.operation_id, "state", "attempt") == ("receipted", 2)


async def test_of_a_claim_that_has_no_rival_a_crash_leaves_nothing(scene: Scene, autojump_clock: MockClock) -> None:
    scene.executor.plan.append(5.0)
    async with scene.crashing() as node, trio.open_nursery() as nursery:
        nursery.start_soon(outcome_of, partial(node.call, order(fresh=True)))
        await scene.executor.running.wait()
        nursery.cancel_scope.cancel()
    async with scene.node() as node:
        assert [await node.count(each) for each in OF_A_CLAIM] == [0, 0, 0, 0]
        assert isinstance(await node.call(order(fresh=True)), Ended)


async def test_a_late_claim_is_stored_before_what_must_run_once_begins(scene: Scene, autojump_clock: MockClock) -> None:
    free_once = attrs.evolve(ONCE, paid=False, price=lambda _: 0)
    made = order(what=free_once, fresh=True)
    scene.executor.plan.append(2.0)
    async with scene.node(table={free_once.id: free_once}) as node, trio.open_nursery() as nursery:
        nursery.start_soon(node.call, made)
        await scene.executor.running.wait()
        operation_id, state, released, request, wrap = await node.only(
            "operation_id", "state", "released_attempt", "sealed_request", "node_wrap"
        )
        assert (state, released) == ("claimed", 1)
        assert b"tide" in unseal(SEAL.unwrap(operation_id, wrap), operation_id, "request", request)
        assert node.store.relaxed == [False]


async def test_what_is_paid_is_claimed_first_whoever_knows_its_key(scene: Scene, autojump_clock: MockClock) -> None:
    scene.chain.gate = trio.Event()
    async with scene.node() as node, trio.open_nursery() as nursery:
        nursery.start_soon(outcome_of, partial(node.call, attrs.evolve(order(paid_by=payment()), fresh=True)))
        await scene.chain.verifying.wait()
        assert await node.only("state") == "claimed"
        nursery.cancel_scope.cancel()


async def test_a_store_that_is_in_trouble_is_asked_before_anything_runs(
    scene: Scene, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene.node() as node:
        node.store.full = lambda _: True
        monkeypatch.setattr(type(node.store), "health", StoreHealth(writable=False, reason=Reason.DISK_FULL, since=0.0))
        with pytest.raises(StoreUnavailable):
            await node.call(order(fresh=True))
        assert not scene.executor.runs


@pytest.mark.parametrize("how", ["away", "lost", "unsure"])
async def test_a_late_claim_is_stored_once_however_often_it_is_tried(
    scene: Scene, autojump_clock: MockClock, how: str
) -> None:
    async with scene.node(store_faults=[how]) as node:
        ended = await node.call(order(fresh=True))
        assert await node.only("operation_id", "state") == (ended.operation_id, "receipted")
        assert len(await node.history(ended.operation_id)) == 4


async def test_who_waits_for_a_late_claim_that_cannot_be_stored_is_told_that_nothing_was(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.node() as node:
        node.store.full = lambda _: True
        with pytest.raises(StoreUnavailable, match="nothing of it was stored"):
            await node.call(order(fresh=True))
        node.store.full = lambda _: False
        assert await node.count() == 0
        assert isinstance(await node.call(order(fresh=True)), Ended)


async def test_who_waits_for_a_late_claim_is_told_where_nobody_knows_whether_it_was_stored(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.node(store_faults=["lost"]) as node:
        node.store.full = lambda _: len(node.store.relaxed) > 1
        with pytest.raises(StoreUnavailable, match="nobody knows"):
            await node.call(order(fresh=True))
        assert await node.only("state") == "receipted"


async def test_a_late_claim_that_was_stored_though_its_answer_was_lost_is_not_stored_again(
    scene: Scene, autojump_clock: MockClock
) -> None:
    """What must run once was not begun for want of an answer, and its end finds the claim there: no other's."""
    free_once = attrs.evolve(ONCE, paid=False, price=lambda _: 0)
    made = order(what=free_once, fresh=True)
    async with scene.node(table={free_once.id: free_once}, store_faults=["lost"]) as node:
        node.store.full = lambda _: len(node.store.relaxed) > 1 and trio.current_time() < free_once.deadline_s + 1
        with pytest.raises(ExecutorFailed) as caught:
            await node.call(made)
        assert await node.only("operation_id", "state", "epoch") == (caught.value.operation_id, "failed", 1)
        assert await node.history(await node.only("operation_id")) == ["claimed", "executing", "failed"]
        assert not scene.executor.runs
        assert isinstance(await node.call(attrs.evolve(made, fresh=False)), Ended)
    assert len(scene.executor.runs) == 1


async def conflicts(store: Store, step: Sequence[Statement], at: list[int]) -> None:
    """Commit a step; note the number of the statement that had a conflict."""
    try:
        await store.commit(*step)
    except Conflict as conflict:
        at.append(conflict.index)


async def test_a_sweep_that_has_begun_is_waited_for_by_who_takes_the_attempt_on(postgresql_url: str) -> None:
    paid_by = payment()
    made = order(paid_by=paid_by)
    sealed = Sealed(b"r", b"p", b"w", [[b"k"]])
    first = first_claim(rows.Owner("op_1", "node-1", 1), made, paid_by, sealed, now=1)
    again = next_claim(rows.Owner("op_1", "node-1", 2), made, paid_by, sealed, now=2, attempt=2, credit=None)
    async with (
        open_runtime(grace=1) as runtime,
        open_postgresql(runtime, PostgresqlSettings(postgresql_url), node="node-1") as store,
        connected(postgresql_url) as theirs,
    ):
        await store.commit(*(statement for _, statement in first))
        ended = "state = 'failed', ended_at = 1, sealed_output = 'out', output_until = 1, tombstone_until = 1"
        for dropped, kept in ((retention._drop_output("op_1", 9), True), (retention._drop_tombstone("op_1", 9), False)):
            await run_at(postgresql_url, f"UPDATE operations SET {ended}, epoch = 1")
            lost: list[int] = []
            take_on = partial(conflicts, store, [statement for _, statement in again], lost)
            *begun, last = (command(each.sql, each.parameters) for each in dropped)
            await accepted(theirs, BEGIN, *begun, within=5)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(take_on)
                await until(partial(somebody_waits, postgresql_url))
                await accepted(theirs, last, COMMIT, within=5)
            assert lost == ([] if kept else [0])
            wraps = await store.fetch("SELECT key_wrap FROM idempotency_keys")
            assert wraps == ([(b"k",)] if kept else [])
