from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.actors import ledger as module
from gateway.actors.leases import Leases
from gateway.actors.ledger import Head, Posted, audit_store, last_block, ledger, seal_next
from gateway.actors.operations import rows
from gateway.actors.runtime import Ref, open_runtime
from gateway.actors.store import Conflict, Engine, Statement, Store, open_sqlite
from gateway.registry.ledger import HOLD, Entry, move, payer_account
from gateway.registry.receipts import Signer
from tests.actors.nodes import LEASE_MS, Member, Nodes, open_nodes
from tests.http.shop import Shop, open_shop

SIGNER = Signer.from_keys({1: b"1" * 32})
NOW = 1_795_816_156_000


def entries(number: int, amount: int = 6000) -> tuple[Entry, Entry]:
    return move(
        operation_id=f"op_{number:04d}",
        step="executed.1",
        debit=payer_account("0xab"),
        credit=HOLD,
        network="eip155:8453",
        asset="0xtoken",
        amount=amount,
        at=NOW + number,
    )


async def post(store: Store, *numbers: int) -> None:
    await store.commit(*(statement for number in numbers for statement in rows.postings(entries(number))))


@asynccontextmanager
async def books(directory: Path) -> AsyncIterator[tuple[Ref[Any], Engine]]:
    async with open_runtime() as runtime, open_sqlite(runtime, directory / "gateway.db") as store:
        body = partial(ledger, store=store, signer=SIGNER, clock_ms=lambda: NOW)
        yield await runtime.start("ledger", body), store


@asynccontextmanager
async def open_store(directory: Path) -> AsyncIterator[Engine]:
    async with open_runtime() as runtime, open_sqlite(runtime, directory / "gateway.db") as store:
        yield store


async def faults(store: Store) -> tuple[str, ...]:
    return (await audit_store(store, SIGNER.key_set)).faults


async def test_an_empty_ledger_stands_and_has_no_head(tmp_path: Path) -> None:
    async with books(tmp_path) as (ref, store):
        assert await ref.ask(Head()) is None
        found = await audit_store(store, SIGNER.key_set)
        assert (found.entries, found.blocks, found.faults) == (0, 0, ())
        assert await seal_next(store, SIGNER, NOW) is False


async def test_what_was_posted_is_sealed_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEAL_AFTER_S", 0.01)
    async with books(tmp_path) as (ref, store):
        await post(store, 1, 2)
        ref.tell(Posted())
        with trio.fail_after(5):
            while (head := await ref.ask(Head())) is None:
                pass
        assert (head.height, head.entries) == (1, 4)
        assert await faults(store) == ()


async def test_what_was_posted_is_sealed_before_the_node_ends_and_the_next_one_goes_on(tmp_path: Path) -> None:
    async with books(tmp_path) as (_, store):
        await post(store, 1)
    async with books(tmp_path) as (ref, store):
        head = await ref.ask(Head())
        assert head is not None
        await post(store, 2)
    async with open_store(tmp_path) as store:
        following = await last_block(store)
        assert following is not None
        assert (following.height, following.previous_hash) == (2, head.block_hash)
        found = await audit_store(store, SIGNER.key_set)
        assert (found.entries, found.blocks, found.unsealed, found.faults) == (4, 2, 0, ())


