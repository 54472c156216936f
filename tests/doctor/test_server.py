from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import psycopg
import pytest

from gateway.actors.runtime import open_runtime
from gateway.actors.store import schema
from gateway.actors.store.postgresql_settings import PostgresqlSettings
from gateway.config import Configuration, structure
from gateway.doctor import Check, examine, redacted
from gateway.doctor._listeners import namesake
from gateway.doctor._server import clock, connections, durability, encryption, password, server, version, writable
from gateway.doctor._server_seen import Seen, look
from gateway.keys import open_keys
from gateway.opening import open_engine
from gateway.shared_keys import join_keys
from gateway.shared_terms import join_terms
from tests.store_of_a_node import make_store

KNOWN = len(schema.load(schema.shipped(), "postgresql"))
SEEN = Seen("db.example:5432", 150_018, host="10.0.0.5", encrypted=True, sslmode="verify-full")


@pytest.fixture
def do(postgresql_url: str) -> Callable[[str], None]:
    def run(sql: str) -> None:
        with psycopg.connect(postgresql_url, autocommit=True) as connection:
            connection.execute(sql.encode())

    return run


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def configured(data_dir: Path, url: str, **node: Any) -> Configuration:
    data_dir.mkdir(exist_ok=True)
    addresses = {"listen": [f"127.0.0.1:{free_port()}"], "operator_listen": f"127.0.0.1:{free_port()}"}
    return structure({"node": addresses | {"data_dir": str(data_dir)} | node, "store": {"url": url}})


def by_name(found: list[Check]) -> dict[str, Check]:
    return {each.name: each for each in found}


def write_config(configuration: Configuration, tmp_path: Path, more: str = "") -> Path:
    node, path = configuration.node, tmp_path / "gateway.toml"
    path.write_text(
        f'[node]\ndata_dir = "{node.data_dir}"\nlisten = ["{node.listen[0]}"]\n'
        f'operator_listen = "{node.operator_listen}"\n[store]\nurl = "{configuration.store.url}"\n{more}'
    )
    return path


# -- a server that is there --------------------------------------------------------------------------------------------


async def test_an_empty_database_passes_with_notes_and_nothing_is_made(tmp_path: Path, postgresql_url: str) -> None:
    examination = await examine(write_config(configured(tmp_path / "data", postgresql_url), tmp_path))
    assert [each.line() for each in examination.checks if each.standing == "failed"] == []
    found = by_name(list(examination.checks))
    assert {name for name in ("schema", "keys") if found[name].standing == "note"} == {"schema", "keys"}
    assert list((tmp_path / "data").iterdir()) == []
    with psycopg.connect(postgresql_url) as connection:
        assert connection.execute("SELECT COUNT(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)


async def test_a_store_and_its_live_nodes_are_told(tmp_path: Path, postgresql_url: str) -> None:
    here = configured(tmp_path / "data", postgresql_url, name="node-1")
    there = configured(tmp_path / "there", postgresql_url, name="node-2", keys_dir=str(here.keys_dir))
    async with open_runtime() as one, open_engine(one, here) as store:
        await join_keys(store, here.keys_dir)
        async with open_runtime() as other, open_engine(other, there):
            examined = server(here)
    found = by_name(examined.checks)
    assert [each.line() for each in examined.checks if each.standing != "fine"] == []
    assert found["store"].fact.startswith("127.0.0.1:")
    assert found["schema"].fact == f"version {KNOWN}"
    assert found["keys of the store"].fact == "it knows 4, and these are the same"
    assert examined.alive == {"node-1", "node-2"}
    assert found["nodes"].fact.startswith("node-1 (")
    assert ", node-2 (" in found["nodes"].fact


async def test_a_node_that_is_paid_to_another_address_than_a_live_one_fails(
    tmp_path: Path, postgresql_url: str
) -> None:
    def paid(name: str, pay_to: str) -> Configuration:
        plain = configured(tmp_path / name, postgresql_url, name=name)
        place = "http://127.0.0.1:1"
        payment = attrs.evolve(plain.payment, pay_to=pay_to, facilitator_url=place, rpc_urls=(place,))
        return attrs.evolve(plain, payment=payment)

    there = paid("node-2", "0x" + "ab" * 20)
    async with open_runtime() as runtime, open_engine(runtime, there) as store:
        await join_terms(store, there)
        same = by_name(server(paid("node-1", "0x" + "AB" * 20)).checks)
        other = by_name(server(paid("node-1", "0x" + "cd" * 20)).checks)
    assert same["payment terms"].line().endswith("the same on node-2")
    assert other["payment terms"].standing == "failed"
    assert "/payment/pay_to" in other["payment terms"].fact
    assert "stop every node" in other["payment terms"].fix


async def test_another_live_node_of_this_name_fails_and_the_node_itself_does_not(
    tmp_path: Path, postgresql_url: str
) -> None:
    configuration = configured(tmp_path / "data", postgresql_url)
    path = write_config(configuration, tmp_path)
    async with open_runtime() as runtime, open_engine(runtime, configuration):
        found = by_name(list((await examine(path)).checks))
        assert found["node"].standing == "failed"
        assert "[node] name" in found["node"].fix
        host, _, port = configuration.node.operator_listen.rpartition(":")
        with socket.create_server((host, int(port))):
            found = by_name(list((await examine(path)).checks))
        assert found["node"].fact == "node-1 runs"
        assert found[f"listen {configuration.node.operator_listen}"].standing == "fine"
    found = by_name(list((await examine(path)).checks))
    assert found["node"].fact == "node-1 does not run now"


async def test_keys_that_are_not_the_stores_fail(tmp_path: Path, postgresql_url: str) -> None:
    here = configured(tmp_path / "data", postgresql_url)
    async with open_runtime() as runtime, open_engine(runtime, here) as store:
        await join_keys(store, here.keys_dir)
    stranger = configured(tmp_path / "other", postgresql_url)
    found = by_name(server(stranger).checks)
    assert (found["keys"].standing, "copy it from another node" in found["keys"].fact) == ("failed", True)
    open_keys(stranger.keys_dir, create=True)
    found = by_name(server(stranger).checks)
    assert found["keys of the store"].standing == "failed"
    assert f"to {stranger.keys_dir}" in found["keys of the store"].fix


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (f"DELETE FROM schema_migrations WHERE version = {KNOWN}", "run `gateway migrate`"),
        ("UPDATE schema_migrations SET checksum = 'x'", "other contents"),
        ("DROP TABLE schema_migrations", "another program's database"),
        ("INSERT INTO node_facts VALUES ('moving-from', '{}')", "a move is still filling it"),
    ],
)
def test_a_store_that_the_node_would_refuse_fails(
    tmp_path: Path, postgresql_url: str, do: Callable[[str], None], change: str, told: str
) -> None:
    made = make_store(tmp_path / "data", postgresql_url)
    do(change)
    check = by_name(server(made.configuration).checks)["schema"]
    assert check.standing == "failed"
    assert told in check.line()


