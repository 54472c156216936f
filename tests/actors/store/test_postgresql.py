from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from gateway.actors.runtime import open_runtime
from gateway.actors.store import (
    Committed,
    Conflict,
    Membership,
    PostgresqlSettings,
    PostgresqlStore,
    Reason,
    Statement,
    StatementFailed,
    StoreHealth,
    StoreRefused,
    StoreUnavailable,
    StoreUncertain,
    open_postgresql,
    postgresql_courier,
    postgresql_link,
)
from gateway.actors.store.postgresql_connection import Command
from gateway.world.postgresql import PostgresqlServer, open_server
from tests.actors.store.postgresql_parts import connected, run, run_at
from tests.actors.store.postgresql_proxy import Cut, proxied


def settings(url: str, **changes: Any) -> PostgresqlSettings:
    return attrs.evolve(PostgresqlSettings(url), **changes)


@asynccontextmanager
async def opened(
    url: str,
    *,
    node: str = "node-1",
    observe: Callable[[Committed | StoreHealth], object] = lambda _event: None,
    **changes: Any,
) -> AsyncIterator[PostgresqlStore]:
    migrations = Path(__file__).parent / "migrations" / "conformance"
    async with (
        open_runtime() as runtime,
        open_postgresql(runtime, settings(url, **changes), node=node, migrations=migrations, observe=observe) as store,
    ):
        yield store


async def refusal(url: str, *, node: str = "node-1", **changes: Any) -> str:
    """Why the database is refused at opening."""
    migrations = Path(__file__).parent / "migrations" / "conformance"
    async with open_runtime() as runtime:
        opening = open_postgresql(runtime, settings(url, **changes), node=node, migrations=migrations)
        with pytest.raises(StoreRefused) as caught:
            async with opening:
                pass
    return str(caught.value)


def account(name: str) -> Statement:
    return Statement("INSERT INTO accounts VALUES (:name, 1)", {"name": name}, rows=1)


async def names(store: PostgresqlStore) -> set[str]:
    return {str(name) for (name,) in await store.fetch("SELECT name FROM accounts")}


async def until(happens: Callable[[], bool], within: float = 10.0) -> None:
    for _ in range(int(within * 100)):
        if happens():
            return
        await trio.sleep(0.01)
    pytest.fail("it does not happen")


async def more_than(count: int, stored: set[str]) -> None:
    await until(lambda: len(stored) > count, within=30)


async def refused(store: PostgresqlStore, name: str = "refused") -> StoreUnavailable:
    with pytest.raises(StoreUnavailable) as caught:
        await store.commit(account(name))
    return caught.value


async def stored_again(store: PostgresqlStore, name: str, within: float = 15.0) -> None:
    """Store a row as soon as the store is there again."""
    with trio.fail_after(within):
        while True:
            try:
                await store.commit(account(name))
            except StoreUnavailable:
                await trio.sleep(0.05)
            else:
                return


@pytest.fixture
def own_server() -> Iterator[PostgresqlServer]:
    with open_server() as server:
        yield server


async def start(server: PostgresqlServer) -> None:
    """Start it again: the launch may not run in a thread that ends."""
    server.launch()
    while not await trio.to_thread.run_sync(server.await_ready):
        server.launch()


# -- opening -----------------------------------------------------------------------------------------------------------


async def test_a_server_that_is_not_there_refuses_the_start_with_its_address_and_a_remedy() -> None:
    text = await refusal("postgresql://someone:secret@127.0.0.1:1/gateway")
    assert "127.0.0.1:1 cannot be used" in text
    assert "Start PostgreSQL there" in text
    assert "secret" not in text


async def test_a_database_that_does_not_exist_refuses_the_start(postgresql_url: str) -> None:
    text = await refusal(postgresql_url + "_missing")
    assert "has no such database" in text
    assert "Correct the database" in text


