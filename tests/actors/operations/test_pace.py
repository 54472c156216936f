from __future__ import annotations

import trio
from trio.testing import MockClock

from gateway.actors.operations.pace import TURNS_A_SECOND, TURNS_AT_ONCE, Pace


async def test_a_few_turns_come_at_once_and_the_others_at_their_rate(autojump_clock: MockClock) -> None:
    pace = Pace()
    assert max(pace.turn() for _ in range(TURNS_AT_ONCE)) < 0.001
    waits = [pace.turn() for _ in range(600)]
    assert waits == sorted(waits)
    assert abs(waits[-1] - 600 / TURNS_A_SECOND) < 0.001


async def test_a_rest_gives_no_more_turns_at_once_than_that(autojump_clock: MockClock) -> None:
    pace = Pace()
    for _ in range(100):
        pace.turn()
    await trio.sleep(3600)
    assert max(pace.turn() for _ in range(TURNS_AT_ONCE)) < 0.001
    assert pace.turn() > 0.05
