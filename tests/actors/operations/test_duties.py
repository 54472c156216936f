from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog
import trio
from structlog.testing import LogCapture
from trio.testing import MockClock

from gateway.actors.leases import Duty, Held
from gateway.actors.operations.duties import attempt, keep_up, within
from gateway.errors import StoreUnavailable


@pytest.fixture
def told() -> Iterator[LogCapture]:
    capture = LogCapture()
    before = structlog.get_config()["processors"]
    structlog.configure(processors=[capture])
    yield capture
    structlog.configure(processors=before)


async def test_duties_are_done_at_their_pace_until_the_node_drains(autojump_clock: MockClock) -> None:
    draining, done = trio.Event(), list[float]()

    async def note() -> None:
        done.append(trio.current_time())
        if len(done) == 3:
            draining.set()

    began = trio.current_time()
    await keep_up(draining, 5.0, note)
    assert [each - began for each in done] == [5.0, 10.0, 15.0]


async def test_a_node_that_drains_does_nothing_more(autojump_clock: MockClock) -> None:
    draining = trio.Event()
    draining.set()

    async def never() -> None:
        raise AssertionError

    await keep_up(draining, 5.0, never)


async def test_what_the_store_puts_off_is_told_once_and_keeps_no_other_duty_from_being_done(told: LogCapture) -> None:
    done: list[str] = []

    async def putting_off() -> None:
        raise StoreUnavailable("away")

    async def doing() -> None:
        done.append("done")

    put_off = await attempt(putting_off, doing)
    assert put_off == {"putting_off"}
    assert await attempt(putting_off, doing, put_off=put_off) == put_off
    assert done == ["done", "done"]
    assert [(each["event"], each["duty"]) for each in told.entries] == [("duty_put_off", "putting_off")]


async def test_a_defect_of_one_duty_is_told_every_time_and_harms_no_other(told: LogCapture) -> None:
    done: list[str] = []

    async def crashing() -> None:
        raise ValueError("a defect")

    async def doing() -> None:
        done.append("done")

    for _ in range(2):
        assert await attempt(crashing, doing) == frozenset()
    assert done == ["done", "done"]
    assert [each["event"] for each in told.entries] == ["duty_failed", "duty_failed"]


async def test_a_lease_is_waited_for_until_the_scope_is_cancelled() -> None:
    scope, waits = trio.CancelScope(), trio.Event()

    async def hold(_name: str, _duty: Duty, /) -> None:
        waits.set()
        await trio.sleep_forever()

    async def duty(_held: Held) -> None:
        raise AssertionError

    async with trio.open_nursery() as nursery:
        nursery.start_soon(within, scope, hold, "name", duty)
        await waits.wait()
        scope.cancel()