def test_the_encoding_and_read_only_transactions_are_seen(
    tmp_path: Path, postgresql_url: str, do: Callable[[str], None]
) -> None:
    configuration = configured(tmp_path, postgresql_url)
    assert by_name(server(configuration).checks)["store writes"].standing == "fine"
    database = postgresql_url.rpartition("/")[2]
    do(f'ALTER DATABASE "{database}" SET default_transaction_read_only = on')
    check = by_name(server(configuration).checks)["store writes"]
    assert (check.standing, check.fact) == ("failed", "transactions are read-only there")


def test_limits_and_clients_are_seen(postgresql_url: str, do: Callable[[str], None]) -> None:
    database = postgresql_url.rpartition("/")[2]
    do(f'ALTER DATABASE "{database}" CONNECTION LIMIT 6')
    settings = PostgresqlSettings(url=postgresql_url)
    with (
        psycopg.connect(postgresql_url),
        psycopg.connect(postgresql_url, application_name="gateway/node-1"),
        psycopg.connect(postgresql_url, application_name="gateway/node-2"),
    ):
        seen = look(settings, "node-1")
    assert seen.limits[2] == 6
    assert seen.clients[2] == 2
    assert seen.limits[0] > 6
    assert connections(seen, 4).standing == "failed"
    assert connections(attrs.evolve(seen, limits=(seen.limits[0], -1, -1)), 4).standing == "fine"


def test_a_server_that_is_not_there_fails_with_host_and_port_and_the_keys_are_looked_at(tmp_path: Path) -> None:
    open_keys(tmp_path / "keys", create=True)
    (tmp_path / "keys" / "node-1.key").chmod(0o644)
    found = by_name(server(configured(tmp_path, "postgresql://gateway:s3cret@127.0.0.1:1/gateway")).checks)
    assert found["store"].standing == found["keys"].standing == "failed"
    assert "127.0.0.1:1" in found["store"].fact
    assert found["store password"].standing == "note"
    assert "s3cret" not in " ".join(each.line() for each in found.values())


def test_a_password_file_that_cannot_be_used_fails(tmp_path: Path) -> None:
    configuration = configured(tmp_path, "postgresql://127.0.0.1:1/gateway")
    store = attrs.evolve(configuration.store, password_file=str(tmp_path / "gone"))
    (check,) = server(attrs.evolve(configuration, store=store)).checks
    assert (check.name, check.standing) == ("store password", "failed")
    assert "No such file" in check.fact


def test_the_effective_configuration_tells_no_password(tmp_path: Path) -> None:
    told = redacted(configured(tmp_path, "postgresql://gateway:s3cret@db.example/gateway?sslmode=require"))
    assert told["store"]["url"] == "postgresql://gateway@db.example/gateway?sslmode=require"
    assert told["node"]["keys_dir"] == f"{tmp_path}/keys"
    assert "s3cret" not in str(told)


