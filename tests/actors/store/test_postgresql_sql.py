from __future__ import annotations

import pytest

from gateway.actors.store.postgresql_sql import CLOCK, Misused, command, spoken, tokens


@pytest.mark.parametrize(
    ("sql", "said", "names"),
    [
        ("SELECT :a, :b, :a", "SELECT $1, $2, $1", ("a", "b")),
        ("SELECT ':a', \":b\", 'it''s :c' || :d", "SELECT ':a', \":b\", 'it''s :c' || $1", ("d",)),
        ("SELECT :a::text", "SELECT $1::text", ("a",)),
        ("SELECT 1::bigint -- :a\n, /* :b */ :c", "SELECT 1::bigint -- :a\n, /* :b */ $1", ("c",)),
        ("SELECT a FROM t WHERE a>=:a AND b<>:_b2", "SELECT a FROM t WHERE a>=$1 AND b<>$2", ("a", "_b2")),
        ("SELECT :store_ms, :now", f"SELECT {CLOCK}, $1", ("now",)),
        ("SELECT '", "SELECT '", ()),
    ],
)
def test_parameters_become_numbers_where_they_are_parameters(sql: str, said: str, names: tuple[str, ...]) -> None:
    assert (spoken(sql).sql, spoken(sql).names) == (said, names)


def test_the_pieces_are_the_text() -> None:
    sql = "INSERT INTO t (a) VALUES (:a, 'b', \"c\", 1.5, x::text, é) -- end\n/* y */ ON CONFLICT DO NOTHING;"
    assert "".join(token.written for token in tokens(sql)) == sql


def test_a_missing_parameter_is_named_and_a_superfluous_one_ignored() -> None:
    with pytest.raises(Misused, match="no value is given for :b"):
        command("SELECT :a, :b", {"a": 1})
    assert command("SELECT :a", {"a": 1, "z": 2}).values == [b"1"]


@pytest.mark.parametrize(
    "sql", ["COMMIT", " -- x\n Rollback", "SET a = 1", "savepoint x", "LISTEN x", "COPY t TO STDOUT"]
)
def test_what_would_end_or_leave_the_transaction_is_not_sent(sql: str) -> None:
    with pytest.raises(Misused, match="no part of a step"):
        command(sql, {})
