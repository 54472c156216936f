from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.moving import books
from gateway.moving.source import Source, open_source
from gateway.registry.receipts import Signer
from tests.moving.filled import SIGNER, fill

OPERATIONS = 600  # three blocks
STRANGER = Signer.from_keys({1: b"s" * 32})


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


def test_the_ledger_of_a_node_stands_and_its_head_is_the_last_block(source: Source) -> None:
    told: list[int] = []
    found = books.check(source, SIGNER.key_set, told.append)
    (head,) = source.connection.execute("SELECT block_hash FROM ledger_blocks WHERE height = 3").fetchone()
    assert found == books.Books(4 * OPERATIONS, 3, head, signatures=True, faults=())
    assert told == [2000, 2400]


def test_an_empty_ledger_stands_and_has_no_head(tmp_path: Path) -> None:
    fill(tmp_path / "gateway.db", 0, seed=1)
    with open_source(tmp_path / "gateway.db", lambda: 0) as source:
        assert books.check(source, None, lambda _: None) == books.Books(0, 0, None, signatures=False, faults=())


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("UPDATE ledger_entries SET amount = amount + 1 WHERE rowid = 1000", "was altered"),
        ("DELETE FROM ledger_entries WHERE rowid = 1500", "does not sum to zero"),
        ("DELETE FROM ledger_entries WHERE height = 3", "and its payment is not posted"),
        ("UPDATE ledger_entries SET height = NULL WHERE rowid = 1200", "block 2 does not follow"),
        ("DELETE FROM ledger_blocks WHERE height = 2", "which does not exist"),
        ("UPDATE ledger_blocks SET signature = 'x' WHERE height = 3", "block 3 is not signed by this node"),
    ],
)
def test_what_does_not_stand_is_found(source: Source, change: str, fault: str) -> None:
    assert source.connection.execute(change).rowcount
    faults = books.check(source, SIGNER.key_set, lambda _: None).faults
    assert any(fault in each for each in faults), faults


def test_blocks_that_another_node_signed_do_not_stand(source: Source) -> None:
    assert len(books.check(source, STRANGER.key_set, lambda _: None).faults) == 3
    assert books.check(source, None, lambda _: None).faults == ()
