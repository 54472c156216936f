from __future__ import annotations

import json
import shutil
import sqlite3
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from functools import partial
from importlib.resources import as_file
from pathlib import Path
from typing import Any

import attrs
import httpx
import psycopg
import pytest
import trio
from click.testing import CliRunner, Result

from gateway.actors.store import PostgresqlSettings, schema
from gateway.cli import main
from gateway.config import load
from gateway.migrating import migrate_file, migrate_server
from gateway.node import open_node
from tests.store_of_a_node import StoreOfANode, make_store

KNOWN = len(schema.load(schema.shipped(), "sqlite"))
LIVES = "INSERT INTO nodes VALUES (%s, 1, 9000000000000000000, 0, 0, %s)"


@pytest.fixture
def made(tmp_path: Path) -> StoreOfANode:
    return make_store(tmp_path / "node")


@pytest.fixture
def second_release(tmp_path: Path) -> Path:
    """The migrations of the release that knew two."""
    directory = tmp_path / "second"
    directory.mkdir()
    with as_file(schema.shipped()) as shipped:
        for file in sorted(shipped.glob("000[12]_*.sql")):
            shutil.copy(file, directory)
    return directory


def run(config: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["migrate", "--config", str(config), *arguments])


def on_server(tmp_path: Path, url: str) -> Path:
    config = tmp_path / "gateway.toml"
    config.write_text(f'[node]\ndata_dir = "{tmp_path}"\n[store]\nurl = "{url}"\n')
    return config


