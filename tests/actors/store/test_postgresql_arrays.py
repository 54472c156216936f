from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from gateway.actors.store import Value
from gateway.actors.store.postgresql_arrays import Columns, Inference
from gateway.actors.store.postgresql_connection import Connection
from gateway.actors.store.postgresql_sql import spoken
from tests.actors.store.postgresql_parts import WITHIN_S, connected, run


async def columns(connection: Connection, sql: str, *rows: Mapping[str, Value]) -> Columns | None:
    return await Inference().columns(connection, sql, spoken(sql).names, rows, WITHIN_S)


async def test_a_column_has_the_type_that_its_place_demands(postgresql_url: str) -> None:
    async with connected(postgresql_url) as connection:
        await run(connection, "CREATE TABLE t (a text, b bigint, c bytea, d integer)")
        sql = "INSERT INTO t VALUES (:a, :b, :c, :d)"
        nothing: Sequence[Mapping[str, Value]] = [dict.fromkeys("abcd")] * 2
        found = await columns(connection, sql, *nothing)
        assert found is not None
        assert found.types == ["text", "int8", "bytea", "int4"]
        found = await columns(connection, sql, {"a": "x", "b": 1, "c": b"x", "d": 2**40})
        assert found is not None
        assert found.types == ["text", "int8", "bytea", "int8"]


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT 1 WHERE 'x' = :a", [{"a": "x"}, {"a": 1}]),
        ("SELECT 1 WHERE 1 = :a", [{"a": "1"}, {"a": "2"}]),
        ("SELECT 1 WHERE now() < :a", [{"a": "2026-01-01"}]),
        ("SELECT nothing FROM nowhere WHERE a = :a", [{"a": "x"}]),
    ],
)
async def test_rows_that_do_not_go_into_arrays_are_left_alone(
    sql: str, rows: Sequence[Mapping[str, Value]], postgresql_url: str
) -> None:
    async with connected(postgresql_url) as connection:
        assert await columns(connection, sql, *rows) is None


async def test_a_statement_is_described_once(postgresql_url: str) -> None:
    inference = Inference()
    sql = "SELECT 1 WHERE 'x' = :a"
    async with connected(postgresql_url) as connection:
        assert await inference.columns(connection, sql, ("a",), [{"a": "x"}], WITHIN_S) is not None
        connection.close()
        assert await inference.columns(connection, sql, ("a",), [{"a": "y"}], WITHIN_S) is not None
