from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from gateway.actors.operations import State, rows
from gateway.actors.operations.claiming import Sealed, first_claim
from gateway.actors.runtime import open_runtime
from gateway.actors.store import Conflict, PostgresqlSettings, Statement, Value, open_postgresql
from tests.actors.operations.scene import Node, Scene, order, payment, until
from tests.actors.store.postgresql_parts import connected, run, run_at, somebody_waits

SETTLED = rows.Settled("0xaa", 7, "0xbb")
RESULT = rows.Result("sha256:1", "{}", 1)

STEPS: dict[str, Callable[[rows.Owner], Statement]] = {
    "keep": lambda owner: rows.keep(owner, sealed_output=b"x", result=RESULT, look_from_block=None),
    "receipt": lambda owner: rows.receipt(
        owner, receipt_json="{}", settled=SETTLED, sealed_output=None, result=RESULT, now=1
    ),
    "end": lambda owner: rows.end(
        owner, state=State.FAILED, settlement="none", settled=None, failure_code="x", failure_detail="x", now=1
    ),
    "take_over": lambda owner: rows.take_over(rows.Owner(owner.operation_id, "b", owner.epoch + 1)),
    "resettle": lambda owner: rows.resettle(owner, receipt_json="{}", settled=SETTLED),
    "alarm": lambda owner: rows.alarm(owner, failure_code="x", failure_detail="x"),
    "unpaid": lambda owner: rows.unpaid(owner, state=State.FAILED, settlement="none", why="x", now=1),
    "reopen": rows.reopen,
}
OPEN_ONLY, ENDED_ONLY = ("keep", "receipt", "end", "take_over"), ("resettle", "alarm")


async def owner_of(node: Node) -> rows.Owner:
    await node.call(order(paid_by=payment()))
    return rows.Owner(await node.only("operation_id"), "node-1", await node.only("epoch"))


@pytest.mark.parametrize("name", STEPS)
async def test_every_step_is_fenced_by_the_epoch(scene: Scene, autojump_clock: MockClock, name: str) -> None:
    async with scene.node() as node:
        owner = await owner_of(node)
        before = await node.store.fetch("SELECT * FROM operations")
        for epoch in (owner.epoch - 1, owner.epoch + 1):
            with pytest.raises(Conflict):
                await node.store.commit(STEPS[name](rows.Owner(owner.operation_id, "node-1", epoch)))
        assert await node.store.fetch("SELECT * FROM operations") == before


@pytest.mark.parametrize("name", [*OPEN_ONLY, "unpaid", "reopen"])
async def test_an_end_is_not_undone(scene: Scene, autojump_clock: MockClock, name: str) -> None:
    async with scene.node() as node:
        owner = await owner_of(node)
        with pytest.raises(Conflict):
            await node.store.commit(STEPS[name](owner))
        assert await node.only("state", "settlement") == ("receipted", "settled")


@pytest.mark.parametrize("name", ENDED_ONLY)
async def test_what_the_operator_has_written_off_is_not_touched_by_who_still_watches_it(
    scene: Scene, autojump_clock: MockClock, name: str
) -> None:
    async with scene.node() as node:
        owner = await owner_of(node)
        await node.store.commit(rows.alarm(owner, failure_code="operator_needed", failure_detail="x"))
        written_off = rows.unpaid(owner, state=State.RECEIPTED, settlement="not_settled", why="x", now=1)
        await node.store.commit(written_off)
        with pytest.raises(Conflict):
            await node.store.commit(STEPS[name](owner))
        assert await node.only("settlement", "failure_code") == ("not_settled", "settlement_failed")
        await node.store.commit(Statement("UPDATE operations SET settlement = 'settled'"))  # as the books say


async def test_a_history_is_told_once(scene: Scene, autojump_clock: MockClock) -> None:
    async with scene.node() as node:
        owner = await owner_of(node)
        step, epoch = await rows.history(node.store, owner.operation_id)
        assert (step, epoch) == (7, 1)
        again = rows.happenings(owner, 7, [rows.Happening(State.FAILED, 1, "again")])
        await node.store.commit(*again)
        assert (await node.history(owner.operation_id))[-1] == "receipted"


async def test_an_operation_without_a_history_has_none(scene: Scene, autojump_clock: MockClock) -> None:
    async with scene.node() as node:
        assert await rows.history(node.store, "op_unknown") == (0, 1)


