"""A sandbox that is laid ahead is given to the run that asks for such a one, and to no other."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest

from gateway.sandbox import laid_ahead
from gateway.sandbox.bubblewrap_start import Kind
from gateway.sandbox.cgroups import find
from gateway.sandbox.held_sandbox import Events, SetupFailed
from gateway.sandbox.laid_ahead import LONGEST_LAID_S, LaidAhead, same
from gateway.sandbox.launcher_messages import Laid, Lay, Ready, Spawn
from gateway.sandbox.launching import Launcher
from gateway.sandbox.outside_check import status_of
from gateway.sandbox.seccomp import load_filter
from tests.sandbox.in_groups import eventually, standing, unavailable
from tests.sandbox.launcher_driver import (
    FIRST_UID,
    MIB,
    ROOMY,
    Driver,
    Run,
    bounded,
    launcher,
    none_alive,
    uids_alive,
)

CGROUPS = Path("/sys/fs/cgroup")
OTHER = bounded(disk_bytes=2 * MIB)
FOREVER = ["node", "-e", "setInterval(() => {}, 1000); console.log('there')"]
SAYS = ["node", "-e", "console.log('there')"]
KIND = Kind(ROOMY, b"12345678")
LAID = 3
"""Processes: bubblewrap, the first of the sandbox, and the starter."""


@pytest.fixture
def driver(image_of_runs: Path) -> Iterator[Driver]:
    """A launcher of its own, with what it has laid."""
    with launcher(image_of_runs) as started:
        yield started


def laid(slot: int = 0) -> list[int]:
    """The processes of what is laid in a slot, in the order of the sandbox's own numbers; waits until it waits."""

    def found() -> list[int]:
        inner = {pid: status_of(pid)["NSpid"].split() for pid in uids_alive(FIRST_UID + slot, 1)}
        return sorted(inner, key=lambda pid: 0 if len(inner[pid]) == 1 else int(inner[pid][-1]))

    def waits() -> bool:
        try:
            pids = found()
            return len(pids) == LAID and "memfd:starter" in str(Path(f"/proc/{pids[2]}/exe").readlink())
        except OSError:
            return False

    assert eventually(waits, within=5.0)
    time.sleep(0.02)
    return found()


def lay(driver: Driver, bounds: object = ROOMY) -> None:
    assert isinstance(bounds, type(ROOMY))
    file = os.memfd_create("filter")
    os.write(file, load_filter(platform.machine(), single=bounds.single).program)
    driver.say(Lay(bounds), [file])
    os.close(file)


def given(run: Run) -> bool:
    assert run.ready is not None
    return run.ready.ahead


def finish(driver: Driver, run: Run) -> None:
    driver.release(run)
    assert driver.ended(run).exit_code == 0
    assert run.stdout == b"there\n"
    cleared = driver.clear(run)
    assert (cleared.mounts, cleared.cgroups) == (0, 0)


def test_nothing_is_laid_unless_it_is_asked_for(driver: Driver) -> None:
    assert not given(driver.run(SAYS))
    assert standing(CGROUPS, driver.prefix) == []
    assert not given(driver.run(SAYS))
    assert none_alive()


def test_what_is_laid_at_first_is_given_to_the_first_run_of_each_slot(driver: Driver) -> None:
    lay(driver)
    laid(0)
    laid(1)
    for slot in (0, 1):
        run = driver.spawn(SAYS, slot=slot)
        assert given(run)
        assert run.ready is not None
        assert run.ready.setup_us < 20_000
        finish(driver, run)


def test_the_node_is_told_of_each_that_is_laid(driver: Driver) -> None:
    lay(driver)
    laid(0)
    laid(1)
    assert [driver.hear()[0] for _ in range(2)] == [Laid(0, ROOMY), Laid(1, ROOMY)]


def test_another_is_laid_after_each_run_that_asks_for_it(driver: Driver) -> None:
    assert not given(driver.run(SAYS, again=True))
    before = laid()
    assert given(driver.run(SAYS, again=True))
    assert not set(before) & set(laid())


def test_one_that_is_still_being_set_up_is_waited_for(driver: Driver) -> None:
    driver.run(SAYS, again=True)
    seen = []
    for after_ms in range(0, 24, 2):
        time.sleep(after_ms / 1000)
        run = driver.spawn(SAYS, again=True)
        seen.append(given(run))
        finish(driver, run)
    assert all(seen[6:])


