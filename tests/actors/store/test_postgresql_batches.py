from __future__ import annotations

import itertools
import random
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import pytest

from gateway.actors.store import Conflict, Statement, StatementFailed, Value
from gateway.actors.store.postgresql_batches import Planner, Step
from gateway.actors.store.postgresql_link import Link
from gateway.actors.store.postgresql_writer import Asked, Result, Writer
from gateway.actors.store.schema import load, shipped
from tests.actors.store.postgresql_parts import WITHIN_S, connected, joined, run, run_at, schema_of
from tests.benchmarks.test_store_engines import paid_call

TABLES = """
CREATE TABLE t (id TEXT NOT NULL PRIMARY KEY, v BIGINT NOT NULL CHECK (v >= 0), u TEXT UNIQUE, b BLOB);
CREATE TABLE s (k BIGINT NOT NULL PRIMARY KEY, n BIGINT NOT NULL);
CREATE TABLE free (a TEXT, n BIGINT);
CREATE TABLE parents (id BIGINT NOT NULL PRIMARY KEY);
CREATE TABLE children (id BIGINT NOT NULL PRIMARY KEY, parent BIGINT NOT NULL REFERENCES parents (id));
CREATE TABLE partial (id BIGINT NOT NULL PRIMARY KEY, name TEXT);
CREATE UNIQUE INDEX partial_name ON partial (name) WHERE id > 5;
"""

INSERT = "INSERT INTO t (id, v) VALUES (:id, :v)"
CLAIM = "INSERT INTO t (id, v, u) VALUES (:id, :v, :u) ON CONFLICT DO NOTHING"
ADD = "UPDATE t SET v = v + :v WHERE id = :id"


def insert(name: str | int, v: int = 1, *, rows: int | None = 1, sql: str = INSERT) -> Statement:
    return Statement(sql, {"id": name, "v": v}, rows=rows)


def add(name: str, v: int, *, rows: int | None = 1) -> Statement:
    return Statement(ADD, {"id": name, "v": v}, rows=rows)


async def stored(link: Link, writer: Writer, *steps: Step) -> list[Result]:
    return await writer.run([Asked(step, link.member.tenure) for step in steps], patience=5.0)


async def batched(link: Link, *steps: Step) -> int:
    """How many of the steps a planner puts into batches."""
    async with link.turn(1.0):
        found, _ = await Planner().batches(await link.connection(), list(enumerate(steps)), WITHIN_S)
    return sum(len(batch.steps) for batch in found)


async def test_steps_of_one_shape_over_different_rows_are_stored_by_one_statement_each(postgresql_url: str) -> None:
    async with joined(postgresql_url, schema_of(TABLES)) as (link, writer):
        steps = [[insert(f"a{number}", number), add(f"a{number}", 1)] for number in range(50)]
        assert await batched(link, *steps) == 50
        assert await stored(link, writer, *steps) == [[[], []]] * 50
    (rows,) = await run_at(postgresql_url, "SELECT id, v FROM t")
    assert sorted(rows) == sorted((f"a{number}", number + 1) for number in range(50))


A: dict[str, Value] = {"id": "a", "n": 1, "o": 2}
B: dict[str, Value] = {"id": "b", "n": 2, "o": 1}


def both(sql: str, one: dict[str, Value] = A, other: dict[str, Value] = B) -> list[Step]:
    return [[Statement(sql, one)], [Statement(sql, other)]]


