from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from gateway.actors.runtime import open_runtime
from gateway.actors.store import Statement, StoreRefused, moves, open_sqlite

LEFT = orjson.dumps({"url": "postgresql://db/gateway", "at": "2026-01-01T00:00:00.000Z"}).decode()


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        (moves.MOVED_TO, LEFT, r"here: it was moved to postgresql://db/gateway at 2026-01-01.*would charge twice"),
        (moves.MOVING_FROM, "{}", r"here: a move is still filling it\. Run the same `gateway migrate --to` again"),
        (moves.MOVED_FROM, "{}", None),
        (moves.STORE_ID, "x", None),
    ],
)
async def test_a_store_that_was_left_or_is_not_whole_is_refused(
    tmp_path: Path, name: str, value: str, told: str | None
) -> None:
    async with open_runtime() as runtime, open_sqlite(runtime, tmp_path / "gateway.db") as store:
        await moves.require_whole(store, "here")
        fact = {"name": name, "value": value}
        await store.commit(Statement("INSERT INTO node_facts (name, value) VALUES (:name, :value)", fact))
        if told is None:
            await moves.require_whole(store, "here")
        else:
            with pytest.raises(StoreRefused, match=told):
                await moves.require_whole(store, "here")


def test_the_query_asks_for_every_fact_of_a_move() -> None:
    assert all(f"'{name}'" in moves.SELECT_OF_THE_MOVE for name in moves.OF_THE_MOVE)
