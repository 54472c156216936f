"""The conformance suite: what every engine of the store promises.  It knows no engine; `conftest.py` does."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Any, cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.actors.runtime import Runtime, open_runtime
from gateway.actors.store import Conflict, Engine, Statement, StatementFailed, Store, Value

OpenStore = Callable[[Runtime], AbstractAsyncContextManager[Engine]]


def opened(name: str, balance: int) -> Statement:
    return Statement("INSERT INTO accounts VALUES (:name, :balance)", {"name": name, "balance": balance}, rows=1)


def moved(name: str, amount: int, rows: int | None = 1) -> Statement:
    return Statement(
        "UPDATE accounts SET balance = balance + :amount WHERE name = :name",
        {"name": name, "amount": amount},
        rows=rows,
    )


async def balances(store: Store) -> dict[str, int]:
    rows = await store.fetch("SELECT name, balance FROM accounts ORDER BY name")
    return {str(name): cast("int", balance) for name, balance in rows}


class TestAtomicity:
    async def test_all_statements_of_a_step_are_stored_together(self, store: Store) -> None:
        await store.commit(opened("alice", 10), opened("bob", 0))
        await store.commit(moved("alice", -3), moved("bob", 3))
        assert await balances(store) == {"alice": 7, "bob": 3}

    async def test_a_broken_constraint_undoes_the_whole_step(self, store: Store) -> None:
        await store.commit(opened("alice", 10), opened("bob", 0))
        with pytest.raises(StatementFailed) as caught:
            await store.commit(moved("bob", 30), moved("alice", -30))
        assert caught.value.index == 1
        assert await balances(store) == {"alice": 10, "bob": 0}

    async def test_a_foreign_key_is_enforced(self, store: Store) -> None:
        with pytest.raises(StatementFailed):
            await store.commit(Statement("INSERT INTO children VALUES (1, 99)"))

    async def test_wrong_sql_fails_its_step_and_nothing_else(self, store: Store) -> None:
        with pytest.raises(StatementFailed):
            await store.commit(opened("alice", 1), Statement("SELECT nothing FROM nowhere"))
        assert await balances(store) == {}
        await store.commit(opened("alice", 1))

    async def test_a_missing_parameter_fails_its_step(self, store: Store) -> None:
        with pytest.raises(StatementFailed):
            await store.commit(opened("alice", 1), Statement("DELETE FROM accounts WHERE name = :name"))
        assert await balances(store) == {}

    async def test_an_empty_step_is_stored_at_once(self, store: Store) -> None:
        assert await store.commit() == []


class TestRowsGuard:
    @pytest.mark.parametrize(("wanted", "found"), [(1, 0), (0, 1), (2, 1)])
    async def test_another_number_of_changed_rows_undoes_the_step(self, store: Store, wanted: int, found: int) -> None:
        await store.commit(opened("alice", 10))
        target = "alice" if found else "nobody"
        with pytest.raises(Conflict) as caught:
            await store.commit(opened("bob", 0), moved("alice", 1), moved(target, 1, rows=wanted))
        assert (caught.value.index, caught.value.found, caught.value.wanted) == (2, found, wanted)
        assert await balances(store) == {"alice": 10}

    async def test_no_guard_means_any_number(self, store: Store) -> None:
        await store.commit(moved("nobody", 1, rows=None))

    async def test_with_returning_the_returned_rows_count(self, store: Store) -> None:
        returning = "UPDATE accounts SET balance = balance + 1 RETURNING name"
        await store.commit(opened("alice", 1), opened("bob", 2))
        assert await store.commit(Statement(returning, rows=2)) in ([[("alice",), ("bob",)]], [[("bob",), ("alice",)]])
        with pytest.raises(Conflict) as caught:
            await store.commit(Statement(returning, rows=1))
        assert caught.value.found == 2
        assert await balances(store) == {"alice": 2, "bob": 3}

    async def test_a_select_in_a_step_guards_it(self, store: Store) -> None:
        with pytest.raises(Conflict):
            await store.commit(Statement("SELECT 1 FROM accounts WHERE name = 'alice'", rows=1), opened("bob", 0))
        assert await balances(store) == {}

    async def test_an_insert_that_loses_to_another_finds_no_row(self, store: Store) -> None:
        claim = Statement("INSERT INTO accounts VALUES ('alice', 1) ON CONFLICT DO NOTHING", rows=1)
        await store.commit(claim)
        with pytest.raises(Conflict) as caught:
            await store.commit(claim)
        assert (caught.value.index, caught.value.found) == (0, 0)

    async def test_a_statement_that_begins_with_a_common_table_is_counted(self, store: Store) -> None:
        sql = "WITH new (name) AS (SELECT 'alice') INSERT INTO accounts SELECT name, 1 FROM new"
        await store.commit(Statement(sql, rows=1))
        with pytest.raises(Conflict):
            await store.commit(
                Statement(
                    "WITH old (name) AS (SELECT 'bob') DELETE FROM accounts WHERE name IN (SELECT name FROM old)",
                    rows=1,
                )
            )


class TestStepsBesideEachOther:
    async def test_each_of_many_concurrent_steps_stands_or_falls_alone(self, store: Store) -> None:
        await store.commit(opened("shared", 0))
        fates: dict[int, str] = {}

        async def step(number: int) -> None:
            statements = [opened(f"a{number}", 1), moved("shared", 1)]
            match number % 4:
                case 1:
                    statements.append(moved("nobody", 1))
                case 2:
                    statements.append(moved("shared", -1_000_000))
                case 3:
                    statements.append(Statement("INSERT INTO nowhere VALUES (1)"))
            try:
                await store.commit(*statements)
                fates[number] = "stored"
            except Conflict as error:
                fates[number] = f"conflict {error.index}"
            except StatementFailed as error:
                fates[number] = f"failed {error.index}"

        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(step, number)
        expected = {0: "stored", 1: "conflict 2", 2: "failed 2", 3: "failed 2"}
        assert fates == {number: expected[number % 4] for number in range(200)}
        assert await balances(store) == {"shared": 50} | {f"a{number}": 1 for number in range(0, 200, 4)}

    async def test_a_constraint_that_is_checked_at_the_end_fails_its_step_alone(self, store: Store) -> None:
        outcomes: dict[int, bool] = {}

        async def step(number: int) -> None:
            parent = 0 if number % 2 else 404
            try:
                await store.commit(
                    Statement("INSERT INTO late_children VALUES (:id, :parent)", {"id": number, "parent": parent}),
                )
                outcomes[number] = True
            except StatementFailed:
                outcomes[number] = False

        await store.commit(Statement("INSERT INTO parents VALUES (0)"))
        async with trio.open_nursery() as nursery:
            for number in range(16):
                nursery.start_soon(step, number)
        assert outcomes == {number: bool(number % 2) for number in range(16)}
        assert await store.fetch("SELECT count(*) FROM late_children") == [(8,)]

    async def test_six_hundred_calls_on_one_quota_of_fifty_let_exactly_fifty_through(self, store: Store) -> None:
        sql = (
            "INSERT INTO counters VALUES (:name, 1) ON CONFLICT (name) DO UPDATE SET n = counters.n + 1 "
            "WHERE counters.n < :limit RETURNING n"
        )
        granted: list[Any] = []
        refused = 0

        async def call() -> None:
            nonlocal refused
            try:
                ((row,),) = await store.commit(Statement(sql, {"name": "free", "limit": 50}, rows=1))
                granted.append(row[0])
            except Conflict:
                refused += 1

        async with trio.open_nursery() as nursery:
            for _ in range(600):
                nursery.start_soon(call)
        assert sorted(granted) == list(range(1, 51))
        assert refused == 550
        assert await store.fetch("SELECT n FROM counters") == [(50,)]

    async def test_money_moved_at_random_is_neither_made_nor_lost(self, store: Store) -> None:
        rng = random.Random(20)
        await store.commit(*(opened(f"a{number}", 100) for number in range(8)))

        async def move(source: int, target: int, amount: int) -> None:
            with suppress(StatementFailed):  # not that much there
                await store.commit(moved(f"a{source}", -amount), moved(f"a{target}", amount))

        async with trio.open_nursery() as nursery:
            for _ in range(300):
                nursery.start_soon(move, rng.randrange(8), rng.randrange(8), rng.randrange(80))
            for _ in range(20):
                ((total,),) = await store.fetch("SELECT CAST(sum(balance) AS BIGINT) FROM accounts")
                assert total == 800
        assert sum((await balances(store)).values()) == 800


class TestReading:
    async def test_a_read_sees_every_commit_that_returned_before_it(self, store: Store) -> None:
        async def write_and_read(number: int) -> None:
            name = f"a{number}"
            await store.commit(opened(name, 0))
            for round_ in range(1, 6):
                await store.commit(moved(name, 1))
                assert await store.fetch("SELECT balance FROM accounts WHERE name = :name", {"name": name}) == [
                    (round_,)
                ]

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(write_and_read, number)

    async def test_many_queries_see_one_snapshot(self, store: Store) -> None:
        await store.commit(opened("alice", 1000), opened("bob", 0))
        query = "SELECT balance FROM accounts WHERE name = :name"
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(partial(store.commit, moved("alice", -1), moved("bob", 1)))
            for number in range(20):
                read = store.look_up if number % 2 else store.fetch_many
                answers = await read([(query, {"name": "alice"}), (query, {"name": "bob"})])
                (((alice,),), ((bob,),)) = answers
                assert cast("int", alice) + cast("int", bob) == 1000

    async def test_no_queries_have_no_answers(self, store: Store) -> None:
        assert await store.fetch_many([]) == []
        assert await store.look_up([]) == []

    async def test_a_wrong_query_is_named_and_spoils_no_later_read(self, store: Store) -> None:
        for _ in range(10):
            with pytest.raises(StatementFailed) as caught:
                await store.fetch_many([("SELECT 1", {}), ("SELECT nothing FROM nowhere", {})])
            assert caught.value.index == 1
            with pytest.raises(StatementFailed):
                await store.look_up([("SELECT nothing FROM nowhere", {})])
        assert await store.fetch("SELECT 1") == [(1,)]

    async def test_a_read_cannot_write(self, store: Store) -> None:
        with pytest.raises(Exception, match=r"(?i)read.?only|cannot be written"):
            await store.fetch("DELETE FROM accounts")


class TestDurability:
    async def test_what_was_stored_is_there_after_reopening(self, engine: OpenStore) -> None:
        for round_ in range(3):
            async with open_runtime() as runtime, engine(runtime) as store:
                assert await balances(store) == {f"a{number}": number for number in range(round_)}
                await store.commit(opened(f"a{round_}", round_))

    async def test_a_step_in_hand_is_stored_although_its_caller_goes_away(self, engine: OpenStore) -> None:
        async with open_runtime() as runtime, engine(runtime) as store:
            with trio.CancelScope() as scope:
                scope.cancel()
                await store.commit(opened("never", 1))
            assert await balances(store) == {}
            async with trio.open_nursery() as nursery:
                for number in range(50):
                    nursery.start_soon(partial(store.commit, opened(f"a{number}", 1), moved(f"a{number}", 1)))
                await wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
        async with open_runtime() as runtime, engine(runtime) as store:
            found = await balances(store)
        assert set(found.values()) == {2}  # some were in hand, and those are stored whole

    async def test_callers_that_wait_while_the_runtime_stops_are_answered(self, engine: OpenStore) -> None:
        stored = 0

        async def keep(store: Store, number: int) -> None:
            nonlocal stored
            await store.commit(opened(f"a{number}", 1))
            stored += 1

        async with trio.open_nursery() as nursery, open_runtime() as runtime, engine(runtime) as store:
            for number in range(300):
                nursery.start_soon(keep, store, number)
            await wait_all_tasks_blocked()
        async with open_runtime() as runtime, engine(runtime) as store:
            assert len(await balances(store)) == stored == 300


class Colour(enum.StrEnum):
    RED = "red"


class TestValues:
    @pytest.mark.parametrize(
        ("column", "value"),
        [
            ("text", ""),
            ("text", "naïve 漢字 🪙 \u202e\u0301"),
            ("text", "'; DROP TABLE kept; --"),
            ("text", "x" * 1_000_000),
            ("whole", 0),
            ("whole", -1),
            ("whole", 2**63 - 1),
            ("whole", -(2**63)),
            ("bytes", b""),
            ("bytes", b"\0\xff\0 not text"),
            ("bytes", random.Random(1).randbytes(5_000_000)),
            ("text", None),
            ("whole", None),
            ("bytes", None),
        ],
        ids=lambda value: repr(value)[:24],
    )
    async def test_comes_back_as_it_was_stored(self, store: Store, column: str, value: Value) -> None:
        sql = f"INSERT INTO kept (id, {column}) VALUES (1, :value) RETURNING {column}"
        assert await store.commit(Statement(sql, {"value": value})) == [[(value,)]]
        ((found,),) = await store.fetch(f"SELECT {column} FROM kept WHERE id = 1")
        assert (type(found), found) == (type(value), value)

    async def test_an_enumerated_string_is_stored_as_its_text(self, store: Store) -> None:
        await store.commit(Statement("INSERT INTO kept (id, text) VALUES (1, :text)", {"text": Colour.RED}))
        ((found,),) = await store.fetch("SELECT text FROM kept WHERE text = :text", {"text": Colour.RED})
        assert type(found) is str

    @pytest.mark.parametrize("value", [2**63, -(2**63) - 1, "a\0b", "\ud800"], ids=repr)
    async def test_a_value_that_no_engine_keeps_is_refused(self, store: Store, value: Value) -> None:
        with pytest.raises(ValueError, match=r"beyond 64 bits|NUL|surrogates"):
            Statement("SELECT :value", {"value": value})
        with pytest.raises(ValueError, match=r"beyond 64 bits|NUL|surrogates"):
            await store.fetch("SELECT :value", {"value": value})

    @pytest.mark.parametrize("value", [True, 1.5, [1], bytearray(b"x")], ids=repr)
    async def test_a_value_of_another_type_is_refused(self, store: Store, value: Any) -> None:
        with pytest.raises(TypeError, match="value"):
            Statement("SELECT :value", {"value": value})
        with pytest.raises(TypeError, match="value"):
            await store.fetch("SELECT :value", {"value": value})

    def test_a_statement_keeps_its_parameters_though_the_caller_changes_his(self) -> None:
        mine: dict[str, Value] = {"n": 1}
        statement = Statement("SELECT :n", mine)
        mine["n"] = 2
        kept: Mapping[str, Value] = statement.parameters
        assert kept == {"n": 1}


class TestHealth:
    async def test_a_store_that_works_is_writable(self, store: Engine) -> None:
        assert store.health.writable
        health = await store.probe()
        assert (health.writable, health.reason) == (True, None)
