"""The ledger of the store that is moved, checked as it streams by before anything is copied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import attrs

from gateway.actors.ledger import BLOCKS, ENTRIES, FAULTS_LISTED, UNPOSTED
from gateway.actors.store.protocol import Row
from gateway.moving.source import Source
from gateway.registry.ledger import REVENUE, Block, Entry, Posting
from gateway.registry.ledger_audit import audit_in_order

OBSERVED_EVERY = 2000
HEAD = "SELECT block_hash FROM ledger_blocks ORDER BY height DESC LIMIT 1"


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
    read = source.connection.execute
    seen = 0

    def postings(rows: Iterable[Row]) -> Iterator[Posting]:
        nonlocal seen
        for row in rows:
            seen += 1
            if seen % OBSERVED_EVERY == 0:
                observe(seen)
            height = row[8] if isinstance(row[8], int) else None
            yield Posting(Entry(*row[:7]), str(row[7]), height)  # type: ignore[arg-type]  # the schema's types

    found = audit_in_order(
        postings(read(f"{ENTRIES} WHERE height IS NOT NULL ORDER BY height, entry_id")),
        postings(read(f"{ENTRIES} WHERE height IS NULL")),
        ((Block(*row[:5]), str(row[5])) for row in read(BLOCKS)),
        key_set,
    )
    observe(seen)
    unposted = read(UNPOSTED, {"revenue": REVENUE, "limit": FAULTS_LISTED})
    missing = [f"operation {row[0]} is receipted and its payment is not posted" for row in unposted]
    head = read(HEAD).fetchone()
    return Books(
        found.entries, found.blocks, str(head[0]) if head else None, key_set is not None, (*found.faults, *missing)
    )
