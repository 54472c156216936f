from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import main


@pytest.fixture
def config(tmp_path: Path) -> Path:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        ports = one.getsockname()[1], other.getsockname()[1]
    path = tmp_path / "gateway.toml"
    path.write_text(
        f'[node]\ndata_dir = "{tmp_path}/data"\nlisten = ["127.0.0.1:{ports[0]}"]\n'
        f'operator_listen = "127.0.0.1:{ports[1]}"\n'
    )
    return path


def test_a_fresh_machine_passes_with_a_line_a_check(config: Path) -> None:
    told = CliRunner().invoke(main, ["doctor", "--config", str(config)])
    assert told.exit_code == 0, told.output
    assert {line[:4] for line in told.stdout.splitlines()} == {"ok  ", "note"}
    document = json.loads(CliRunner().invoke(main, ["doctor", "--config", str(config), "--json"]).stdout)
    assert document["ok"] is True
    assert len(document["checks"]) == len(told.stdout.splitlines())
    assert document["configuration"]["node"]["data_dir"] == str(config.parent / "data")


def test_a_failed_check_exits_1(config: Path) -> None:
    config.write_text(config.read_text() + '[[search.adapter]]\nkind = "searxng"\nbase_url = "http://127.0.0.1:1"\n')
    told = CliRunner().invoke(main, ["doctor", "--config", str(config)])
    assert told.exit_code == 1
    (line,) = [each for each in told.stdout.splitlines() if each.startswith("FAIL")]
    assert "search/searxng: its probe failed" in line
    assert "Fix: " in line


def test_a_configuration_that_cannot_be_read_is_a_failed_check() -> None:
    told = CliRunner().invoke(main, ["doctor", "--config", "/nowhere/gateway.toml"])
    assert told.exit_code == 1
    assert "FAIL  configuration: /nowhere/gateway.toml: cannot be read" in told.stdout
