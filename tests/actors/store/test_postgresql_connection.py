from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from gateway.actors.store import Reason, postgresql_connection
from gateway.actors.store.postgresql_connection import Command, Connection, Outcome
from gateway.actors.store.postgresql_failures import STALE, Disconnected, Rejection
from gateway.actors.store.postgresql_values import BYTEA, INT8, rows_of
from tests.actors.store.postgresql_parts import WITHIN_S, connected, run, run_at
from tests.actors.store.postgresql_proxy import proxied


def number(value: int) -> Command:
    return Command("SELECT $1 + 0", [b"%d" % value], (INT8,), (0,))


def read(outcome: Outcome) -> Any:
    assert outcome is not None
    assert not isinstance(outcome, Rejection)
    return rows_of(outcome)


async def test_an_exchange_answers_each_command_in_order(postgresql_url: str) -> None:
    async with connected(postgresql_url) as connection:
        for _ in range(3):
            outcomes = await connection.exchange(*map(number, range(100)), within=WITHIN_S)
            assert [read(outcome) for outcome in outcomes] == [[(value,)] for value in range(100)]
        assert await connection.exchange(within=WITHIN_S) == []


async def test_what_follows_a_rejected_command_is_skipped_and_the_next_exchange_works(postgresql_url: str) -> None:
    async with connected(postgresql_url) as connection:
        for once in (False, True, False):
            wrong = Command("SELECT nothing FROM nowhere", once=once)
            first, second, third = await connection.exchange(number(1), wrong, number(2), within=WITHIN_S)
            assert read(first) == [(1,)]
            assert isinstance(second, Rejection)
            assert (second.sqlstate, third) == ("42P01", None)
        assert read((await connection.exchange(number(3), within=WITHIN_S))[0]) == [(3,)]


async def test_a_command_is_prepared_once(postgresql_url: str) -> None:
    async with connected(postgresql_url) as connection:
        for value in range(20):
            await connection.exchange(number(value), number(value), within=WITHIN_S)
        (((count,),),) = await run(
            connection, "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%+ 0'"
        )
        assert count == 1


async def test_prepared_statements_do_not_pile_up(postgresql_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql_connection, "_MOST_PREPARED", 10)
    async with connected(postgresql_url) as connection:
        for value in range(50):
            assert read((await connection.exchange(Command(f"SELECT {value}"), within=WITHIN_S))[0]) == [(value,)]
        (((count,),),) = await run(connection, "SELECT count(*) FROM pg_prepared_statements")
        assert int(count or 0) <= 12


async def test_a_statement_whose_tables_changed_is_stale_once(postgresql_url: str) -> None:
    everything = Command("SELECT * FROM t")
    async with connected(postgresql_url) as connection:
        await run(connection, "CREATE TABLE t (a bigint)", "INSERT INTO t VALUES (1)")
        assert read((await connection.exchange(everything, within=WITHIN_S))[0]) == [(1,)]
        await run(connection, "ALTER TABLE t ADD COLUMN b bigint")
        (stale,) = await connection.exchange(everything, within=WITHIN_S)
        assert isinstance(stale, Rejection)
        assert stale.sqlstate == STALE
        assert read((await connection.exchange(everything, within=WITHIN_S))[0]) == [(1, None)]


async def test_what_a_server_does_not_support_is_not_stale(postgresql_url: str) -> None:
    wrong = Command("SELECT count(*) FROM pg_class FOR UPDATE")
    async with connected(postgresql_url) as connection:
        for _ in range(2):
            (outcome,) = await connection.exchange(wrong, within=WITHIN_S)
            assert isinstance(outcome, Rejection)
            assert outcome.sqlstate == "0A000"


async def test_much_is_sent_and_received_at_once(postgresql_url: str) -> None:
    rng = random.Random(4)
    contents = [rng.randbytes(3_000_000) for _ in range(6)]
    async with connected(postgresql_url) as connection:
        outcomes = await connection.exchange(
            *(Command("SELECT $1 || ''::bytea", [content], (BYTEA,), (1,)) for content in contents), within=60
        )
        assert [read(outcome) for outcome in outcomes] == [[(content,)] for content in contents]


