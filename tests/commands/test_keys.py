from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.commands.keys import KINDS
from gateway.keys import open_keys
from tests.store_of_a_node import StoreOfANode, make_store


@pytest.fixture(params=["sqlite", "postgresql"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> StoreOfANode:
    url = request.getfixturevalue("postgresql_url") if request.param == "postgresql" else ""
    return make_store(tmp_path / "node", url)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["keys", *arguments])


def config(tmp_path: Path, url: str = "") -> str:
    path = tmp_path / "gateway.toml"
    path.write_text(f'[node]\ndata_dir = "{tmp_path}/data"\n[store]\nurl = "{url}"\n')
    return str(path)


def test_new_makes_one_key_of_each_kind_and_changes_none_that_is_there(tmp_path: Path) -> None:
    told = run("new", "--config", config(tmp_path), "--json")
    assert told.exit_code == 0
    names = json.loads(told.stdout)["keys"]
    assert names == ["node-1.key", "pepper-1.key", "quote-1.key", "receipt-1.key"]
    before = {name: (tmp_path / "data/keys" / name).read_bytes() for name in names}
    assert run("new", "--config", config(tmp_path)).exit_code == 0
    assert {name: (tmp_path / "data/keys" / name).read_bytes() for name in names} == before


def keys_known_to_its_store(made: StoreOfANode) -> None:
    for name, value in open_keys(made.data_dir / "keys", create=False).fingerprints().items():
        made.change("INSERT INTO node_facts VALUES (:name, :value)", name=name, value=value)


def test_new_makes_nothing_for_a_store_that_has_lost_its_keys(made: StoreOfANode) -> None:
    keys_known_to_its_store(made)
    for each in (made.data_dir / "keys").iterdir():
        each.unlink()
    told = run("new", "--config", str(made.config))
    assert told.exit_code == 3
    assert "from the backup, or copy it from another node" in told.stderr
    assert list((made.data_dir / "keys").iterdir()) == []


def test_new_refuses_the_keys_of_another_store(made: StoreOfANode) -> None:
    keys_known_to_its_store(made)
    for each in (made.data_dir / "keys").iterdir():
        each.write_bytes(b"x" * 32)
    told = run("new", "--config", str(made.config))
    assert told.exit_code == 3
    assert "pepper-1.key is another key than the store was filled with" in told.stderr


def test_new_makes_keys_for_an_empty_database(tmp_path: Path, postgresql_url: str) -> None:
    told = run("new", "--config", config(tmp_path, postgresql_url), "--json")
    assert told.exit_code == 0
    assert len(json.loads(told.stdout)["keys"]) == 4


def test_new_makes_nothing_while_it_cannot_be_told_whether_the_store_has_keys(tmp_path: Path) -> None:
    told = run("new", "--config", config(tmp_path, "postgresql://127.0.0.1:1/gateway"))
    assert told.exit_code == 3
    assert "127.0.0.1:1 cannot be used" in told.stderr
    assert not (tmp_path / "data").exists()


def test_rotate_adds_the_next_version_and_keeps_the_older_one(tmp_path: Path) -> None:
    assert run("new", "--config", config(tmp_path)).exit_code == 0
    told = json.loads(run("rotate", "quote", "--config", config(tmp_path), "--json").stdout)
    file = str(tmp_path / "data/keys/quote-2.key")
    assert (told["kind"], told["version"], told["file"]) == ("quote", 2, file)
    kept = sorted(each.name for each in (tmp_path / "data/keys").glob("quote*"))
    assert kept == ["quote-1.key", "quote-2.key"]
    lines = run("rotate", "pepper", "--config", config(tmp_path)).stdout.splitlines()
    assert "from the node's next start on" in lines[0]
    assert [line.partition(". ")[2] for line in lines[1:]] == [
        f"Back up {tmp_path}/data/keys/pepper-2.key with the other keys.",
        "Restart the node.",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_for_several_nodes_the_key_is_copied_everywhere_before_any_restart(tmp_path: Path, kind: str) -> None:
    open_keys(tmp_path / "data" / "keys", create=True)
    told = run("rotate", kind, "--config", config(tmp_path, "postgresql://127.0.0.1:1/gateway"), "--json")
    back_up, copy, restart = json.loads(told.stdout)["next"]
    assert f"{kind}-2.key" in back_up
    assert "every node of the store, mode 0600, before any node is restarted" in copy
    assert restart.startswith("Restart the nodes one after another")
    assert "Meanwhile" in restart


def test_keys_are_made_where_the_configuration_says(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text('[node]\ndata_dir = "data"\nkeys_dir = "shared"\n')
    assert run("new", "--config", str(path)).exit_code == 0
    assert run("rotate", "quote", "--config", str(path)).exit_code == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["gateway.toml", "shared"]
    assert (tmp_path / "shared" / "quote-2.key").exists()


def test_rotate_refuses_what_has_no_first_version_and_what_is_no_kind(tmp_path: Path) -> None:
    assert run("rotate", "quote", "--config", config(tmp_path)).exit_code == 3
    assert run("rotate", "wallet", "--config", config(tmp_path)).exit_code == 2