class TestTheSchemaOfAFile:
    def test_what_is_pending_is_told_then_applied_then_nothing_is_pending(
        self, tmp_path: Path, second_release: Path
    ) -> None:
        config, file = on_server(tmp_path, ""), tmp_path / "gateway.db"
        migrate_file(file, second_release)
        told = run(config, "--check")
        assert told.exit_code == 1
        assert told.stdout.splitlines()[0] == "pending  0003 quotas"
        assert told.stdout.splitlines()[-1] == f"sqlite:///{file}: schema 2"
        told = run(config)
        assert told.exit_code == 0
        assert told.stdout.splitlines()[0] == "applied  0003 quotas"
        nothing = f"sqlite:///{file}: schema {KNOWN}, nothing is pending"
        assert told.stdout.splitlines()[-1] == nothing
        for arguments in ((), ("--check",)):
            told = run(config, *arguments)
            assert (told.exit_code, told.stdout) == (0, f"{nothing}\n")

    def test_a_node_that_runs_is_to_be_stopped_first(self, tmp_path: Path, second_release: Path) -> None:
        import fcntl

        migrate_file(tmp_path / "gateway.db", second_release)
        with (tmp_path / "gateway.db.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            told = run(on_server(tmp_path, ""))
        assert told.exit_code == 3
        assert "Stop that node" in told.stderr

    def test_a_newer_schema_is_refused(self, made: StoreOfANode) -> None:
        with closing(sqlite3.connect(made.path)) as store, store:
            store.execute("INSERT INTO schema_migrations VALUES (?, 'later', 'x', 0)", [KNOWN + 1])
        for arguments in ((), ("--check",)):
            told = run(made.config, *arguments)
            assert told.exit_code == 1
            assert f"its schema is version {KNOWN + 1} and this release knows {KNOWN}" in told.stderr


class TestTheSchemaOfAServer:
    def test_an_empty_database_gets_it(self, tmp_path: Path, postgresql_url: str) -> None:
        config = on_server(tmp_path, postgresql_url)
        document = json.loads(run(config, "--check", "--json").stdout)
        assert (document["version"], len(document["pending"]), document["applied"]) == (0, KNOWN, [])
        document = json.loads(run(config, "--json").stdout)
        assert (document["version"], document["pending"], len(document["applied"])) == (KNOWN, [], KNOWN)
        assert document["applied"][0] == {"version": 1, "name": "operations"}
        assert run(config, "--check").exit_code == 0

    def test_nodes_that_go_on_are_told_and_do_not_hinder(
        self, tmp_path: Path, second_release: Path, postgresql_url: str
    ) -> None:
        migrate_server(PostgresqlSettings(postgresql_url), second_release)
        with psycopg.connect(postgresql_url) as connection:
            connection.execute(LIVES, ["node-1", "0.1.0+schema.2"])
        told = run(on_server(tmp_path, postgresql_url))
        assert (told.exit_code, told.stderr) == (0, "")
        assert "node node-1, release 0.1.0+schema.2: goes on" in told.stdout.splitlines()

    def test_a_node_that_could_not_go_on_hinders_it_unless_that_is_wanted(
        self, tmp_path: Path, second_release: Path, postgresql_url: str
    ) -> None:
        config, settings = on_server(tmp_path, postgresql_url), PostgresqlSettings(postgresql_url)
        migrate_server(settings, second_release)
        with psycopg.connect(postgresql_url) as connection:
            connection.execute(LIVES, ["node-1", "0.0.9+schema.1"])
            connection.execute(LIVES, ["node-2", "0.1.0+schema.2"])
        told = run(config)
        assert told.exit_code == 1
        assert "node node-1, release 0.0.9+schema.1: cannot live with the new schema" in told.stdout.splitlines()
        assert told.stderr.startswith("nothing was migrated: node-1 could not go on. Stop it first")
        told = run(config, "--check", "--json")
        assert told.exit_code == 1
        document = json.loads(told.stdout)
        assert document["version"] == 2
        assert [(each["node"], each["served"]) for each in document["nodes"]] == [("node-1", False), ("node-2", True)]
        assert run(config, "--despite-live-nodes").exit_code == 0
        assert run(config).exit_code == 0

    def test_a_server_that_cannot_be_reached_is_told(self, tmp_path: Path) -> None:
        told = run(on_server(tmp_path, "postgresql://gateway@127.0.0.1:1/gateway"))
        assert told.exit_code == 3
        assert "cannot be reached" in told.stderr


class TestTheMove:
    def test_its_end_says_what_was_moved_and_what_to_configure(self, made: StoreOfANode, postgresql_url: str) -> None:
        told = run(made.config, "--to", postgresql_url)
        assert told.exit_code == 0, told.output
        assert told.stdout.splitlines()[0].startswith("copied ")
        assert "both sides hold the same" in told.stdout
        assert "the ledger stands: 8 entries, head sha256:" in told.stdout
        lines = [line.strip() for line in told.stdout.splitlines() if line.startswith("    ")]
        told_to_configure = tomllib.loads("\n".join(lines))
        assert told_to_configure == {
            "store": {"url": postgresql_url},
            "node": {"name": "node-1", "keys_dir": str(made.data_dir / "keys")},
        }
        assert "copy them as they are, mode 0600" in told.stdout
        assert "copying operations: 4 of 4 rows" in told.stderr
        config = made.data_dir / "new.toml"
        config.write_text("\n".join(lines))
        verified = CliRunner().invoke(main, ["ledger", "verify", "--config", str(config), "--json"])
        assert (verified.exit_code, json.loads(verified.stdout)["signaturesChecked"]) == (0, True)

    def test_it_is_told_in_json_too_and_asked_again_it_was_done_already(
        self, made: StoreOfANode, postgresql_url: str
    ) -> None:
        first = json.loads(run(made.config, "--to", postgresql_url, "--json").stdout)
        assert first["alreadyMoved"] is False
        assert first["rowsCopied"] == sum(each["rows"] for each in first["tables"])
        assert {each["table"]: each["rows"] for each in first["tables"]}["operations"] == 4
        assert (first["ledger"]["entries"], first["ledger"]["signaturesChecked"]) == (8, True)
        assert tomllib.loads(first["configuration"])["store"] == {"url": postgresql_url}
        told = run(made.config, "--to", postgresql_url, "--json")
        again = json.loads(told.stdout)
        assert (told.exit_code, again["alreadyMoved"], again["rowsCopied"]) == (0, True, 0)
        assert (again["at"], again["configuration"]) == (first["at"], first["configuration"])
        assert f"was moved to {postgresql_url} already" in run(made.config, "--to", postgresql_url).stdout

    def test_the_password_comes_from_a_file_that_the_configuration_names_then(
        self, made: StoreOfANode, postgresql_url: str, tmp_path: Path
    ) -> None:
        (tmp_path / "password").write_text("hush\n")
        (tmp_path / "password").chmod(0o600)
        told = run(made.config, "--to", postgresql_url, "--password-file", str(tmp_path / "password"), "--json")
        store = tomllib.loads(json.loads(told.stdout)["configuration"])["store"]
        assert store == {"url": postgresql_url, "password_file": str(tmp_path / "password")}
        assert "hush" not in told.output

    def test_a_password_in_the_url_is_not_told_again(self, made: StoreOfANode, postgresql_url: str) -> None:
        told = run(made.config, "--to", postgresql_url.replace("@", ":hush@", 1))
        assert told.exit_code == 0
        assert "hush" not in told.output
        assert '# password_file = "..."' in told.stdout

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--password-file", "x"], "--password-file belongs to --to"),
            (["--to", "postgresql://h/d", "--check"], "--to takes neither --check nor --despite-live-nodes"),
            (["--to", "sqlite:///x"], "--to must be postgresql://USER@HOST/DATABASE"),
            (["--to", "postgresql://u:hush@h:x/d"], "--to: "),
            (["--to", "postgresql://h/d", "--password-file", "nowhere"], "--password-file: "),
        ],
    )
    def test_wrong_usage_is_told(self, made: StoreOfANode, arguments: list[str], words: str) -> None:
        told = run(made.config, *arguments)
        assert told.exit_code == 2
        assert told.stderr.startswith(words)
        assert "hush" not in told.output

    def test_a_configuration_that_names_a_server_has_nothing_to_move(self, tmp_path: Path, postgresql_url: str) -> None:
        told = run(on_server(tmp_path, postgresql_url), "--to", postgresql_url)
        assert told.exit_code == 2
        assert "[store] url is PostgreSQL already" in told.stderr

    def test_what_a_check_does_not_allow_and_what_cannot_be_reached_end_differently(
        self, made: StoreOfANode, postgresql_url: str, tmp_path: Path
    ) -> None:
        with psycopg.connect(postgresql_url) as connection:
            connection.execute("CREATE TABLE guests (name TEXT)")
        told = run(made.config, "--to", postgresql_url)
        assert told.exit_code == 1
        assert f"{postgresql_url}: it holds another program's tables. Name an empty database" in told.stderr
        assert run(made.config, "--to", "postgresql://gateway@127.0.0.1:1/gateway").exit_code == 3
        told = run(on_server(tmp_path, ""), "--to", postgresql_url)
        assert told.exit_code == 3
        assert "there is no store" in told.stderr


