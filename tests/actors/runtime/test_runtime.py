"""The promises of the actor runtime, one fact each."""

from __future__ import annotations

import gc
import logging
import random
import time
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.actors.runtime import (
    ActorCrashed,
    ActorDown,
    ActorError,
    Ask,
    Event,
    Inbox,
    Letter,
    Overloaded,
    Phase,
    Ref,
    Restart,
    Unanswered,
    UpwardAsk,
    open_runtime,
)


@attrs.frozen
class Add(Ask[int]):
    amount: int
    hold: float = 0.0
    boom: bool = False


@attrs.frozen
class Note:
    """A message that wants no answer."""

    text: str


async def counter(inbox: Inbox[Add], log: list[int] | None = None) -> None:
    """Add up, one letter at a time."""
    total = 0
    inbox.ready()
    async for letter in inbox:
        add = letter.message
        await trio.sleep(add.hold)
        if add.boom:
            raise ValueError("boom")
        if add.amount < 0:
            letter.refuse(ValueError("negative"))
            continue
        total += add.amount
        if log is not None:
            log.append(add.amount)
        letter.answer(add, total)


async def host(inbox: Inbox[Add], log: list[int] | None = None) -> None:
    """Work on every letter at once, each in a task of the body's nursery."""

    async def work(letter: Letter[Add]) -> None:
        await trio.sleep(letter.message.hold)
        if letter.message.boom:
            raise ValueError("boom")
        if log is not None:
            log.append(letter.message.amount)
        letter.answer(letter.message, letter.message.amount)

    async with trio.open_nursery() as nursery:
        inbox.ready()
        async for letter in inbox:
            nursery.start_soon(work, letter)


@attrs.frozen
class Shelf:
    """An actor that takes every letter and leaves it to the test."""

    letters: list[Letter[Add]] = attrs.field(factory=list)

    async def body(self, inbox: Inbox[Add]) -> None:
        inbox.ready()
        async for letter in inbox:
            self.letters.append(letter)


async def outcome_of(ask: Callable[[], Awaitable[int]], into: list[Any]) -> None:
    try:
        into.append(await ask())
    except (ActorError, ValueError) as error:
        into.append(error)


# Asking


async def test_ask_is_answered() -> None:
    async with open_runtime() as runtime:
        ref = await runtime.start("counter", counter)
        assert await ref.ask(Add(2)) == 2
        assert await ref.ask(Add(3)) == 5


async def test_a_refusal_reaches_the_asker_and_spares_the_actor() -> None:
    async with open_runtime() as runtime:
        ref = await runtime.start("counter", counter)
        with pytest.raises(ValueError, match="negative"):
            await ref.ask(Add(-1))
        assert await ref.ask(Add(1)) == 1
        assert ref.health().crashes == 0


async def test_letters_are_answered_in_any_order(autojump_clock: MockClock) -> None:
    log: list[int] = []
    async with open_runtime() as runtime:
        ref = await runtime.start("host", partial(host, log=log))
        answers: list[int] = []
        async with trio.open_nursery() as nursery:
            for amount in (3, 1, 2):
                nursery.start_soon(outcome_of, partial(ref.ask, Add(amount, hold=amount)), answers)
        assert answers == log == [1, 2, 3]


async def test_overloaded_means_never_executed(autojump_clock: MockClock) -> None:
    log: list[int] = []
    async with open_runtime() as runtime:
        ref = await runtime.start("counter", partial(counter, log=log))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(ref.ask, Add(1, hold=3), within=9))
            await wait_all_tasks_blocked()
            with pytest.raises(Overloaded) as caught:
                await ref.ask(Add(2), within=1)
            assert caught.value.actor == "counter"
        await ref.ask(Add(4))
    assert log == [1, 4]
    assert ref.health().withdrawn == 1
    assert ref.health().overloaded == 1


async def test_a_letter_past_its_deadline_is_not_taken(mock_clock: MockClock) -> None:
    for _ in range(20):  # the actor may run before the asker learns of its deadline, or after
        shelf, outcomes, gate = Shelf(), list[Any](), trio.Event()

        async def gated(inbox: Inbox[Add], gate: trio.Event = gate, shelf: Shelf = shelf) -> None:
            inbox.ready()
            await gate.wait()
            await shelf.body(inbox)

        async with open_runtime() as runtime, trio.open_nursery() as nursery:
            ref: Ref[Add] = await runtime.start("gated", gated)
            nursery.start_soon(outcome_of, partial(ref.ask, Add(1), within=5), outcomes)
            await wait_all_tasks_blocked()
            gate.set()
            mock_clock.jump(5)
            await wait_all_tasks_blocked()
            assert [type(each) for each in outcomes] == [Overloaded]
            assert shelf.letters == []
            assert ref.health().withdrawn == 1


