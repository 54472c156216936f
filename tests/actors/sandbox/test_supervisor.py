from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import psutil
import pytest
import trio
from structlog.testing import capture_logs

from gateway.actors.runtime import ActorError, Ref, open_runtime
from gateway.actors.sandbox.closed import Closed
from gateway.actors.sandbox.ground import Ground
from gateway.actors.sandbox.place import SandboxPlace, Standing
from gateway.actors.sandbox.run import Command, bounds_of
from gateway.actors.sandbox.settings import SandboxSettings
from gateway.actors.sandbox.supervisor import Execute, Executed, Leave, Message, sandbox
from gateway.errors import (
    CapacityExhausted,
    ExecutionFailed,
    ExecutionReconciliation,
    GatewayError,
    OperationUnavailable,
)
from gateway.sandbox.canaries import Canary
from gateway.sandbox.image import Image
from gateway.sandbox.launcher_messages import Bounds
from gateway.sandbox.limits import Limits
from gateway.sandbox.outcome import Outcome
from gateway.sandbox.run_result import RunResult
from tests.actors.sandbox.scenes import (
    LIMITS,
    SOON_S,
    canary,
    command,
    descriptors,
    ground_of,
    script,
    settings_in,
    until,
)


@attrs.define(eq=False)
class Scene:
    """A supervisor with a scripted launcher, and all that its place told."""

    place: SandboxPlace
    ref: Ref[Message]
    images: Path
    told: list[str]

    async def open(self, times: int = 1) -> None:
        await until(lambda: self.told.count("open") >= times)

    async def closed(self, reason: str) -> None:
        await until(lambda: reason in self.told)

    async def ask(self, what: Command) -> Executed:
        return await self.ref.ask(Execute(what), within=SOON_S)

    async def run(self, name: str = "run-1", limits: Limits = LIMITS, **members: Any) -> Executed:
        return await self.ask(command(script(**members), run=name, limits=limits))

    async def refused(self, kind: type[GatewayError], **members: Any) -> object:
        with pytest.raises(kind) as refusal:
            await self.run(**members)
        return refusal.value.extra["reason"]


@asynccontextmanager
async def scene(
    images: Path,
    *options: str,
    canaries: Sequence[Canary] | None = None,
    ground: Callable[[SandboxSettings, Image | None], Ground | Closed] | None = None,
    **more: Any,
) -> AsyncIterator[Scene]:
    settings = settings_in(images, *options, **more)
    (image := images / "image").mkdir(exist_ok=True)
    place, told = SandboxPlace.of(settings), list[str]()

    def note() -> None:
        state = place.now()
        told.append("open" if isinstance(state, Standing) else state.reason)

    place.changed = note
    body = partial(
        sandbox,
        place=place,
        settings=settings,
        canaries=[canary()] if canaries is None else canaries,
        ground=ground or (lambda _settings, _before: ground_of(image)),
    )
    async with open_runtime(grace=SOON_S) as runtime:
        ref = await runtime.start("sandbox", body)
        yield Scene(place, ref, images, told)


# -- opening -----------------------------------------------------------------------------------------------------------


