from __future__ import annotations

import pytest
import trio

from gateway.actors.store import Reason, postgresql_link
from gateway.actors.store.errors import Failure
from gateway.actors.store.postgresql_connecting import Road
from gateway.actors.store.postgresql_link import Link, NotNow
from gateway.actors.store.postgresql_membership import Member
from tests.actors.store.postgresql_parts import joined, road, run_at, schema_of

NOTHING = schema_of("SELECT 1")


def unreachable() -> tuple[Link, list[Failure | None]]:
    felt: list[Failure | None] = []
    nowhere: Road = road("postgresql://127.0.0.1:1/g")
    return Link(nowhere, Member("n", 400, within=1.0), None, felt.append, beside=nowhere), felt


async def hold(link: Link, *, task_status: trio.TaskStatus[None]) -> None:
    async with link.turn(1.0):
        task_status.started()
        await trio.sleep_forever()


async def told(link: Link, patience: float) -> Reason:
    """Why there is no turn."""
    with trio.fail_after(5), pytest.raises(NotNow) as caught:
        async with link.turn(patience):
            pass
    return caught.value.failure.reason


async def test_who_waits_for_a_turn_is_told_after_a_while(nursery: trio.Nursery) -> None:
    link, _ = unreachable()
    await nursery.start(hold, link)
    assert await told(link, 0.1) is Reason.OVERLOADED


async def test_who_waits_while_it_is_down_is_told_why_and_sooner(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    monkeypatch.setattr(postgresql_link, "_GIVE_UP_S", 0.1)
    link, felt = unreachable()
    async with link.turn(1.0):
        with pytest.raises(NotNow) as caught:
            await link.connection()
    assert caught.value.failure.reason is Reason.UNREACHABLE
    await nursery.start(hold, link)
    assert await told(link, 60.0) is Reason.UNREACHABLE
    assert felt == [Failure(Reason.UNREACHABLE)]


async def test_an_outcome_is_sought_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql_link, "_SETTLE_S", 0.3)
    link, _ = unreachable()
    with trio.fail_after(5):
        assert await link.settle(1) is None


async def test_a_connection_that_was_lost_is_made_anew_under_the_same_epoch(postgresql_url: str) -> None:
    async with joined(postgresql_url, NOTHING) as (link, _), link.turn(1.0):
        first = await link.connection()
        await run_at(postgresql_url, f"SELECT pg_terminate_backend({first.pid})")
        first.close()
        assert await link.connection() is not first
        assert link.member.membership.epoch == 1


async def test_a_lease_that_runs_out_is_found_by_the_next_renewal(postgresql_url: str) -> None:
    async with joined(postgresql_url, NOTHING) as (link, _):
        await run_at(postgresql_url, "UPDATE nodes SET lease_until = 0")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.keep, 200)
            for _ in range(500):
                await trio.sleep(0.01)
                if link.member.tenure:
                    break
            nursery.cancel_scope.cancel()
        assert link.member.membership.epoch == 2


async def test_a_lease_is_renewed_while_another_has_the_turn(postgresql_url: str) -> None:
    async with joined(postgresql_url, NOTHING, lease_ms=400) as (link, _), trio.open_nursery() as nursery:
        nursery.start_soon(link.keep, 400)
        async with link.turn(1.0):
            await trio.sleep(1.0)
            assert await link.member.renew(await link.connection())
        nursery.cancel_scope.cancel()


async def test_leaving_ends_the_lease(postgresql_url: str) -> None:
    async with joined(postgresql_url, NOTHING) as (link, _):
        await link.leave()
        await link.leave()
        assert await run_at(postgresql_url, "SELECT lease_until FROM nodes") == [[(0,)]]
