from __future__ import annotations

import attrs
import pytest
import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from gateway.actors.sandbox.closed import Closed
from gateway.actors.sandbox.room import Room, Slot
from gateway.errors import CapacityExhausted, GatewayError, OperationUnavailable
from gateway.sandbox.limits import Limits

SMALL = Limits(memory_bytes=2**24, disk_bytes=2**20, artifact_bytes=2**20)
LARGE = attrs.evolve(SMALL, memory_bytes=2**28)
UNIT = SMALL.host_bytes


def open_room(slots: int = 2, queue: int = 2, memory_bytes: int = 2**40) -> Room:
    room = Room(memory_bytes, queue)
    room.open_slots(range(slots))
    room.open()
    return room


@attrs.define(eq=False)
class Guest:
    """Somebody who takes a slot and holds it until told to go."""

    room: Room
    limits: Limits = SMALL
    within: float = 60.0
    spoils: bool = False
    behind: bool = False
    caller: str = ""
    slot: Slot | None = None
    refused: GatewayError | None = None
    goes: trio.Event = attrs.field(factory=trio.Event)

    async def come(self) -> None:
        until = trio.current_time() + self.within
        room = self.room
        held = room.slot_behind(self.limits, self.within) if self.behind else room.slot(self.limits, until, self.caller)
        try:
            async with held as self.slot:
                await self.goes.wait()
                self.slot.spoiled = self.spoils
        except GatewayError as refusal:
            self.refused = refusal

    @property
    def reason(self) -> object:
        return None if self.refused is None else self.refused.extra["reason"]


async def come(nursery: trio.Nursery, *guests: Guest) -> None:
    for each in guests:
        nursery.start_soon(each.come)
        await wait_all_tasks_blocked()


def inside(*guests: Guest) -> list[bool]:
    return [each.slot is not None and not each.goes.is_set() for each in guests]


async def go(*guests: Guest) -> None:
    for each in guests:
        each.goes.set()
    await wait_all_tasks_blocked()


async def test_a_room_that_was_not_opened_lets_nobody_in() -> None:
    room = Room(2**40, 2)
    with pytest.raises(OperationUnavailable) as refused:
        room.admit(SMALL)
    assert refused.value.extra["reason"] == "starting"


async def test_slots_are_given_in_the_order_of_arrival_and_each_once() -> None:
    room = open_room()
    guests = [Guest(room) for _ in range(4)]
    async with trio.open_nursery() as nursery:
        await come(nursery, *guests)
        assert inside(*guests) == [True, True, False, False]
        assert (len(room.used), room.waiting) == (2, 2)
        await go(guests[1])
        assert inside(*guests) == [True, False, True, False]
        assert {each.slot.number for each in guests if each.slot} == {0, 1}
        await go(*guests)
    assert (room.used, room.waiting, room.usable) == ({}, 0, 2)


async def test_who_comes_while_the_line_is_full_is_refused_at_once() -> None:
    room = open_room(slots=1, queue=1)
    guests = [Guest(room) for _ in range(3)]
    async with trio.open_nursery() as nursery:
        await come(nursery, *guests)
        assert guests[2].reason == "queue_full"
        with pytest.raises(CapacityExhausted):
            room.admit(SMALL)
        await go(*guests)
    room.admit(SMALL)


async def test_without_a_line_a_free_slot_is_still_given() -> None:
    room = open_room(slots=1, queue=0)
    guests = [Guest(room), Guest(room)]
    async with trio.open_nursery() as nursery:
        await come(nursery, *guests)
        assert (inside(guests[0]), guests[1].reason) == ([True], "queue_full")
        await go(*guests)


async def test_what_takes_more_memory_than_there_is_never_waits() -> None:
    room = open_room(memory_bytes=UNIT)
    with pytest.raises(CapacityExhausted) as refused:
        room.admit(LARGE)
    assert refused.value.extra["reason"] == "memory"
    with pytest.raises(CapacityExhausted):
        async with room.slot_behind(LARGE, 1.0):
            pass


