from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner

from gateway.cli import main


def test_a_configuration_that_cannot_be_used_is_told_before_anything_slow_is_imported() -> None:
    told = CliRunner().invoke(main, ["serve", "--config", "/nowhere/gateway.toml"])
    assert told.exit_code == 2
    assert told.stderr == "/nowhere/gateway.toml: cannot be read: No such file or directory\n"


def test_without_the_world_the_demo_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gateway.world.demo", None)
    told = CliRunner().invoke(main, ["demo"])
    assert told.exit_code == 2
    assert "pip install 'gateway[world]'" in told.stderr