async def test_a_read_only_database_refuses_the_start(postgresql_url: str) -> None:
    name = postgresql_url.rpartition("/")[2]
    await run_at(postgresql_url, f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    assert "it is read-only" in await refusal(postgresql_url)


async def test_a_refused_start_leaves_no_connection(postgresql_url: str) -> None:
    async with opened(postgresql_url) as store:
        await settled(store)
        await refusal(postgresql_url, lease_ms=300)
        for _ in range(100):
            if await connections(postgresql_url) <= 3:  # one writes, one renews the lease, one listens
                return
            await trio.sleep(0.05)
        pytest.fail("a connection is left")


async def connections(url: str) -> int:
    """How many others are connected."""
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    (((count,),),) = await run_at(url, others)
    return int(str(count))


# -- membership --------------------------------------------------------------------------------------------------------


async def test_a_node_joins_under_the_next_epoch_each_time_and_leaves_at_a_clean_stop(postgresql_url: str) -> None:
    for epoch in (1, 2):
        async with opened(postgresql_url) as store:
            assert store.membership == Membership("node-1", epoch)
        (rows,) = await run_at(postgresql_url, "SELECT epoch, lease_until FROM nodes")
        assert rows == [(epoch, 0)]


async def test_a_second_node_of_the_same_name_is_refused(postgresql_url: str) -> None:
    async with opened(postgresql_url, lease_ms=400) as store:
        text = await refusal(postgresql_url, lease_ms=400)
        assert "a node named node-1 is alive" in text
        assert "a name of its own" in text
        await store.commit(account("still mine"))
        assert store.membership.epoch == 1


async def test_a_node_that_crashed_joins_again_once_its_lease_is_over(postgresql_url: str) -> None:
    async with opened(postgresql_url):
        pass
    await run_at(postgresql_url, "UPDATE nodes SET lease_until = extract(epoch FROM now())::bigint * 1000 + 1600")
    began = time.monotonic()
    async with opened(postgresql_url, lease_ms=1600) as store:
        assert store.membership.epoch == 2
    assert time.monotonic() - began > 0.5


async def test_the_lease_of_an_idle_node_is_renewed(postgresql_url: str) -> None:
    left = "SELECT lease_until - floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint FROM nodes"
    async with opened(postgresql_url, lease_ms=400) as store:
        for _ in range(10):
            (((ms,),),) = await run_at(postgresql_url, left)
            assert 0 < int(str(ms)) <= 400
            await trio.sleep(0.15)
        assert store.membership.epoch == 1


async def test_a_node_that_stalled_past_its_lease_writes_nothing_stale_and_then_joins_anew(postgresql_url: str) -> None:
    async with opened(postgresql_url, lease_ms=300) as store:
        await store.commit(account("before"))
        time.sleep(0.8)  # noqa: ASYNC251 - the whole process stalls
        assert (await refused(store, "stale")).extra["reason"] == Reason.LEASE_LOST
        await stored_again(store, "after")
        assert store.membership.epoch == 2
        assert await names(store) == {"before", "after"}


async def test_steps_that_waited_through_a_stall_are_not_stored_in_the_next_tenure(postgresql_url: str) -> None:
    reasons: list[str] = []

    async def ask(store: PostgresqlStore, number: int) -> None:
        reasons.append((await refused(store, f"stale {number}")).extra["reason"])

    async with opened(postgresql_url, lease_ms=300) as store:
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(ask, store, number)
            time.sleep(0.8)  # noqa: ASYNC251 - the whole process stalls before any of them runs
        assert set(reasons) == {Reason.LEASE_LOST}
        await stored_again(store, "after")
        assert await names(store) == {"after"}


async def test_a_node_whose_name_another_process_took_writes_nothing_while_that_one_lives(postgresql_url: str) -> None:
    async with opened(postgresql_url, lease_ms=300) as store:
        await run_at(
            postgresql_url,
            "UPDATE nodes SET epoch = 7, lease_until = extract(epoch FROM clock_timestamp())::bigint * 1000 + 2000",
        )
        for _ in range(3):
            assert (await refused(store)).extra["reason"] == Reason.LEASE_LOST
        assert store.health.reason is Reason.LEASE_LOST
        await stored_again(store, "after")
        assert store.membership.epoch == 8
        assert await names(store) == {"after"}


async def test_a_transaction_that_takes_longer_than_the_lease_does_not_cost_it(postgresql_url: str) -> None:
    async with opened(postgresql_url, lease_ms=300) as store:
        await store.commit(account("before"), Statement("SELECT pg_sleep(1)::text"))
        await store.commit(account("after"))
        assert store.membership.epoch == 1
        assert await names(store) == {"before", "after"}


# -- the server goes away ----------------------------------------------------------------------------------------------


async def test_no_acknowledged_row_is_lost_when_the_server_is_killed_under_load(own_server: PostgresqlServer) -> None:
    url = own_server.create_database("gateway")
    stored: set[str] = set()
    uncertain: set[str] = set()
    failed: list[Exception] = []

    async def write(store: PostgresqlStore, writer: int, stop: trio.Event) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            name = f"{writer} {number}"
            try:
                await store.commit(account(name))
                stored.add(name)
            except StoreUncertain:
                uncertain.add(name)
            except StoreUnavailable:
                await trio.sleep(0.02)
            except (Conflict, StatementFailed) as error:
                failed.append(error)

    async with opened(url) as store:
        for round_ in range(3):
            stop = trio.Event()
            async with trio.open_nursery() as nursery:
                for writer in range(8):
                    nursery.start_soon(write, store, round_ * 8 + writer, stop)
                enough = len(stored) + 100
                await more_than(enough, stored)
                await trio.to_thread.run_sync(own_server.kill)
                await start(own_server)
                enough = len(stored) + 100
                await more_than(enough, stored)
                stop.set()
        found = await names(store)
    assert failed == []  # nothing was stored twice
    assert stored <= found
    assert found <= stored | uncertain


async def test_who_waits_is_refused_with_the_reason_and_the_store_comes_back_by_itself(
    own_server: PostgresqlServer,
) -> None:
    url = own_server.create_database("gateway")
    changes: list[StoreHealth] = []
    observe = lambda event: changes.append(event) if isinstance(event, StoreHealth) else None  # noqa: E731
    async with opened(url, observe=observe) as store:
        await store.commit(account("before"))
        await trio.to_thread.run_sync(own_server.kill)
        began = time.monotonic()
        error = await refused(store)
        assert time.monotonic() - began < 5
        assert not isinstance(error, StoreUncertain)
        assert error.extra["reason"] == Reason.UNREACHABLE
        with pytest.raises(StoreUnavailable) as caught:
            await store.fetch("SELECT 1")
        assert caught.value.extra["reason"] == Reason.UNREACHABLE
        with pytest.raises(StoreUnavailable):
            await store.look_up([("SELECT 1", {})])
        health = await store.probe()
        assert (health.writable, health.reason) == (False, Reason.UNREACHABLE)
        await start(own_server)
        await stored_again(store, "after")
        assert (await store.probe()).writable
        assert await names(store) == {"before", "after"}
        assert await store.look_up([("SELECT count(*) FROM accounts", {})]) == [[(2,)]]
    assert [change.writable for change in changes][-1] is True
    assert Reason.UNREACHABLE in {change.reason for change in changes}


async def test_a_server_that_does_not_answer_any_more_stalls_nobody_for_long(own_server: PostgresqlServer) -> None:
    url = own_server.create_database("gateway")
    async with opened(url, statement_timeout_s=1, connect_timeout_s=1) as store:
        await trio.to_thread.run_sync(own_server.pause)
        try:
            began = time.monotonic()
            error = await refused(store)
            assert error.extra["reason"] in {Reason.STALLED, Reason.UNREACHABLE}
            assert time.monotonic() - began < 8
        finally:
            await trio.to_thread.run_sync(own_server.resume)
        await stored_again(store, "after")
        assert "after" in await names(store)


async def test_connections_that_the_server_ended_meanwhile_are_made_anew_unnoticed(postgresql_url: str) -> None:
    end_all = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    async with opened(postgresql_url) as store:
        for number in range(3):
            await store.fetch("SELECT 1")
            await store.look_up([("SELECT 1", {})])
            await run_at(postgresql_url, end_all)
            await store.commit(account(f"a{number}"))
            assert len(await names(store)) == number + 1
            assert await store.look_up([("SELECT count(*) FROM accounts", {})]) == [[(number + 1,)]]
        assert store.membership.epoch == 1


# -- the connection is cut between COMMIT and its answer ---------------------------------------------------------------


async def stored_or_certainly_not(store: PostgresqlStore, name: str) -> None:
    """Store a step; on a slow machine its lease may run out meanwhile, and then nothing of it may have been stored."""
    try:
        await store.commit(account(name))
    except StoreUncertain:
        raise
    except StoreUnavailable:
        await stored_again(store, name)


@pytest.mark.parametrize("cut", ["before", "after", "late", "held"])
async def test_a_step_whose_commit_was_not_answered_is_stored_once(postgresql_url: str, cut: Cut) -> None:
    async with proxied(postgresql_url) as (proxy, url), opened(url, lease_ms=1000) as store:
        for number in range(3):
            await stored_again(store, f"warm {number}")
            proxy.cut = cut
            await stored_or_certainly_not(store, f"cut {number}")
            assert proxy.cuts == number + 1
        assert await names(store) == {f"{kind} {number}" for kind in ("warm", "cut") for number in range(3)}


@pytest.mark.parametrize("cut", ["before", "after", "late"])
async def test_a_group_whose_commit_was_not_answered_is_stored_once(postgresql_url: str, cut: Cut) -> None:
    stored: set[str] = set()

    async def write(store: PostgresqlStore, name: str) -> None:
        await store.commit(account(name))
        stored.add(name)

    async with proxied(postgresql_url) as (proxy, url), opened(url, lease_ms=5000) as store:
        await store.commit(account("warm"))
        proxy.cut = cut
        async with trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(write, store, f"a{number}")
        assert await names(store) == stored | {"warm"}
        assert (len(stored), proxy.cuts) == (30, 1)


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_an_outcome_that_cannot_be_learnt_is_uncertain(
    postgresql_url: str, cut: Cut, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_link, "_SETTLE_S", 0.5)
    async with proxied(postgresql_url) as (proxy, url), opened(url) as store:
        await store.commit(account("warm"))
        proxy.cut, proxy.taking = cut, False
        assert isinstance(await refused(store, "cut"), StoreUncertain)
        proxy.taking = True
        await stored_again(store, "after")
        assert await names(store) == {"warm", "after"} | ({"cut"} if cut == "after" else set())


async def test_an_outcome_is_learnt_over_a_connection_that_comes_back_late(postgresql_url: str) -> None:
    async with proxied(postgresql_url) as (proxy, url), opened(url) as store:
        await store.commit(account("warm"))
        proxy.cut, proxy.taking = "after", False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.commit, account("cut"))
            await until(lambda: proxy.cuts == 1)
            await trio.sleep(1.0)
            proxy.taking = True
        assert await names(store) == {"warm", "cut"}


