from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Configuration, structure
from gateway.sandbox.cgroup_files import NAME
from gateway.sandbox.host import Machine
from gateway.sandbox_settings import prefix_of, settings_of, wanted_of


def configured(data_dir: str = "/srv/node", name: str = "one", **sandbox: Any) -> Configuration:
    return structure({"node": {"data_dir": data_dir, "name": name}, "sandbox": sandbox})


def test_the_section_says_how_the_sandbox_is_run() -> None:
    settings = settings_of(
        configured(
            image="/srv/images",
            slots=3,
            queue=7,
            memory_mib=2048,
            first_uid=70_000,
            canary_interval_s=30,
            lay_ahead=False,
            launcher=["sudo", "-n"],
        )
    )
    assert (settings.images, settings.slots, settings.queue) == (Path("/srv/images"), 3, 7)
    assert (settings.memory_bytes, settings.first_uid) == (2**31, 70_000)
    assert (settings.canary_interval_s, settings.launcher, settings.ahead) == (30, ("sudo", "-n"), False)


def test_what_is_left_open_is_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(configured())
    assert (settings.slots, settings.memory_bytes, settings.ahead) == (0, 0, True)
    assert settings.bubblewrap == (Machine().bubblewrap or "/usr/bin/bwrap")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert settings_of(configured()).images == Path("/srv/node/sandbox-images")


def test_the_host_is_asked_for_what_runs_need_and_for_the_image() -> None:
    wanted = wanted_of(configured(image="/srv/images", slots=3, memory_mib=2048, first_uid=70_000))
    assert (wanted.slots, wanted.memory_bytes, wanted.first_uid) == (3, 2**31, 70_000)
    assert wanted.images == Path("/srv/images")
    assert wanted.prefix == prefix_of(configured())


def test_the_groups_of_a_node_begin_with_its_own_word_at_each_start() -> None:
    prefix = prefix_of(configured())
    assert NAME.fullmatch(prefix)
    assert prefix_of(configured()) == prefix
    assert len({prefix, prefix_of(configured("/srv/other")), prefix_of(configured(name="two"))}) == 3
