from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio

from gateway.actors.store import Conflict, Reason, Statement, StatementFailed
from gateway.actors.store.errors import Failure
from gateway.actors.store.postgresql_link import Link
from gateway.actors.store.postgresql_writer import Asked, Result, Step, Writer
from tests.actors.store.postgresql_parts import connected, joined, run, run_at, schema_of

TABLES = """
CREATE TABLE t (id TEXT NOT NULL PRIMARY KEY, v BIGINT NOT NULL CHECK (v >= 0));
CREATE TABLE parents (id BIGINT NOT NULL PRIMARY KEY);
CREATE TABLE late (
    id BIGINT NOT NULL PRIMARY KEY, parent BIGINT NOT NULL REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED
);
"""


def put(name: str, v: int = 1) -> Statement:
    return Statement("INSERT INTO t VALUES (:id, :v)", {"id": name, "v": v}, rows=1)


def add(name: str, v: int) -> Statement:
    return Statement("UPDATE t SET v = v + :v WHERE id = :id RETURNING v", {"id": name, "v": v}, rows=1)


async def store(link: Link, writer: Writer, *steps: Step) -> list[Result]:
    return await writer.run([Asked(step, link.member.tenure) for step in steps], patience=5.0)


async def held(url: str) -> list[tuple[object, ...]]:
    (rows,) = await run_at(url, "SELECT id, v FROM t ORDER BY id")
    return [tuple(row) for row in rows]


async def test_each_step_stands_or_falls_alone(postgresql_url: str) -> None:
    async with joined(postgresql_url, schema_of(TABLES)) as (link, writer):
        results = await store(
            link,
            writer,
            [put("a"), add("a", 5)],
            [put("b"), add("nobody", 1)],
            [add("a", -100)],
            [put("c"), Statement("SELECT nothing FROM nowhere")],
            [Statement("SELECT :missing")],
            [add("a", -1)],
        )
    assert results[0] == [[], [(6,)]]
    assert isinstance(results[1], Conflict)
    assert [result.index for result in results[2:5] if isinstance(result, StatementFailed)] == [0, 1, 0]
    assert results[5] == [[(5,)]]
    assert await held(postgresql_url) == [("a", 5)]


async def test_a_group_is_one_transaction(postgresql_url: str) -> None:
    async with joined(postgresql_url, schema_of(TABLES)) as (link, writer):
        await store(link, writer, *([put(f"a{number}")] for number in range(40)))
        assert link.member.step == 1
        (transactions,) = await run_at(postgresql_url, "SELECT count(DISTINCT xmin::text) FROM t")
    assert transactions == [(1,)]


async def test_a_constraint_that_is_checked_at_the_end_fails_its_step_alone(postgresql_url: str) -> None:
    late = "INSERT INTO late VALUES (:id, :parent)"
    async with joined(postgresql_url, schema_of(TABLES)) as (link, writer):
        results = await store(
            link,
            writer,
            [Statement("INSERT INTO parents VALUES (0)")],
            *([Statement(late, {"id": number, "parent": number % 2}, rows=1)] for number in range(4)),
        )
    assert [result if isinstance(result, list) else type(result) for result in results] == [
        [[]],
        [[]],
        StatementFailed,
        [[]],
        StatementFailed,
    ]
    assert isinstance(results[2], StatementFailed)
    assert results[2].index is None


async def test_a_group_that_loses_to_another_nodes_is_stored_all_the_same(postgresql_url: str) -> None:
    """Another transaction holds `b` and wants `a`: a deadlock, which the server ends after a second."""
    async with (
        joined(postgresql_url, schema_of(TABLES)) as (link, writer),
        connected(postgresql_url) as other,
    ):
        await store(link, writer, [put("a"), put("b")])
        await run(other, "SET deadlock_timeout = '10s'", "BEGIN", "UPDATE t SET v = v + 10 WHERE id = 'b'")
        results: list[Sequence[Result]] = []

        async def group() -> None:
            results.append(await store(link, writer, [add("a", 1), add("b", 1)], [put("c")]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(group)
            await waiting(postgresql_url)
            await run(other, "UPDATE t SET v = v + 10 WHERE id = 'a'", "COMMIT")
    assert results == [[[[(12,)], [(12,)]], [[]]]]
    assert await held(postgresql_url) == [("a", 12), ("b", 12), ("c", 1)]


async def waiting(url: str) -> None:
    async with connected(url) as connection:
        for _ in range(500):
            if await run(connection, "SELECT count(*) FROM pg_locks WHERE NOT granted") != [[(0,)]]:
                return
            await trio.sleep(0.01)
    pytest.fail("nobody waits")


async def test_steps_of_an_earlier_tenure_are_not_stored(postgresql_url: str) -> None:
    async with joined(postgresql_url, schema_of(TABLES)) as (link, writer):
        await run_at(postgresql_url, "UPDATE nodes SET lease_until = 0")
        lost = await store(link, writer, [put("a")], [put("b")])
        assert lost == [Failure(Reason.LEASE_LOST)] * 2
        assert (link.member.tenure, link.member.membership.epoch) == (1, 2)
        mixed = await writer.run([Asked([put("stale")], 0), Asked([put("fresh")], 1)], patience=5.0)
    assert mixed == [Failure(Reason.LEASE_LOST), [[]]]
    assert await held(postgresql_url) == [("fresh", 1)]


@pytest.mark.parametrize("steps", [[[put("a")]], [[put("a")], [put("b")]], [[put("a")], [put("b"), put("b")]]])
async def test_a_group_in_any_way_passes_the_fence_or_is_not_stored(postgresql_url: str, steps: Sequence[Step]) -> None:
    async with joined(postgresql_url, schema_of(TABLES)) as (link, writer):
        await run_at(postgresql_url, "UPDATE nodes SET epoch = 5")
        results = await store(link, writer, *steps)
    assert results == [Failure(Reason.LEASE_LOST)] * len(steps)
    assert await held(postgresql_url) == []


async def test_an_empty_step_is_a_durable_write(postgresql_url: str) -> None:
    async with joined(postgresql_url, schema_of(TABLES)) as (link, writer):
        assert await store(link, writer, []) == [[]]
        assert await run_at(postgresql_url, "SELECT step FROM nodes") == [[(1,)]]
        assert await store(link, writer, [], [], [put("a")]) == [[], [], [[]]]


async def test_a_group_too_large_for_one_message_is_stored_step_by_step(postgresql_url: str) -> None:
    large = "x" * 9_000_000
    async with joined(postgresql_url, schema_of("CREATE TABLE t (id TEXT PRIMARY KEY, x TEXT)")) as (link, writer):
        sql = "INSERT INTO t (id, x) VALUES (:id, :x)"
        results = await store(link, writer, *([Statement(sql, {"id": name, "x": large}, rows=1)] for name in "abcd"))
        assert results == [[[]]] * 4
        assert await run_at(postgresql_url, "SELECT sum(length(x)) FROM t") == [[(36_000_000,)]]
