from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner, Result

from gateway.actors.ledger import seal_next
from gateway.actors.operations import rows
from gateway.actors.runtime import open_runtime
from gateway.cli import main
from gateway.commands.ledger import faults_of_holds
from gateway.keys import open_keys
from gateway.opening import open_engine
from gateway.registry.receipts import Signer
from tests.store_of_a_node import NOW, PAY_TO, SETTLED, SETTLING, WAITING, StoreOfANode, make_store, moved

PAYMENT = f"""
[payment]
pay_to = "{PAY_TO}"
facilitator_url = "http://127.0.0.1:1"
rpc_urls = ["http://127.0.0.1:1"]
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> StoreOfANode:
    url = request.getfixturevalue("postgresql_url") if request.param == "postgresql" else ""
    return make_store(tmp_path / "data", url)


def verify(made: StoreOfANode, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["ledger", "verify", "--config", str(made.config), *arguments])


def test_the_books_of_a_node_stand(made: StoreOfANode) -> None:
    told = verify(made)
    assert told.exit_code == 0, told.output
    assert told.stdout.splitlines()[-1] == "the ledger stands"
    document = json.loads(verify(made, "--json").stdout)
    assert document["ok"] is True
    assert document["balances"] == {"hold": "12000", "payers": "-18000", "revenue": "6000"}
    assert document["signaturesChecked"] is True


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("UPDATE ledger_entries SET amount = amount + 1 WHERE account = 'revenue'", "was altered"),
        ("DELETE FROM ledger_entries WHERE account = 'revenue'", "does not sum to zero"),
        ("UPDATE ledger_blocks SET sealed_at = sealed_at + 1", "does not follow"),
        (
            f"UPDATE operations SET amount = 6001 WHERE operation_id = '{SETTLING}'",
            "is executed over 6001",
        ),
        (f"UPDATE operations SET state = 'failed' WHERE operation_id = '{WAITING}'", "which is not open"),
        (f"DELETE FROM operations WHERE operation_id = '{SETTLING}'", f"held for operation {SETTLING}"),
    ],
)
def test_what_was_altered_is_found(made: StoreOfANode, change: str, fault: str) -> None:
    made.change(change)
    told = verify(made)
    assert told.exit_code == 1
    assert fault in told.stdout
    assert told.stdout.splitlines()[-1] == "the ledger does not stand"


def test_without_the_nodes_keys_the_rest_is_checked_and_that_is_said(made: StoreOfANode) -> None:
    (made.data_dir / "keys").rename(made.data_dir / "elsewhere")
    told = verify(made)
    assert told.exit_code == 0
    assert "signatures of blocks were not checked" in told.stdout


def test_the_keys_are_where_the_configuration_says(made: StoreOfANode) -> None:
    (made.data_dir / "keys").rename(made.data_dir / "elsewhere")
    text = made.config.read_text().replace("[node]\n", f'[node]\nkeys_dir = "{made.data_dir}/elsewhere"\n')
    made.config.write_text(text)
    assert json.loads(verify(made, "--json").stdout)["signaturesChecked"] is True


def test_what_was_not_posted_is_found(made: StoreOfANode) -> None:
    made.change(f"UPDATE operations SET state = 'receipted', ended_at = 1 WHERE operation_id = '{SETTLING}'")
    assert f"operation {SETTLING} is receipted and its payment is not posted" in verify(made).stdout


DAY_MS = 24 * 3600 * 1000


def reach(made: StoreOfANode, ms: int) -> None:
    """Say that time has come so far for the store."""
    made.change("INSERT INTO node_facts (name, value) VALUES ('time-mark', :ms)", ms=str(ms))


@pytest.mark.parametrize("days", [None, 0, 200, 397])
def test_an_operation_that_was_dropped_before_its_time_is_named(made: StoreOfANode, days: int | None) -> None:
    """Its key would be charged again.  Without a mark of the store, time is what the ledger says itself."""
    for table in ("operations", "operation_events"):
        made.change(f"DELETE FROM {table} WHERE operation_id = '{SETTLED}'")
    if days is not None:
        reach(made, NOW + days * DAY_MS)
    told = verify(made)
    assert told.exit_code == 1
    assert f"operation {SETTLED} is gone: it was posted at 2026-11-18" in told.stdout
    assert "is to be kept until 2027-12-23" in told.stdout
    assert told.stdout.splitlines()[-1] == "the ledger does not stand"


def test_an_operation_that_was_dropped_after_its_time_is_not_missed(made: StoreOfANode) -> None:
    for table in ("operations", "operation_events"):
        made.change(f"DELETE FROM {table} WHERE operation_id = '{SETTLED}'")
    reach(made, NOW + 400 * DAY_MS)
    assert verify(made).stdout.splitlines()[-1] == "the ledger stands"


def test_many_entries_are_checked_in_the_order_of_their_blocks(made: StoreOfANode) -> None:
    """More than a page of a server's cursor, and steps whose two sides stand in two blocks."""

    async def fill() -> None:
        async with open_runtime() as runtime, open_engine(runtime, made.configuration) as store:
            signer = Signer.from_keys(open_keys(made.data_dir / "keys", create=False).receipts)
            for batch in range(3):
                names = [f"op_{batch}_{number:05d}" for number in range(351)]
                entries = [each for name in names for each in moved(name, "executed.1", "payer:0xc", "hold")]
                entries += [each for name in names for each in moved(name, "expired", "hold", "payer:0xc")]
                await store.commit(*rows.postings(entries))
            while await seal_next(store, signer, NOW + 5):
                pass

    trio.run(fill)
    reach(made, NOW + 400 * DAY_MS)
    told = json.loads(verify(made, "--json").stdout)
    assert (told["ok"], told["faults"]) == (True, [])
    assert told["entries"] == 8 + 3 * 351 * 4
    assert told["blocks"] > 8
    made.change("UPDATE ledger_entries SET entry_hash = 'x' WHERE operation_id = 'op_1_00200' AND account = 'hold'")
    assert len(json.loads(verify(made, "--json").stdout)["faults"]) >= 3


