"""The ledger of the store that is moved, checked in a stream: no more of it than a slice is in memory.

It is `gateway.actors.ledger.audit_store` in pieces: the entries of one operation stand together in the order of their
ids, and those of one block together in the order of their heights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any

import attrs

from gateway.actors.ledger import BLOCKS, ENTRIES, FAULTS_LISTED, UNPOSTED
from gateway.actors.store.protocol import Row
from gateway.moving.source import Source
from gateway.registry.ledger import REVENUE, Block, Entry, Posting, audit, seal_block
from gateway.registry.receipts import BLOCK_TYPE, ReceiptInvalid, verify_jws

SLICE = 2000
SEALED = "SELECT height, entry_hash FROM ledger_entries WHERE height IS NOT NULL ORDER BY height, entry_id"


@attrs.frozen
class Books:
    """What was found: `faults` is empty when the ledger stands, `head` is the hash of the last block."""

    entries: int
    blocks: int
    head: str | None
    signatures: bool
    faults: tuple[str, ...]


def check(source: Source, key_set: Mapping[str, Any] | None, observe: Callable[[int], object]) -> Books:
    """Check sums, hashes, the chain of blocks and, with the node's key set, the signature of each.

    `observe` hears how many entries were looked at.
    """
    entries, faults = 0, list[str]()
    for postings in _slices(source):
        found = audit(postings, [])
        entries += found.entries
        faults += found.faults
        observe(entries)
    blocks, head, broken = _chain(source, key_set)
    unposted = source.connection.execute(UNPOSTED, {"revenue": REVENUE, "limit": FAULTS_LISTED})
    missing = [f"operation {row[0]} is receipted and its payment is not posted" for row in unposted]
    return Books(entries, blocks, head, key_set is not None, (*faults, *broken, *missing))


def _slices(source: Source) -> Iterator[list[Posting]]:
    """The entries in the order of their ids, no operation cut in two.  Blocks are looked at apart, so none is named."""
    held: list[Posting] = []
    for _, of_one in groupby(source.connection.execute(f"{ENTRIES} ORDER BY entry_id"), itemgetter(0)):
        held += [Posting(Entry(*row[:7]), str(row[7]), None) for row in of_one]
        if len(held) >= SLICE:
            yield held
            held = []
    if held:
        yield held


def _chain(source: Source, key_set: Mapping[str, Any] | None) -> tuple[int, str | None, list[str]]:
    """How many blocks there are, the hash of the last, and what is wrong with them."""
    sealed = groupby(source.connection.execute(SEALED), itemgetter(0))
    waiting = next(sealed, None)
    faults, count = list[str](), 0
    previous: Block | None = None
    for row in source.connection.execute(BLOCKS):
        block = Block(*row[:5])
        while waiting and waiting[0] < block.height:
            faults.append(f"entries name block {waiting[0]}, which does not exist")
            waiting = next(sealed, None)
        hashes: list[str] = []
        if waiting and waiting[0] == block.height:
            hashes = [entry_hash for _, entry_hash in waiting[1]]
            waiting = next(sealed, None)
        if seal_block(previous, hashes, block.sealed_at) != block:
            faults.append(f"block {block.height} does not follow from its entries and the block before it")
        faults += _unsigned(block, row, key_set)
        previous, count = block, count + 1
    while waiting:
        faults.append(f"entries name block {waiting[0]}, which does not exist")
        waiting = next(sealed, None)
    return count, previous.block_hash if previous else None, faults


def _unsigned(block: Block, row: Row, key_set: Mapping[str, Any] | None) -> list[str]:
    try:
        if key_set is not None and verify_jws(str(row[5]), key_set, BLOCK_TYPE) != block.head:
            return [f"the signature of block {block.height} is another block's"]
    except ReceiptInvalid as error:
        return [f"block {block.height} is not signed by this node: {error}"]
    return []