async def test_a_step_that_is_posted_twice_is_posted_once(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        await post(store, 1)
        await post(store, 1)
        await seal_next(store, SIGNER, NOW)
        await post(store, 1)
        found = await audit_store(store, SIGNER.key_set)
        assert (found.entries, found.unsealed, found.balances, found.faults) == (
            2,
            0,
            {"payers": -6000, HOLD: 6000},
            (),
        )


async def test_many_entries_are_sealed_in_blocks_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK_ENTRIES", 3)
    async with open_store(tmp_path) as store:
        await post(store, *range(5))
        sealed = [await seal_next(store, SIGNER, NOW) for _ in range(4)]
        assert sealed == [True, True, True, False]
        found = await audit_store(store, SIGNER.key_set)
        assert (found.blocks, found.unsealed, found.faults) == (4, 0, ())


async def test_of_two_that_seal_at_once_one_is_told_and_the_chain_has_no_fork(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        lost = 0

        async def seal_all() -> None:
            nonlocal lost
            more = True
            while more:
                try:
                    more = await seal_next(store, SIGNER, NOW) or bool(
                        await store.fetch("SELECT 1 FROM ledger_entries WHERE height IS NULL LIMIT 1")
                    )
                except Conflict:
                    lost += 1

        for start in range(0, 60, 10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(post, store, *range(start, start + 10)))
                for _ in range(3):
                    nursery.start_soon(seal_all)
        await seal_all()
        found = await audit_store(store, SIGNER.key_set)
        assert (found.entries, found.unsealed, found.faults) == (120, 0, ())
        heights = await store.fetch("SELECT COUNT(*), MAX(height) FROM ledger_blocks")
        assert heights[0][0] == heights[0][1]


TAMPERING = {
    "an amount": "UPDATE ledger_entries SET amount = amount + 1 WHERE entry_id LIKE 'op_0002%hold'",
    "both amounts of a step": "UPDATE ledger_entries SET amount = amount * 2 WHERE operation_id = 'op_0002'",
    "an account": "UPDATE ledger_entries SET account = 'revenue' WHERE entry_id LIKE 'op_0001%hold'",
    "an entry": "DELETE FROM ledger_entries WHERE entry_id LIKE 'op_0003%hold'",
    "a step": "DELETE FROM ledger_entries WHERE operation_id = 'op_0003'",
    "the last block": "DELETE FROM ledger_blocks WHERE height = 3",
    "the first block": "DELETE FROM ledger_blocks WHERE height = 1",
    "every block": "DELETE FROM ledger_blocks",
    "the order of blocks": "UPDATE ledger_blocks SET height = 6 - height WHERE height IN (2)",
    "a block's time": "UPDATE ledger_blocks SET sealed_at = sealed_at + 1 WHERE height = 2",
    "a block's hash": "UPDATE ledger_blocks SET block_hash = previous_hash WHERE height = 2",
    "a block's count": "UPDATE ledger_blocks SET entries = 1 WHERE height = 2",
    "a signature": "UPDATE ledger_blocks SET signature = 'none' WHERE height = 2",
    "an entry's block": "UPDATE ledger_entries SET height = 1 WHERE operation_id = 'op_0002'",
    "that an entry is sealed": "UPDATE ledger_entries SET height = NULL WHERE operation_id = 'op_0002'",
}


@pytest.mark.parametrize("sql", TAMPERING.values(), ids=list(TAMPERING))
async def test_tampering_in_the_store_is_found(tmp_path: Path, sql: str) -> None:
    async with open_store(tmp_path) as store:
        for number in (1, 2, 3):
            await post(store, number)
            await seal_next(store, SIGNER, NOW)
        assert await faults(store) == ()
        await store.commit(Statement(sql))
        assert await faults(store) != ()


async def test_another_node_s_chain_is_not_this_one_s(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        await post(store, 1)
        await seal_next(store, Signer.from_keys({1: b"3" * 32}), NOW)
        assert (await audit_store(store)).faults == ()
        assert "not signed by this node" in (await faults(store))[0]


async def test_a_chain_outlives_the_rotation_of_the_key_that_signs_it(tmp_path: Path) -> None:
    rotated = Signer.from_keys({1: b"1" * 32, 2: b"2" * 32})
    async with open_store(tmp_path) as store:
        await post(store, 1)
        await seal_next(store, SIGNER, NOW)
        await post(store, 2)
        await seal_next(store, rotated, NOW)
        assert (await audit_store(store, rotated.key_set)).faults == ()


async def test_a_receipt_whose_postings_and_blocks_were_cut_off_is_missed(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        await shop.buy(key="0123456789abcdef0123")
    async with open_shop(tmp_path) as shop:
        assert await books_of(shop) == ()
        await shop.store.commit(Statement("DELETE FROM ledger_entries"), Statement("DELETE FROM ledger_blocks"))
        assert "not posted" in (await books_of(shop))[0]


async def books_of(shop: Shop) -> tuple[str, ...]:
    return (await audit_store(shop.store, shop.signer.key_set)).faults


async def test_a_purchase_leaves_the_books_balanced(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        await shop.buy(key="0123456789abcdef0123")
        found = await audit_store(shop.store, shop.signer.key_set)
        assert found.balances == {"payers": -6000, HOLD: 0, "revenue": 6000}
        assert found.faults == ()


# -- several nodes -----------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class Office:
    """A node with its books; `scope` is its process."""

    store: Member
    leases: Leases
    ref: Ref[Any]
    scope: trio.CancelScope

    async def post(self, *numbers: int) -> None:
        await post(self.store, *numbers)
        self.ref.tell(Posted())


async def open_office(
    nodes: Nodes, name: str, deaf: bool, *, task_status: trio.TaskStatus[Office] = trio.TASK_STATUS_IGNORED
) -> None:
    store = await nodes.join(name, deaf=deaf)
    leases = Leases(store, lease_ms=LEASE_MS)
    with trio.CancelScope() as scope:
        async with open_runtime() as runtime:
            await runtime.start("leases", leases.watch)
            body = partial(ledger, store=store, signer=SIGNER, clock_ms=lambda: NOW, hold=leases.hold)
            task_status.started(Office(store, leases, await runtime.start("ledger", body), scope))
            await trio.sleep_forever()


@asynccontextmanager
async def two_offices(directory: Path, *, deaf: bool = False) -> AsyncIterator[tuple[Nodes, Office, Office]]:
    """Two nodes over one store; the first of them seals."""
    async with open_nodes(directory) as nodes, trio.open_nursery() as nursery:
        one = await nursery.start(open_office, nodes, "one", deaf)
        await trio.testing.wait_all_tasks_blocked()
        two = await nursery.start(open_office, nodes, "two", deaf)
        assert list(one.leases.held) == ["ledger"]
        yield nodes, one, two
        nursery.cancel_scope.cancel()


async def unsealed(store: Store) -> int:
    ((count,),) = await store.fetch("SELECT COUNT(*) FROM ledger_entries WHERE height IS NULL")
    return int(count or 0)


async def test_one_of_two_nodes_seals_what_both_have_posted(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with two_offices(tmp_path) as (nodes, one, two):
        written = two.store.writes
        for number in range(0, 20, 2):
            await one.post(number)
            await two.post(number + 1)
            await trio.sleep(module.SEAL_AFTER_S + 0.01)
            assert await unsealed(nodes.real) == 0
        assert two.store.writes - written == 10
        found = await audit_store(nodes.real, SIGNER.key_set)
        assert (found.entries, found.faults) == (40, ())


async def test_what_nobody_told_is_sealed_within_two_seconds(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with two_offices(tmp_path, deaf=True) as (nodes, _, two):
        await trio.sleep(10.7)
        await two.post(1)
        await trio.sleep(module.SEAL_EVERY_SHARED_S + 0.01)
        assert await unsealed(nodes.real) == 0


async def test_a_node_tells_of_many_postings_at_most_twice_a_second(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []
    async with two_offices(tmp_path) as (nodes, _, two):
        monkeypatch.setattr(Member, "tell", lambda *_: told.append(trio.current_time()))
        for number in range(100):
            await two.post(number)
            await trio.sleep(0.05)
        assert 9 <= len(told) <= 11
        monkeypatch.undo()
        await trio.sleep(3)
        assert await unsealed(nodes.real) == 0


async def test_another_node_seals_on_when_the_one_that_sealed_has_died(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with two_offices(tmp_path) as (nodes, one, two):
        await one.post(1)
        await trio.sleep(1)
        await one.post(2)
        one.store.away = True
        one.scope.cancel()
        await two.post(3)
        await trio.sleep(2)
        assert await unsealed(nodes.real) == 0
        assert await faults(nodes.real) == ()
        assert list(two.leases.held) == ["ledger"]


async def test_a_node_that_seals_seals_once_more_and_hands_on_at_its_end(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with two_offices(tmp_path) as (nodes, one, two):
        await one.post(1)
        one.scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert await unsealed(nodes.real) == 0
        assert list(two.leases.held) == ["ledger"]


async def test_a_block_of_an_earlier_holder_is_refused(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with two_offices(tmp_path) as (nodes, one, two):
        stale = one.leases.held["ledger"].fence()
        with one.store.unreachable():
            await trio.sleep(3)
        await trio.sleep(1)
        assert list(two.leases.held) == ["ledger"]
        await post(nodes.real, 1)
        with pytest.raises(Conflict) as caught:
            await seal_next(one.store, SIGNER, NOW, stale)
        assert caught.value.index == 0
        assert await nodes.real.fetch("SELECT * FROM ledger_blocks") == []


async def test_a_node_whose_store_was_away_seals_on_by_itself(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with two_offices(tmp_path) as (nodes, one, two):
        with one.store.unreachable(), two.store.unreachable():
            await trio.sleep(30)
            await post(nodes.real, 1)
            assert {*one.leases.held, *two.leases.held} == set()
        await trio.sleep(1)
        assert await unsealed(nodes.real) == 0
        assert [*one.leases.held, *two.leases.held] == ["ledger"]
