from __future__ import annotations

from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.actors.slots import Slots
from gateway.errors import CapacityExhausted


async def hold(slots: Slots, seconds: float, until: float = 1000.0) -> None:
    async with slots.slot(until):
        await trio.sleep(seconds)


async def hold_as(slots: Slots, caller: str, seconds: float) -> None:
    async with slots.slot(1000, caller):
        await trio.sleep(seconds)


async def test_so_many_hold_a_slot_at_once_and_the_others_wait_their_turn(autojump_clock: MockClock) -> None:
    slots = Slots(2, 4, CapacityExhausted)
    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(hold, slots, 10)
    assert trio.current_time() == pytest.approx(30)


async def test_who_comes_to_a_full_queue_is_refused_at_once(autojump_clock: MockClock) -> None:
    slots = Slots(1, 1, partial(CapacityExhausted, "busy"))
    slots.admit()
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(hold, slots, 10)
        await wait_all_tasks_blocked()
        with pytest.raises(CapacityExhausted, match="busy"):
            slots.admit()
        with pytest.raises(CapacityExhausted, match="busy"):
            await hold(slots, 10)
        assert trio.current_time() == 0
    slots.admit()


async def test_who_has_waited_long_enough_is_refused(autojump_clock: MockClock) -> None:
    slots = Slots(1, 1, CapacityExhausted)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, slots, 10)
        await wait_all_tasks_blocked()
        with pytest.raises(CapacityExhausted):
            await hold(slots, 10, until=3)
        assert trio.current_time() == pytest.approx(3)


async def test_a_slot_comes_back_from_who_fails_and_from_who_is_cancelled(autojump_clock: MockClock) -> None:
    slots = Slots(1, 0, CapacityExhausted)
    with trio.move_on_after(1):
        await hold(slots, 10)
    with pytest.raises(ZeroDivisionError):
        async with slots.slot(1000):
            raise ZeroDivisionError
    with trio.fail_after(1):
        await hold(slots, 0)


async def test_turns_go_round_and_the_greedy_caller_gives_way(autojump_clock: MockClock) -> None:
    slots, served, refused = Slots(1, 3, CapacityExhausted), [], []

    async def ask(caller: str, number: int) -> None:
        try:
            async with slots.slot(1000, caller):
                served.append(f"{caller}{number}")
                await trio.sleep(10)
        except CapacityExhausted:
            refused.append(f"{caller}{number}")

    async with trio.open_nursery() as nursery:
        for caller, number in [*(("a", each) for each in range(4)), ("b", 0), ("c", 0), ("b", 1)]:
            nursery.start_soon(ask, caller, number)
            await wait_all_tasks_blocked()
    assert served == ["a0", "b0", "c0", "a1"]
    assert refused == ["a3", "a2", "b1"]


async def test_a_lone_caller_may_use_all_there_is(autojump_clock: MockClock) -> None:
    slots = Slots(2, 4, CapacityExhausted)
    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(hold_as, slots, "a", 10)
    assert trio.current_time() == pytest.approx(30)
