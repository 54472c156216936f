from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from gateway.actors.store import Membership, StoreRefused
from gateway.actors.store.postgresql_connection import Command, Connection
from gateway.actors.store.postgresql_membership import BEGIN, COMMIT, ROLLBACK, Member, accepted
from gateway.actors.store.postgresql_migrations import migrated
from tests.actors.store.postgresql_parts import WITHIN_S, connected, run, schema_of

NOW = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"


@asynccontextmanager
async def entered(url: str, *, lease_ms: int = 60_000, node: str = "n") -> AsyncIterator[tuple[Member, Connection]]:
    async with connected(url) as connection:
        await migrated(connection, schema_of("SELECT 1"), url, migrate=True)
        member = Member(node, lease_ms, within=WITHIN_S)
        await member.join(connection, "there")
        yield member, connection


async def fenced(member: Member, connection: Connection) -> int:
    """Open a transaction and fence it; how many rows the fence changed."""
    _, outcome = await accepted(connection, BEGIN, member.fence(), within=WITHIN_S)
    return outcome.command_tuples or 0


async def rows(connection: Connection) -> list[tuple[object, ...]]:
    (found,) = await run(connection, f"SELECT node, epoch, step, lease_until >= {NOW} FROM nodes ORDER BY node")
    return [tuple(row) for row in found]


async def test_a_node_joins_under_the_next_epoch(postgresql_url: str) -> None:
    async with entered(postgresql_url) as (member, connection):
        assert member.membership == Membership("n", 1)
        assert await rows(connection) == [("n", 1, 0, 1)]
        await member.leave(connection)
        assert await rows(connection) == [("n", 1, 0, 0)]
    async with entered(postgresql_url) as (member, connection):
        assert member.membership == Membership("n", 2)


async def test_each_transaction_has_a_number_and_renews_the_lease(postgresql_url: str) -> None:
    async with entered(postgresql_url, lease_ms=60_000) as (member, connection):
        await run(connection, f"UPDATE nodes SET lease_until = {NOW} + 500")
        for number in (1, 2):
            assert await fenced(member, connection) == 1
            await accepted(connection, COMMIT, within=WITHIN_S)
            assert await rows(connection) == [("n", 1, number, 1)]
        (((left,),),) = await run(connection, f"SELECT lease_until - {NOW} FROM nodes")
        assert int(left or 0) > 50_000


@pytest.mark.parametrize(
    "lost", [f"UPDATE nodes SET lease_until = {NOW} - 1", "UPDATE nodes SET epoch = 2", "DELETE FROM nodes"]
)
async def test_a_node_that_lost_its_lease_passes_no_fence_and_renews_nothing(postgresql_url: str, lost: str) -> None:
    async with entered(postgresql_url) as (member, connection):
        await run(connection, lost)
        assert await fenced(member, connection) == 0
        await accepted(connection, ROLLBACK, within=WITHIN_S)
        assert not await member.renew(connection)


async def test_a_name_is_taken_by_one_at_a_time(postgresql_url: str) -> None:
    async with entered(postgresql_url, lease_ms=300) as (_member, connection), trio.open_nursery() as nursery:
        nursery.start_soon(keep_alive, postgresql_url)
        with pytest.raises(StoreRefused, match="a node named n is alive"):
            await Member("n", 300, within=WITHIN_S).join(connection, "there")
        nursery.cancel_scope.cancel()


async def keep_alive(url: str) -> None:
    async with connected(url) as connection:
        while True:
            await run(connection, f"UPDATE nodes SET lease_until = {NOW} + 300")
            await trio.sleep(0.05)


async def test_of_many_that_want_one_name_at_once_one_has_it(postgresql_url: str) -> None:
    outcomes: list[str] = []

    async def want() -> None:
        async with connected(postgresql_url) as connection:
            member = Member("wanted", 400, within=WITHIN_S)
            try:
                await member.join(connection, "there")
            except StoreRefused:
                outcomes.append("refused")
                return
            outcomes.append("joined")
            for _ in range(200):
                await member.renew(connection)
                await trio.sleep(0.02)
                if len(outcomes) == 5:
                    break

    async with entered(postgresql_url), trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(want)
    assert sorted(outcomes) == ["joined"] + ["refused"] * 4


async def test_a_node_goes_on_under_its_epoch_while_its_lease_runs_and_under_the_next_when_it_ran_out(
    postgresql_url: str,
) -> None:
    async with entered(postgresql_url) as (member, connection):
        assert await member.rejoin(connection)
        assert (member.membership.epoch, member.tenure) == (1, 0)
        await run(connection, f"UPDATE nodes SET lease_until = {NOW} - 1")
        assert await member.rejoin(connection)
        assert (member.membership.epoch, member.tenure) == (2, 1)
        await run(connection, "UPDATE nodes SET epoch = 9")
        assert not await member.rejoin(connection)
        await run(connection, "UPDATE nodes SET lease_until = 0")
        assert await member.rejoin(connection)
        assert (member.membership.epoch, member.tenure) == (10, 2)


async def test_an_epoch_never_comes_back_although_the_table_is_emptied(postgresql_url: str) -> None:
    async with entered(postgresql_url) as (member, connection):
        await run(connection, "UPDATE nodes SET lease_until = 0")
        assert await member.rejoin(connection)
        await run(connection, "DELETE FROM nodes")
        assert await member.rejoin(connection)
        assert member.membership.epoch == 3


@pytest.mark.parametrize("committed", [True, False])
async def test_what_became_of_a_transaction_is_learnt_once_it_has_ended(postgresql_url: str, committed: bool) -> None:
    async with entered(postgresql_url) as (member, ghost), connected(postgresql_url) as connection:
        assert await fenced(member, ghost) == 1
        step = member.step
        told: list[bool | None] = []

        async def settle() -> None:
            told.append(await member.settle(connection, step))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(settle)
            await waits(postgresql_url)
            assert told == []
            await accepted(ghost, COMMIT if committed else ROLLBACK, within=WITHIN_S)
        assert told == [committed]
        assert (member.membership.epoch, member.tenure) == (2, 0)


async def waits(url: str) -> None:
    """Return once somebody waits for a lock."""
    async with connected(url) as connection:
        for _ in range(500):
            if await run(connection, "SELECT count(*) FROM pg_locks WHERE NOT granted") != [[(0,)]]:
                return
            await trio.sleep(0.01)
    pytest.fail("nobody waits")


async def test_an_outcome_is_not_guessed_once_another_process_took_the_name(postgresql_url: str) -> None:
    async with entered(postgresql_url) as (member, connection):
        await run(connection, "UPDATE nodes SET epoch = 2, step = 1")
        assert await member.settle(connection, 1) is None
        assert not connection.in_transaction


async def test_a_stalled_transaction_cannot_be_committed_after_its_outcome_was_told(postgresql_url: str) -> None:
    async with entered(postgresql_url) as (member, ghost), connected(postgresql_url) as connection:
        await run(ghost, "CREATE TABLE t (x bigint)")
        assert await member.settle(connection, 1) is False
        assert await fenced(member, ghost) == 1  # the new epoch
        await accepted(ghost, ROLLBACK, within=WITHIN_S)
        stale = Command("UPDATE nodes SET step = 5 WHERE node = 'n' AND epoch = 1", once=True)
        (outcome,) = await accepted(ghost, stale, within=WITHIN_S)
        assert outcome.command_tuples == 0