@pytest.mark.parametrize("bounds", [OTHER, bounded(cpu_us=1), bounded(tasks=18, single=True)])
def test_one_of_another_kind_is_destroyed_before_the_run_is_held(driver: Driver, bounds: object) -> None:
    assert isinstance(bounds, type(ROOMY))
    driver.run(SAYS, again=True)
    before = laid()
    run = driver.spawn(SAYS, bounds)
    assert not given(run)
    assert eventually(lambda: not set(before) & set(uids_alive(FIRST_UID, 1)), within=1.0)
    driver.stop(run)
    driver.failed(run)
    laid()
    assert given(driver.spawn(SAYS))


def test_time_counts_from_the_release_so_that_another_limit_of_it_is_no_other_kind(driver: Driver) -> None:
    assert same(KIND, Kind(replace(ROOMY, wall_us=1), b"12345678"))
    assert not same(KIND, Kind(ROOMY, b"1234567x"))
    assert not same(KIND, Kind(replace(ROOMY, host_bytes=1), b"12345678"))
    driver.run(SAYS, again=True)
    laid()
    told = driver.run(FOREVER, bounded(wall_us=300_000))
    assert given(told)
    assert told.told().stopped == "wall"
    assert 300_000 <= told.told().wall_us < 500_000


def test_a_run_that_does_not_ask_for_another_leaves_what_was_laid_before_to_be_laid_again(driver: Driver) -> None:
    lay(driver)
    laid()
    assert not given(driver.run(SAYS, OTHER))
    laid()
    assert given(driver.run(SAYS))
    laid()
    assert not given(driver.run(SAYS, OTHER, again=True))
    laid()
    assert given(driver.run(SAYS, OTHER))


def test_a_run_given_one_has_its_own_figures(driver: Driver) -> None:
    plain = driver.run(SAYS).told()
    driver.run(SAYS, again=True)
    laid()
    time.sleep(0.2)
    ahead = driver.run(SAYS).told()
    assert (ahead.exit_code, ahead.command_status, ahead.task_denials, ahead.oom_kills) == (0, 0, 0, 0)
    assert ahead.wall_us < 200_000
    assert 0.3 < ahead.cpu_us / plain.cpu_us < 3
    assert ahead.peak_tasks == plain.peak_tasks


@pytest.mark.parametrize("which", [0, 1, 2], ids=["bubblewrap", "the first process", "the starter"])
def test_one_that_dies_is_cleared_away_and_the_next_run_is_set_up_as_any(driver: Driver, which: int) -> None:
    driver.run(SAYS, again=True)
    os.kill(laid()[which], signal.SIGKILL)
    assert eventually(lambda: standing(CGROUPS, driver.prefix) == [], within=2.0)
    assert none_alive()
    assert not given(driver.run(SAYS))


@pytest.mark.parametrize("which", [0, 1, 2], ids=["bubblewrap", "the first process", "the starter"])
def test_one_that_died_just_before_it_is_asked_for_is_not_given_out(driver: Driver, which: int) -> None:
    driver.run(SAYS, again=True)
    pids = laid()
    driver.process.send_signal(signal.SIGSTOP)
    os.kill(pids[which], signal.SIGKILL)
    run = driver.begin(SAYS)
    driver.process.send_signal(signal.SIGCONT)
    run.ready, _ = driver.expect(Ready, run.name)
    assert not given(run)
    finish(driver, run)


def test_one_that_somebody_else_is_in_is_not_given_out(driver: Driver) -> None:
    driver.run(SAYS, again=True)
    pids = laid()
    (name,) = {each.name for each in standing(CGROUPS, driver.prefix)}
    stranger = let_in(standing(CGROUPS, driver.prefix))
    run = driver.spawn(SAYS)
    assert not given(run)
    assert run.ready is not None
    assert name not in "".join(run.ready.places.values())
    assert os.waitstatus_to_exitcode(os.waitpid(stranger, 0)[1]) == -signal.SIGKILL
    assert eventually(lambda: not set(pids) & set(uids_alive()), within=1.0)
    finish(driver, run)


