from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest

from gateway.actors.sandbox.settings import PROGRAM, SandboxSettings
from gateway.sandbox.host import Machine
from gateway.sandbox.launcher_messages import Settings

SETTINGS = SandboxSettings(Path("/images"), "gateway-run-")
ROOT = Machine(uid=0, cores=6, bubblewrap="/opt/bin/bwrap")


def test_what_is_left_open_is_what_the_machine_has() -> None:
    here = SETTINGS.on(ROOT)
    assert (here.slots, here.bubblewrap) == (6, "/opt/bin/bwrap")
    assert here.memory_bytes == ROOT.memory_bytes // 2


def test_what_is_said_stands_however_often() -> None:
    said = attrs.evolve(SETTINGS, slots=3, memory_bytes=2**30, bubblewrap="/usr/local/bin/bwrap")
    assert said.on(ROOT) == said == said.on(ROOT).on(ROOT)


def test_a_node_without_privilege_has_one_slot() -> None:
    assert attrs.evolve(SETTINGS, slots=3).on(Machine(uid=1000, cores=6)).slots == 1
    assert attrs.evolve(SETTINGS, slots=3, launcher=("sudo", "-n")).on(Machine(uid=1000, cores=6)).slots == 3


def test_the_launcher_is_started_with_its_settings_behind_the_words_before_it() -> None:
    *words, told = attrs.evolve(SETTINGS, launcher=("sudo", "-n")).on(ROOT).command(Path("/images/sha256-5f"))
    assert tuple(words) == ("sudo", "-n", *PROGRAM)
    assert Settings(**json.loads(told)) == Settings("/images/sha256-5f", "/opt/bin/bwrap", "gateway-run-", 64_400, 6)
    assert Path(PROGRAM[-1]).is_file()


@pytest.mark.parametrize(("failures", "seconds"), [(1, 1.0), (2, 2.0), (5, 16.0), (7, 60.0), (10_000, 60.0)])
def test_the_pause_before_another_try_doubles_up_to_a_minute(failures: int, seconds: float) -> None:
    assert SETTINGS.back_off(failures) == seconds