# -- what it means -----------------------------------------------------------------------------------------------------


def test_a_password_in_the_url_is_a_note_that_names_the_file() -> None:
    (check,) = password(PostgresqlSettings(url="postgresql://u:p@h/d"))
    assert (check.standing, "[store] password_file" in check.fix) == ("note", True)
    assert password(PostgresqlSettings(url="postgresql://u@h/d", password="p")) == []


@pytest.mark.parametrize(("number", "standing"), [(120_022, "failed"), (130_000, "fine"), (180_004, "fine")])
def test_the_version_is_judged(number: int, standing: str) -> None:
    assert version(attrs.evolve(SEEN, version=number)).standing == standing


@pytest.mark.parametrize(
    ("host", "encrypted", "sslmode", "standing"),
    [
        ("10.0.0.5", True, "verify-full", "fine"),
        ("10.0.0.5", True, "verify-ca", "fine"),
        ("10.0.0.5", True, "require", "note"),
        ("10.0.0.5", True, "prefer", "note"),
        ("10.0.0.5", False, "prefer", "note"),
        ("db.example", False, "prefer", "note"),
        ("127.0.0.1", False, "prefer", "fine"),
        ("::1", False, "prefer", "fine"),
        ("localhost", False, "disable", "fine"),
        ("/var/run/postgresql", False, "prefer", "fine"),
        ("", False, "prefer", "fine"),
    ],
)
def test_tls_is_wanted_on_the_way_to_another_machine(host: str, encrypted: bool, sslmode: str, standing: str) -> None:
    check = encryption(attrs.evolve(SEEN, host=host, encrypted=encrypted, sslmode=sslmode))
    assert check.standing == standing
    assert ("sslmode=verify-full" in check.fix) == (standing == "note")


@pytest.mark.parametrize("name", ["fsync", "full_page_writes"])
def test_a_server_that_acknowledges_what_it_may_lose_fails(name: str) -> None:
    check = durability(attrs.evolve(SEEN, settings={"fsync": "on", "full_page_writes": "on", name: "off"}))
    assert check.standing == "failed"
    assert "lost" in check.consequence
    assert f"{name} = on" in check.fix


def test_a_default_that_the_node_overrides_is_a_note() -> None:
    assert durability(attrs.evolve(SEEN, settings={"synchronous_commit": "off"})).standing == "note"
    assert durability(attrs.evolve(SEEN, settings={"synchronous_commit": "on", "fsync": "on"})).standing == "fine"
    assert durability(SEEN).standing == "fine"


def test_a_standby_or_another_encoding_fails() -> None:
    assert writable(SEEN).standing == "fine"
    for changes in ({"recovering": True}, {"read_only": True}, {"settings": {"server_encoding": "SQL_ASCII"}}):
        assert writable(attrs.evolve(SEEN, **changes)).standing == "failed"


@pytest.mark.parametrize(
    ("limits", "clients", "standing"),
    [
        ((97, -1, -1), (90, 0, 0), "fine"),
        ((97, -1, -1), (91, 0, 0), "failed"),
        ((97, 7, -1), (0, 0, 0), "fine"),
        ((97, 7, -1), (0, 1, 0), "failed"),
        ((97, -1, 10), (3, 0, 4), "failed"),
        ((-1, -1, -1), (1000, 1000, 1000), "fine"),
        ((0, -1, -1), (0, 0, 0), "failed"),
    ],
)
def test_connections_need_room_for_the_readers_and_three(
    limits: tuple[int, int, int], clients: tuple[int, int, int], standing: str
) -> None:
    assert connections(attrs.evolve(SEEN, limits=limits, clients=clients), 4).standing == standing


@pytest.mark.parametrize(
    ("ahead", "standing"), [(0, "fine"), (2000, "fine"), (2001, "note"), (10_000, "note"), (10_001, "failed")]
)
def test_clocks_that_are_apart_are_a_note_and_far_apart_a_failure(ahead: int, standing: str) -> None:
    for seconds in (ahead, -ahead):
        assert clock(attrs.evolve(SEEN, ahead_ms=seconds)).standing == standing
    if standing == "failed":
        told = clock(attrs.evolve(SEEN, ahead_ms=-401 * 24 * 3600 * 1000)).line()
        assert "34646400.0 s behind this machine's" in told
        assert "clock_skew" in told


def test_a_namesake_is_told_from_the_node_itself_by_its_addresses() -> None:
    assert namesake("n", runs=False, taken=[]).standing == "fine"
    assert namesake("n", runs=False, taken=["127.0.0.1:1"]).standing == "fine"
    assert namesake("n", runs=True, taken=["127.0.0.1:1"]).standing == "fine"
    assert namesake("n", runs=True, taken=[]).standing == "failed"
