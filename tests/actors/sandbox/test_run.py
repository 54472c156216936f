from __future__ import annotations

import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import attrs
import pytest
import trio

from gateway.actors.sandbox.run import Run
from gateway.errors import (
    ExecutionFailed,
    ExecutionReconciliation,
    GatewayError,
    OperationUnavailable,
    StoreUnavailable,
)
from gateway.sandbox.artifacts import Artifact
from gateway.sandbox.outcome import Ending, Outcome
from gateway.sandbox.run_result import RunResult
from tests.actors.sandbox.scenes import (
    LIMITS,
    SOON_S,
    Launched,
    at_once,
    command,
    descriptors,
    launched,
    opened,
    script,
    until,
)

LIFE = ["Spawn", "Release"]


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Launched]:
    async with launched(tmp_path) as running:
        yield running


async def live(run: Run) -> RunResult:
    with trio.fail_after(SOON_S):
        return await run.live()


async def reason_of(run: Run, kind: type[GatewayError]) -> object:
    with pytest.raises(kind) as failed:
        await live(run)
    return failed.value.extra["reason"]


def says(here: Launched) -> list[str]:
    return [says for says, _ in here.heard]


# -- what a run comes to -----------------------------------------------------------------------------------------------


async def test_a_run_gives_what_it_wrote_what_it_left_and_what_was_measured(here: Launched) -> None:
    run = here.run(command(script(out="42\n", err="\xff", exit_code=3, files={"b": "two", "a": "one"})))
    result = await live(run)
    assert result.ending == Ending(Outcome.EXITED, 3)
    assert (result.stdout.kept, result.stderr.kept) == (b"42\n", b"\xff")
    assert [(each.name, each.size) for each in result.artifacts.artifacts] == [("a", 3), ("b", 3)]
    usage = result.usage
    assert (usage.cpu_millis, usage.peak_memory_bytes, usage.processes_peak) == (42, 2**23, 9)
    assert (usage.output_bytes, usage.artifact_bytes) == (4, 6)
    assert usage.wall_ms is not None
    assert usage.disk_bytes == 4096
    assert result.cleanup.verified
    assert result.setup_ms >= 0
    assert (run.released, run.clean) == (True, True)
    assert says(here) == [*LIFE, "Clear"]


async def test_what_a_run_that_left_nothing_came_to_is_told_without_a_word_from_here(
    here: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trio.to_thread, "run_sync", None)
    result = await live(here.run(command(script())))
    assert (result.artifacts.artifacts, result.artifacts.complete) == ((), True)
    assert result.cleanup.verified
    assert says(here) == LIFE