async def test_a_node_takes_on_its_own_operations_and_those_of_nobody(scene: Scene, autojump_clock: MockClock) -> None:
    async with scene.node() as node:
        owner = await owner_of(node)
        await node.store.commit(Statement("UPDATE operations SET ended_at = NULL, state = 'executed'"))
        asked: dict[str, Value] = {
            "node": "node-1",
            "network": "eip155:8453",
            "asset": await node.only("asset"),
            "limit": 9,
        }

        async def taken(**changes: Value) -> int:
            return len(await node.store.fetch(rows.OPEN, asked | changes))

        assert await taken() == 1
        assert await taken(node="node-2") == 0
        await node.store.commit(Statement("UPDATE nodes SET lease_until = 1"))
        assert await taken(node="node-2") == 1
        assert await taken(network="") == 0
        assert await taken(asset="0x0") == 0
        await node.store.commit(
            Statement("UPDATE operations SET state = 'receipted', ended_at = 1 WHERE epoch = :e", {"e": owner.epoch})
        )


def test_the_receipt_names_a_route_and_its_proof_only() -> None:
    assert (
        rows.route_json({"routeId": "a", "qualificationId": "q", "cost": 1}) == '{"routeId":"a","qualificationId":"q"}'
    )
    assert rows.route_json("none") == '{"routeId":null,"qualificationId":null}'


async def test_who_takes_an_operation_over_gets_the_row_as_its_owner_left_it_a_moment_ago(postgresql_url: str) -> None:
    """PostgreSQL looks at a row again that it waited for, and at no other: the owner's renewed lease is not seen."""
    paid_by, owner = payment(), rows.Owner("op_1", "node-1", 1)
    made = order(paid_by=paid_by)
    claim = first_claim(owner, made, paid_by, Sealed(b"r", b"p", b"w", [[b"k"]]), now=1)
    async with (
        open_runtime(grace=1) as runtime,
        open_postgresql(runtime, PostgresqlSettings(postgresql_url), node="node-2") as store,
        connected(postgresql_url) as theirs,
    ):
        await store.commit(*(statement for _, statement in claim))
        taken: list[rows.OpenRow] = []

        async def take_over() -> None:
            ((row,),) = await store.commit(rows.take_over(rows.Owner("op_1", "node-2", 2)))
            taken.append(rows.open_row(row))

        await run(theirs, "BEGIN", "UPDATE operations SET state = 'executed', sealed_output = 'out'")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_over)
            await until(partial(somebody_waits, postgresql_url))
            renewed = "INSERT INTO nodes (node, epoch, lease_until, step, joined_at, release)"
            await run(theirs, f"{renewed} VALUES ('node-1', 1, 9e17, 1, 1, '')", "COMMIT")
        assert [(each.state, each.epoch, each.sealed_output) for each in taken] == [("executed", 2, b"out")]


async def test_steps_that_do_not_end_an_operation_write_to_no_index(postgresql_url: str) -> None:
    """PostgreSQL counts them as HOT: a long dump, which keeps old versions, then costs a page and not every index."""
    count, at_once = 300, 10
    async with (
        open_runtime(grace=5) as runtime,
        open_postgresql(runtime, PostgresqlSettings(postgresql_url), node="node-1") as store,
    ):

        async def paid_call(number: int) -> None:
            paid_by, owner = payment(), rows.Owner(f"op_{number:05}", "node-1", 1)
            made = order(f"a-key-of-call-{number:05}", paid_by, network=f"192.0.2.{number % 250}")
            sealed = Sealed(os.urandom(250), os.urandom(900), os.urandom(60), [[os.urandom(60)]])
            receipt_json = '{"x": "' + os.urandom(400).hex() + '"}'
            await store.commit(*(statement for _, statement in first_claim(owner, made, paid_by, sealed, now=1)))
            await store.commit(rows.keep(owner, sealed_output=os.urandom(1200), result=RESULT, look_from_block=number))
            last = rows.receipt(
                owner, receipt_json=receipt_json, settled=SETTLED, sealed_output=None, result=RESULT, now=2
            )
            await store.commit(last)

        for first in range(0, count, at_once):
            async with trio.open_nursery() as nursery:
                for number in range(first, first + at_once):
                    nursery.start_soon(paid_call, number)
    await until(partial(_told, postgresql_url, 2 * count))
    updated, hot = await _updates(postgresql_url)
    assert updated == 2 * count
    assert hot >= 0.49 * updated  # all but the last step of each; a page may be full


async def _told(url: str, updates: int) -> bool:
    """Whether the server has taken in what its sessions count, which it does when they end."""
    return (await _updates(url))[0] >= updates


async def _updates(url: str) -> tuple[int, int]:
    """Updates of operations, and how many of them were HOT."""
    counts = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'operations'"
    ((row,),) = [await run_at(url, counts)]
    ((updated, hot),) = row
    return int(updated or 0), int(hot or 0)
