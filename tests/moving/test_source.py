from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gateway.actors.runtime import open_runtime
from gateway.actors.store import StoreRefused, moves, open_sqlite
from gateway.moving.source import Source, open_source
from tests.moving.filled import fill

URL = "postgresql://gateway@db/gateway"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    fill(tmp_path / "gateway.db", 20, seed=1)
    return tmp_path / "gateway.db"


def now_ms() -> int:
    return 0


def facts(path: Path) -> dict[str, str]:
    with closing(sqlite3.connect(path)) as connection:
        return dict(connection.execute("SELECT name, value FROM node_facts"))


async def test_a_store_whose_node_runs_is_refused_and_a_held_one_lets_no_node_in(path: Path) -> None:
    async with open_runtime() as runtime, open_sqlite(runtime, path):
        with pytest.raises(StoreRefused, match=r"another node \(process \d+\) has it open.*Stop that node"):
            open_source(path, now_ms).__enter__()
    with open_source(path, now_ms):
        async with open_runtime() as runtime:
            with pytest.raises(StoreRefused, match="has it open"):
                await open_sqlite(runtime, path).__aenter__()


def test_a_missing_store_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match="there is no store"), open_source(tmp_path / "gateway.db", now_ms):
        pass
    assert list(tmp_path.iterdir()) == []


def test_its_id_is_made_once_and_goes_along_as_a_fact(path: Path, tmp_path: Path) -> None:
    assert moves.STORE_ID not in facts(path)
    with open_source(path, now_ms) as source:
        made = source.store_id
    with open_source(path, now_ms) as source:
        assert source.store_id == made == facts(path)[moves.STORE_ID]
    fill(tmp_path / "other.db", 1, seed=1)
    with open_source(tmp_path / "other.db", now_ms) as other:
        assert other.store_id != made


async def test_its_state_changes_once_a_node_has_run_on_it_and_not_by_being_held(path: Path) -> None:
    def state() -> str:
        with open_source(path, now_ms) as source:
            return source.state

    before = state()
    assert state() == before
    async with open_runtime() as runtime, open_sqlite(runtime, path):
        pass
    assert state() != before


def test_rows_behind_a_key_are_those_that_are_not_copied_yet(path: Path) -> None:
    with open_source(path, now_ms) as source:
        for table in source.tables:
            rows = list(source.rows(table))
            assert len(rows) == source.count(table) > 0, table.name
            middle = table.key_of(rows[len(rows) // 2])
            rest = rows[len(rows) // 2 + 1 :]
            assert list(source.rows(table, middle)) == rest
            assert source.count_after(table, middle) == len(rest)
            assert source.count_after(table, None) == len(rows)


async def test_a_store_that_was_left_says_where_it_went_and_lets_no_node_in(path: Path) -> None:
    def leave(source: Source, at: str) -> str:
        return source.leave(URL, at)

    with open_source(path, now_ms) as source:
        assert leave(source, "2026-01-01T00:00:00.000Z") == "2026-01-01T00:00:00.000Z"
        assert leave(source, "2027-01-01T00:00:00.000Z") == "2026-01-01T00:00:00.000Z"
    async with open_runtime() as runtime:
        with pytest.raises(StoreRefused, match=rf'moved to {URL} at 2026-01.*\[store\] url = "{URL}".*charge twice'):
            await open_sqlite(runtime, path).__aenter__()
    with open_source(path, now_ms) as again:
        assert again.fact(moves.MOVED_TO) is not None
