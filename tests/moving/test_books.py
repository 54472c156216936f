from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
import trio

from gateway.actors.ledger import audit_store
from gateway.actors.store import Row, Store
from gateway.moving import books
from gateway.moving.source import Source, open_source
from gateway.registry.ledger import Audit
from gateway.registry.receipts import Signer
from tests.moving.filled import SIGNER, fill

OPERATIONS = 600  # three blocks
STRANGER = Signer.from_keys({1: b"s" * 32})
A_BLOCK = "INSERT INTO ledger_blocks SELECT height + 1, block_hash, 'x', 0, sealed_at, signature FROM ledger_blocks"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("books") / "gateway.db"
    fill(path, OPERATIONS, seed=2)
    return path


@pytest.fixture
def source(filled: Path) -> Iterator[Source]:
    """The store, in which nothing that a test does stays."""
    with open_source(filled, lambda: 0) as opened:
        opened.connection.execute("BEGIN")
        yield opened
        opened.connection.execute("ROLLBACK")


@attrs.frozen
class Snapshot:
    """As much of a `Store` as the audit of the whole ledger asks for."""

    connection: sqlite3.Connection

    async def fetch_many(self, queries: Sequence[tuple[str, Mapping[str, Any]]]) -> list[list[Row]]:
        return [self.connection.execute(*query).fetchall() for query in queries]


def audited(source: Source, key_set: Mapping[str, Any]) -> Audit:
    return trio.run(audit_store, cast("Store", Snapshot(source.connection)), key_set)


def test_the_ledger_of_a_node_stands_and_its_head_is_the_last_block(source: Source) -> None:
    told: list[int] = []
    found = books.check(source, SIGNER.key_set, told.append)
    (head,) = source.connection.execute("SELECT block_hash FROM ledger_blocks WHERE height = 3").fetchone()
    assert found == books.Books(4 * OPERATIONS, 3, head, signatures=True, faults=())
    assert told == [2000, 2400]
    assert not audited(source, SIGNER.key_set).faults


def test_an_empty_ledger_stands_and_has_no_head(tmp_path: Path) -> None:
    fill(tmp_path / "gateway.db", 0, seed=1)
    with open_source(tmp_path / "gateway.db", lambda: 0) as source:
        assert books.check(source, None, lambda _: None) == books.Books(0, 0, None, signatures=False, faults=())


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE ledger_entries SET amount = amount + 1 WHERE rowid = 1000",
        "UPDATE ledger_entries SET entry_hash = 'sha256:0' WHERE rowid = 7",
        "DELETE FROM ledger_entries WHERE rowid = 1500",
        "DELETE FROM ledger_entries WHERE operation_id IN (SELECT operation_id FROM operations WHERE rowid = 3)",
        "UPDATE ledger_entries SET height = NULL WHERE rowid = 1200",
        "UPDATE ledger_entries SET height = height + 1 WHERE rowid = 1200",
        "UPDATE ledger_entries SET height = 9 WHERE rowid = 2400",
        "UPDATE ledger_entries SET height = 0 WHERE rowid = 1",
        "DELETE FROM ledger_blocks WHERE height = 2",
        "DELETE FROM ledger_blocks",
        "UPDATE ledger_blocks SET sealed_at = sealed_at + 1 WHERE height = 1",
        "UPDATE ledger_blocks SET signature = 'x' WHERE height = 3",
        "UPDATE ledger_blocks SET signature = (SELECT signature FROM ledger_blocks WHERE height = 1)",
        f"{A_BLOCK} WHERE height = 3",
    ],
)
def test_it_finds_what_the_audit_of_the_whole_finds(source: Source, change: str) -> None:
    assert source.connection.execute(change).rowcount
    expected = audited(source, SIGNER.key_set)
    found = books.check(source, SIGNER.key_set, lambda _: None)
    assert sorted(found.faults) == sorted(expected.faults)
    assert found.faults
    assert (found.entries, found.blocks) == (expected.entries, expected.blocks)


def test_blocks_that_another_node_signed_do_not_stand(source: Source) -> None:
    found = books.check(source, STRANGER.key_set, lambda _: None)
    assert sorted(found.faults) == sorted(audited(source, STRANGER.key_set).faults)
    assert len(found.faults) == 3