async def test_the_node_does_not_wait_for_it_and_nothing_runs_before_it_is_proved(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        assert here.place.now() == Closed("starting")
        assert await here.refused(OperationUnavailable) == "starting"
        await here.open()
        state = here.place.now()
        assert isinstance(state, Standing)
        assert (state.bubblewrap, state.cgroups, len(state.fingerprint)) == ("0.8.0", "hybrid", 32)
        assert (await here.run(out="x")).result.stdout.kept == b"x"
    assert here.told == ["open", "stopped"]


async def test_it_ends_with_the_node_and_leaves_nothing(tmp_path: Path) -> None:
    before = descriptors()
    async with scene(tmp_path) as here:
        await here.open()
        pid = here.place.pid
        assert pid is not None
        await here.run()
    assert not psutil.pid_exists(pid)
    assert here.place.pid is None
    assert descriptors() == before


async def test_what_runs_are_made_of_is_looked_for_again_until_it_is_there(tmp_path: Path) -> None:
    looks: list[Image | None] = []

    def ground(_: SandboxSettings, before: Image | None) -> Ground | Closed:
        looks.append(before)
        return Closed("sandbox.image_missing", "none", "build it") if len(looks) < 3 else ground_of(tmp_path / "image")

    async with scene(tmp_path, ground=ground) as here:
        await here.open()
        assert here.told == ["sandbox.image_missing", "open"]
        assert here.place.starts == 1
    assert looks == [None, None, None]


@pytest.mark.parametrize(
    ("option", "reason"),
    [("--unfit", "sandbox.userns_denied"), ("--dies", "sandbox.launcher_died"), ("--silent", "sandbox.launcher_hung")],
)
async def test_a_launcher_that_cannot_work_closes_it_with_its_reason_and_is_tried_again(
    tmp_path: Path, option: str, reason: str
) -> None:
    start_s = 0.3 if option == "--silent" else SOON_S  # only this one says nothing at all
    async with scene(tmp_path, option, start_s=start_s, end_s=0.1) as here:
        await until(lambda: here.place.starts == 2)
        assert here.told == [reason]


async def test_a_launcher_that_is_not_there_is_told(tmp_path: Path) -> None:
    async with scene(tmp_path, program=(str(tmp_path / "nowhere"),)) as here:
        await here.closed("sandbox.launcher_missing")


# -- canaries ----------------------------------------------------------------------------------------------------------


async def test_every_canary_is_run_like_any_other_and_shown(tmp_path: Path) -> None:
    seen: list[RunResult] = []

    def judge(result: RunResult) -> str | None:
        seen.append(result)
        return None if result.stdout.kept == b"x" else "nothing"

    async with scene(tmp_path, canaries=[canary("a", judge, out="x"), canary("b", judge, out="x")]) as here:
        await here.open()
        assert [each.ending.outcome for each in seen] == [Outcome.EXITED] * 2
        shown = here.place.shown()
        assert [(each["name"], each["ok"]) for each in shown["canaries"]] == [("a", True), ("b", True)]
        assert shown["runs"] == {}


async def test_a_canary_that_fails_closes_it_with_its_own_reason_until_it_is_content(tmp_path: Path) -> None:
    answers = iter(["it reached the network", None])
    with capture_logs() as logs:
        async with scene(tmp_path, canaries=[canary("good"), canary("inet", lambda _: next(answers))]) as here:
            await here.open()
            assert here.told == ["sandbox.canary_inet", "open"]
            assert here.place.starts == 1
    (failed,) = [each for each in logs if each["event"] == "sandbox_canary_failed"]
    assert (failed["canary"], failed["seen"]) == ("inet", "it reached the network")


async def test_canaries_look_again_and_again_and_close_what_was_open(tmp_path: Path) -> None:
    bad = False

    async with scene(
        tmp_path, canaries=[canary("inet", lambda _: "it is open" if bad else None)], canary_interval_s=0.1
    ) as here:
        await here.open()
        bad = True
        await here.closed("sandbox.canary_inet")
        assert await here.refused(OperationUnavailable) == "sandbox.canary_inet"
        assert here.place.shown()["canaries"][0]["fault"] == "it is open"
        bad = False
        await here.open(2)
        await here.run()


async def test_what_a_failed_canary_closed_is_looked_at_again_however_long_doubt_has_to_wait(tmp_path: Path) -> None:
    verdicts = ["it is open", None, None]
    judged = canary("inet", lambda _: verdicts.pop(0) if len(verdicts) > 1 else None)
    async with scene(tmp_path, canaries=[judged], doubt_s=60.0, canary_interval_s=0.05) as here:
        await here.open()
        await until(lambda: len(verdicts) == 1)
        await here.run()
        assert here.place.starts == 1


async def test_a_canary_waits_for_a_slot_behind_what_was_sold(tmp_path: Path) -> None:
    rounds = 0

    def count(_: RunResult) -> None:
        nonlocal rounds
        rounds += 1

    more: dict[str, Any] = {"slots": 1, "canary_interval_s": 0.05, "canary_patience_s": 30.0}
    async with scene(tmp_path, canaries=[canary("inet", count)], **more) as here:
        await here.open()
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(partial(here.run, f"run-{number}", slow_s=0.2))
            await until(lambda: len(here.place.room.used) == 1 and here.place.room.waiting == 3)
            before = rounds
            await until(lambda: here.place.room.waiting == 0)
            assert rounds - before <= 1  # one may have had the slot already
        await until(lambda: rounds > before + 1)


async def test_a_run_that_could_not_be_begun_has_the_canaries_look_at_once(tmp_path: Path) -> None:
    rounds = 0

    def judge(_: RunResult) -> str | None:
        nonlocal rounds
        rounds += 1
        return None if rounds == 1 else "no user namespaces any more"

    async with scene(tmp_path, canaries=[canary("userns", judge)]) as here:
        await here.open()
        assert await here.refused(ExecutionFailed, fails="sandbox.namespace_missing") == "sandbox.namespace_missing"
        await here.closed("sandbox.canary_userns")


async def test_runs_that_cannot_be_begun_do_not_have_them_look_without_end(tmp_path: Path) -> None:
    rounds = 0

    def count(_: RunResult) -> None:
        nonlocal rounds
        rounds += 1

    async with scene(tmp_path, canaries=[canary("inet", count)], doubt_s=60.0) as here:
        await here.open()
        for number in range(5):
            await here.refused(ExecutionFailed, name=f"run-{number}", fails="sandbox.no_room")
        await here.run("run-6")
        assert rounds == 1


# -- runs --------------------------------------------------------------------------------------------------------------


async def test_as_many_run_at_once_as_there_are_slots_and_the_rest_in_turn(tmp_path: Path) -> None:
    results: list[Executed] = []

    async def run(here: Scene, number: int) -> None:
        results.append(await here.run(f"run-{number}", out=str(number), slow_s=0.1))

    async with scene(tmp_path, queue=8) as here:
        await here.open()
        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(run, here, number)
            await until(lambda: len(here.place.room.used) == 2)
            assert here.place.shown()["running"] == 2
        assert sorted(each.result.stdout.kept for each in results) == [b"0", b"1", b"2", b"3", b"4", b"5"]
        assert here.place.ended == {"exited": 6}
    heard = [line for line in (tmp_path / "work/heard").read_text().splitlines() if '"Spawn"' in line]
    assert {'"slot": 0' in line for line in heard} == {True, False}


async def test_one_too_many_is_refused_at_once(tmp_path: Path) -> None:
    async with scene(tmp_path, slots=1, queue=0) as here:
        await here.open()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(here.run, "run-1", slow_s=0.3))
            await until(lambda: len(here.place.room.used) == 1)
            assert await here.refused(CapacityExhausted, name="run-2") == "queue_full"
        assert here.place.ended == {"exited": 1, "queue_full": 1}