async def test_memory_is_shared_and_a_smaller_run_does_not_overtake() -> None:
    room = open_room(slots=3, memory_bytes=LARGE.host_bytes + UNIT - 1)
    first, large, small = Guest(room), Guest(room, LARGE), Guest(room)
    async with trio.open_nursery() as nursery:
        await come(nursery, first, large, small)
        assert inside(first, large, small) == [True, False, False]
        assert room.reserved_bytes == UNIT
        await go(first)
        assert inside(large, small) == [True, False]
        await go(large)
        assert inside(small) == [True]
        await go(small)


async def test_a_wait_ends_when_it_is_too_late_to_begin(autojump_clock: trio.testing.MockClock) -> None:
    del autojump_clock
    room = open_room(slots=1)
    holder, late = Guest(room), Guest(room, within=3.0)
    async with trio.open_nursery() as nursery:
        for each in (holder, late):
            nursery.start_soon(each.come)
            await trio.sleep(0.01)
        await trio.sleep(2.9)
        assert room.waiting == 1
        await trio.sleep(0.2)
        assert (late.reason, room.waiting) == ("waited", 0)
        holder.goes.set()


async def test_who_is_cancelled_while_waiting_leaves_the_line() -> None:
    room = open_room(slots=1)
    guests = [Guest(room) for _ in range(3)]
    async with trio.open_nursery() as nursery:
        await come(nursery, guests[0])
        async with trio.open_nursery() as leaving:
            await come(leaving, guests[1])
            leaving.cancel_scope.cancel()
        await come(nursery, guests[2])
        assert room.waiting == 1
        await go(guests[0])
        assert inside(guests[2]) == [True]
        await go(guests[2])


async def test_a_slot_that_was_given_to_somebody_cancelled_in_the_same_moment_comes_back() -> None:
    room = open_room(slots=1)
    holder, leaver = Guest(room), Guest(room)
    async with trio.open_nursery() as nursery:
        await come(nursery, holder)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as leaving:
                leaving.start_soon(leaver.come)
                await wait_all_tasks_blocked()
                holder.goes.set()
                while room.waiting:
                    await trio.lowlevel.checkpoint()
                scope.cancel()
    assert (room.used, room.usable) == ({}, 1)


async def test_a_room_that_closes_sends_the_line_away_and_leaves_runs_alone() -> None:
    room = open_room(slots=1)
    guests = [Guest(room), Guest(room)]
    async with trio.open_nursery() as nursery:
        await come(nursery, *guests)
        room.close(Closed("sandbox.launcher_died"))
        await wait_all_tasks_blocked()
        assert inside(guests[0]) == [True]
        assert isinstance(guests[1].refused, OperationUnavailable)
        assert guests[1].reason == "sandbox.launcher_died"
        await go(guests[0])


async def test_a_spoiled_slot_is_not_given_again_until_all_are_opened_anew() -> None:
    room = open_room(slots=2)
    first = Guest(room, spoils=True)
    async with trio.open_nursery() as nursery:
        await come(nursery, first)
        await go(first)
        assert (room.usable, room.quarantined) == (1, {0})
        others = [Guest(room), Guest(room)]
        await come(nursery, *others)
        assert inside(*others) == [True, False]
        await go(*others)
    room.open_slots(range(2))
    assert (room.usable, room.quarantined) == (2, set())


async def test_slots_in_use_cannot_be_opened_anew() -> None:
    room = open_room()
    guest = Guest(room)
    async with trio.open_nursery() as nursery:
        await come(nursery, guest)
        with pytest.raises(RuntimeError, match=r"\[0\] are in use"):
            room.open_slots(range(2))
        await go(guest)