def test_one_that_somebody_else_is_in_part_of_never_runs(driver: Driver) -> None:
    driver.run(SAYS, again=True)
    laid()
    others = [each for each in standing(CGROUPS, driver.prefix) if not {"unified", "memory"} & set(each.parts)]
    if not others:
        unavailable("there is one tree here")
    stranger = let_in(others[:1])
    run = driver.spawn(SAYS)
    driver.release(run)
    failed = driver.failed(run)
    assert (failed.reason, failed.left, run.stdout) == ("sandbox.check_failed", None, b"")
    assert os.waitstatus_to_exitcode(os.waitpid(stranger, 0)[1]) == -signal.SIGKILL
    assert not given(driver.run(SAYS))


def let_in(groups: list[Path]) -> int:
    """Have a process of this one's be in groups."""
    stranger = os.fork()
    if stranger == 0:
        signal.pause()
    for each in groups:
        (each / "cgroup.procs").write_text(str(stranger))
    return stranger


def test_the_starter_killed_after_it_was_given_out_never_ran(driver: Driver) -> None:
    driver.run(SAYS, again=True)
    pids = laid()
    run = driver.spawn(SAYS)
    assert given(run)
    os.kill(pids[2], signal.SIGKILL)
    failed = driver.failed(run)
    assert (failed.reason, failed.left, run.stdout) == ("sandbox.bwrap_failed", None, b"")


def killed(driver: Driver) -> None:
    driver.process.send_signal(signal.SIGKILL)


def ended(driver: Driver) -> None:
    driver.process.send_signal(signal.SIGTERM)


@pytest.mark.parametrize("how", [killed, ended, Driver.hang_up])
@pytest.mark.parametrize("after_ms", [0, 2, 5, 9, 40])
def test_the_launcher_s_end_leaves_nothing_of_what_is_laid(
    image_of_runs: Path, how: Callable[[Driver], None], after_ms: int
) -> None:
    with launcher(image_of_runs) as driver:
        run = driver.spawn(SAYS, again=True)
        driver.release(run)
        driver.ended(run)
        driver.clear(run)
        time.sleep(after_ms / 1000)
        how(driver)
        driver.gone()
        assert none_alive(within=1.0)
        assert eventually(lambda: standing(CGROUPS, driver.prefix) == [], within=1.0)


def test_what_a_launcher_and_its_switch_leave_laid_runs_nothing_and_is_swept(image_of_runs: Path) -> None:
    with launcher(image_of_runs) as driver:
        children = Path(f"/proc/{driver.process.pid}/task/{driver.process.pid}/children")
        (switch,) = map(int, children.read_text().split())
        driver.run(SAYS, again=True)
        laid()
        os.kill(switch, signal.SIGSTOP)
        killed(driver)
        driver.gone()
        os.kill(switch, signal.SIGKILL)
        assert none_alive(within=1.0)
        find().sweep(driver.prefix)
        assert standing(CGROUPS, driver.prefix) == []


def test_nothing_is_laid_where_something_is_left_of_a_run(driver: Driver) -> None:
    run = driver.spawn(SAYS, again=True)
    assert run.ready is not None
    within = Path(run.ready.places["pids"]) / "within"
    within.mkdir()
    stays = subprocess.Popen(["sleep", "60"])
    (within / "cgroup.procs").write_text(str(stays.pid))
    driver.release(run)
    driver.ended(run)
    assert driver.clear(run).cgroups != 0
    time.sleep(0.1)
    assert uids_alive() == []
    stays.kill()
    stays.wait()
    driver.run(SAYS, again=True)
    laid()


def test_forty_runs_leave_one_laid_and_nothing_else(driver: Driver) -> None:
    proc = Path(f"/proc/{driver.process.pid}")

    def held() -> tuple[int, int, int]:
        laid()
        children = (proc / "task" / proc.name / "children").read_text().split()
        return (
            len(list((proc / "fd").iterdir())),
            len(children),
            len({x.name for x in standing(CGROUPS, driver.prefix)}),
        )

    driver.run(SAYS, again=True)
    before = held()
    for number in range(40):
        driver.run(SAYS, ROOMY if number % 3 else OTHER, again=bool(number % 2))
    driver.run(SAYS, again=True)
    assert eventually(lambda: held() == before, within=2.0)
    assert before[1:] == (2, 1)


def test_what_is_to_be_laid_without_a_filter_ends_the_launcher(driver: Driver) -> None:
    driver.say(Lay(ROOMY))
    assert driver.gone() == 0