async def test_one_that_would_be_begun_too_late_never_runs(tmp_path: Path) -> None:
    async with scene(tmp_path, slots=1) as here:
        await here.open()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(here.run, "run-1", slow_s=1.0))
            await until(lambda: len(here.place.room.used) == 1)
            with pytest.raises(CapacityExhausted):
                await here.ask(command(script(), run="run-2", within=LIMITS.wall_time_ms / 1000 + 3.1))


async def test_single_processes_have_the_filter_for_them(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        await here.open()
        standing = (await here.run()).standing
        assert standing.filter_for(LIMITS).digest == "sha256:01"
        assert standing.filter_for(attrs.evolve(LIMITS, processes=1)).digest == "sha256:02"


async def test_a_run_that_nobody_waits_for_any_more_is_not_begun(tmp_path: Path) -> None:
    async with scene(tmp_path, slots=1) as here:
        await here.open()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(here.run, "run-1", slow_s=0.5))
            await until(lambda: len(here.place.room.used) == 1)
            order = Execute(command(script(), run="run-2"))
            async with trio.open_nursery() as asking:
                asking.start_soon(partial(here.ref.ask, order, within=SOON_S))
                await until(lambda: here.place.room.waiting == 1)
                asking.cancel_scope.cancel()
            await here.ref.ask(Leave(order))
            assert here.place.room.waiting == 0
        assert here.place.ended == {"exited": 1, "called_off": 1}
    assert "run-2" not in (tmp_path / "work/heard").read_text()


