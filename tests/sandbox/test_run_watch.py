"""What a run's memory is and what is only files, and how long processor time lasts at least."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.sandbox import run_watch
from gateway.sandbox.cgroup_files import Descriptor
from gateway.sandbox.cgroups import Bounds as Limits
from gateway.sandbox.cgroups import Group, MechanismMissing, find
from gateway.sandbox.launcher_messages import Bounds
from gateway.sandbox.run_watch import RunWatch, bytes_of_image, bytes_written
from tests.sandbox.in_groups import a_prefix, ended, heard, start, swept, unavailable
from tests.sandbox.launcher_driver import MIB

BOUNDS = Bounds(1_000_000, 16 * MIB, 32 * MIB, 18, MIB, MIB, 2_000_000, single=False)


NO_PIDFDS = (Descriptor(-1), Descriptor(-1))
FILLED = "shared.write(bytes(len(shared))); print(1, flush=True); time.sleep(60)"


class Calls:
    """Stands for a loop: keeps what it was asked to call, and when."""

    def __init__(self) -> None:
        self.asked: dict[str, float] = {}
        self.called: dict[str, Any] = {}

    def watch(self, _: int, call: Any) -> None:
        self.called[call.__name__] = call

    def after(self, seconds: float, call: Any) -> Any:
        name = getattr(call, "__name__", "")
        self.asked[name] = seconds
        self.called[name] = call
        return SimpleNamespace(cancel=lambda: self.called.pop(name, None))


class Figures:
    """Stands for a group, with the figures that a test gives it."""

    oom_events = None

    def __init__(self, place: Path) -> None:
        self.oom_watched = place / "memory.oom_control"
        self.cpu = 0
        self.used = 0
        self.oom = False
        self.killed = 0
        (place / "memory.stat").write_text("total_cache 0\ntotal_shmem 0\n")

    def cpu_us(self) -> int:
        return self.cpu

    def memory(self) -> int:
        return self.used

    def oom_kills(self) -> int:
        return self.killed

    def oom_seen(self) -> bool:
        return self.oom


@pytest.fixture
def figures(tmp_path: Path) -> Figures:
    return Figures(tmp_path)


def watch(figures: Figures, monkeypatch: pytest.MonkeyPatch, cores: int = 2) -> tuple[Calls, list[str]]:
    monkeypatch.setattr(run_watch, "CORES", cores)
    calls = Calls()
    stopped: list[str] = []
    before = figures.cpu_us()
    RunWatch(
        cast("Group", figures),
        BOUNDS,
        cast("Any", calls),
        NO_PIDFDS,
        [],
        stopped.append,
        began=time.monotonic(),
        cpu_before_us=before,
    )
    return calls, stopped


@pytest.mark.parametrize(
    ("used", "cores", "lasts"), [(0, 2, 0.8), (800_000, 2, 0.1), (0, 8, 0.8), (999_990, 1, 0.001), (600_000, 1, 0.4)]
)
def test_processor_time_is_looked_at_before_it_can_be_used_up(
    figures: Figures, monkeypatch: pytest.MonkeyPatch, used: int, cores: int, lasts: float
) -> None:
    calls, stopped = watch(figures, monkeypatch, cores)
    figures.cpu += used
    calls.called["_look_at_cpu"]()
    assert calls.asked["_look_at_cpu"] == pytest.approx(lasts)
    assert stopped == []


def test_processor_time_used_up_ends_the_run_and_what_was_used_before_does_not_count(
    figures: Figures, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures.cpu = 5_000_000
    calls, stopped = watch(figures, monkeypatch)
    figures.cpu += 999_999
    calls.called["_look_at_cpu"]()
    assert stopped == []
    figures.cpu += 1
    calls.called["_look_at_cpu"]()
    assert stopped == ["cpu"]


def test_memory_is_looked_at_sooner_the_less_is_left(figures: Figures, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, _ = watch(figures, monkeypatch)
    calls.called["_look_at_memory"]()
    roomy = calls.asked["_look_at_memory"]
    figures.used = 16 * MIB
    calls.called["_look_at_memory"]()
    assert run_watch.SOONEST_LOOK_S == calls.asked["_look_at_memory"] <= roomy <= run_watch.LATEST_LOOK_S


def test_pages_of_the_image_are_not_the_run_s_memory(figures: Figures, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, stopped = watch(figures, monkeypatch)
    figures.used = 60 * MIB
    figures.oom_watched.with_name("memory.stat").write_text(f"total_cache {50 * MIB}\ntotal_shmem {4 * MIB}\n")
    calls.called["_look_at_memory"]()
    assert stopped == []
    figures.used = 63 * MIB
    calls.called["_look_at_memory"]()
    assert stopped == ["memory"]


def test_without_events_running_out_of_memory_is_looked_for(figures: Figures, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, stopped = watch(figures, monkeypatch)
    figures.oom = True
    calls.called["_look_at_memory"]()
    assert stopped == ["memory"]


def test_time_is_the_whole_limit(figures: Figures, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, stopped = watch(figures, monkeypatch)
    assert calls.asked["<lambda>"] == 2.0
    calls.called["<lambda>"]()
    assert stopped == ["wall"]


@pytest.mark.parametrize(
    ("told", "image"),
    [
        ("total_cache 9000\ntotal_shmem 4000\n", 5000),
        ("file 9000\nshmem 4000\n", 5000),
        ("file 4000\nshmem 9000\n", 0),
        ("", 0),
    ],
)
def test_files_that_were_not_written_are_the_image_s(figures: Figures, told: str, image: int) -> None:
    figures.oom_watched.with_name("memory.stat").write_text(told)
    assert bytes_of_image(cast("Group", figures)) == image


@pytest.mark.parametrize(("ends_by", "for_memory", "killed"), [("kill", 0, True), ("kill", 1, False), ("", 0, False)])
def test_the_first_process_killed_is_told_from_its_own_end_and_from_want_of_memory(
    figures: Figures, ends_by: str, for_memory: int, killed: bool
) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as init:
        held = Descriptor(os.pidfd_open(init.pid))
        pidfds = (held, Descriptor(-1))
        watched = RunWatch(
            cast("Group", figures),
            BOUNDS,
            cast("Any", Calls()),
            pidfds,
            [],
            lambda _: None,
            began=time.monotonic(),
            cpu_before_us=0,
        )
        assert not watched.init_killed()
        if ends_by:
            init.kill()
    figures.killed = for_memory
    assert watched.init_killed() is killed
    held.close()
    assert not watched.init_killed()


def test_shared_memory_that_is_no_file_is_the_run_s(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        cgroups = find()
    except MechanismMissing as missing:
        unavailable(str(missing))
        raise
    prefix = a_prefix()
    with swept(cgroups, prefix):
        group = cgroups.make(prefix, Limits(memory_bytes=256 * MIB, tasks=16))
        program = start(group, f"import mmap, time\nshared = mmap.mmap(-1, {48 * MIB})\n{FILLED}")
        heard(program, "1")
        calls, stopped = watch(cast("Figures", group), monkeypatch)
        calls.called["_look_at_memory"]()
        group.kill()
        ended(program)
        group.remove()
    assert stopped == ["memory"]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], check=False)
    if mounted.returncode:
        unavailable("no filesystem can be mounted")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_what_is_written_is_counted_in_whole_pages_and_holes_are_not(small: Path) -> None:
    directory = os.open(small, os.O_RDONLY)
    try:
        before = bytes_written([directory])
        (small / "a").write_bytes(b"x" * 5000)
        with (small / "b").open("wb") as file:
            file.truncate(1 << 30)
        assert bytes_written([directory]) - before == 8192
        assert bytes_written([directory, directory]) == 2 * bytes_written([directory])
    finally:
        os.close(directory)