async def test_the_loop_does_not_wait_while_the_kernel_takes_away_what_was_written(
    here: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere: list[str] = []
    close, loop = os.close, threading.get_ident()

    def closes(descriptor: int) -> None:
        if threading.get_ident() != loop:
            elsewhere.append(opened(descriptor))
        close(descriptor)

    monkeypatch.setattr(os, "close", closes)
    result = await live(here.run(command(script(much=True))))
    assert [name.rpartition("/")[2] for name in elsewhere] == ["scratch", "out"]
    assert (result.artifacts.artifacts, result.artifacts.complete) == ((), True)
    assert says(here) == [*LIFE, "Clear"]


@pytest.mark.parametrize("point", ["ended", "cleared"])
@pytest.mark.parametrize("members", [{}, {"files": {"a": "b"}}], ids=["nothing left", "something left"])
async def test_a_launcher_that_is_lost_leaves_nothing_open(
    here: Launched, point: str, members: dict[str, object]
) -> None:
    before = descriptors()
    with suppress(ExecutionReconciliation):
        await live(here.run(command(script(at=point, then="die", **members))))
    assert descriptors() - before == set()


async def test_what_was_left_twice_is_of_a_broken_launcher(here: Launched) -> None:
    before = descriptors()
    run = here.run(command(script(files={"a": "b"}, leaves=2)))
    assert await reason_of(run, ExecutionReconciliation) == "sandbox.launcher_broken"
    assert descriptors() - before == set()


async def test_nothing_is_open_after_a_run(here: Launched) -> None:
    before = descriptors()
    await live(here.run(command(script(out="x" * 200, files={"a": "b"}), stdin=b"x" * 2**20)))
    assert descriptors() == before


async def test_input_of_every_length_gets_there(here: Launched) -> None:
    limits = attrs.evolve(LIMITS, output_bytes=2**20)
    for length in (0, 1, 2**16, 2**16 + 1, 2**20):
        run = here.run(command(script(echo=True), stdin=b"x" * length, limits=limits))
        assert len((await live(run)).stdout.kept) == length


@pytest.mark.parametrize(("written", "kept", "outcome"), [(100, 100, "exited"), (101, 100, "output_limit")])
async def test_output_is_kept_to_the_byte_and_one_more_ends_the_run(
    here: Launched, written: int, kept: int, outcome: str
) -> None:
    result = await live(here.run(command(script(out="x" * (written - 10), err="y" * 10, waits=written > 100))))
    assert result.ending.outcome == outcome
    assert len(result.stdout.kept) + len(result.stderr.kept) == kept
    assert (("Stop", "output") in here.heard) == (written > 100)


async def test_one_that_wrote_too_much_and_ended_at_once_is_at_its_limit_all_the_same(here: Launched) -> None:
    result = await live(here.run(command(script(out="x" * 101, exit_code=0))))
    assert result.ending == Ending(Outcome.OUTPUT_LIMIT)


async def test_the_launcher_s_own_first_reason_stands(here: Launched) -> None:
    result = await live(here.run(command(script(out="x" * 101, stopped="wall"))))
    assert result.ending == Ending(Outcome.WALL_LIMIT)


async def test_output_that_somebody_else_holds_open_is_not_waited_for_long(here: Launched) -> None:
    result = await live(here.run(command(script(out="x", keeps_output_open=True))))
    assert result.stdout.kept == b"x"


async def test_what_is_left_is_told_with_the_result_and_the_run_is_not_clean(here: Launched) -> None:
    run = here.run(command(script(out="x", mounts=1)))
    result = await live(run)
    assert result.ending == Ending(Outcome.EXITED, 0)
    assert not result.cleanup.verified
    assert not run.clean


async def test_a_cleanup_that_is_not_told_of_is_not_verified(here: Launched) -> None:
    run = here.run(command(script(at="cleared", then="hang")))
    result = await live(run)
    assert result.cleanup.as_json() == {"processes": 0, "mounts": None, "cgroups": None, "verified": False}
    assert not run.clean
    assert here.link.lost is None


async def test_a_launcher_that_dies_once_all_is_over_costs_the_proof_of_cleanup_not_the_result(here: Launched) -> None:
    result = await live(here.run(command(script(out="x", at="cleared", then="die"))))
    assert (result.ending, result.stdout.kept) == (Ending(Outcome.EXITED, 0), b"x")
    assert not result.cleanup.verified


# -- before the commit point: it never ran -----------------------------------------------------------------------------


async def test_a_set_up_that_fails_is_told_with_its_reason(here: Launched) -> None:
    run = here.run(command(script(fails="sandbox.namespace_missing")))
    assert await reason_of(run, ExecutionFailed) == "sandbox.namespace_missing"
    assert (run.released, run.clean) == (False, True)


async def test_a_set_up_that_leaves_something_is_not_clean(here: Launched) -> None:
    run = here.run(command(script(fails="sandbox.setup", left="a group")))
    await reason_of(run, ExecutionFailed)
    assert not run.clean


async def test_a_run_that_died_before_it_was_let_go_never_ran_and_is_told_at_once(here: Launched) -> None:
    run = here.run(command(script(fails="sandbox.bubblewrap_died", ready=True)))
    assert await reason_of(run, ExecutionFailed) == "sandbox.bubblewrap_died"
    assert run.clean
    assert here.link.lost is None
    assert (await live(here.run(command(script(), run="the-next")))).ending.outcome is Outcome.EXITED


async def test_a_commit_point_that_is_not_made_durable_has_it_never_run(here: Launched) -> None:
    async def refuse() -> None:
        await at_once()
        raise StoreUnavailable

    run = here.run(command(script(), release=refuse))
    with pytest.raises(StoreUnavailable):
        await live(run)
    assert says(here) == ["Spawn", "Stop"]
    assert (run.released, run.clean) == (False, True)


async def test_the_commit_point_is_asked_for_once_it_is_ready_and_before_it_is_let_go(here: Launched) -> None:
    heard: list[str] = []

    async def release() -> None:
        await at_once()
        heard.extend(says(here))

    await live(here.run(command(script(), release=release)))
    assert heard == ["Spawn"]


@attrs.define
class Committed:
    """What was said until the commit point was asked for, None before that; it is refused where it `fails`."""

    here: Launched
    fails: bool = False
    heard: list[str] | None = None

    async def release(self) -> None:
        await at_once()
        self.heard = says(self.here)
        if self.fails:
            raise StoreUnavailable


async def laid(here: Launched) -> None:
    """Have a run end, and another sandbox laid in its slot."""
    await live(here.run(command(script(lays=True), run="the-first")))
    await until(lambda: 0 in here.link._laid)
    here.notes.write_text("")


async def test_the_commit_point_is_not_asked_for_before_it_is_ready(here: Launched) -> None:
    committed = Committed(here)
    run = here.run(command(script(fails="sandbox.namespace_missing"), release=committed.release))
    assert await reason_of(run, ExecutionFailed) == "sandbox.namespace_missing"
    assert committed.heard is None


async def test_where_its_sandbox_is_laid_the_commit_point_is_asked_for_meanwhile(here: Launched) -> None:
    await laid(here)
    committed = Committed(here)
    assert (await live(here.run(command(script(), release=committed.release)))).ending.outcome is Outcome.EXITED
    assert says(here) == LIFE
    assert committed.heard is not None
    assert "Release" not in committed.heard


async def test_where_what_was_laid_is_lost_it_never_ran_though_that_it_might_is_durable(here: Launched) -> None:
    await laid(here)
    committed = Committed(here)
    run = here.run(command(script(fails="sandbox.namespace_missing"), release=committed.release))
    assert await reason_of(run, ExecutionFailed) == "sandbox.namespace_missing"
    assert committed.heard is not None
    assert says(here) == ["Spawn"]
    assert (run.released, run.clean) == (False, True)


async def test_where_its_sandbox_is_laid_and_the_commit_point_is_not_durable_it_never_runs(here: Launched) -> None:
    await laid(here)
    run = here.run(command(script(), release=Committed(here, fails=True).release))
    with pytest.raises(StoreUnavailable):
        await live(run)
    assert says(here) == ["Spawn", "Stop"]
    assert (run.released, run.clean) == (False, True)


async def test_where_its_sandbox_is_laid_and_it_is_called_off_meanwhile_it_never_runs(here: Launched) -> None:
    await laid(here)

    async def release() -> None:
        await at_once()
        run.call_off()

    run = here.run(command(script(), release=release))
    assert await reason_of(run, ExecutionFailed) == "called_off"
    assert "Release" not in says(here)
    assert (run.released, run.clean) == (False, True)


async def test_what_is_found_out_while_it_is_set_up_has_it_never_run(here: Launched) -> None:
    def look() -> None:
        raise OperationUnavailable

    run = attrs.evolve(here.run(command(script())), look=look)
    with pytest.raises(OperationUnavailable):
        await live(run)
    assert says(here) == ["Spawn", "Stop"]
    assert (run.released, run.clean) == (False, True)


async def test_a_set_up_that_takes_too_long_is_stopped_and_a_launcher_that_does_not_answer_given_up(
    here: Launched,
) -> None:
    run = attrs.evolve(here.run(command(script(at="spawned", then="hang"))), setup_s=0.1)
    assert await reason_of(run, ExecutionFailed) == "setup_timeout"
    assert run.clean
    assert here.link.lost is None


async def test_what_has_no_time_left_is_not_spawned(here: Launched) -> None:
    run = here.run(command(script(), within=LIMITS.wall_time_ms / 1000 + 0.9))
    assert await reason_of(run, ExecutionFailed) == "deadline"
    assert not here.notes.exists()


async def test_what_is_not_durable_in_time_is_not_let_go(here: Launched) -> None:
    run = here.run(command(script(), within=LIMITS.wall_time_ms / 1000 + 1.3, release=trio.sleep_forever))
    assert await reason_of(run, ExecutionFailed) == "deadline"
    assert says(here) == ["Spawn", "Stop"]


@pytest.mark.parametrize("point", ["before", "during"])
async def test_one_that_is_called_off_before_its_release_never_runs(here: Launched, point: str) -> None:
    async def release() -> None:
        await at_once()
        run.call_off()

    run = here.run(command(script(), release=release))
    if point == "before":
        run.call_off()
    assert await reason_of(run, ExecutionFailed) == "called_off"
    assert run.clean
    assert not run.released


async def test_a_launcher_that_dies_before_the_release_has_it_never_run(here: Launched) -> None:
    run = here.run(command(script(at="spawned", then="die")))
    assert await reason_of(run, ExecutionFailed) in {"sandbox.launcher_died", "setup_timeout"}
    assert not run.released


async def test_a_launcher_that_dies_at_the_commit_point_has_it_never_run(here: Launched) -> None:
    async def release() -> None:
        os.kill(here.link.process.pid, signal.SIGKILL)
        await here.link.over.wait()

    run = here.run(command(script(), release=release))
    assert await reason_of(run, ExecutionFailed) == "sandbox.launcher_died"
    assert not run.released


async def test_without_descriptors_it_never_runs(here: Launched, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> tuple[int, int]:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pipe", none)
    assert await reason_of(here.run(command(script())), ExecutionFailed) == "no_descriptors"


# -- after the commit point: it may have run ---------------------------------------------------------------------------


async def test_a_launcher_that_dies_during_the_run_leaves_it_to_reconciliation(here: Launched) -> None:
    run = here.run(command(script(at="released", then="die")))
    assert await reason_of(run, ExecutionReconciliation) == "sandbox.launcher_died"
    assert run.released


async def test_a_launcher_that_says_nonsense_leaves_it_to_reconciliation(here: Launched) -> None:
    run = here.run(command(script(at="released", then="garbage")))
    assert await reason_of(run, ExecutionReconciliation) == "sandbox.launcher_broken"


async def test_a_launcher_that_never_tells_of_an_end_is_given_up(here: Launched) -> None:
    limits = attrs.evolve(LIMITS, wall_time_ms=100)
    run = here.run(command(script(at="ended", then="hang"), limits=limits))
    assert await reason_of(run, ExecutionReconciliation) == "sandbox.launcher_hung"
    assert here.link.lost == "sandbox.launcher_hung"


async def test_one_that_is_called_off_while_it_runs_is_ended_and_cleared(here: Launched) -> None:
    run = here.run(command(script(waits=True)))
    results: list[RunResult] = []

    async def keep() -> None:
        results.append(await live(run))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep)
        await until(lambda: run.released)
        run.call_off()
    assert results[0].ending == Ending(Outcome.CANCELLED)
    assert results[0].cleanup.verified
    assert here.heard[-1] == ("Stop", "cancelled")


async def test_an_artifact_that_cannot_be_listed_does_not_cost_the_result(
    here: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: object) -> tuple[Artifact, ...]:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("gateway.actors.sandbox.run.listing", unreadable)
    result = await live(here.run(command(script(files={"a": "b"}))))
    assert (result.artifacts.artifacts, result.artifacts.complete) == ((), False)