@pytest.mark.parametrize(
    ("why", "steps"),
    [
        ("they write the same row", [[add("a", 1)], [add("a", 2)]]),
        ("one reads what the other writes", both("UPDATE t SET v = :n WHERE v = :o")),
        ("they return rows", both("UPDATE t SET v = :n WHERE id = :id RETURNING v")),
        ("they read other rows", both("INSERT INTO t (id, v) VALUES (:id, (SELECT count(*) FROM t))")),
        ("nothing tells their rows apart", both("UPDATE s SET n = n + :n")),
        ("one of two conditions tells them apart", both("UPDATE t SET v = 1 WHERE id = :id OR v = :n")),
        ("they change a unique column", both("UPDATE t SET u = :id WHERE id = :id")),
        ("a foreign key looks elsewhere", both("INSERT INTO children (id, parent) VALUES (:n, 1)")),
        ("a unique index knows only some rows", both("INSERT INTO partial (id, name) VALUES (:n, 'x')")),
        ("they call what may differ", both("UPDATE t SET v = random() WHERE id = :id")),
        ("they take what they free", [[*step, insert("c")] for step in both("DELETE FROM t WHERE id = :id")]),
        ("they demand two rows", [[add(name, 1, rows=2)] for name in "ab"]),
        ("their values are of several types", both("INSERT INTO t (id, v) VALUES (:id, 1)", A, {"id": b"b"})),
        ("one writes as text what the other writes as a number", [
            [insert(name), Statement("UPDATE t SET v = 2 WHERE id = :id", {"id": other})]
            for name, other in (("1", "2"), (2, "3"))
        ]),
        ("a table is not there", both("DELETE FROM nowhere WHERE id = :id")),
        ("they have two shapes", [[insert("a")], [insert("b", rows=None)]]),
    ],
)  # fmt: skip
async def test_steps_are_not_batched_when(why: str, steps: Sequence[Step], postgresql_url: str) -> None:
    async with joined(postgresql_url, schema_of(TABLES)) as (link, _writer):
        assert await batched(link, *steps) == 0


async def test_the_steps_of_a_paid_call_are_batched(postgresql_url: str) -> None:
    calls = [list(paid_call(name)) for name in ("a", "b", "c")]
    async with joined(postgresql_url, load(shipped(), "postgresql")) as (link, writer):
        for steps in zip(*calls, strict=True):
            assert await batched(link, *steps) == 3
            assert all(isinstance(result, list) for result in await stored(link, writer, *steps))


async def test_a_step_that_meets_another_one_is_left_out_of_the_batch(postgresql_url: str) -> None:
    async with joined(postgresql_url, schema_of(TABLES)) as (link, _writer):
        assert await batched(link, *([insert(name)] for name in ("a", "b", "a", "c"))) == 3


async def test_a_conflict_inside_a_batch_is_told_to_the_step_that_has_it(postgresql_url: str) -> None:
    async with joined(postgresql_url, schema_of(TABLES)) as (link, writer):
        await stored(link, writer, [insert("a3")])
        steps = [[insert(f"b{number}"), add(f"a{number}", 1), insert(f"c{number}")] for number in range(5)]
        assert await batched(link, *steps) == 5
        results = await stored(link, writer, *steps)
    found = [(each.index, each.found) if isinstance(each, Conflict) else "stored" for each in results]
    assert found == [(1, 0), (1, 0), (1, 0), "stored", (1, 0)]
    (rows,) = await run_at(postgresql_url, "SELECT id, v FROM t ORDER BY id")
    assert rows == [("a3", 2), ("b3", 1), ("c3", 1)]


async def test_a_broken_constraint_inside_a_batch_is_told_to_the_step_that_broke_it(postgresql_url: str) -> None:
    async with joined(postgresql_url, schema_of(TABLES)) as (link, writer):
        results = await stored(link, writer, *([insert(f"a{number}", number - 1)] for number in range(4)))
    assert isinstance(results[0], StatementFailed)
    assert results[1:] == [[[]]] * 3


async def test_a_claim_that_loses_inside_a_batch_is_told(postgresql_url: str) -> None:
    async with joined(postgresql_url, schema_of(TABLES)) as (link, writer):
        steps = [[Statement(CLAIM, {"id": f"a{number}", "v": 1, "u": u}, rows=1)] for number, u in enumerate("xyxz")]
        results = await stored(link, writer, *steps)
    assert sum(isinstance(result, Conflict) for result in results) == 1
    assert isinstance(results[0], Conflict) or isinstance(results[2], Conflict)