# -- named reasons -----------------------------------------------------------------------------------------------------


async def test_what_takes_longer_than_the_statement_timeout_is_slow(postgresql_url: str) -> None:
    async with opened(postgresql_url, statement_timeout_s=1) as store:
        for ask in (
            lambda: store.fetch("SELECT pg_sleep(3)::text"),
            lambda: store.look_up([("SELECT pg_sleep(3)::text", {})]),
            lambda: store.commit(Statement("SELECT pg_sleep(3)::text")),
        ):
            with pytest.raises(StoreUnavailable) as caught:
                await ask()
            assert caught.value.extra["reason"] == Reason.SLOW
        await store.commit(account("after"))
        assert await names(store) == {"after"}


async def test_a_slow_step_does_not_take_others_of_its_group_along(postgresql_url: str) -> None:
    outcomes: dict[str, str] = {}

    async def ask(store: PostgresqlStore, name: str, statement: Statement) -> None:
        try:
            await store.commit(statement)
            outcomes[name] = "stored"
        except StoreUnavailable as error:
            outcomes[name] = error.extra["reason"]

    opening = opened(postgresql_url, statement_timeout_s=1)
    async with opening as store, trio.open_nursery() as nursery:
        nursery.start_soon(ask, store, "slow", Statement("SELECT pg_sleep(3)::text"))
        for name in "abc":
            nursery.start_soon(ask, store, name, account(name))
    assert outcomes == {"slow": Reason.SLOW, "a": "stored", "b": "stored", "c": "stored"}


