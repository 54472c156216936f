from __future__ import annotations

import hashlib

import pytest

from gateway.actors.store.protocol import Row
from gateway.moving.comparing import OBSERVED_EVERY, compare
from gateway.moving.tables import Table

TABLE = Table("t", ("k", "v"), ("k",))
ROWS: list[Row] = [("a", b"x"), ("b", None), ("c", 1)]


def test_equal_rows_have_equal_counts_and_hashes() -> None:
    found = compare(TABLE, ROWS, list(ROWS), lambda _: None)
    assert (found.equal, found.rows, found.differing) == (True, (3, 3), None)
    assert found.hashes[0] == hashlib.sha256(b'["a",["78"]]\n["b",null]\n["c",1]\n').hexdigest()


@pytest.mark.parametrize(
    ("theirs", "differing"),
    [
        ([("a", b"x"), ("b", ""), ("c", 1)], '["b"]'),
        ([("a", b"x"), ("b", None), ("c", "1")], '["c"]'),
        ([("a", b"x"), ("b", None)], '["c"]'),
        ([*ROWS, ("d", 2)], '["d"]'),
        ([("a", b"x"), ("c", 1)], '["b"]'),
        ([("a", b"x"), ("aa", 1), ("b", None), ("c", 1)], '["aa"]'),
        ([], '["a"]'),
    ],
)
def test_a_row_that_differs_or_is_missing_or_is_too_many_is_named(theirs: list[Row], differing: str) -> None:
    found = compare(TABLE, ROWS, theirs, lambda _: None)
    assert not found.equal
    assert (found.rows, found.differing) == ((3, len(theirs)), differing)


def test_progress_is_told_now_and_then_and_at_the_end() -> None:
    rows: list[Row] = [(number, None) for number in range(OBSERVED_EVERY + 1)]
    told: list[int] = []
    compare(TABLE, rows, rows, told.append)
    assert told == [OBSERVED_EVERY, OBSERVED_EVERY + 1]