async def test_columns_of_nothing_but_nulls_have_their_type(postgresql_url: str) -> None:
    sql = "INSERT INTO t (id, v, u, b) VALUES (:id, :v, :u, :b)"
    async with joined(postgresql_url, schema_of(TABLES)) as (link, writer):
        steps = [[Statement(sql, {"id": name, "v": 1, "u": None, "b": None}, rows=1)] for name in "abc"]
        mixed = [
            [Statement(sql, {"id": name, "v": 1, "u": u, "b": b}, rows=1)]
            for name, u, b in (("d", None, b"\0x"), ("e", "naïve 漢", None))
        ]
        assert await batched(link, *steps) == 3
        assert await batched(link, *mixed) == 2
        assert await stored(link, writer, *steps, *mixed) == [[[]]] * 5
    (rows,) = await run_at(postgresql_url, "SELECT id, u, b FROM t WHERE id >= 'd' ORDER BY id")
    assert rows == [("d", None, b"\0x"), ("e", "naïve 漢", None)]


async def test_what_one_connection_knew_of_a_table_is_asked_anew_of_the_next(postgresql_url: str) -> None:
    planner = Planner()
    steps = list(enumerate([[insert("a")], [insert("b")]]))
    async with joined(postgresql_url, schema_of(TABLES)) as (link, _writer):
        async with link.turn(1.0):
            found, _ = await planner.batches(await link.connection(), steps, WITHIN_S)
            assert len(found) == 1
            await run_at(postgresql_url, "DROP TABLE t")
        async with joined(postgresql_url, schema_of(TABLES), node="node-2") as (other, _), other.turn(1.0):
            found, left = await planner.batches(await other.connection(), steps, WITHIN_S)
    assert (found, len(left)) == ([], 2)


# -- any group has an outcome that some serial order of its steps has --------------------------------------------------


@attrs.frozen
class Outcome:
    """What became of the steps, and what the tables hold then."""

    results: tuple[object, ...]
    tables: tuple[object, ...]


READ = (
    "SELECT id, v, u FROM t ORDER BY id",
    "SELECT k, n FROM s ORDER BY k",
    "SELECT a, n FROM free ORDER BY a NULLS FIRST, n",
)


def told(result: Result) -> object:
    match result:
        case Conflict():
            return "conflict", result.index, result.found
        case StatementFailed():
            return "failed", result.index
        case list():
            return tuple(tuple(sorted(rows)) for rows in result)
    return result


def serially(start: Sequence[str], steps: Sequence[Step]) -> set[Outcome]:
    """The outcomes of all serial orders, by a database that knows nothing else."""
    found = set()
    for order in itertools.permutations(range(len(steps))):
        connection = sqlite3.connect(":memory:", isolation_level=None)
        connection.executescript("PRAGMA foreign_keys = ON;" + TABLES + ";".join(start))
        results = {number: told(_one(connection, steps[number])) for number in order}
        tables = tuple(tuple(connection.execute(sql).fetchall()) for sql in READ)
        connection.close()
        found.add(Outcome(tuple(results[number] for number in range(len(steps))), tables))
    return found


def _one(connection: sqlite3.Connection, step: Step) -> Result:
    connection.execute("SAVEPOINT step")
    rows: list[Any] = []
    for index, statement in enumerate(step):
        try:
            cursor = connection.execute(statement.sql, statement.parameters)
            rows.append(cursor.fetchall())
        except sqlite3.IntegrityError as error:
            connection.execute("ROLLBACK TO step")
            return StatementFailed(index, str(error))
        found = len(rows[-1]) if cursor.description else cursor.rowcount
        if statement.rows is not None and found != statement.rows:
            connection.execute("ROLLBACK TO step")
            return Conflict(index, found, statement.rows)
    connection.execute("RELEASE step")
    return rows