async def test_a_run_that_nobody_waits_for_any_more_is_ended(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        await here.open()
        released = trio.Event()

        async def release() -> None:
            await trio.lowlevel.checkpoint()
            released.set()

        order = Execute(command(script(waits=True), release=release))
        async with trio.open_nursery() as asking:
            asking.start_soon(partial(here.ref.ask, order, within=SOON_S))
            await released.wait()
            asking.cancel_scope.cancel()
        await here.ref.ask(Leave(order))
        assert here.place.room.used == {}
        assert here.place.ended == {"cancelled": 1}


async def test_to_leave_what_is_over_is_nothing(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        await here.ref.ask(Leave(Execute(command())))


async def test_runs_in_hand_are_finished_when_the_node_ends(tmp_path: Path) -> None:
    results: list[Executed] = []

    async def run(here: Scene) -> None:
        results.append(await here.run(out="x", slow_s=0.5))

    async with trio.open_nursery() as nursery, scene(tmp_path) as here:
        await here.open()
        nursery.start_soon(run, here)
        await until(lambda: len(here.place.room.used) == 1)
    assert results[0].result.stdout.kept == b"x"


async def test_a_defect_costs_the_run_and_says_whether_it_may_have_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken() -> None:
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError

    def undecided(*_: object) -> None:
        raise ZeroDivisionError

    with capture_logs() as logs:
        async with scene(tmp_path) as here:
            await here.open()
            with pytest.raises(ExecutionFailed):
                await here.ask(command(script(), run="run-1", release=broken))
            monkeypatch.setattr("gateway.actors.sandbox.run.decide", undecided)
            assert await here.refused(ExecutionReconciliation, name="run-2") == "crashed"
            assert here.place.room.used == {}
    assert [each["run"] for each in logs if each["event"] == "sandbox_run_crashed"] == ["run-1", "run-2"]


# -- loss --------------------------------------------------------------------------------------------------------------


async def test_a_launcher_that_dies_is_started_again_and_proved_before_anything_runs(tmp_path: Path) -> None:
    judged = 0

    def judge(_: RunResult) -> None:
        nonlocal judged
        judged += 1

    async with scene(tmp_path, canaries=[canary("inet", judge)]) as here:
        await here.open()
        pid = here.place.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await here.closed("sandbox.launcher_died")
        await here.open(2)
        assert (here.place.starts, judged) == (2, 2)
        assert here.place.pid not in {None, pid}
        await here.run()
    assert here.told == ["open", "sandbox.launcher_died", "open", "stopped"]


async def test_its_runs_are_told_apart_by_whether_they_may_have_run(tmp_path: Path) -> None:
    failures: dict[str, GatewayError] = {}

    async def run(here: Scene, what: Command) -> None:
        try:
            await here.ask(what)
        except GatewayError as failure:
            failures[what.run] = failure

    async with scene(tmp_path) as here:
        await here.open()
        blocked = trio.Event()
        released = trio.Event()

        async def hold() -> None:
            blocked.set()
            await here.closed("sandbox.launcher_died")

        async def release() -> None:
            await trio.lowlevel.checkpoint()
            released.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, here, command(script(), run="held-back", release=hold))
            nursery.start_soon(run, here, command(script(waits=True), run="let-go", release=release))
            await blocked.wait()
            await released.wait()
            nursery.start_soon(run, here, command(script(), run="waiting"))
            await until(lambda: here.place.room.waiting == 1)
            os.kill(here.place.pid or 0, signal.SIGKILL)
        assert {name: type(each) for name, each in failures.items()} == {
            "held-back": ExecutionFailed,
            "let-go": ExecutionReconciliation,
            "waiting": OperationUnavailable,
        }
        await here.open(2)


async def test_an_image_that_changed_closes_it_before_the_next_run_and_is_verified_anew(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        await here.open()
        await here.run(name="run-1")
        (tmp_path / "image" / "more").write_text("x")
        assert await here.refused(OperationUnavailable, name="run-2") == "sandbox.image_digest_mismatch"
        await here.open(2)
        assert here.told == ["open", "sandbox.image_digest_mismatch", "open"]
        lines = map(json.loads, (tmp_path / "work/heard").read_text().splitlines())
        assert [each["says"] for each in lines if each.get("run") == "run-2"] == ["Spawn", "Stop"]
        assert here.place.ended == {"exited": 1, "sandbox.image_digest_mismatch": 1}


async def test_a_slot_whose_cleanup_failed_is_not_used_again_and_its_result_is_given(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        await here.open()
        result = (await here.run(name="run-1", out="x", mounts=1)).result
        assert (result.stdout.kept, result.cleanup.verified) == (b"x", False)
        assert len(here.place.shown()["quarantined"]) == 1
        assert here.told == ["open"]
        await here.run(name="run-2")


async def test_with_every_slot_spoiled_it_closes_and_begins_with_another_launcher(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        await here.open()
        await here.run(name="run-1", mounts=1)
        await here.run(name="run-2", mounts=1)
        await here.closed("sandbox.cleanup_failed")
        await here.open(2)
        assert (here.place.starts, here.place.room.usable, here.place.room.quarantined) == (2, 2, set())


async def test_what_a_lost_launcher_did_not_clear_is_not_taken_for_a_cleanup_that_failed(tmp_path: Path) -> None:
    async with scene(tmp_path, slots=1) as here:
        await here.open()
        result = (await here.run(out="x", at="cleared", then="die")).result
        assert (result.stdout.kept, result.cleanup.verified) == (b"x", False)
        await here.open(2)
        assert here.told == ["open", "sandbox.launcher_died", "open"]


async def test_a_spoiled_slot_is_mended_by_another_launcher_once_nothing_runs(tmp_path: Path) -> None:
    async with scene(tmp_path, canary_interval_s=0.2) as here:
        await here.open()
        await here.run(mounts=1)
        await until(lambda: here.place.starts == 2)
        await here.open(2)
        assert here.place.room.quarantined == set()


async def test_an_actor_that_is_cancelled_with_a_run_in_hand_ends_its_launcher(tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    place = SandboxPlace.of(settings_in(tmp_path))
    body = partial(
        sandbox,
        place=place,
        settings=settings_in(tmp_path),
        canaries=[],
        ground=lambda _settings, _before: ground_of(tmp_path / "image"),
    )
    async with trio.open_nursery() as nursery, open_runtime(grace=0.1) as runtime:
        ref = await runtime.start("sandbox", body)
        await until(lambda: isinstance(place.now(), Standing))
        pid = place.pid

        async def run() -> None:
            with pytest.raises(ActorError):
                await ref.ask(Execute(command(script(waits=True))), within=SOON_S)

        nursery.start_soon(run)
        await until(lambda: len(place.room.used) == 1)
    assert pid is not None
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize("ahead", [True, False])
async def test_runs_that_are_sold_and_the_usual_one_are_laid_ahead_and_canaries_change_nothing_of_it(
    tmp_path: Path, ahead: bool
) -> None:
    async with scene(tmp_path, ahead=ahead) as here:
        await here.open()
        executed = await here.run(limits=LIMITS)
        assert executed.result.laid_ahead is False
    heard = [json.loads(line) for line in (tmp_path / "work/heard").read_text().splitlines()]
    usual = [Bounds(**each["bounds"]) for each in heard if each["says"] == "Lay"]
    assert usual == [bounds_of(Limits())] * ahead
    assert [each["again"] for each in heard if each["says"] == "Spawn"] == [False, ahead]
