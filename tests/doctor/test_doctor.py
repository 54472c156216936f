from __future__ import annotations

import os
import socket
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from eth_abi.abi import encode

from gateway.actors.runtime import open_runtime
from gateway.actors.store import open_sqlite, schema
from gateway.config import Configuration, structure
from gateway.doctor import Check, examine, redacted
from gateway.doctor import _check as checks
from gateway.doctor._disk import directory, disk, space, store
from gateway.doctor._listeners import holder_of, listener, listeners, public
from gateway.doctor._machine import open_files, python, signatures
from gateway.doctor._machine import sqlite as sqlite_library
from gateway.doctor._payment import clock, host_of, payee, payment
from gateway.doctor._search import judged, search
from gateway.doctor._transfer import MARK
from gateway.registry.http_call import HttpAnswer, HttpCall, UpstreamUnreachable
from gateway.registry.payment.asset import Asset, checksum
from gateway.registry.qualification import Finding
from tests.store_of_a_node import StoreOfANode, make_store

NOW = 1_795_000_000
PAY_TO = checksum("0x" + "b" * 40)
RPC, FACILITATOR = "https://rpc.example/v1/a-secret-key", "https://facilitator.example"


def configured(data_dir: Path, **sections: Mapping[str, Any]) -> Configuration:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        node: dict[str, Any] = {
            "data_dir": str(data_dir),
            "listen": [f"127.0.0.1:{one.getsockname()[1]}"],
            "operator_listen": f"127.0.0.1:{other.getsockname()[1]}",
        }
    node |= sections.pop("node", {})
    return structure({"node": node, **sections})


def by_name(found: list[Check]) -> dict[str, Check]:
    return {each.name: each for each in found}


@pytest.fixture
def made(tmp_path: Path) -> StoreOfANode:
    return make_store(tmp_path)


async def nobody(call: HttpCall) -> HttpAnswer:
    raise UpstreamUnreachable(call.target)


# -- the whole ---------------------------------------------------------------------------------------------------------


def write_config(tmp_path: Path, more: str = "") -> Path:
    configuration = configured(tmp_path / "data")
    path = tmp_path / "gateway.toml"
    node = f'data_dir = "{tmp_path}/data"\nlisten = ["{configuration.node.listen[0]}"]\n'
    path.write_text(f'[node]\n{node}operator_listen = "{configuration.node.operator_listen}"\n{more}')
    return path


async def test_a_fresh_machine_passes_with_notes_and_nothing_is_made(tmp_path: Path) -> None:
    examination = await examine(write_config(tmp_path))
    assert [each.line() for each in examination.checks if each.standing == "failed"] == []
    notes = {each.name for each in examination.checks if each.standing == "note"}
    assert {"data directory", "keys", "store", "base_url", "operator token", "payment"} <= notes
    assert not (tmp_path / "data").exists()
    assert not examination.failed


async def test_a_configuration_that_cannot_be_used_is_a_failure_for_each_violation(tmp_path: Path) -> None:
    examination = await examine(write_config(tmp_path, "[payment]\nquote_ttl_s = 0\ndecimals = 99\n"))
    assert examination.failed
    assert examination.configuration is None
    assert {each.fact for each in examination.checks} == {
        f"{tmp_path}/gateway.toml /payment/decimals: must be 0 to 18 (line 7)",
        f"{tmp_path}/gateway.toml /payment/quote_ttl_s: must be positive (line 6)",
    }
    missing = await examine(tmp_path / "none.toml")
    assert "cannot be read" in missing.checks[0].line()


async def test_a_running_node_is_seen_and_its_store_is_read_beside_it(made: StoreOfANode) -> None:
    async with open_runtime() as runtime, open_sqlite(runtime, made.path):
        examination = await examine(made.config)
        found = by_name(list(examination.checks))
        assert found["node"].fact == f"runs as process {os.getpid()}"
        assert found["store"].standing == found["integrity"].standing == found["keys"].standing == "fine"


def test_every_check_is_one_line_with_its_fact_consequence_and_fix() -> None:
    check = checks.failed("rpc", "it answers\n 500", "nothing\tsettles", "use another")
    assert check.line() == "rpc: it answers 500; nothing settles. Fix: use another"
    assert checks.fine("rpc", "block 7").line() == "rpc: block 7"