async def test_no_patience_at_all_is_overloaded_and_never_executed() -> None:
    log: list[int] = []
    async with open_runtime() as runtime:
        ref = await runtime.start("counter", partial(counter, log=log))
        for within in (0, -1):
            with pytest.raises(Overloaded):
                await ref.ask(Add(1), within=within)
        assert await ref.ask(Add(2)) == 2
    assert log == [2]


async def test_a_full_mailbox_holds_the_asker_back(autojump_clock: MockClock) -> None:
    log: list[int] = []
    async with open_runtime() as runtime:
        ref = await runtime.start("counter", partial(counter, log=log), capacity=2)
        async with trio.open_nursery() as nursery:
            for amount in (1, 2, 3, 4, 5):
                nursery.start_soon(partial(ref.ask, Add(amount, hold=1), within=60))
            await wait_all_tasks_blocked()
            assert ref.health().depth == 2
            with pytest.raises(Overloaded):
                ref.tell(Add(6))
    assert sorted(log) == [1, 2, 3, 4, 5]


async def test_a_mailbox_without_room_hands_over_in_person() -> None:
    async with open_runtime() as runtime:
        ref = await runtime.start("counter", counter, capacity=0)
        await wait_all_tasks_blocked()
        assert await ref.ask(Add(1)) == 1
        assert await ref.ask(Add(1)) == 2


async def test_unanswered_means_outcome_unknown(autojump_clock: MockClock) -> None:
    log: list[int] = []
    async with open_runtime() as runtime:
        ref = await runtime.start("counter", partial(counter, log=log))
        with pytest.raises(Unanswered):
            await ref.ask(Add(1, hold=3), within=1)
        assert ref.health().unanswered == 1
    assert log == [1]


async def test_an_answer_after_the_asker_went_away_is_fine(autojump_clock: MockClock) -> None:
    shelf = Shelf()
    async with open_runtime() as runtime:
        ref = await runtime.start("shelf", shelf.body)
        with trio.move_on_after(1):
            await ref.ask(Add(1))
        with pytest.raises(Unanswered):
            await ref.ask(Add(2), within=1)
        for letter in shelf.letters:
            letter.answer(letter.message, 0)
        assert ref.health().held == 0
        assert ref.health().crashes == 0


async def test_a_cancelled_asker_never_stops_work_in_hand(autojump_clock: MockClock) -> None:
    log: list[int] = []
    async with open_runtime() as runtime:
        ref = await runtime.start("counter", partial(counter, log=log))
        with trio.move_on_after(1) as scope:
            await ref.ask(Add(1, hold=3))
        assert scope.cancelled_caught
        assert log == []
        assert await ref.ask(Add(1)) == 2
    assert log == [1, 1]


async def test_a_cancelled_asker_withdraws_a_queued_letter(autojump_clock: MockClock) -> None:
    log: list[int] = []
    async with open_runtime() as runtime:
        ref = await runtime.start("counter", partial(counter, log=log))
        ref.tell(Add(1, hold=3))
        await wait_all_tasks_blocked()
        with trio.move_on_after(1):
            await ref.ask(Add(2))
        await ref.ask(Add(4))
    assert log == [1, 4]


@pytest.mark.parametrize("hold", [0.0, 1.0])
@pytest.mark.parametrize("capacity", [0, 1, 8])
async def test_an_asker_cancelled_at_any_step_is_seen_at_most_once(
    autojump_clock: MockClock, capacity: int, hold: float
) -> None:
    for step in range(40):
        log: list[int] = []
        done: list[int] = []
        async with open_runtime() as runtime:
            ref = await runtime.start("counter", partial(counter, log=log), capacity=capacity)
            ref.tell(Add(9, hold=hold)) if capacity else await ref.ask(Add(9, hold=hold))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(outcome_of, partial(ref.ask, Add(1, hold=hold)), done)
                for _ in range(step % 20):
                    await trio.lowlevel.checkpoint()
                if step >= 20:
                    await trio.sleep(hold * 1.5)
                nursery.cancel_scope.cancel()
            await ref.ask(Add(0))
        assert log.count(1) + ref.health().withdrawn <= 1
        assert done in ([], [10])
        assert not done or log.count(1) == 1
        assert ref.health().held == 0


async def test_a_refusal_leaves_no_reference_cycle() -> None:
    class RefusedError(Exception):
        pass

    async def refuser(inbox: Inbox[Add]) -> None:
        inbox.ready()
        async for letter in inbox:
            letter.refuse(RefusedError())
            del letter

    refused: list[weakref.ref[RefusedError]] = []
    async with open_runtime() as runtime:
        ref = await runtime.start("refuser", refuser)
        gc.disable()
        try:
            try:
                await ref.ask(Add(-1))
            except RefusedError as error:
                refused.append(weakref.ref(error))
            assert [alive() for alive in refused] == [None]
        finally:
            gc.enable()


