from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio

from gateway.actors.store import Reason, StatementFailed
from gateway.actors.store.postgresql_connecting import BY_INDEX
from gateway.actors.store.postgresql_lookups import Answers, LookUps, lateral
from gateway.actors.store.postgresql_pool import Query, Unavailable
from tests.actors.store.postgresql_parts import WITHIN_S, road, run_at


@asynccontextmanager
async def serving(url: str) -> AsyncIterator[LookUps]:
    lookups = LookUps(road(url, wishes=BY_INDEX), within=WITHIN_S)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lookups.serve)
        await trio.testing.wait_all_tasks_blocked()
        yield lookups
        nursery.cancel_scope.cancel()


async def at_once(lookups: LookUps, *asked: Sequence[Query]) -> list[Answers | Exception]:
    """What each of several callers is told who ask in the same moment."""
    told: dict[int, Answers | Exception] = {}

    async def ask(caller: int) -> None:
        try:
            told[caller] = await lookups.ask(asked[caller], patience=10)
        except (StatementFailed, Unavailable) as error:
            told[caller] = error

    async with trio.open_nursery() as nursery:
        for caller in range(len(asked)):
            nursery.start_soon(ask, caller)
    return [told[caller] for caller in range(len(asked))]


def test_a_query_for_many_parameters_is_a_lateral_one() -> None:
    assert lateral("SELECT a FROM t WHERE b = :b -- :c", ("b",), ["text"]) == (
        "SELECT gateway_rows.gateway_ordinal, gateway_found.* FROM unnest($1::text[]) WITH ORDINALITY"
        " AS gateway_rows(gw_b, gateway_ordinal) CROSS JOIN LATERAL (\n"
        "SELECT a FROM t WHERE b = gateway_rows.gw_b -- :c\n) AS gateway_found"
    )


async def test_callers_with_the_same_query_share_a_statement(postgresql_url: str) -> None:
    query = "SELECT :n + 1, 'x' WHERE :n % 2 = 0"
    async with serving(postgresql_url) as lookups:
        for _ in range(3):
            told = await at_once(lookups, *([(query, {"n": n})] for n in range(30)))
            assert told == [[[(n + 1, "x")] if n % 2 == 0 else []] for n in range(30)]
        statements = await lookups.ask([("SELECT statement FROM pg_prepared_statements", {})], patience=5)
    assert any("LATERAL" in str(statement) for (statement,) in statements[0])


@pytest.mark.parametrize(
    ("sql", "answer"),
    [
        ("SELECT n FROM generate_series(1, 3) AS t(n) ORDER BY n LIMIT :n", lambda n: [(i,) for i in range(1, n + 1)]),
        ("SELECT count(*) FROM generate_series(1, :n) AS t(n)", lambda n: [(n,)]),
        ("SELECT 5", lambda _n: [(5,)]),
        ("SELECT n FROM generate_series(1, :n) AS t(n) ORDER BY n DESC", lambda n: [(i,) for i in range(n, 0, -1)]),
        ("SELECT a.n, b.n FROM (SELECT :n AS n) a, (SELECT :n AS n) b", lambda n: [(n, n)]),
    ],
)  # fmt: skip
async def test_each_caller_is_told_its_own_rows_in_their_order(sql: str, answer: object, postgresql_url: str) -> None:
    assert callable(answer)
    async with serving(postgresql_url) as lookups:
        told = await at_once(lookups, *([(sql, {"n": n}), ("SELECT 'x'", {})] for n in (3, 1, 2, 3)))
    assert told == [[answer(n), [("x",)]] for n in (3, 1, 2, 3)]


async def test_values_of_several_types_are_looked_up_one_by_one(postgresql_url: str) -> None:
    query = "SELECT 1 WHERE :n IS NULL"
    values = (None, 1, "x")
    async with serving(postgresql_url) as lookups:
        told = await at_once(lookups, *([("SELECT coalesce(:n, '-')", {"n": value})] for value in (None, "a", None)))
        assert told == [[[("-",)]], [[("a",)]], [[("-",)]]]
        told = await at_once(lookups, *([(query, {"n": value})] for value in values))
    assert told[1] == [[]]


async def test_a_query_at_fault_is_told_to_its_own_caller(postgresql_url: str) -> None:
    async with serving(postgresql_url) as lookups:
        for wrong in ("SELECT 1 / :n", "SELECT nothing", "SELECT :missing", "SELECT :n + 0.5"):
            told = await at_once(
                lookups, *([("SELECT 1", {}), (wrong if n == 0 else "SELECT :n + 0", {"n": n})] for n in range(4))
            )
            assert isinstance(told[0], StatementFailed)
            assert told[0].index == 1
            assert told[1:] == [[[(1,)], [(n,)]] for n in range(1, 4)]


async def test_who_goes_away_is_not_looked_up_for(postgresql_url: str) -> None:
    async with serving(postgresql_url) as lookups:
        with trio.CancelScope() as scope:
            scope.cancel()
            await lookups.ask([("SELECT 1", {})], patience=1)
        assert await lookups.ask([("SELECT 2", {})], patience=1) == [[(2,)]]


async def test_a_lost_connection_is_made_anew_unnoticed(postgresql_url: str) -> None:
    async with serving(postgresql_url) as lookups:
        for _ in range(3):
            (((pid,),),) = await lookups.ask([("SELECT pg_backend_pid()", {})], patience=1)
            await run_at(postgresql_url, f"SELECT pg_terminate_backend({int(pid or 0)})")
            assert await lookups.ask([("SELECT 1", {})], patience=1) == [[(1,)]]


async def test_a_server_that_is_not_there_is_told_of_at_once() -> None:
    async with serving("postgresql://127.0.0.1:1/g") as lookups:
        told = await at_once(lookups, *([("SELECT 1", {})] for _ in range(5)))
    assert all(isinstance(one, Unavailable) and one.failure.reason is Reason.UNREACHABLE for one in told)


async def test_nobody_is_left_waiting_when_it_stops(postgresql_url: str) -> None:
    told: list[Reason] = []

    async def ask(lookups: LookUps) -> None:
        with pytest.raises(Unavailable) as caught:
            await lookups.ask([("SELECT pg_sleep(20)::text", {})], patience=30)
        told.append(caught.value.failure.reason)

    async with trio.open_nursery() as nursery:
        async with serving(postgresql_url) as lookups:
            for _ in range(3):
                nursery.start_soon(ask, lookups)
            await trio.testing.wait_all_tasks_blocked(0.1)
        with pytest.raises(Unavailable):
            await lookups.ask([("SELECT 1", {})], patience=1)
    assert told == [Reason.STOPPED] * 3
