from __future__ import annotations

import random
from functools import partial

import pytest
import trio

from gateway.actors.store import Reason, StatementFailed, postgresql_pool
from gateway.actors.store.postgresql_pool import Pool, Query, Unavailable
from tests.actors.store.postgresql_parts import WITHIN_S, road, run_at

SLEEP: Query = ("SELECT pg_sleep(0.1)::text", {})
PID: list[Query] = [("SELECT pg_backend_pid()", {})]


def pool(url: str, size: int = 2) -> Pool:
    made = Pool(road(url), size, random.Random(1), within=WITHIN_S)
    made.open()
    return made


async def test_never_more_connections_than_its_size(postgresql_url: str) -> None:
    made = pool(postgresql_url)
    counts: list[object] = []
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'test' AND pid <> pg_backend_pid()"

    async def watch() -> None:
        for _ in range(10):
            counts.append((await run_at(postgresql_url, count))[0][0][0])
            await trio.sleep(0.02)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        for _ in range(12):
            nursery.start_soon(partial(made.read, [SLEEP], patience=10))
    assert max(int(str(count)) for count in counts) == 2
    made.close()


async def test_a_connection_is_used_again_and_an_old_one_replaced(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = pool(postgresql_url)
    first = await made.read(PID, patience=1)
    assert await made.read(PID, patience=1) == first
    monkeypatch.setattr(postgresql_pool, "_OLDEST_S", 0.0)
    assert await made.read(PID, patience=1) != first
    made.close()


async def test_who_waits_too_long_is_told(postgresql_url: str) -> None:
    made = pool(postgresql_url, 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(made.read, [("SELECT pg_sleep(20)::text", {})], patience=1))
        await trio.testing.wait_all_tasks_blocked(0.05)
        with pytest.raises(Unavailable) as caught:
            await made.read(PID, patience=0.05)
        assert caught.value.failure.reason is Reason.OVERLOADED
        nursery.cancel_scope.cancel()
    assert await made.read([("SELECT 1", {})], patience=1) == [[(1,)]]
    made.close()


async def test_a_closed_pool_lends_nothing(postgresql_url: str) -> None:
    made = pool(postgresql_url)
    await made.read(PID, patience=1)
    made.close()
    with pytest.raises(Unavailable) as caught:
        await made.read(PID, patience=1)
    assert caught.value.failure.reason is Reason.STOPPED
    made.open()
    await made.read(PID, patience=1)
    made.close()


async def test_a_failed_transaction_is_rolled_back_before_the_next_read(postgresql_url: str) -> None:
    made = pool(postgresql_url, 1)
    for _ in range(3):
        with pytest.raises(StatementFailed) as caught:
            await made.read([("SELECT 1", {}), ("SELECT 1 / 0", {}), ("SELECT 2", {})], patience=1)
        assert caught.value.index == 1
        assert await made.read([("SELECT 1", {}), ("SELECT 2", {})], patience=1) == [[(1,)], [(2,)]]
    made.close()


async def test_a_connection_that_was_ended_while_it_idled_is_replaced_unnoticed(postgresql_url: str) -> None:
    made = pool(postgresql_url, 1)
    for _ in range(3):
        (((pid,),),) = await made.read(PID, patience=1)
        await run_at(postgresql_url, f"SELECT pg_terminate_backend({int(pid or 0)})")
        assert await made.read([("SELECT 1", {})], patience=1) == [[(1,)]]
    made.close()
