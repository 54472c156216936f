from __future__ import annotations

import pytest

from gateway.actors.store.protocol import Row
from gateway.moving.mark import Mark


@pytest.mark.parametrize("after", [None, ("op_1",), (8453, "ä\\", b"\0", -1)])
def test_a_mark_is_read_as_it_was_written(after: Row | None) -> None:
    mark = Mark("id", "4/2", "operations", after, 7)
    assert Mark.of(mark.text) == mark


def test_a_mark_moves_on_by_a_batch() -> None:
    mark = Mark("id", "4/2").moved_on("a", ("k",), 5).moved_on("b", ("m",), 2)
    assert mark == Mark("id", "4/2", "b", ("m",), 7)