@asynccontextmanager
async def node(config: Path) -> AsyncIterator[str]:
    async with open_node(load(config, {})) as running:
        yield running.urls[0]


def search(url: str, key: str) -> dict[str, Any]:
    answer = httpx.post(
        f"{url}/v1/search/free",
        json={"query": "idempotency", "synthesize": False},
        headers={"Idempotency-Key": key},
        timeout=30,
        trust_env=False,
    )
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


@attrs.frozen
class Site:
    """Where a node's files are."""

    directory: Path

    def configure(self, **sections: dict[str, Any]) -> Path:
        own = {"data_dir": str(self.directory), "operator_listen": "127.0.0.1:0"}
        tree = {"node": own | sections.pop("node", {}), "sandbox": {"enabled": False}, **sections}
        lines = []
        for section, members in tree.items():
            lines += [f"[{section}]", *(f"{name} = {json.dumps(value)}" for name, value in members.items())]
            lines += ['listen = ["127.0.0.1:0"]'] if section == "node" else []
        self.directory.mkdir(exist_ok=True)
        (self.directory / "gateway.toml").write_text("\n".join(lines))
        return self.directory / "gateway.toml"


async def test_nodes_on_the_database_answer_the_keys_of_the_file_as_it_would_have(
    tmp_path: Path, postgresql_url: str
) -> None:
    old, second = Site(tmp_path / "old"), Site(tmp_path / "second")
    config = old.configure()
    async with node(config) as url:
        answers = {
            key: await trio.to_thread.run_sync(search, url, key) for key in ("the first key of all", "the second key")
        }
    moved = await trio.to_thread.run_sync(partial(run, config, "--to", postgresql_url))
    assert moved.exit_code == 0, moved.output
    store = {"url": postgresql_url}
    keys_dir = str(tmp_path / "old" / "keys")
    for site, name in ((old, "node-1"), (second, "node-2")):
        async with node(site.configure(node={"name": name, "keys_dir": keys_dir}, store=store)) as url:
            for key, answer in answers.items():
                assert await trio.to_thread.run_sync(search, url, key) == answer | {"replayed": True}
                assert not answer["replayed"]
            fresh = await trio.to_thread.run_sync(search, url, f"a key that is new to {name}")
            assert fresh["operationId"] not in {answer["operationId"] for answer in answers.values()}
