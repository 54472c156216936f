from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from gateway.actors.operations import State, rows
from gateway.actors.operations.in_hand import Abandoned, Life, open_output, pause, write
from gateway.actors.payment import Payment
from gateway.actors.store import Statement
from gateway.errors import OperationInProgress, SettlementPending, StoreUnavailable
from gateway.registry.execution import Served
from gateway.registry.sealing import SealBroken, seal
from tests.actors.operations.scene import PAID, Node, Scene, order, payment

OWNER = rows.Owner("op_1", "node-1", 1)


def life(owner: rows.Owner = OWNER, paid_by: Payment | None = None, **known: object) -> Life:
    return Life(owner, "search.paid", PAID, {}, "sha256:0", paid_by, b"k" * 32, 1, next_step=2, **known)  # type: ignore[arg-type]


async def claimed(node: Node) -> Life:
    """A life whose claim is durable and which nobody lives."""
    await node.call(order())
    operation_id = await node.only("operation_id")
    await node.store.commit(
        Statement("UPDATE operations SET state = 'claimed', ended_at = NULL, receipt = NULL, node = 'another'"),
        Statement("INSERT INTO nodes SELECT 'another', 1, lease_until, 0, 0, '' FROM nodes"),
    )
    return life(rows.Owner(operation_id, "node-1", 1))


def ended(made: Life) -> Statement:
    return rows.end(
        made.owner, state=State.FAILED, settlement="none", settled=None, failure_code="x", failure_detail="x", now=1
    )


@pytest.mark.parametrize("faults", [[], ["away"] * 3, ["unsure", "away"], ["lost"], ["away", "lost"]])
async def test_a_step_is_written_once_whatever_the_store_answers(
    scene: Scene, autojump_clock: MockClock, faults: list[str]
) -> None:
    async with scene.node() as node:
        made = await claimed(node)
        made.next_step = 9
        made.told.append(rows.Happening(State.FAILED, 1))
        node.store.commits.extend(faults)
        await write(made, node.around, State.FAILED, ended(made))
        assert await node.only("state") == "failed"
        assert (await node.history(made.operation_id))[-1] == "failed"
        assert (made.next_step, made.told) == (10, [])
        node.store.commits.clear()


async def test_a_stale_owner_writes_nothing(scene: Scene, autojump_clock: MockClock) -> None:
    async with scene.node() as node:
        made = await claimed(node)
        await node.store.commit(
            Statement("UPDATE nodes SET lease_until = 0 WHERE node = 'another'"),
            rows.take_over(rows.Owner(made.operation_id, "node-2", 2)),
        )
        with pytest.raises(Abandoned, match="another owner"):
            await write(made, node.around, State.FAILED, ended(made))
        assert await node.only("state", "epoch", "node") == ("claimed", 2, "node-2")
        await node.store.commit(ended(life(rows.Owner(made.operation_id, "node-2", 2))))


async def test_a_store_that_stays_away_is_given_up_after_a_while(scene: Scene, autojump_clock: MockClock) -> None:
    async with scene.node() as node:
        made = await claimed(node)
        node.store.full = lambda _: True
        began = trio.current_time()
        with pytest.raises(Abandoned, match="unavailable"):
            await write(made, node.around, State.FAILED, ended(made))
        assert trio.current_time() - began == pytest.approx(20, abs=2)
        node.store.full = lambda _: False
        await node.store.commit(ended(made))


async def test_a_pause_ends_with_the_node(scene: Scene, autojump_clock: MockClock) -> None:
    async with scene.node() as node:
        await pause(node.around, 3)
        assert trio.current_time() >= 3
        node.around.draining.set()
        with pytest.raises(Abandoned, match="shutting down"):
            await pause(node.around, 1000)


@pytest.mark.parametrize("state", State)
async def test_whoever_cannot_wait_longer_is_told_pending_once_the_credential_may_have_been_submitted(
    autojump_clock: MockClock, state: State
) -> None:
    submitted = state in {State.EXECUTED, State.SETTLING, State.SETTLED}
    paid = life(paid_by=payment(), state=state)
    assert isinstance(paid.unfinished(), SettlementPending if submitted else OperationInProgress)
    assert isinstance(paid.left(), SettlementPending if submitted else StoreUnavailable)
    assert isinstance(life(state=state).unfinished(), OperationInProgress)


async def test_there_is_no_result_before_the_receipt_is_durable(autojump_clock: MockClock) -> None:
    known: dict[str, Any] = {"served": Served({}, {}), "receipt": {"receiptId": "rcpt_1"}}
    assert life(**known).ended is None
    assert life(**known, over=True).ended is not None
    unreadable = life(receipt=known["receipt"], over=True)
    assert unreadable.ended is None
    assert isinstance(unreadable.left(), OperationInProgress)


def test_what_an_operation_does_not_have_is_not_made_up() -> None:
    with pytest.raises(RuntimeError, match="free"):
        life().paid_for()
    with pytest.raises(RuntimeError, match="no result"):
        life().done()


def test_an_output_opens_for_its_own_operation_only() -> None:
    served = Served({"results": []}, {"searches": 1})
    sealed = seal(b"k" * 32, "op_1", "output", served.plain)
    assert open_output(b"k" * 32, "op_1", sealed) == served
    with pytest.raises(SealBroken):
        open_output(b"k" * 32, "op_2", sealed)


def test_a_life_shown_in_a_log_shows_no_key_and_no_request() -> None:
    shown = repr(life(served=Served({"results": ["secret"]}, {})))
    assert "kkkk" not in shown
    assert "secret" not in shown