async def test_a_cancelled_exchange_stops_on_the_server_and_leaves_the_connection_usable(postgresql_url: str) -> None:
    async with connected(postgresql_url) as connection:
        for _ in range(5):
            began = trio.current_time()
            with trio.move_on_after(0.05) as scope:
                await connection.exchange(Command("SELECT pg_sleep(30)::text"), number(1), within=WITHIN_S)
            assert scope.cancelled_caught
            assert trio.current_time() - began < 5
            assert read((await connection.exchange(number(7), within=WITHIN_S))[0]) == [(7,)]


async def test_a_connection_that_cannot_be_cancelled_is_closed(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_connection, "_CANCEL_S", 0.2)
    async with proxied(postgresql_url) as (proxy, url), connected(url) as connection:
        proxy.taking = False
        with trio.move_on_after(0.05):
            await connection.exchange(Command("SELECT pg_sleep(30)::text"), within=WITHIN_S)
        assert connection.closed
        with pytest.raises(Disconnected):
            await connection.exchange(number(1), within=WITHIN_S)
    sleeper = "query ~ 'sleep.30' AND pid <> pg_backend_pid()"
    await run_at(postgresql_url, f"SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity WHERE {sleeper}")


async def test_no_answer_in_time_is_a_lost_connection(postgresql_url: str) -> None:
    async with connected(postgresql_url) as connection:
        with pytest.raises(Disconnected) as caught:
            await connection.exchange(Command("SELECT pg_sleep(3)::text"), within=0.1)
        assert caught.value.reason is Reason.STALLED
        assert connection.closed


ASKS: list[Callable[[Connection], Awaitable[object]]] = [
    lambda connection: connection.exchange(number(1), within=WITHIN_S),
    lambda connection: connection.exchange(Command("SELECT pg_sleep(20)::text"), within=WITHIN_S),
]


async def look(connection: Connection) -> None:
    await connection.readable()
    connection.look()


async def again_and_again(ask: Callable[[Connection], Awaitable[object]], connection: Connection) -> None:
    for _ in range(100_000):
        await ask(connection)


@pytest.mark.parametrize("ask", ASKS)
async def test_an_administrator_who_ends_it_is_named(
    ask: Callable[[Connection], Awaitable[object]], postgresql_url: str
) -> None:
    async with connected(postgresql_url) as connection, trio.open_nursery() as nursery:
        nursery.start_soon(run_at, postgresql_url, f"SELECT pg_terminate_backend({connection.pid})")
        with pytest.raises(Disconnected) as caught:
            await again_and_again(ask, connection)
        assert caught.value.reason is Reason.SHUTTING_DOWN
        assert connection.closed


async def test_a_server_that_hung_up_meanwhile_is_found_out_by_a_look(postgresql_url: str) -> None:
    async with connected(postgresql_url) as connection:
        connection.look()
        await run_at(postgresql_url, f"SELECT pg_terminate_backend({connection.pid})")
        with trio.fail_after(5), pytest.raises(Disconnected) as caught:
            await again_and_again(look, connection)
        assert caught.value.reason is Reason.SHUTTING_DOWN


async def test_notifications_are_heard(postgresql_url: str) -> None:
    async with connected(postgresql_url) as connection:
        await run(connection, "LISTEN a")
        await run_at(postgresql_url, "SELECT pg_notify('a', 'one')::text", "SELECT pg_notify('a', 'two')::text")
        heard: list[str] = []
        with trio.fail_after(5):
            while len(heard) < 2:
                await connection.readable()
                connection.look()
                heard += [payload for _channel, payload, teller in connection.heard() if teller != connection.pid]
        assert heard == ["one", "two"]


async def test_a_closed_connection_can_be_closed_again(postgresql_url: str) -> None:
    async with connected(postgresql_url) as connection:
        connection.close()
        connection.close()
        assert connection.closed