def test_a_server_that_cannot_be_reached_is_named_by_host_and_port(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(f'[node]\ndata_dir = "{tmp_path}"\n[store]\nurl = "postgresql://u:s3cret@127.0.0.1:1/d"\n')
    told = CliRunner().invoke(main, ["ledger", "verify", "--config", str(config)])
    assert told.exit_code == 3
    assert "127.0.0.1:1 cannot be used" in told.stderr
    assert "s3cret" not in told.stderr


def test_the_chain_is_looked_at_only_where_it_is_configured(made: StoreOfANode) -> None:
    told = verify(made, "--chain")
    assert (told.exit_code, told.stderr) == (2, "--chain needs [payment] rpc_urls\n")


def test_a_chain_that_cannot_be_read_is_no_fault_of_the_books(made: StoreOfANode) -> None:
    made.config.write_text(made.config.read_text() + PAYMENT)
    told = verify(made, "--chain")
    assert told.exit_code == 3
    assert "the chain cannot be read" in told.stderr


def test_settlements_on_other_networks_are_counted_and_not_looked_for(made: StoreOfANode) -> None:
    made.config.write_text(made.config.read_text() + PAYMENT + 'network = "eip155:84532"\n')
    document = json.loads(verify(made, "--chain", "--json").stdout)
    assert (document["transfersOnChain"], document["otherNetworks"]) == (0, 1)


def test_an_operation_that_stopped_before_its_result_holds_nothing() -> None:
    owing = [("op_1", "needs_operator", 5), ("op_2", "executed", 7)]
    assert faults_of_holds([("op_2", 7)], owing) == []
    assert faults_of_holds([("op_1", 5), ("op_2", 7)], owing) == []
    assert faults_of_holds([("op_1", 4), ("op_2", 7)], owing) == [
        "operation op_1 is needs_operator over 5, and 4 is held for it"
    ]
    assert faults_of_holds([], owing) == ["operation op_2 is executed over 7, and 0 is held for it"]
    assert faults_of_holds([(SETTLED, 1)], []) == [f"1 is held for operation {SETTLED}, which is not open"]