NAMES, NUMBERS = ("a", "b", "c", "d"), (0, 1, 2, 3)
KINDS: Sequence[tuple[str, Sequence[int | None]]] = (
    (INSERT, (1, None)),
    (CLAIM, (1, None)),
    ("INSERT INTO t (id, v) VALUES (:id, :v) ON CONFLICT (id) DO UPDATE SET v = t.v + excluded.v", (1, None)),
    ("INSERT INTO s (k, n) VALUES (:k, :v) ON CONFLICT (k) DO UPDATE SET n = excluded.n WHERE s.n < 2", (1, None)),
    ("INSERT INTO free VALUES (:id, :v)", (1, None)),
    ("INSERT INTO free (a, n) VALUES (:u, (SELECT count(*) FROM t))", (1, None)),
    (ADD, (0, 1, None)),
    ("UPDATE t SET v = v * 2 WHERE id = :id", (1, None)),
    ("UPDATE t SET v = v - 1 WHERE v = :v AND id = :id", (0, 1, None)),
    ("UPDATE t SET v = :v WHERE v = :k", (1, None)),
    ("UPDATE t SET u = :u WHERE id = :id", (1, None)),
    ("UPDATE t SET v = :v WHERE u = :u", (1, None)),
    ("UPDATE s SET n = n + :v WHERE k = :k", (1, None)),
    ("UPDATE s SET n = n * 3 WHERE k = :k AND n > 0 RETURNING n", (1, None)),
    ("DELETE FROM t WHERE id = :id", (0, 1, None)),
    ("DELETE FROM t WHERE u = :u AND v < 3", (0, 1, None)),
    ("DELETE FROM s WHERE k = :k", (1, None)),
    ("SELECT v FROM t WHERE id = :id", (0, 1)),
)


def random_group(rng: random.Random) -> Iterator[Step]:
    """Two to four steps, most of one shape, over few rows."""
    shape = [(sql, rng.choice(rows)) for sql, rows in rng.choices(KINDS, k=rng.choice((1, 1, 2, 2, 3)))]
    for number in range(rng.choice((2, 3, 4))):
        odd = number and rng.random() < 0.1
        yield [
            Statement(sql, random_parameters(rng), rows=rows)
            for sql, rows in ([(kind, rng.choice(rows)) for kind, rows in rng.choices(KINDS, k=2)] if odd else shape)
        ]


def random_parameters(rng: random.Random) -> dict[str, Value]:
    return {
        "id": rng.choice(NAMES),
        "v": rng.choice(NUMBERS),
        "k": rng.choice(NUMBERS),
        "u": rng.choice((*NAMES, None)),
    }


def random_start(rng: random.Random) -> Iterator[str]:
    uniques = rng.sample(NAMES, 4)
    for name, u in zip(NAMES, uniques, strict=True):
        if rng.random() < 0.6:
            yield f"INSERT INTO t (id, v, u) VALUES ('{name}', {rng.choice(NUMBERS)}, '{u}')"
    for k in NUMBERS:
        if rng.random() < 0.6:
            yield f"INSERT INTO s (k, n) VALUES ({k}, {rng.choice(NUMBERS)})"


async def compare(url: str, seed: int, rounds: int) -> None:
    rng = random.Random(seed)
    in_batches = 0
    quickly = connected(url, synchronous_commit="off")
    async with joined(url, schema_of(TABLES)) as (link, writer), quickly as beside:
        for number in range(rounds):
            start, steps = list(random_start(rng)), list(random_group(rng))
            await run(beside, "DELETE FROM t", "DELETE FROM s", "DELETE FROM free", *start)
            in_batches += await batched(link, *steps) > 0
            results = await stored(link, writer, *steps)
            tables = tuple(tuple(rows) for rows in await run(beside, *READ))
            outcome = Outcome(tuple(told(result) for result in results), tables)
            assert outcome in serially(start, steps), f"seed {seed}, round {number}: {start} {steps}"
    assert in_batches > rounds / 20


async def test_random_groups_have_the_outcome_of_a_serial_order(postgresql_url: str) -> None:
    await compare(postgresql_url, seed=1, rounds=250)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(2, 22))
async def test_many_random_groups_have_the_outcome_of_a_serial_order(postgresql_url: str, seed: int) -> None:
    await compare(postgresql_url, seed=seed, rounds=1000)