# -- without a launcher ------------------------------------------------------------------------------------------------


class Loop:
    """Stands for a loop: keeps what is due, by the seconds in which it is."""

    def __init__(self) -> None:
        self.due: dict[float, Callable[[], None]] = {}

    def after(self, seconds: float, call: Callable[[], None]) -> Any:
        self.due[seconds] = call
        return SimpleNamespace(cancel=lambda: self.due.pop(seconds, None))

    def reap(self) -> None:
        return

    def go_on(self, seconds: float) -> None:
        self.due.pop(seconds)()


@attrs.define(eq=False)
class Box:
    """Stands for a sandbox that is set up at once; one that was killed is dead."""

    kind: Kind
    events: Events
    fails: bool = False
    held: bool = True
    dead: bool = False
    group: None = None

    def start(self) -> None:
        if self.fails:
            raise SetupFailed("sandbox.setup_failed", "so it is")

    def waits(self) -> bool:
        return not self.dead

    def kill(self) -> None:
        self.dead = True

    def close(self) -> None:
        return


@attrs.define(eq=False)
class Slots:
    loop: Loop
    made: list[Box]
    ahead: LaidAhead
    told: list[tuple[int, Kind]]
    fails: bool = False


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> Slots:
    loop = Loop()
    told: list[tuple[int, Kind]] = []
    place = cast("Any", SimpleNamespace(loop=loop))
    here = Slots(loop, [], LaidAhead(place, lambda slot: slot, lambda *laid: told.append(laid)), told)

    def make(_: object, kind: Kind, __: int, events: Events) -> Box:
        here.made.append(Box(kind, events, fails=here.fails))
        return here.made[-1]

    monkeypatch.setattr(laid_ahead, "HeldSandbox", make)
    here.ahead.want(0, KIND)
    here.ahead.lay_in(0.5, 0)
    return here


def test_nothing_is_laid_before_its_time(slots: Slots) -> None:
    assert slots.made == []
    assert slots.ahead.take(0, KIND) is None
    assert slots.loop.due == {}


def test_one_is_told_of_once_it_is_held(slots: Slots) -> None:
    slots.loop.go_on(0.5)
    assert slots.told == []
    slots.made[0].events.held()
    assert slots.told == [(0, KIND)]


def test_one_that_is_old_is_laid_anew(slots: Slots) -> None:
    slots.loop.go_on(0.5)
    slots.loop.go_on(LONGEST_LAID_S)
    first, second = slots.made
    assert (first.dead, second.dead) == (True, False)
    taken: object = slots.ahead.take(0, KIND)
    assert taken is second
    assert slots.loop.due == {}


def test_one_that_is_given_out_is_not_destroyed_by_what_comes_later(slots: Slots) -> None:
    slots.loop.go_on(0.5)
    taken: object = slots.ahead.take(0, KIND)
    slots.ahead.kill()
    assert taken is slots.made[0]
    assert not slots.made[0].dead


def test_one_that_cannot_be_laid_is_noted_and_not_tried_again(slots: Slots, capfd: pytest.CaptureFixture[str]) -> None:
    slots.fails = True
    slots.loop.go_on(0.5)
    assert slots.ahead.take(0, KIND) is None
    assert slots.loop.due == {}
    said = "launcher: what was laid in slot 0 is lost: sandbox.setup_failed: so it is\n"
    assert capfd.readouterr().err == said


def test_a_slot_of_which_nothing_is_wanted_has_nothing_laid(slots: Slots) -> None:
    slots.ahead.lay_in(0.1, 1)
    assert 0.1 not in slots.loop.due


def test_slots_are_laid_one_after_the_other_so_that_what_runs_is_looked_at_between() -> None:
    due: dict[int, float] = {}
    ahead = SimpleNamespace(want=lambda *_: None, lay_in=lambda seconds, slot: due.update({slot: seconds}))
    runs = {"a": SimpleNamespace(asked=Spawn("a", 1, ROOMY))}
    launcher = SimpleNamespace(_runs=runs, _slots=4, _ahead=ahead)
    file = os.memfd_create("filter")
    os.write(file, bytes(8))
    Launcher._lay(cast("Launcher", launcher), Lay(ROOMY), [file])
    os.close(file)
    assert list(due) == [0, 2, 3]
    assert len(set(due.values())) == len(due)
