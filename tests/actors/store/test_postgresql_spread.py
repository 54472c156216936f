from __future__ import annotations

import pytest

from gateway.actors.store.postgresql_spread import spread
from gateway.actors.store.postgresql_sql import CLOCK


def said(sql: str, *types: str) -> str:
    found = spread(sql)
    assert found is not None
    return found.sql(types)


def test_an_insert_selects_from_arrays() -> None:
    sql = "INSERT INTO t (a, b, c) VALUES (:a, COALESCE(:b, 'x.y'), 'c') ON CONFLICT DO NOTHING"
    assert said(sql, "text", "int8") == (
        "INSERT INTO t (a, b, c) SELECT gateway_rows.gw_a, COALESCE ( gateway_rows.gw_b , 'x.y' ), 'c' "
        "FROM unnest($1::text[], $2::int8[]) AS gateway_rows(gw_a, gw_b) ON CONFLICT DO NOTHING"
    )


def test_an_update_tells_by_which_parameters_each_row_was_changed() -> None:
    sql = "UPDATE t SET v = v + :n, at = :store_ms WHERE id = :id AND v >= 0"
    assert said(sql, "int8", "text") == (
        f"UPDATE t SET v = v + gateway_rows.gw_n , at = {CLOCK} "
        "FROM unnest($1::int8[], $2::text[]) WITH ORDINALITY AS gateway_rows(gw_n, gw_id, gateway_ordinal) "
        "WHERE id = gateway_rows.gw_id AND v >= 0 RETURNING gateway_rows.gateway_ordinal"
    )


def test_a_delete_uses_arrays() -> None:
    assert said("DELETE FROM t WHERE id = :id", "text") == (
        "DELETE FROM t USING unnest($1::text[]) WITH ORDINALITY AS gateway_rows(gw_id, gateway_ordinal) "
        "WHERE id = gateway_rows.gw_id RETURNING gateway_rows.gateway_ordinal"
    )


@pytest.mark.parametrize(
    ("sql", "pins"),
    [
        ("INSERT INTO t (a, B, c) VALUES (:x, :y, :z + 1)", {"a": "x", "b": "y"}),
        ("INSERT INTO t VALUES (:x, 1, :y)", {"#0": "x", "#2": "y"}),
        ("INSERT INTO t (a, b) VALUES (:a, :b) ON CONFLICT (a) DO UPDATE SET b = excluded.b", {"a": "a"}),
        ("UPDATE t SET a = :n WHERE b = :b AND c > :c AND d = 1", {"b": "b"}),
        ("UPDATE t SET a = :n WHERE a = :o AND b = :b", {"b": "b"}),
        ("UPDATE t SET a = 1 WHERE (a = :a OR a = 2) AND b = :b", {"b": "b"}),
        ("UPDATE t SET a = CASE WHEN :w = 1 THEN a ELSE NULL END WHERE NOT c = :c AND b = :b", {"b": "b"}),
        ("DELETE FROM t WHERE a = :a AND b IN (:b, :c)", {"a": "a"}),
    ],
)
def test_columns_that_equal_a_parameter_in_every_touched_row_are_pinned(sql: str, pins: dict[str, str]) -> None:
    found = spread(sql)
    assert found is not None
    assert found.pins == pins


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "INSERT INTO t (a) VALUES (1)",
        "INSERT INTO t (a) VALUES (:a), (:b)",
        "INSERT INTO t (a) VALUES (:a) RETURNING a",
        "INSERT INTO t (a) VALUES (:a) ON CONFLICT (a) DO UPDATE SET b = :b",
        "INSERT INTO t (a) VALUES (:a) ON CONFLICT (a) DO UPDATE SET a = 1",
        "INSERT INTO t (a, b) VALUES (:a, (SELECT max(b) FROM t))",
        "INSERT INTO t (a, b) SELECT :a, :b",
        "INSERT INTO t (a, b) VALUES (:a)",
        "INSERT INTO t (a) VALUES (:store_ms)",
        "INSERT INTO t (a, b) VALUES (:a, random())",
        "INSERT INTO t (a, b) VALUES (:a, DEFAULT)",
        'INSERT INTO "t" (a) VALUES (:a)',
        "UPDATE t SET a = 1",
        "UPDATE t SET a = :a WHERE b = :b OR c = :c",
        "UPDATE t SET a = :a WHERE b BETWEEN :b AND :c",
        "UPDATE t SET (a, b) = (:a, :b) WHERE c = :c",
        "UPDATE t SET a = :a FROM u WHERE t.b = :b",
        "UPDATE t AS x SET a = :a WHERE b = :b",
        "UPDATE t SET a = :a WHERE b = :b AND NOT EXISTS (SELECT 1 FROM u)",
        "UPDATE t SET a = :a WHERE b = :b RETURNING a",
        "UPDATE t SET a = :a WHERE b = :b;",
        "UPDATE t SET a = :a::text WHERE b = :b",
        "UPDATE t SET a = nextval('s') WHERE b = :b",
        "DELETE FROM t",
        "DELETE FROM t WHERE a > :a",
        "WITH x AS (SELECT 1) DELETE FROM t WHERE a = :a",
        "nonsense",
        "",
    ],
)
def test_is_run_row_by_row(sql: str) -> None:
    assert spread(sql) is None