def test_the_effective_configuration_tells_no_secret_of_an_address(tmp_path: Path) -> None:
    section = {"pay_to": PAY_TO, "facilitator_url": FACILITATOR, "rpc_urls": [RPC, "http://u:p@127.0.0.1:8545/?k=v"]}
    adapter = {"kind": "searxng", "base_url": "http://engine.example/path"}
    told = redacted(configured(tmp_path, payment=section, search={"adapter": [adapter]}))
    assert told["payment"]["rpc_urls"] == ["https://rpc.example/...", "http://127.0.0.1:8545/..."]
    assert told["payment"]["facilitator_url"] == FACILITATOR
    assert told["search"]["adapter"][0]["base_url"] == "http://engine.example/..."
    assert told["store"]["url"] == f"sqlite:///{tmp_path}/gateway.db"
    assert "secret" not in str(told)


# -- the machine -------------------------------------------------------------------------------------------------------


def test_the_machine_is_judged_by_what_the_node_needs() -> None:
    assert python((3, 10), "3.10.0").standing == "failed"
    assert python((3, 11), "3.11.0").standing == "fine"
    assert signatures("NativeECCBackend").standing == "failed"
    assert "coincurve" in signatures("NativeECCBackend").fix
    assert sqlite_library((3, 34, 1), "3.34.1").standing == "failed"
    assert sqlite_library((3, 35, 0), "3.35.0").standing == "fine"
    assert open_files(1024, 1024).standing == "note"
    assert "ulimit -n 1224" in open_files(1024, 1024).fix
    assert open_files(-1, 1024).standing == "fine"


# -- the disk ----------------------------------------------------------------------------------------------------------