async def test_a_letter_is_answered_once() -> None:
    async def twice(inbox: Inbox[Add]) -> None:
        inbox.ready()
        async for letter in inbox:
            letter.answer(letter.message, 1)
            letter.answer(letter.message, 2)

    async with open_runtime() as runtime:
        ref = await runtime.start("twice", twice)
        assert await ref.ask(Add(1)) == 1
        await wait_all_tasks_blocked()
        assert "answered once" in (ref.health().last_error or "")


async def test_a_letter_takes_no_other_letters_question() -> None:
    shelf, outcomes = Shelf(), list[Any]()
    async with open_runtime() as runtime, trio.open_nursery() as nursery:
        ref = await runtime.start("shelf", shelf.body)
        nursery.start_soon(outcome_of, partial(ref.ask, Add(1)), outcomes)
        await wait_all_tasks_blocked()
        (letter,) = shelf.letters
        with pytest.raises(RuntimeError, match="not this letter"):
            letter.answer(Add(1), 1)
        assert not letter.settled
        letter.answer(letter.message, 1)
        assert letter.settled


async def test_a_letter_tells_its_deadline(mock_clock: MockClock) -> None:
    shelf, outcomes = Shelf(), list[Any]()
    async with open_runtime(grace=0) as runtime, trio.open_nursery() as nursery:
        ref = await runtime.start("shelf", shelf.body)
        nursery.start_soon(outcome_of, partial(ref.ask, Add(1), within=7), outcomes)
        ref.tell(Add(2))
        await wait_all_tasks_blocked()
        assert sorted(letter.deadline - trio.current_time() for letter in shelf.letters) == [7, float("inf")]
        nursery.cancel_scope.cancel()


async def test_a_told_message_that_is_no_ask_is_not_held() -> None:
    heard: list[str] = []

    async def listener(inbox: Inbox[Note]) -> None:
        inbox.ready()
        heard.extend([letter.message.text async for letter in inbox])

    async with open_runtime() as runtime:
        ref = await runtime.start("listener", listener)
        ref.tell(Note("one"))
        ref.tell(Note("two"))
        await wait_all_tasks_blocked()
        assert ref.health().held == 0
    assert heard == ["one", "two"]


async def test_telling_an_actor_that_ended_raises() -> None:
    async with open_runtime() as runtime:
        ref = await runtime.start("counter", counter)
    with pytest.raises(ActorDown):
        ref.tell(Add(1))
    with pytest.raises(ActorDown):
        await ref.ask(Add(1))
    assert ref.health().phase is Phase.STOPPED


# Crashing


async def expect_crash(ref: Ref[Add]) -> None:
    with pytest.raises(ActorCrashed) as caught:
        await ref.ask(Add(1, hold=1, boom=True))
    assert isinstance(caught.value.__cause__, ValueError)


async def test_a_crash_fails_the_letter_in_hand_and_keeps_the_queue(autojump_clock: MockClock) -> None:
    async with open_runtime() as runtime:
        ref = await runtime.start("counter", counter)
        answers: list[Any] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect_crash, ref)
            await wait_all_tasks_blocked()
            nursery.start_soon(outcome_of, partial(ref.ask, Add(7)), answers)
        assert answers == [7]
        assert ref.health().crashes == 1


async def test_a_crash_of_one_task_fails_all_letters_in_hand(autojump_clock: MockClock) -> None:
    async with open_runtime() as runtime:
        ref = await runtime.start("host", host)
        outcomes: list[Any] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outcome_of, partial(ref.ask, Add(1, hold=1, boom=True)), outcomes)
            nursery.start_soon(outcome_of, partial(ref.ask, Add(2, hold=3)), outcomes)
        assert [type(each) for each in outcomes] == [ActorCrashed, ActorCrashed]
        assert isinstance(outcomes[0].__cause__, ExceptionGroup)
        assert await ref.ask(Add(5)) == 5


async def test_a_body_that_returns_fails_what_it_left_unanswered() -> None:
    async def leaver(inbox: Inbox[Add]) -> None:
        inbox.ready()
        async for _letter in inbox:
            return

    async with open_runtime() as runtime:
        ref = await runtime.start("leaver", leaver)
        outcomes: list[Any] = []
        async with trio.open_nursery() as nursery:
            for amount in (1, 2, 3):
                nursery.start_soon(outcome_of, partial(ref.ask, Add(amount)), outcomes)
        assert sorted(type(each).__name__ for each in outcomes) == ["ActorCrashed", "ActorDown", "ActorDown"]
        assert ref.health().phase is Phase.STOPPED