async def test_a_step_that_never_had_its_turn_was_certainly_not_stored(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.actors.store.postgresql._PATIENCE_S", 4.0)
    async with opened(postgresql_url) as store, connected(postgresql_url) as other:
        await store.commit(account("a"))
        await run(other, "BEGIN", "UPDATE accounts SET balance = 9")
        outcomes: dict[str, StoreUnavailable] = {}

        async def ask(name: str, statement: Statement) -> None:
            with pytest.raises(StoreUnavailable) as caught:
                await store.commit(statement)
            outcomes[name] = caught.value

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "waits for a lock", Statement("UPDATE accounts SET balance = 1"))
            await trio.sleep(0.2)
            nursery.start_soon(ask, "waits for its turn", account("b"))
        await run(other, "ROLLBACK")
        await stored_again(store, "c")
        assert await names(store) == {"a", "c"}
    assert isinstance(outcomes["waits for a lock"], StoreUncertain)
    assert not isinstance(outcomes["waits for its turn"], StoreUncertain)


async def test_a_role_without_connections_left_is_told_as_such(postgresql_url: str) -> None:
    role = f"few_{postgresql_url.rpartition('/')[2]}"
    await run_at(
        postgresql_url,
        f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 1",
        f"GRANT ALL ON SCHEMA public TO {role}",
    )
    try:
        url = postgresql_url.replace("//postgres@", f"//{role}@")
        async with opened(url) as store:
            with pytest.raises(StoreUnavailable) as caught:
                await store.fetch("SELECT 1")
            assert caught.value.extra["reason"] == Reason.TOO_MANY_CONNECTIONS
            await store.commit(account("written all the same"))
            text = await refusal(url, node="node-2")
            assert "takes no more connections" in text
            assert "Raise max_connections" in text
    finally:
        await run_at(postgresql_url, f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}")


