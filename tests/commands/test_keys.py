from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from gateway.cli import main
from tests.store_of_a_node import make_store


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["keys", *arguments])


def config(tmp_path: Path) -> str:
    path = tmp_path / "gateway.toml"
    path.write_text(f'[node]\ndata_dir = "{tmp_path}/data"\n')
    return str(path)


def test_new_makes_one_key_of_each_kind_and_changes_none_that_is_there(tmp_path: Path) -> None:
    told = run("new", "--config", config(tmp_path), "--json")
    assert told.exit_code == 0
    names = json.loads(told.stdout)["keys"]
    assert names == ["node-1.key", "pepper-1.key", "quote-1.key", "receipt-1.key"]
    before = {name: (tmp_path / "data/keys" / name).read_bytes() for name in names}
    assert run("new", "--config", config(tmp_path)).exit_code == 0
    assert {name: (tmp_path / "data/keys" / name).read_bytes() for name in names} == before


def test_new_makes_nothing_for_a_store_that_has_lost_its_keys(tmp_path: Path) -> None:
    made = make_store(tmp_path)
    made.change("INSERT INTO node_facts VALUES ('pepper-1', 'a fingerprint')")
    for each in (tmp_path / "keys").iterdir():
        each.unlink()
    told = run("new", "--config", str(made.config))
    assert told.exit_code == 3
    assert "restore" in told.stderr
    assert list((tmp_path / "keys").iterdir()) == []


def test_rotate_adds_the_next_version_and_keeps_the_older_one(tmp_path: Path) -> None:
    assert run("new", "--config", config(tmp_path)).exit_code == 0
    told = run("rotate", "quote", "--config", config(tmp_path), "--json")
    assert json.loads(told.stdout) == {
        "kind": "quote",
        "version": 2,
        "file": str(tmp_path / "data/keys/quote-2.key"),
    }
    kept = sorted(each.name for each in (tmp_path / "data/keys").glob("quote*"))
    assert kept == ["quote-1.key", "quote-2.key"]
    assert "from the node's next start on" in run("rotate", "pepper", "--config", config(tmp_path)).stdout


def test_rotate_refuses_what_has_no_first_version_and_what_is_no_kind(tmp_path: Path) -> None:
    assert run("rotate", "quote", "--config", config(tmp_path)).exit_code == 3
    assert run("rotate", "wallet", "--config", config(tmp_path)).exit_code == 2
