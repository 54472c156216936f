from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest
import trio

from gateway.world import store as stores
from gateway.world.npm import ToolUnavailable
from gateway.world.store import OWN, StoreServer, StoreUnusable, is_shared, open_store
from tests.postgresql import EXTENDED
from tests.world.programs import gone_within


@pytest.fixture
async def own() -> AsyncIterator[StoreServer]:
    async with open_store(OWN) as store:
        assert store is not None
        assert store.server is not None
        yield store.server


def answers(url: str, timeout_s: int = 5) -> bool:
    try:
        with psycopg.connect(url, connect_timeout=timeout_s) as connection:
            return connection.execute("SELECT 1").fetchone() == (1,)
    except psycopg.OperationalError:
        return False


async def test_a_file_a_node_is_no_store_of_the_world() -> None:
    async with open_store("") as store:
        assert store is None


async def test_the_worlds_own_server_ends_with_the_block() -> None:
    async with open_store(OWN) as store:
        assert store is not None
        assert store.server is not None
        pid, directory = store.pid, store.server.server.directory
        assert answers(store.url)
    assert pid is not None
    assert gone_within(pid, 0)
    assert not await trio.Path(directory).exists()


async def test_a_killed_server_comes_back_with_all_it_acknowledged(own: StoreServer) -> None:
    with psycopg.connect(own.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE t AS SELECT 7 AS i")
        before = own.pid
        await own.put("kill")
        assert (own.pid, answers(own.url)) == (None, False)
    await own.put("ok")
    assert own.pid not in {None, before}
    with psycopg.connect(own.url) as connection:
        assert connection.execute("SELECT i FROM t").fetchone() == (7,)


async def test_a_paused_server_stands_still_until_it_is_well(own: StoreServer) -> None:
    pid = own.pid
    await own.put("pause")
    assert _state(own) == "T"
    await own.put("pause")
    await own.put("ok")
    assert (own.pid, answers(own.url)) == (pid, True)


async def test_every_mode_follows_every_other(own: StoreServer) -> None:
    for mode in ("pause", "kill", "kill", "pause", "ok", "ok"):
        await own.put(mode)
    assert answers(own.url)


async def test_a_server_that_somebody_else_killed_is_started_again(own: StoreServer) -> None:
    assert own.pid is not None
    pid = own.pid
    os.kill(pid, signal.SIGKILL)
    assert gone_within(pid, 20)
    await own.put("ok")
    assert answers(own.url)


async def test_orders_that_come_at_once_are_followed_one_by_one(own: StoreServer) -> None:
    async with trio.open_nursery() as nursery:
        for mode in ("kill", "ok", "pause", "ok"):
            nursery.start_soon(own.put, mode)
    await own.put("ok")
    assert answers(own.url)


async def test_without_a_server_on_this_machine_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise ToolUnavailable("there is no PostgreSQL here")

    monkeypatch.setattr(stores, "make_server", lambda: _Failing(none))
    with pytest.raises(StoreUnusable, match="there is no PostgreSQL here"):
        async with open_store(OWN):
            raise AssertionError


class _Failing:
    def __init__(self, fail: object) -> None:
        self._fail = fail

    def __enter__(self) -> None:
        assert callable(self._fail)
        self._fail()


# -- a database that somebody else runs --------------------------------------------------------------------------------


async def test_an_empty_database_is_taken_as_it_is(postgresql_url: str) -> None:
    async with open_store(postgresql_url) as store:
        assert store is not None
        assert (store.url, store.pid, store.server) == (postgresql_url, None, None)


async def test_a_database_with_nothing_but_extensions_is_empty(postgresql_url: str) -> None:
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        for made in EXTENDED:
            connection.execute(made.encode())
    async with open_store(postgresql_url) as store:
        assert store is not None


async def test_a_database_that_is_in_use_is_left_alone(postgresql_url: str) -> None:
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE money (i BIGINT)")
    with pytest.raises(StoreUnusable, match="takes an empty database only"):
        async with open_store(postgresql_url):
            raise AssertionError


async def test_a_database_that_is_not_there_is_told_without_its_password(postgresql_url: str) -> None:
    url = postgresql_url.replace("postgres@", "postgres:geheim@") + "_not"
    with pytest.raises(StoreUnusable, match=r"cannot be used: .*does not exist") as refused:
        async with open_store(url):
            raise AssertionError
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize(
    ("asked", "shared"),
    [
        ("postgresql", True),
        ("postgresql://u@h/d", True),
        ("postgres://u@h/d", True),
        ("sqlite:///x", False),
        ("", False),
    ],
)
def test_what_several_nodes_can_share(asked: str, shared: bool) -> None:
    assert is_shared(asked) is shared


def _state(own: StoreServer) -> str:
    return Path(f"/proc/{own.pid}/stat").read_text().rpartition(")")[2].split()[0]
