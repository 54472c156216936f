from __future__ import annotations

import json
import sys

import pytest
from click.testing import CliRunner

from gateway.cli import main


def test_a_configuration_that_cannot_be_used_is_told_before_anything_slow_is_imported() -> None:
    told = CliRunner().invoke(main, ["serve", "--config", "/nowhere/gateway.toml"])
    assert told.exit_code == 2
    assert told.stderr == "/nowhere/gateway.toml: cannot be read: No such file or directory\n"


def test_with_json_a_node_that_cannot_start_says_so_in_json() -> None:
    told = CliRunner().invoke(main, ["serve", "--json", "--config", "/nowhere/gateway.toml"])
    assert told.exit_code == 2
    assert json.loads(told.stdout)["code"] == "configuration_invalid"


def test_without_the_world_the_demo_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gateway.world.demo", None)
    told = CliRunner().invoke(main, ["demo"])
    assert told.exit_code == 2
    assert "pip install 'gateway[world]'" in told.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nodes", "2"], "several nodes need a store that they can share; add --store postgresql"),
        (["--nodes", "0", "--store", "postgresql"], "0 is not in the range 1<=x<=8"),
        (["--nodes", "9", "--store", "postgresql"], "9 is not in the range 1<=x<=8"),
        (["--store", "mysql://u@h/d"], "say postgresql, or postgresql://USER@HOST/DATABASE"),
    ],
)
def test_nodes_that_cannot_share_a_store_are_wrong_usage(arguments: list[str], words: str) -> None:
    told = CliRunner().invoke(main, ["demo", *arguments])
    assert told.exit_code == 2
    assert words in " ".join(told.stderr.split())