async def test_backoff_doubles_up_to_its_ceiling_and_never_gives_up(autojump_clock: MockClock) -> None:
    events: list[Event] = []
    restart = Restart(first=1.0, ceiling=3.0, jitter=0.0)
    async with open_runtime(observe=events.append) as runtime:
        ref = await runtime.start("counter", counter, restart=restart)
        for _ in range(40):
            with pytest.raises(ActorCrashed):
                await ref.ask(Add(1, boom=True), within=60)
        assert await ref.ask(Add(1), within=60) == 1
        assert ref.health().crashes == 40
    assert [event.delay for event in events if event.delay is not None] == [1.0, 2.0, *[3.0] * 38]


async def test_an_actor_whose_every_start_fails_serves_as_soon_as_one_succeeds(autojump_clock: MockClock) -> None:
    fails_until = trio.current_time() + 600.0
    began: list[float] = []

    async def needy(inbox: Inbox[Add]) -> None:
        began.append(trio.current_time())
        if len(began) > 1 and trio.current_time() < fails_until:
            raise OSError("no store")
        await counter(inbox)

    async with open_runtime() as runtime:
        ref = await runtime.start("needy", needy)
        await expect_crash(ref)
        await trio.sleep(300)
        health = ref.health()
        assert (health.phase in {Phase.WAITING, Phase.STARTING}, health.last_error) == (True, "OSError('no store')")
        assert await ref.ask(Add(1), within=1000) == 1
        assert trio.current_time() <= fails_until + 6.0


async def test_a_queue_is_turned_away_when_a_crash_ends_the_runtime(autojump_clock: MockClock) -> None:
    outcomes: list[Any] = []
    with pytest.RaisesGroup(ValueError, flatten_subgroups=True):
        async with trio.open_nursery() as outside, open_runtime() as runtime:
            ref = await runtime.start("counter", counter, restart=Restart(fatal=(ValueError,)))
            outside.start_soon(expect_crash, ref)
            await wait_all_tasks_blocked()
            outside.start_soon(outcome_of, partial(ref.ask, Add(7)), outcomes)
            await trio.sleep_forever()
    (down,) = outcomes
    assert isinstance(down, ActorDown)
    assert isinstance(down.__cause__, ValueError)


async def test_old_crashes_are_forgotten(autojump_clock: MockClock) -> None:
    events: list[Event] = []
    async with open_runtime(observe=events.append) as runtime:
        ref = await runtime.start("counter", counter, restart=Restart(first=1.0, jitter=0.0, steady=10))
        for _ in range(3):
            with pytest.raises(ActorCrashed):
                await ref.ask(Add(1, boom=True))
            await trio.sleep(20)
        assert await ref.ask(Add(1)) == 1
    assert [event.delay for event in events if event.delay is not None] == [1.0] * 3


async def test_jitter_is_drawn_from_the_given_source(autojump_clock: MockClock) -> None:
    events: list[Event] = []
    restart = Restart(first=1.0, jitter=0.5)
    async with open_runtime(observe=events.append, rng=random.Random(7)) as runtime:
        ref = await runtime.start("counter", counter, restart=restart)
        for _ in range(3):
            with pytest.raises(ActorCrashed):
                await ref.ask(Add(1, boom=True), within=60)
    rng = random.Random(7)
    assert [event.delay for event in events if event.delay is not None] == [restart.delay(n, rng) for n in (1, 2, 3)]


def test_a_delay_stays_within_its_jitter_and_never_overflows() -> None:
    restart, rng = Restart(first=0.1, ceiling=30.0, jitter=0.25), random.Random(1)
    for crashes in (1, 2, 5, 9, 50, 5000):
        base = min(0.1 * 2 ** min(crashes - 1, 100), 30.0)
        assert base * 0.75 <= restart.delay(crashes, rng) <= base * 1.25


@pytest.mark.parametrize("wrong", [{"jitter": 2.0}, {"steady": 0.0}, {"ceiling": -1}, {"first": -0.1}])
def test_a_restart_out_of_bounds_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Restart(**wrong)


async def test_a_fatal_crash_ends_the_runtime(autojump_clock: MockClock) -> None:
    with pytest.RaisesGroup(ValueError):
        async with open_runtime() as runtime:
            ref = await runtime.start("counter", counter, restart=Restart(fatal=(ValueError,)))
            with pytest.raises(ActorCrashed):
                await ref.ask(Add(1, boom=True))
            await trio.sleep_forever()