async def test_a_run_of_the_node_s_own_is_let_in_behind_all_others_also_where_the_room_is_shut() -> None:
    room = open_room(slots=1)
    holder, own, sold = Guest(room), Guest(room, behind=True), Guest(room)
    async with trio.open_nursery() as nursery:
        await come(nursery, holder, own, sold)
        assert room.waiting == 1
        await go(holder)
        assert inside(own, sold) == [False, True]
        room.close(Closed("sandbox.canary_inet"))
        await go(sold)
        assert inside(own) == [True]
        await go(own)


async def test_one_that_stood_back_long_enough_joins_the_line_and_takes_no_place_of_a_buyer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    room = open_room(slots=1, queue=1)
    holder, own, sold = Guest(room), Guest(room, behind=True, within=5.0), Guest(room)
    async with trio.open_nursery() as nursery:
        for each, pause in ((holder, 1.0), (own, 6.0), (sold, 1.0)):
            nursery.start_soon(each.come)
            await trio.sleep(pause)
        assert (room.waiting, sold.refused) == (1, None)
        room.close(Closed("sandbox.canary_inet"))
        await trio.sleep(1.0)
        assert (own.refused, sold.reason) == (None, "sandbox.canary_inet")
        holder.goes.set()
        await trio.sleep(1.0)
        assert inside(own) == [True]
        own.goes.set()


async def test_it_tells_when_no_slot_is_in_use() -> None:
    room, empty = open_room(), trio.Event()
    guests = [Guest(room), Guest(room)]

    async def wait() -> None:
        await room.emptied()
        empty.set()

    async with trio.open_nursery() as nursery:
        await come(nursery, *guests)
        nursery.start_soon(wait)
        await go(guests[0])
        assert not empty.is_set()
        await go(guests[1])
        assert empty.is_set()


# -- callers -----------------------------------------------------------------------------------------------------------


async def test_one_payer_never_has_the_last_slot() -> None:
    room = open_room(slots=3, queue=8)
    greedy, honest = [Guest(room, caller="a") for _ in range(5)], Guest(room, caller="b")
    async with trio.open_nursery() as nursery:
        await come(nursery, *greedy)
        assert inside(*greedy) == [True, True, False, False, False]
        room.admit(SMALL)
        await come(nursery, honest)
        assert inside(honest) == [True]
        await go(greedy[0])
        assert inside(*greedy[1:]) == [True, True, False, False]
        await go(*greedy, honest)


async def test_turns_go_round_by_payer() -> None:
    room = open_room(slots=1, queue=8)
    first, second, third = (Guest(room, caller="a") for _ in range(3))
    other = Guest(room, caller="b")
    async with trio.open_nursery() as nursery:
        await come(nursery, first, second, third, other)
        await go(first)
        assert inside(other, second, third) == [True, False, False]
        await go(other)
        assert inside(second, third) == [True, False]
        await go(second, third)


async def test_in_a_full_queue_the_payer_with_most_runs_gives_way() -> None:
    room = open_room(slots=1, queue=2)
    greedy, honest = [Guest(room, caller="a") for _ in range(3)], Guest(room, caller="b")
    async with trio.open_nursery() as nursery:
        await come(nursery, *greedy)
        room.admit(SMALL)
        with pytest.raises(CapacityExhausted):
            room.admit(SMALL, "a")
        await come(nursery, honest)
        assert (greedy[2].reason, greedy[1].reason, honest.reason) == ("queue_full", None, None)
        await go(greedy[0])
        assert inside(honest) == [True]
        await go(*greedy, honest)
    assert (room.used, room.waiting) == ({}, 0)


async def test_a_canary_is_no_payer_and_has_its_turn() -> None:
    room = open_room(slots=2, queue=4)
    greedy = [Guest(room, caller="a") for _ in range(3)]
    canary = Guest(room, behind=True)
    async with trio.open_nursery() as nursery:
        await come(nursery, *greedy, canary)
        assert inside(*greedy, canary) == [True, False, False, True]
        await go(*greedy, canary)
