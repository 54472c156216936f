from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction

import pytest

from gateway.actors.store import Value
from gateway.actors.store.postgresql_connection import Command
from gateway.actors.store.postgresql_membership import accepted
from gateway.actors.store.postgresql_values import (
    ARRAY_TYPES,
    BYTEA,
    INT2,
    INT4,
    INT8,
    TEXT,
    UNKNOWN,
    Unreadable,
    array,
    array_type,
    encoded,
    rows_of,
    type_of,
)
from tests.actors.store.postgresql_parts import WITHIN_S, connected, run, run_at

RNG = random.Random(5)


@pytest.mark.parametrize(
    ("oid", "values"),
    [
        (TEXT, ["", "a", None, "naïve 漢字 🪙", "NULL", '{"}', "x" * 100_000]),
        (INT8, [0, -1, None, 2**63 - 1, -(2**63)]),
        (INT4, [0, None, 2**31 - 1, -(2**31)]),
        (INT2, [0, None, 2**15 - 1]),
        (BYTEA, [b"", None, b"\0\xff", RNG.randbytes(100_000)]),
        (TEXT, [None, None]),
    ],
)
async def test_an_array_comes_to_the_server_as_it_was(oid: int, values: Sequence[Value], postgresql_url: str) -> None:
    sent = Command(f"SELECT unnest($1::{ARRAY_TYPES[oid]}[])", [array(values, oid)], (array_type(oid),), (1,))
    async with connected(postgresql_url) as connection:
        (result,) = await accepted(connection, sent, within=WITHIN_S)
    assert [value for (value,) in rows_of(result)] == values


def test_values_are_sent_as_the_types_that_the_server_computes_in() -> None:
    assert [type_of(value) for value in (1, b"x", "x", None)] == [INT8, BYTEA, UNKNOWN, UNKNOWN]
    assert [encoded(value) for value in (-1, b"x", "é", None)] == [b"-1", b"x", "é".encode(), None]


async def test_whole_numbers_of_any_size_are_integers(postgresql_url: str) -> None:
    rng = random.Random(6)
    numbers = [0, 1, -1, 10_000, -10_000, 99_999_999, 10**40, -(10**40) + 1]
    numbers += [rng.randrange(-(10 ** rng.randrange(1, 60)), 10 ** rng.randrange(1, 60)) for _ in range(200)]
    sql = ", ".join(f"({number}::numeric)" for number in numbers)
    ((*found,),) = await run_at(postgresql_url, f"SELECT n FROM (VALUES {sql}) AS t(n)")
    assert [value for (value,) in found] == numbers


@pytest.mark.parametrize("number", ["0.5", "-0.0001", "1e-20", "10000.1", "'NaN'", "'Infinity'"])
async def test_a_fraction_is_no_value(number: str, postgresql_url: str) -> None:
    with pytest.raises(Unreadable):
        await run_at(postgresql_url, f"SELECT {number}::numeric")


async def test_a_whole_number_with_a_scale_is_an_integer(postgresql_url: str) -> None:
    assert await run_at(postgresql_url, "SELECT 5.000::numeric, 120000.0::numeric") == [[(5, 120_000)]]
    assert Fraction("5.000") == 5


async def test_other_types_are_read_as_text_integers_or_bytes_or_not_at_all(postgresql_url: str) -> None:
    async with connected(postgresql_url) as connection:
        sql = (
            "SELECT 1::int2, 2::int4, 3::int8, true, false, 4::oid, "
            "'v'::varchar, 'c'::char(3), 'n'::name, '\\x00ff'::bytea"
        )
        assert await run(connection, sql) == [[(1, 2, 3, 1, 0, 4, "v", "c  ", "n", b"\0\xff")]]
        for wrong in ("1::float8", "now()", "'{}'::json", "ARRAY[1]", "'1 day'::interval"):
            with pytest.raises(Unreadable, match="cast it"):
                await run(connection, f"SELECT {wrong}")