def test_a_data_directory_must_be_the_nodes_own(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert directory(tmp_path, tmp_path).standing == "fine"
    tmp_path.chmod(0o755)
    assert directory(tmp_path, tmp_path).fix == f"chmod 700 {tmp_path}"
    (tmp_path / "file").write_text("")
    assert directory(tmp_path / "file" / "data", tmp_path / "file").standing == "failed"


@pytest.mark.parametrize(("free", "standing"), [(100 * 2**20, "failed"), (2**30, "note"), (2**40, "fine")])
def test_free_space_is_judged(free: int, standing: str) -> None:
    assert space(free).standing == standing


@pytest.mark.parametrize(
    ("change", "name", "told"),
    [
        ("INSERT INTO node_facts VALUES ('pepper-1', 'of another node')", "keys of the store", "charged twice"),
        ("INSERT INTO node_facts VALUES ('receipt-2', 'lost')", "keys of the store", "receipt-2.key is missing"),
        ("UPDATE schema_migrations SET checksum = 'x'", "store", "other contents"),
        ("DROP TABLE schema_migrations", "store", "no node's store"),
    ],
)
def test_a_store_that_the_node_would_refuse_fails(made: StoreOfANode, change: str, name: str, told: str) -> None:
    made.change(change)
    found = by_name(disk(made.configuration))
    assert found[name].standing == "failed"
    assert told in found[name].line()


def test_a_store_that_is_no_database_fails(tmp_path: Path) -> None:
    (tmp_path / "gateway.db").write_bytes(b"x" * 5000)
    checks, known = store(tmp_path / "gateway.db")
    assert ([each.standing for each in checks], known) == (["failed"], {})


def test_a_store_that_was_moved_away_fails(made: StoreOfANode) -> None:
    made.change(
        "INSERT INTO node_facts VALUES (:name, :value)",
        name="moved-to",
        value='{"url": "postgresql://db/x", "at": "2026-11-28T00:00:00Z"}',
    )
    assert "it was moved to postgresql://db/x" in by_name(disk(made.configuration))["store"].line()


def test_a_newer_schema_that_serves_this_release_is_fine(made: StoreOfANode) -> None:
    later = len(schema.load(schema.shipped(), "sqlite")) + 1
    made.change("INSERT INTO schema_migrations VALUES (:later, 'later', 'x', 0)", later=later)
    with sqlite3.connect(made.path) as connection:
        connection.execute("INSERT INTO schema_compatibility VALUES (?, ?)", [later, later - 1])
    connection.close()
    assert by_name(disk(made.configuration))["store"].standing == "fine"


async def test_lost_or_open_keys_fail(made: StoreOfANode, tmp_path: Path) -> None:
    (tmp_path / "keys" / "node-1.key").chmod(0o644)
    found = by_name(list((await examine(made.config)).checks))
    assert "chmod 600" in found["keys"].line()
    for each in (tmp_path / "keys").iterdir():
        each.unlink()
    found = by_name(list((await examine(made.config)).checks))
    assert found["keys"].standing == "failed"


# -- listeners ---------------------------------------------------------------------------------------------------------


def test_an_address_is_free_in_use_or_the_nodes_own() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        assert listener(address, running=False).standing == "failed"
        assert listener(address, running=True).standing == "fine"
    assert listener(address, running=False).standing == "fine"


@pytest.mark.parametrize(
    ("base_url", "standing"),
    [
        ("", "note"),
        ("http://node.example", "note"),
        ("https://node.example", "fine"),
        ("http://127.0.0.1:8402", "fine"),
    ],
)
def test_the_public_address_is_judged(base_url: str, standing: str) -> None:
    assert [each.standing for each in public(base_url)] == [standing]


def test_a_token_that_others_can_read_fails(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a-token-of-the-operator")
    file.chmod(0o644)
    found = by_name(listeners(configured(tmp_path, node={"operator_token_file": str(file)})))
    assert found["operator token"].standing == "failed"


def test_a_lock_file_that_nobody_holds_names_no_node(tmp_path: Path) -> None:
    assert holder_of(tmp_path / "gateway.db") is None
    (tmp_path / "gateway.db.lock").write_text("4711")
    assert holder_of(tmp_path / "gateway.db") is None


# -- payment -----------------------------------------------------------------------------------------------------------


@attrs.define
class Elsewhere:
    """A facilitator and a chain with one token on it, as they answer; `changes` replace an answer by its name."""

    asset: Asset
    changes: dict[str, Any] = attrs.field(factory=dict)

    async def __call__(self, call: HttpCall) -> HttpAnswer:
        await trio.lowlevel.checkpoint()
        import orjson

        if call.target == "facilitator":
            kinds = [{"x402Version": 2, "scheme": "exact", "network": self.changes.get("network", self.asset.network)}]
            return HttpAnswer(self.changes.get("supported", 200), {}, orjson.dumps({"kinds": kinds}), 1)
        asked = orjson.loads(call.content)
        name = asked["params"][0]["data"] if asked["method"] == "eth_call" else asked["method"]
        if asked["method"] == "eth_call" and asked["params"][2:]:
            name = "mark" if name.startswith("0x70a08231") else "transfer"
        result = (
            {
                "eth_chainId": hex(self.asset.chain_id),
                "eth_getBlockByNumber": {"number": "0x7", "timestamp": hex(NOW - 2)},
                "eth_getCode": "0x60",
                "0x313ce567": "0x" + encode(["uint8"], [6]).hex(),
                "0x3644e515": "0x" + self.asset.domain_separator.hex(),
                "0x06fdde03": "0x" + encode(["string"], ["USDC"]).hex(),
                "0x54fd4d50": "0x" + encode(["string"], ["2"]).hex(),
                "mark": f"0x{MARK + 9:064x}",
                "transfer": measured(7, 7 + 10**6),
            }
            | self.changes
        )[name]
        document = {"error": {"code": -32000}} if result is None else {"result": result}
        return HttpAnswer(self.changes.get("status", 200), {}, orjson.dumps(document | {"id": asked["id"]}), 1)


def selling(tmp_path: Path) -> Configuration:
    return configured(tmp_path, payment={"pay_to": PAY_TO, "facilitator_url": FACILITATOR, "rpc_urls": [RPC]})


def elsewhere(configuration: Configuration, **changes: Any) -> Elsewhere:
    section = configuration.payment
    asset = Asset(section.network, 8453, section.asset, section.asset_name, section.asset_version, section.decimals)
    return Elsewhere(asset, changes)


async def test_a_node_that_can_be_paid_passes(tmp_path: Path) -> None:
    configuration = selling(tmp_path)
    found = await payment(configuration, elsewhere(configuration), NOW)
    assert [each.line() for each in found if each.standing != "fine"] == []
    assert [each.name for each in found] == [
        "pay_to",
        "facilitator facilitator.example",
        "rpc rpc.example",
        "asset by rpc.example",
        "transfer by rpc.example",
        "clock by rpc.example",
    ]


@pytest.mark.parametrize(
    ("changes", "name", "told"),
    [
        ({"network": "eip155:1"}, "facilitator facilitator.example", "does not settle"),
        ({"supported": 500}, "facilitator facilitator.example", "facilitator_status_500"),
        ({"eth_chainId": "0x1"}, "rpc rpc.example", "it serves chain 1, not 8453"),
        ({"eth_chainId": None}, "rpc rpc.example", "no usable answer (an error)"),
        ({"status": 429}, "rpc rpc.example", "no usable answer (status 429)"),
        ({"eth_getBlockByNumber": None}, "rpc rpc.example", "no usable answer"),
        ({"eth_getBlockByNumber": {}}, "rpc rpc.example", "no usable answer (KeyError)"),
        ({"eth_getCode": "0x"}, "asset by rpc.example", "has no code"),
        ({"0x313ce567": "0x" + "0" * 63 + "9"}, "asset by rpc.example", "decimals = 9"),
        ({"0x3644e515": "0x" + "0" * 64}, "asset by rpc.example", "asset_name = 'USDC' and asset_version = '2'"),
    ],
)
async def test_what_keeps_a_node_from_being_paid_fails_with_its_fix(
    tmp_path: Path, changes: dict[str, Any], name: str, told: str
) -> None:
    configuration = selling(tmp_path)
    found = by_name(await payment(configuration, elsewhere(configuration, **changes), NOW))
    assert found[name].standing == "failed"
    assert told in found[name].line()
    assert "secret" not in " ".join(each.line() for each in found.values())


def measured(before: int, after: int, *, succeeded: bool = True) -> str:
    return "0x" + encode(["uint256"] * 3, [before, after, int(succeeded)]).hex()


@pytest.mark.parametrize(
    ("changes", "standing", "told"),
    [
        ({}, "fine", "arrives whole"),
        ({"transfer": measured(7, 7 + 990_000)}, "failed", "of 1000000 brings the payee 990000"),
        ({"transfer": measured(7, 7)}, "failed", "brings the payee 0"),
        ({"transfer": measured(7, 7, succeeded=False)}, "failed", "refuses a simulated payment"),
        ({"mark": None}, "note", "takes no state override"),
        ({"transfer": None}, "note", "takes no state override"),
        ({"transfer": "0x"}, "note", "takes no state override"),
        ({"mark": "0x" + "0" * 64}, "note", "ignores state overrides"),
        ({"mark": f"0x{MARK + 10_000:064x}"}, "note", "ignores state overrides"),
    ],
)
async def test_a_simulated_payment_shows_whether_it_arrives_whole(
    tmp_path: Path, changes: dict[str, Any], standing: str, told: str
) -> None:
    configuration = selling(tmp_path)
    found = by_name(await payment(configuration, elsewhere(configuration, **changes), NOW))
    check = found["transfer by rpc.example"]
    assert check.standing == standing
    assert told in check.line()


async def test_a_token_without_a_domain_separator_is_a_note(tmp_path: Path) -> None:
    configuration = selling(tmp_path)
    found = by_name(await payment(configuration, elsewhere(configuration, **{"0x3644e515": None}), NOW))
    assert found["asset by rpc.example"].standing == "note"


async def test_nobody_there_fails_and_nothing_configured_is_a_note(tmp_path: Path) -> None:
    found = await payment(selling(tmp_path), nobody, NOW)
    assert [each.standing for each in found] == ["fine", "failed", "failed"]
    assert [each.standing for each in await payment(configured(tmp_path), nobody, NOW)] == ["note"]


@pytest.mark.parametrize(
    ("head", "standing"), [(NOW - 2, "fine"), (NOW + 5, "fine"), (NOW + 60, "failed"), (NOW - 600, "failed")]
)
def test_the_clock_is_held_against_the_latest_block(head: int, standing: str) -> None:
    assert clock("rpc a", head, NOW).standing == standing


def test_a_payee_without_checksum_is_a_note_and_one_that_is_nobody_fails(tmp_path: Path) -> None:
    section = selling(tmp_path).payment
    assert payee(attrs.evolve(section, pay_to=PAY_TO.lower())).fix == f"write it as {PAY_TO}"
    assert payee(attrs.evolve(section, pay_to="0x" + "0" * 40)).standing == "failed"
    assert payee(attrs.evolve(section, pay_to=section.asset)).standing == "failed"


def test_only_the_host_of_an_address_is_told() -> None:
    assert host_of("https://user:pass@rpc.example:8545/v1/key?x=y") == "rpc.example:8545"


# -- search ------------------------------------------------------------------------------------------------------------


async def test_engines_are_probed_and_each_is_told(tmp_path: Path) -> None:
    assert [each.standing for each in await search(configured(tmp_path), nobody)] == ["fine"]
    engine = {"kind": "searxng", "base_url": "http://127.0.0.1:1"}
    found = await search(configured(tmp_path, search={"adapter": [engine]}), nobody)
    assert [(each.name, each.standing) for each in found] == [("search/searxng", "failed")]


async def test_adapters_that_cannot_be_made_fail(tmp_path: Path) -> None:
    adapters = [{"kind": "index"}, {"kind": "searxng", "base_url": "http://127.0.0.1:1"}]
    found = await search(configured(tmp_path, search={"adapter": adapters}), nobody)
    assert [each.standing for each in found] == ["failed"]


def test_a_finding_is_judged() -> None:
    assert judged("search/a", Finding(ok=True)).standing == "fine"
    assert judged("search/a", Finding(ok=True, basis="configuration")).standing == "note"
    assert judged("search/a", Finding(ok=True, degraded=True, reason="few")).standing == "note"
    assert "(blocked)" in judged("search/a", Finding(ok=False, reason="blocked")).line()
