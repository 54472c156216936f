from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.config import load
from gateway.operator_token import open_token
from tests.store_of_a_node import FREE, SETTLED, SETTLING, WAITING, StoreOfANode, make_store


@pytest.fixture(params=["sqlite", "postgresql"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> StoreOfANode:
    url = request.getfixturevalue("postgresql_url") if request.param == "postgresql" else ""
    return make_store(tmp_path / "data", url)


def run(made: StoreOfANode, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["operations", *arguments, "--config", str(made.config)])


def test_list_shows_what_is_stuck_first(made: StoreOfANode) -> None:
    told = run(made, "list")
    assert told.exit_code == 0
    assert [line.split()[0] for line in told.stdout.splitlines()[1:]] == [WAITING, SETTLING, SETTLED, FREE]


def test_list_selects_and_limits(made: StoreOfANode) -> None:
    told = json.loads(run(made, "list", "--state", "RECEIPTED", "--limit", "1", "--json").stdout)
    assert [each["operationId"] for each in told["operations"]] == [SETTLED]
    assert run(made, "list", "--state", "failed").stdout == "no operations\n"


def test_list_refuses_an_unknown_state(made: StoreOfANode) -> None:
    told = run(made, "list", "--state", "sold")
    assert (told.exit_code, told.stderr.splitlines()[0][:24]) == (2, "no state is named 'sold'")
    assert run(made, "list", "--limit", "0").exit_code == 2


def test_show_tells_the_history_and_the_ledger(made: StoreOfANode) -> None:
    told = run(made, "show", SETTLED)
    assert told.exit_code == 0
    assert "CLAIMED" in told.stdout
    assert "revenue" in told.stdout
    shown = json.loads(run(made, "show", SETTLED, "--json").stdout)
    assert shown["transactionHash"] == "0x" + "2" * 64


def test_show_of_an_unknown_operation_fails(made: StoreOfANode) -> None:
    told = run(made, "show", "op_none")
    assert (told.exit_code, told.stderr) == (1, "no operation is named op_none\n")


def test_without_a_store_the_store_cannot_be_reached(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(f'[node]\ndata_dir = "{tmp_path}"\n')
    told = CliRunner().invoke(main, ["operations", "list", "--config", str(config)])
    assert told.exit_code == 3
    assert "there is no store" in told.stderr


def test_resolve_needs_a_reason_and_a_transaction_that_is_one(made: StoreOfANode) -> None:
    assert run(made, "resolve", WAITING).exit_code == 2
    told = run(made, "resolve", WAITING, "--why", "lost", "--paid-by", "0x12")
    assert (told.exit_code, told.stderr) == (2, "--paid-by takes a transaction hash, 0x and 64 hex digits\n")


def test_resolve_without_a_node_says_that_none_runs(tmp_path: Path) -> None:
    made = make_store(tmp_path)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        made.config.write_text(f'[node]\ndata_dir = "{tmp_path}"\noperator_listen = "127.0.0.1:{port}"\n')
        told = run(made, "resolve", WAITING, "--why", "lost")
        assert told.exit_code == 3
        assert "decisions are taken by the running node" in told.stderr
        open_token(load(made.config, {}), create=True)
        told = run(made, "resolve", WAITING, "--why", "lost")
    assert told.exit_code == 3
    assert f"no node answers at http://127.0.0.1:{port}/operations/{WAITING}/resolve" in told.stderr