async def test_a_fatal_crash_in_a_nursery_of_the_body_ends_the_runtime(autojump_clock: MockClock) -> None:
    async def nested(inbox: Inbox[Add]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(counter, inbox)

    with pytest.RaisesGroup(pytest.RaisesGroup(ValueError)):
        async with open_runtime() as runtime:
            ref = await runtime.start("counter", nested, restart=Restart(fatal=(ValueError,)))
            with pytest.raises(ActorCrashed):
                await ref.ask(Add(1, boom=True))
            assert ref.health().last_error == "ValueError('boom')"
            await trio.sleep_forever()


async def test_a_fatal_crash_lets_the_other_actors_drain(autojump_clock: MockClock) -> None:
    log: list[int] = []
    with pytest.RaisesGroup(ValueError):
        async with open_runtime() as runtime:
            other = await runtime.start("other", partial(counter, log=log))
            ref = await runtime.start("counter", counter, restart=Restart(fatal=(ValueError,)))
            other.tell(Add(1, hold=2))
            other.tell(Add(2))
            ref.tell(Add(1, hold=1, boom=True))
            await trio.sleep_forever()
    assert log == [1, 2]


# Starting


async def test_start_reports_an_actor_that_never_was_ready() -> None:
    async def broken(inbox: Inbox[Add]) -> None:
        raise OSError("no store")

    async with open_runtime() as runtime:
        with pytest.raises(OSError, match="no store"):
            await runtime.start("broken", broken)
        assert runtime.health() == ()
        assert await (await runtime.start("counter", counter)).ask(Add(1)) == 1


async def test_start_reports_a_body_that_returned_before_it_was_ready() -> None:
    async def idle(inbox: Inbox[Add]) -> None:
        pass

    async with open_runtime() as runtime:
        with pytest.raises(RuntimeError, match="actor idle ended before it was ready"):
            await runtime.start("idle", idle)


async def test_an_inbox_is_read_after_ready() -> None:
    async def hasty(inbox: Inbox[Add]) -> None:
        async for _letter in inbox:
            pass

    async with open_runtime() as runtime:
        with pytest.raises(RuntimeError, match="before it is ready"):
            await runtime.start("hasty", hasty)


async def test_being_ready_twice_is_being_ready_once() -> None:
    events: list[Event] = []

    async def eager(inbox: Inbox[Add]) -> None:
        inbox.ready()
        await counter(inbox)

    async with open_runtime(observe=events.append) as runtime:
        await runtime.start("eager", eager)
    assert [event.phase for event in events] == [Phase.STARTING, Phase.READY, Phase.STOPPED]


async def test_a_start_that_is_cancelled_leaves_no_actor_behind(autojump_clock: MockClock) -> None:
    ended: list[str] = []

    async def slow(inbox: Inbox[Add]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("slow")

    async with open_runtime() as runtime:
        with trio.move_on_after(1) as scope:
            await runtime.start("slow", slow)
        assert scope.cancelled_caught
        assert (ended, runtime.health()) == (["slow"], ())


async def test_a_start_cancelled_at_its_last_step_is_a_start() -> None:
    async def late(inbox: Inbox[Add]) -> None:
        inbox.ready()
        scope.cancel()
        await counter(inbox)

    refs: list[Ref[Add]] = []
    async with open_runtime() as runtime:
        with trio.CancelScope() as scope:
            refs.append(await runtime.start("late", late))
        assert [await ref.ask(Add(1)) for ref in refs] == [1]


async def test_nothing_starts_while_the_runtime_stops() -> None:
    async with open_runtime() as runtime:
        await runtime.stop(1)
        with pytest.raises(RuntimeError, match="while the runtime stops"):
            await runtime.start("counter", counter)


# Stopping


async def test_stop_drains_in_reverse_order(autojump_clock: MockClock) -> None:
    events: list[Event] = []
    log: list[int] = []
    async with open_runtime(observe=events.append) as runtime:
        first = await runtime.start("first", partial(counter, log=log))
        await runtime.start("second", counter)
        for amount in (1, 2):
            first.tell(Add(amount, hold=1))
    assert log == [1, 2]
    assert [event.actor for event in events if event.phase is Phase.STOPPED] == ["second", "first"]


async def test_a_draining_actor_may_still_ask_the_ones_before_it(autojump_clock: MockClock) -> None:
    log: list[int] = []

    async def upper(inbox: Inbox[Add], low: Ref[Add]) -> None:
        inbox.ready()
        async for letter in inbox:
            await trio.sleep(1)
            await low.ask(letter.message)

    async with open_runtime() as runtime:
        low = await runtime.start("low", partial(counter, log=log))
        high: Ref[Add] = await runtime.start("high", partial(upper, low=low))
        high.tell(Add(1))
        high.tell(Add(2))
    assert log == [1, 2]


async def test_stop_lets_the_tasks_of_a_body_finish(autojump_clock: MockClock) -> None:
    log: list[int] = []
    async with open_runtime(grace=10) as runtime:
        ref = await runtime.start("host", partial(host, log=log))
        for amount in (3, 2, 1):
            ref.tell(Add(amount, hold=amount))
    assert log == [1, 2, 3]


async def test_stop_cancels_after_grace(autojump_clock: MockClock) -> None:
    started = trio.current_time()
    async with open_runtime(grace=2) as runtime:
        ref = await runtime.start("counter", counter)
        ref.tell(Add(1, hold=3600))
        await wait_all_tasks_blocked()
    assert trio.current_time() - started == pytest.approx(2)


@pytest.mark.parametrize("body", [counter, host])
async def test_asks_cut_off_by_stop_tell_seen_from_unseen(autojump_clock: MockClock, body: Any) -> None:
    outcomes: list[Any] = []
    seen = 1 if body is counter else 3
    async with trio.open_nursery() as nursery:
        async with open_runtime(grace=2) as runtime:
            ref: Ref[Add] = await runtime.start("cut", body)
            for amount in (1, 2, 3):
                nursery.start_soon(outcome_of, partial(ref.ask, Add(amount, hold=3600), within=9999), outcomes)
            await wait_all_tasks_blocked()
        nursery.cancel_scope.deadline = trio.current_time() + 1
    assert sorted(type(each).__name__ for each in outcomes) == ["ActorCrashed"] * seen + ["ActorDown"] * (3 - seen)
    assert {each.__cause__ for each in outcomes} == {None}


async def test_an_asker_that_is_held_back_when_mail_closes_was_never_seen(autojump_clock: MockClock) -> None:
    log: list[int] = []
    outcomes: list[Any] = []
    async with trio.open_nursery() as nursery, open_runtime() as runtime:
        ref = await runtime.start("counter", partial(counter, log=log), capacity=1)
        ref.tell(Add(1, hold=1))
        await wait_all_tasks_blocked()
        ref.tell(Add(2))
        nursery.start_soon(outcome_of, partial(ref.ask, Add(3)), outcomes)
        await wait_all_tasks_blocked()
    assert log == [1, 2]
    assert [type(each) for each in outcomes] == [ActorDown]


async def test_a_cancellation_around_the_runtime_lets_it_drain(autojump_clock: MockClock) -> None:
    log: list[int] = []
    with trio.move_on_after(1) as scope:
        async with open_runtime() as runtime:
            ref = await runtime.start("counter", partial(counter, log=log))
            ref.tell(Add(1, hold=3))
            ref.tell(Add(2))
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert log == [1, 2]


async def test_an_exception_in_the_block_lets_the_actors_drain(autojump_clock: MockClock) -> None:
    log: list[int] = []
    with pytest.RaisesGroup(KeyError):
        async with open_runtime() as runtime:
            ref = await runtime.start("counter", partial(counter, log=log))
            ref.tell(Add(1, hold=3))
            raise KeyError
    assert log == [1]


async def test_an_actor_that_is_starting_when_the_runtime_stops_is_given_up(autojump_clock: MockClock) -> None:
    errors: list[RuntimeError] = []

    async def slow(inbox: Inbox[Add]) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        async with open_runtime(grace=2) as runtime:

            async def start() -> None:
                try:
                    await runtime.start("slow", slow)
                except RuntimeError as error:
                    errors.append(error)

            nursery.start_soon(start)
            await wait_all_tasks_blocked()
        assert trio.current_time() == 2
    assert [str(error) for error in errors] == ["actor slow ended before it was ready"]


async def test_an_actor_in_backoff_stops_at_once(autojump_clock: MockClock) -> None:
    events: list[Event] = []
    async with open_runtime(observe=events.append, grace=60) as runtime:
        ref = await runtime.start("counter", counter, restart=Restart(first=30))
        with pytest.raises(ActorCrashed):
            await ref.ask(Add(1, boom=True))
        stopped = trio.current_time()
    assert trio.current_time() == stopped
    assert [event.phase for event in events][-2:] == [Phase.WAITING, Phase.STOPPED]


async def test_an_actor_in_backoff_with_mail_comes_back_to_drain(autojump_clock: MockClock) -> None:
    log: list[int] = []
    async with open_runtime(grace=5) as runtime:
        ref = await runtime.start("counter", partial(counter, log=log), restart=Restart(first=30))
        with pytest.raises(ActorCrashed):
            await ref.ask(Add(1, boom=True))
        ref.tell(Add(2))
    assert log == [2]


async def test_a_body_that_fails_while_it_is_cancelled_ends_alone(autojump_clock: MockClock) -> None:
    async def fragile() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise OSError("on the way out")

    async def sore(inbox: Inbox[Add]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fragile)
            nursery.start_soon(trio.sleep_forever)
            inbox.ready()
            await trio.sleep_forever()

    async with open_runtime(grace=1) as runtime:
        ref = await runtime.start("sore", sore)
    assert ref.health().phase is Phase.STOPPED
    assert "on the way out" in (ref.health().last_error or "")


async def test_stopping_twice_is_stopping_once() -> None:
    events: list[Event] = []
    async with open_runtime(observe=events.append) as runtime:
        await runtime.start("counter", counter)
        await runtime.stop(1)
        await runtime.stop(1)
    assert [event.phase for event in events].count(Phase.STOPPED) == 1


# Batches


async def test_batch_takes_what_is_queued() -> None:
    sizes: list[int] = []

    async def batcher(inbox: Inbox[Add]) -> None:
        inbox.ready()
        while True:
            letters = await inbox.batch(16)
            sizes.append(len(letters))
            await trio.lowlevel.checkpoint()
            for letter in letters:
                letter.answer(letter.message, len(letters))

    async with open_runtime() as runtime:
        ref = await runtime.start("batcher", batcher)
        async with trio.open_nursery() as nursery:
            for _ in range(40):
                nursery.start_soon(ref.ask, Add(1))
    assert sum(sizes) == 40
    assert max(sizes) == 16
    assert (ref.health().crashes, ref.health().phase) == (0, Phase.STOPPED)


async def test_an_iterators_end_outside_a_stop_is_a_crash(autojump_clock: MockClock) -> None:
    async def lost(inbox: Inbox[Add]) -> None:
        inbox.ready()
        async for _letter in inbox:
            raise StopAsyncIteration

    async with open_runtime() as runtime:
        ref = await runtime.start("lost", lost)
        with pytest.raises(ActorCrashed):
            await ref.ask(Add(1))
        await trio.sleep(1)
        assert (ref.health().phase, ref.health().crashes) == (Phase.READY, 1)


async def test_batches_end_when_the_actor_is_to_stop() -> None:
    sizes: list[int] = []

    async def batcher(inbox: Inbox[Add]) -> None:
        inbox.ready()
        async for letters in inbox.batches(3):
            sizes.append(len(letters))
            for letter in letters:
                letter.answer(letter.message, 0)
        sizes.append(0)

    async with open_runtime() as runtime:
        ref = await runtime.start("batcher", batcher)
        for _ in range(4):
            ref.tell(Add(1))
    assert sum(sizes) == 4
    assert sizes[-1] == 0
    assert ref.health().held == 0


async def test_a_batch_skips_the_withdrawn(autojump_clock: MockClock) -> None:
    sizes: list[int] = []

    async def batcher(inbox: Inbox[Add]) -> None:
        inbox.ready()
        await trio.sleep(2)
        async for letters in inbox.batches(9):
            sizes.append(len(letters))
            for letter in letters:
                letter.answer(letter.message, 0)

    async with open_runtime() as runtime:
        ref = await runtime.start("batcher", batcher)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(partial(ref.ask, Add(1), within=9))
                ref.tell(Add(1))
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert (ref.health().depth, ref.health().withdrawn) == (6, 0)
        await trio.sleep(3)
        assert sizes == [3]
        assert ref.health().withdrawn == 3


# Who may ask whom


async def test_asks_point_downward() -> None:
    later: list[Ref[Add]] = []

    async def low(inbox: Inbox[Add]) -> None:
        inbox.ready()
        async for letter in inbox:
            letter.answer(letter.message, await later[0].ask(letter.message))

    async with open_runtime() as runtime:
        ref = await runtime.start("low", low)
        later.append(await runtime.start("high", counter))
        with pytest.raises(ActorCrashed) as caught:
            await ref.ask(Add(1))
        assert isinstance(caught.value.__cause__, UpwardAsk)
        assert (caught.value.__cause__.asker, caught.value.__cause__.asked) == ("low", "high")


async def test_an_actor_may_not_ask_itself_even_from_its_tasks() -> None:
    refs: list[Ref[Add]] = []
    errors: list[UpwardAsk] = []

    async def ask_itself(letter: Letter[Add]) -> None:
        try:
            await refs[0].ask(Add(1))
        except UpwardAsk as error:
            errors.append(error)
        letter.answer(letter.message, 0)

    async def mirror(inbox: Inbox[Add]) -> None:
        async with trio.open_nursery() as nursery:
            inbox.ready()
            async for letter in inbox:
                nursery.start_soon(ask_itself, letter)

    async with open_runtime() as runtime:
        refs.append(await runtime.start("mirror", mirror))
        await refs[0].ask(Add(1))
    assert [str(error) for error in errors] == ["actor mirror asked mirror, which did not start before it"]


async def test_telling_upward_is_allowed() -> None:
    later: list[Ref[Add]] = []
    log: list[int] = []

    async def low(inbox: Inbox[Add]) -> None:
        inbox.ready()
        async for letter in inbox:
            later[0].tell(letter.message)
            letter.answer(letter.message, 0)

    async with open_runtime() as runtime:
        ref = await runtime.start("low", low)
        later.append(await runtime.start("high", partial(counter, log=log)))
        await ref.ask(Add(5))
        await wait_all_tasks_blocked()
        assert log == [5]


async def test_an_actor_may_run_a_runtime_of_its_own() -> None:
    async def outer(inbox: Inbox[Add]) -> None:
        async with open_runtime() as inner:
            ref = await inner.start("inner", counter)
            inbox.ready()
            async for letter in inbox:
                letter.answer(letter.message, await ref.ask(letter.message))

    async with open_runtime() as runtime:
        ref = await runtime.start("outer", outer)
        assert await ref.ask(Add(3)) == 3


# Being seen


async def test_health_shows_the_stuck(mock_clock: MockClock) -> None:
    async with open_runtime(grace=0) as runtime:
        ref = await runtime.start("counter", counter)
        ref.tell(Add(1, hold=99))
        ref.tell(Add(1))
        await wait_all_tasks_blocked()
        mock_clock.jump(7)
        (health,) = runtime.health()
        assert health == ref.health()
        assert (health.phase, health.held, health.depth, health.oldest) == (Phase.READY, 1, 1, 7)


async def test_the_oldest_letter_is_exact_whatever_is_settled_first(mock_clock: MockClock) -> None:
    shelf, rng = Shelf(), random.Random(3)
    async with open_runtime(grace=0) as runtime:
        ref = await runtime.start("shelf", shelf.body)
        for amount in range(300):
            ref.tell(Add(amount))
            await wait_all_tasks_blocked()
            mock_clock.jump(rng.random())
        held = list(shelf.letters)
        rng.shuffle(held)
        while held:
            letter = held.pop()
            letter.answer(letter.message, 0)
            oldest = min((each.taken for each in held if each.taken is not None), default=trio.current_time())
            assert ref.health().held == len(held)
            assert ref.health().oldest == pytest.approx(trio.current_time() - oldest, abs=1e-9)


async def test_taking_and_settling_cost_the_same_however_many_are_held() -> None:
    async def cost(letters: int) -> float:
        """CPU seconds a letter, with all of them held at once and settled against their order."""
        shelf = Shelf()
        async with open_runtime() as runtime:
            ref = await runtime.start("shelf", shelf.body, capacity=letters)
            started = time.process_time()
            for amount in range(letters):
                ref.tell(Add(amount))
            await wait_all_tasks_blocked()
            assert ref.health().held == letters
            for letter in reversed(shelf.letters):
                letter.answer(letter.message, 0)
            return (time.process_time() - started) / letters

    few = min(await cost(200), await cost(200), await cost(200))
    many = min(await cost(20_000), await cost(20_000))
    assert many < 10 * few  # a scan of the held letters makes it a hundred times


async def test_health_keeps_count(mock_clock: MockClock) -> None:
    async with open_runtime(grace=0) as runtime:
        ref = await runtime.start("counter", counter, capacity=1)
        await ref.ask(Add(1))
        ref.tell(Add(1, hold=5))
        await wait_all_tasks_blocked()
        ref.tell(Add(1))
        with pytest.raises(Overloaded):
            ref.tell(Add(1))
        mock_clock.jump(5)
        await wait_all_tasks_blocked()
        health = ref.health()
        assert (health.handled, health.held, health.overloaded, health.withdrawn) == (3, 0, 1, 0)
        assert health.waited == 5
        await ref.ask(Add(1))
        assert ref.health().waited == 5


async def test_an_observer_that_raises_is_logged_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    def observe(event: Event) -> None:
        raise KeyError(event.phase)

    with caplog.at_level(logging.ERROR):
        async with open_runtime(observe=observe) as runtime:
            ref = await runtime.start("counter", counter)
            assert await ref.ask(Add(1)) == 1
    assert [record.getMessage() for record in caplog.records] == [
        f"the observer failed when actor counter was {phase}" for phase in ("starting", "ready", "stopped")
    ]


async def test_errors_name_the_actor_and_never_the_message() -> None:
    async with open_runtime() as runtime:
        ref = await runtime.start("counter", counter)
    with pytest.raises(ActorDown) as caught:
        await ref.ask(Add(987654321))
    assert str(caught.value) == "actor counter: down"
    assert "987654321" not in repr(Letter(Add(987654321), 0.0, 0.0))
