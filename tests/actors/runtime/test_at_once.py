"""Letters that are served in the task that they come from."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.actors.runtime import (
    ActorCrashed,
    ActorDown,
    Ask,
    Inbox,
    Letter,
    Phase,
    Ref,
    Unanswered,
    UpwardAsk,
    open_runtime,
)


@attrs.frozen
class Say(Ask[str]):
    """Answered with its own word, by whoever serves it."""

    word: str


Message = Say | str


@attrs.define
class Desk:
    """An actor whose body may be kept from reading, and what it served: which word, in whose task."""

    served: list[tuple[str, str]] = attrs.field(factory=list)
    reads: trio.Event = attrs.field(factory=trio.Event)
    further: Callable[[Letter[Message]], object] = lambda _: None
    declines: str = ""
    nursery: trio.Nursery | None = None

    def serve_at_once(self, letter: Letter[Message]) -> bool:
        word = letter.message.word if isinstance(letter.message, Say) else letter.message
        if word != self.declines:
            self.serve(letter)
        return word != self.declines

    def serve(self, letter: Letter[Message]) -> None:
        message = letter.message
        word = message.word if isinstance(message, Say) else message
        self.served.append((word, trio.lowlevel.current_task().name))
        if word == "boom":
            raise ValueError("boom")
        self.further(letter)
        if isinstance(message, Say) and word != "hold":
            letter.answer(message, word)

    async def body(self, inbox: Inbox[Message]) -> None:
        async with trio.open_nursery() as self.nursery:
            inbox.ready(at_once=self.serve_at_once)
            await self.reads.wait()
            async for letter in inbox:
                self.serve(letter)


@pytest.fixture
def desk() -> Desk:
    made = Desk()
    made.reads.set()
    return made


async def wait_for_a_turn() -> None:
    """Let every task that can run do so once."""
    for _ in range(2):
        await trio.lowlevel.checkpoint()


def here() -> str:
    return trio.lowlevel.current_task().name


async def test_who_asks_serves_and_is_answered_without_a_turn_of_the_loop(desk: Desk) -> None:
    async with open_runtime() as runtime:
        ref = await runtime.start("desk", desk.body)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            await trio.lowlevel.checkpoint()
            before = turns
            assert await ref.ask(Say("a")) == "a"
            assert turns == before
            await wait_for_a_turn()
            assert turns > before
            nursery.cancel_scope.cancel()
        assert desk.served == [("a", here())]
        assert (ref.health().handled, ref.health().held, ref.health().depth) == (1, 0, 0)


async def test_what_is_told_is_served_at_once_too(desk: Desk) -> None:
    async with open_runtime() as runtime:
        ref = await runtime.start("desk", desk.body)
        ref.tell("a")
        assert desk.served == [("a", here())]


async def test_a_refusal_reaches_the_asker(desk: Desk) -> None:
    def refuse(letter: Letter[Message]) -> None:
        letter.refuse(KeyError("no"))

    desk.further = refuse
    async with open_runtime() as runtime:
        ref = await runtime.start("desk", desk.body)
        with pytest.raises(KeyError, match="no"):
            await ref.ask(Say("hold"))


async def test_what_is_answered_later_is_waited_for(desk: Desk, autojump_clock: MockClock) -> None:
    async def later(letter: Letter[Message]) -> None:
        await trio.sleep(1)
        if isinstance(letter.message, Say):
            letter.answer(letter.message, f"later in {here()}")

    def begin(letter: Letter[Message]) -> None:
        assert desk.nursery is not None
        desk.nursery.start_soon(later, letter, name="a task of the desk")

    desk.further = begin
    async with open_runtime() as runtime:
        ref = await runtime.start("desk", desk.body)
        assert await ref.ask(Say("hold")) == "later in a task of the desk"
        desk.further = lambda _: None
        with pytest.raises(Unanswered):
            await ref.ask(Say("hold"), within=0.5)


async def test_a_letter_queues_behind_those_that_wait(desk: Desk) -> None:
    desk.reads = trio.Event()
    desk.further = lambda letter: ref.tell("second") if letter.message == "first" else None
    async with open_runtime() as runtime:
        ref: Ref[Message] = await runtime.start("desk", desk.body)
        ref.tell("first")  # gives rise to a letter, which queues: the desk serves one at a time
        ref.tell("third")
        assert [word for word, _ in desk.served] == ["first"]
        desk.reads.set()
        await wait_all_tasks_blocked()
        assert [word for word, _ in desk.served] == ["first", "second", "third"]
        assert desk.served[1][1] != here()
        ref.tell("fourth")
        assert desk.served[-1] == ("fourth", here())


async def test_a_body_is_never_given_a_letter_in_the_midst_of_a_step_of_its_own() -> None:
    served: list[str] = []
    go = trio.Event()

    def serve(letter: Letter[str]) -> None:
        served.append(letter.message)

    async def upper(inbox: Inbox[str]) -> None:
        inbox.ready(at_once=serve)
        await go.wait()
        me.tell("from myself")
        other.tell("go on")
        served.append("my step is over")
        async for letter in inbox:
            serve(letter)

    async def lower(inbox: Inbox[str]) -> None:
        inbox.ready(at_once=lambda _: me.tell("from the other"))
        async for _ in inbox:
            pass

    async with open_runtime() as runtime:
        other: Ref[str] = await runtime.start("lower", lower)
        me: Ref[str] = await runtime.start("upper", upper)
        go.set()
        await wait_all_tasks_blocked()
    assert served == ["my step is over", "from myself", "from the other"]


async def test_a_letter_that_is_declined_queues(desk: Desk) -> None:
    desk.declines = "later"
    async with open_runtime() as runtime:
        ref = await runtime.start("desk", desk.body)
        assert await ref.ask(Say("later")) == "later"
        assert await ref.ask(Say("now")) == "now"
        ref.tell("later")
        await wait_all_tasks_blocked()
        assert [(word, task == here()) for word, task in desk.served] == [
            ("later", False),
            ("now", True),
            ("later", False),
        ]
        assert (ref.health().handled, ref.health().held) == (3, 0)


async def test_a_task_that_is_started_meanwhile_is_the_actors_and_not_the_askers(desk: Desk) -> None:
    fates: list[Exception] = []

    async def ask_upward(upper: Ref[Message]) -> None:
        try:
            await upper.ask(Say("up"))
        except UpwardAsk as refused:
            fates.append(refused)

    async with open_runtime() as runtime:
        ref = await runtime.start("desk", desk.body)
        above = Desk()
        upper = await runtime.start("above", above.body)
        desk.further = lambda _: desk.nursery.start_soon(ask_upward, upper) if desk.nursery else None
        await ref.ask(Say("a"))
        await wait_all_tasks_blocked()
    assert len(fates) == 1
    assert above.served == []


async def test_a_defect_is_the_actors_crash_and_it_comes_back(desk: Desk, autojump_clock: MockClock) -> None:
    phases: list[Phase] = []
    async with open_runtime(observe=lambda event: phases.append(event.phase)) as runtime:
        ref = await runtime.start("desk", desk.body)
        with pytest.raises(ActorCrashed) as crashed:
            await ref.ask(Say("boom"))
        assert isinstance(crashed.value.__cause__, ExceptionGroup)
        assert ref.health().crashes == 1
        assert await ref.ask(Say("again")) == "again"
        ref.tell("boom")
        assert await ref.ask(Say("and again")) == "and again"
        assert ref.health().crashes == 2
    assert phases.count(Phase.READY) == 3


async def test_while_an_actor_is_away_letters_queue(desk: Desk, autojump_clock: MockClock) -> None:
    async with open_runtime() as runtime:
        ref = await runtime.start("desk", desk.body)
        ref.tell("boom")
        await wait_all_tasks_blocked()
        assert ref.health().phase is Phase.WAITING
        ref.tell("meanwhile")
        assert [word for word, _ in desk.served] == ["boom"]
        await trio.sleep(1)
        assert [word for word, _ in desk.served] == ["boom", "meanwhile"]


async def test_a_cancelled_asker_is_not_served(desk: Desk) -> None:
    async with open_runtime() as runtime:
        ref = await runtime.start("desk", desk.body)
        with trio.CancelScope() as scope:
            scope.cancel()
            await ref.ask(Say("a"))
        assert scope.cancelled_caught
    assert desk.served == []


async def test_nobody_is_served_after_the_end(desk: Desk) -> None:
    async with open_runtime() as runtime:
        ref = await runtime.start("desk", desk.body)
    with pytest.raises(ActorDown):
        await ref.ask(Say("a"))
    with pytest.raises(ActorDown):
        ref.tell("a")
    assert desk.served == []


async def test_a_body_that_finishes_what_it_has_is_given_nothing_more(desk: Desk) -> None:
    release = trio.Event()
    async with trio.open_nursery() as nursery, open_runtime() as runtime:
        ref = await runtime.start("desk", desk.body)
        assert desk.nursery is not None
        desk.nursery.start_soon(release.wait)
        nursery.start_soon(_ask_when_all_wait, ref, release)
    assert desk.served == []


async def _ask_when_all_wait(ref: Ref[Message], release: trio.Event) -> None:
    await wait_all_tasks_blocked()
    with pytest.raises(ActorDown):
        await ref.ask(Say("late"))
    release.set()