async def test_a_database_that_becomes_read_only_is_told_as_such(postgresql_url: str) -> None:
    name = postgresql_url.rpartition("/")[2]
    async with opened(postgresql_url) as store:
        await store.commit(account("before"))
        await run_at(
            postgresql_url,
            f'ALTER DATABASE "{name}" SET default_transaction_read_only = on',
            "SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        assert (await refused(store)).extra["reason"] == Reason.READ_ONLY
        assert await names(store) == {"before"}
        async with connected(postgresql_url, default_transaction_read_only="off") as beside:
            await run(beside, f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
        await stored_again(store, "after")


# -- between nodes -----------------------------------------------------------------------------------------------------


async def test_what_one_node_tells_another_one_hears(postgresql_url: str) -> None:
    async with opened(postgresql_url) as one, opened(postgresql_url, node="node-2") as other:
        await settled(one, other)
        with one.hear("topic") as here, other.hear("topic") as there, other.hear("another") as unmoved:
            one.tell("topic", "x" * 20_000, *(f"topic {number}" for number in range(2000)))
            assert here.is_set()
            with trio.fail_after(5):
                await there.wait()
            assert not unmoved.is_set()
        with other.hear("topic 1999") as there:
            one.tell("topic 1999")
            with trio.fail_after(5):
                await there.wait()


async def settled(*stores: PostgresqlStore) -> None:
    """Return once each of them hears of the others."""
    for one in stores:
        for other in stores:
            with other.hear("settled") as heard, trio.fail_after(10):
                while not heard.is_set():
                    one.tell("settled")
                    await trio.sleep(0.02)


async def test_a_server_without_notifications_is_told_of_once_and_serves(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(postgresql_courier, "_LISTEN", Command("LISTENING x", once=True))
    monkeypatch.setattr(postgresql_courier, "_WITHOUT_S", 0.01)
    async with opened(postgresql_url) as store:
        await store.commit(account("a"))
        with store.hear("topic") as heard:
            store.tell("topic")
            assert heard.is_set()
        await until(lambda: any("polled for" in record.getMessage() for record in caplog.records))
        await trio.sleep(0.2)
        assert sum("polled for" in record.getMessage() for record in caplog.records) == 1
        assert await names(store) == {"a"}


async def test_after_a_gap_everybody_looks_again(postgresql_url: str) -> None:
    async with opened(postgresql_url) as store:
        await settled(store)
        with store.hear("told while nobody listened") as heard:
            await run_at(
                postgresql_url,
                "SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity WHERE query LIKE 'LISTEN%' "
                "OR query LIKE '%pg_notify%' AND pid <> pg_backend_pid()",
            )
            with trio.fail_after(10):
                await heard.wait()


async def test_nodes_that_write_the_same_rows_in_opposite_orders_all_succeed(postgresql_url: str) -> None:
    moved = "UPDATE accounts SET balance = balance + 1 WHERE name = :name"
    stored = 0

    async def write(store: PostgresqlStore, first: str, second: str) -> None:
        nonlocal stored
        for _ in range(15):
            await store.commit(Statement(moved, {"name": first}, rows=1), Statement(moved, {"name": second}, rows=1))
            stored += 1

    async with opened(postgresql_url, lease_ms=5000) as one, opened(postgresql_url, node="b", lease_ms=5000) as other:
        await one.commit(account("x"), account("y"))
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(write, one, "x", "y")
                nursery.start_soon(write, other, "y", "x")
        assert stored == 90
        assert await one.fetch("SELECT balance FROM accounts") == [(91,), (91,)]


# -- reading -----------------------------------------------------------------------------------------------------------


async def test_many_look_ups_at_once_get_each_its_own_rows(postgresql_url: str) -> None:
    query = "SELECT balance FROM accounts WHERE name >= :low AND name < :high ORDER BY name DESC"
    found: dict[int, object] = {}

    async def look(store: PostgresqlStore, number: int) -> None:
        low, high = f"a{number:03}", f"a{number + number % 4:03}"
        found[number] = await store.look_up([(query, {"low": low, "high": high}), ("SELECT :n + 1", {"n": number})])

    async with opened(postgresql_url) as store:
        await store.commit(
            *(Statement("INSERT INTO accounts VALUES (:n, :b)", {"n": f"a{n:03}", "b": n}) for n in range(120))
        )
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(look, store, number)
    for number in range(100):
        rows = [(each,) for each in reversed(range(number, number + number % 4))]
        assert found[number] == [rows, [(number + 1,)]]


async def test_a_wrong_look_up_does_not_spoil_those_beside_it(postgresql_url: str) -> None:
    outcomes: dict[int, object] = {}

    async def look(store: PostgresqlStore, number: int) -> None:
        sql = "SELECT nothing FROM nowhere" if number == 3 else "SELECT :n + 0"
        try:
            outcomes[number] = await store.look_up([("SELECT 1", {}), (sql, {"n": number})])
        except StatementFailed as error:
            outcomes[number] = error.index

    async with opened(postgresql_url) as store, trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(look, store, number)
    assert outcomes == {number: 1 if number == 3 else [[(1,)], [(number,)]] for number in range(6)}


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_cancelled_calls_leave_the_connections_usable_and_none_behind(postgresql_url: str) -> None:
    async with opened(postgresql_url, readers=3) as store:
        for warm in (store.fetch("SELECT 1"), store.look_up([("SELECT 1", {})])):
            await warm
        await settled(store)
        files = open_files()
        for number in range(200):
            with trio.move_on_after(0.002 * (number % 4)):
                if number % 2:
                    await store.fetch_many([("SELECT pg_sleep(5)::text", {}), ("SELECT 1", {})])
                else:
                    await store.look_up([("SELECT pg_sleep(0.001)::text", {})])
        assert await store.fetch("SELECT 1") == [(1,)]
        assert await store.look_up([("SELECT 2", {})]) == [[(2,)]]
        assert await connections(postgresql_url) <= 1 + 3 + 1
        assert open_files() <= files + 2


async def test_a_reader_that_was_cancelled_stops_on_the_server_too(postgresql_url: str) -> None:
    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(20)%' AND state = 'active' AND pid <> pg_backend_pid()"  # noqa: E501
    async with opened(postgresql_url) as store:
        with trio.move_on_after(0.2):
            await store.fetch("SELECT pg_sleep(20)::text")
        assert await run_at(postgresql_url, sleeping) == [[(0,)]]


async def test_a_read_waits_for_a_free_reader_only_so_long(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.actors.store.postgresql._PATIENCE_S", 0.2)
    async with opened(postgresql_url, readers=1) as store, trio.open_nursery() as nursery:
        nursery.start_soon(partial(store.fetch, "SELECT pg_sleep(20)::text"))
        await until(lambda: store._actor.pool._places.available_tokens == 0)
        with pytest.raises(StoreUnavailable) as caught:
            await store.fetch("SELECT 1")
        assert caught.value.extra["reason"] == Reason.OVERLOADED
        nursery.cancel_scope.cancel()


async def test_tables_that_change_under_a_prepared_statement_are_read_and_written_on(postgresql_url: str) -> None:
    async with opened(postgresql_url) as store:
        for number in range(3):
            returning = Statement("INSERT INTO counters VALUES (:n, 1) RETURNING *", {"n": f"a{number}"})
            ((row,),) = await store.commit(returning)
            assert len(row) == 2 + number
            assert len((await store.fetch("SELECT * FROM counters"))[0]) == 2 + number
            ((row, *_),) = await store.look_up([("SELECT * FROM counters", {})])
            assert len(row) == 2 + number
            await run_at(postgresql_url, f"ALTER TABLE counters ADD COLUMN extra_{number} BIGINT")


async def test_sums_are_whole_numbers_and_fractions_are_refused(postgresql_url: str) -> None:
    async with opened(postgresql_url) as store:
        assert await store.fetch("SELECT sum(n) FROM (VALUES (9223372036854775807), (1)) AS t(n)") == [(2**63,)]
        assert await store.fetch("SELECT -12345678901234567890::numeric, 0::numeric, 1 = 1") == [
            (-12345678901234567890, 0, 1)
        ]
        for wrong in ("SELECT 1.5", "SELECT now()", "SELECT 1::float8"):
            with pytest.raises(StatementFailed):
                await store.fetch(wrong)


async def test_the_stores_clock_is_the_servers(postgresql_url: str) -> None:
    async with opened(postgresql_url) as store:
        ((ms,),) = await store.fetch("SELECT :store_ms")
        assert abs(int(ms or 0) - time.time() * 1000) < 60_000
        await store.commit(Statement("INSERT INTO counters VALUES ('t', :store_ms)", rows=1))
        assert await store.fetch("SELECT name FROM counters WHERE n <= :store_ms") == [("t",)]


async def test_a_statement_that_would_end_the_transaction_is_no_part_of_a_step(postgresql_url: str) -> None:
    async with opened(postgresql_url) as store:
        for sql in ("COMMIT", "rollback", "/* */ SET synchronous_commit = off", "SAVEPOINT mine"):
            with pytest.raises(StatementFailed):
                await store.commit(account("a"), Statement(sql))
        assert await names(store) == set()


async def test_an_observer_hears_of_groups(postgresql_url: str) -> None:
    heard: list[object] = []
    async with opened(postgresql_url, observe=heard.append) as store:
        await store.commit(account("a"))
        with suppress(StatementFailed):
            await store.commit(account("a"))
    groups = [event for event in heard if isinstance(event, Committed)]
    assert [(group.steps, group.undone) for group in groups] == [(1, 0), (1, 1)]


async def test_a_look_up_is_answered_as_soon_as_the_store_is_open(postgresql_url: str) -> None:
    for _ in range(10):
        async with opened(postgresql_url) as store:
            assert await store.look_up([("SELECT 1", {})]) == [[(1,)]]
