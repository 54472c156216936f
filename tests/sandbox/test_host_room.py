from __future__ import annotations

from pathlib import Path

import pytest

from gateway.sandbox.canaries import CANARIES
from gateway.sandbox.host_machine import Grade, Wanted
from gateway.sandbox.host_room import GREATEST, kernel_limits, memory
from gateway.sandbox.limits import RANGES, Limits
from tests.sandbox.fake_host import WANTED, a_machine

MIB = 2**20


def test_memory_for_the_highest_limits_is_fine(tmp_path: Path) -> None:
    found = memory(a_machine(tmp_path), WANTED)
    assert (found.grade, found.fact) == (Grade.FINE, "8192 MiB, of 16384 MiB that the machine has")


def test_the_greatest_run_takes_what_the_highest_limits_come_to() -> None:
    assert GREATEST.host_bytes == sum(RANGES[name].most for name in ("memoryBytes", "diskBytes", "artifactBytes"))


@pytest.mark.parametrize(
    ("share", "grade", "reason", "words"),
    [
        (GREATEST.host_bytes, Grade.FINE, None, ""),
        (GREATEST.host_bytes - 1, Grade.NOTE, "sandbox.memory_little", "the highest limits takes up to 1546 MiB"),
        (Limits().host_bytes, Grade.NOTE, "sandbox.memory_little", "the highest limits"),
        (Limits().host_bytes - 1, Grade.NOTE, "sandbox.memory_little", "the default limits takes up to 321 MiB"),
        (max(each.limits.host_bytes for each in CANARIES), Grade.NOTE, "sandbox.memory_little", "the default limits"),
        (
            max(each.limits.host_bytes for each in CANARIES) - 1,
            Grade.CLOSES,
            "sandbox.memory_short",
            "not even the runs that prove the sandbox",
        ),
    ],
)
def test_memory_for_fewer_runs_is_told(
    tmp_path: Path, share: int, grade: Grade, reason: str | None, words: str
) -> None:
    found = memory(a_machine(tmp_path), Wanted(memory_bytes=share))
    assert (found.grade, found.reason) == (grade, reason)
    assert words in found.consequence
    assert ("memory_mib" in found.fix) == (reason is not None)


def test_the_fix_names_memory_that_is_enough(tmp_path: Path) -> None:
    machine = a_machine(tmp_path)
    found = memory(machine, Wanted(memory_bytes=MIB))
    (named,) = [int(word) for word in found.fix.split() if word.isdecimal()]
    assert memory(machine, Wanted(memory_bytes=named * MIB)).grade is Grade.NOTE
    assert memory(machine, Wanted(memory_bytes=(named - 1) * MIB)).grade is Grade.CLOSES


def test_a_machine_that_tells_no_memory_has_none_for_runs(tmp_path: Path) -> None:
    assert memory(a_machine(tmp_path, files={"meminfo": ""}), WANTED).reason == "sandbox.memory_short"


def test_ordinary_limits_of_a_user_are_fine(tmp_path: Path) -> None:
    (found,) = kernel_limits(a_machine(tmp_path), WANTED)
    assert (found.grade, found.fact) == (Grade.FINE, "enough for 2 runs at a time")
    (alone,) = kernel_limits(a_machine(tmp_path / "alone", uid=1000), WANTED)
    assert alone.fact == "enough for 1 run at a time"


@pytest.mark.parametrize(
    ("file", "just_enough", "reason", "fix"),
    [
        ("sys/fs/inotify/max_user_instances", 12, "sandbox.inotify_few", "sysctl -w fs.inotify.max_user_instances=128"),
        ("sys/fs/pipe-user-pages-soft", 512, "sandbox.pipes_small", "sysctl -w fs.pipe-user-pages-soft=16384"),
    ],
)
def test_few_instances_and_small_pipes_are_notes(
    tmp_path: Path, file: str, just_enough: int, reason: str, fix: str
) -> None:
    wanted = Wanted(slots=4)
    machine = a_machine(tmp_path, files={file: f"{just_enough}\n"})
    (sound,) = kernel_limits(machine, wanted)
    assert sound.grade is Grade.FINE
    (machine.proc / file).write_text(f"{just_enough - 1}\n")
    (found,) = kernel_limits(machine, wanted)
    assert (found.grade, found.reason) == (Grade.NOTE, reason)
    assert fix in found.fix


def test_a_kernel_without_a_bound_on_pipes_or_without_inotify_is_fine(tmp_path: Path) -> None:
    machine = a_machine(tmp_path, files={"sys/fs/pipe-user-pages-soft": "0\n"})
    (machine.proc / "sys/fs/inotify/max_user_instances").unlink()
    (found,) = kernel_limits(machine, WANTED)
    assert found.grade is Grade.FINE
