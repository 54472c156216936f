"""The audit of a ledger that need not fit in memory: entries and blocks are looked at as they stream by.

It finds what `gateway.registry.ledger.audit` finds.  What is remembered is the current block and the steps that do not
sum to zero yet: the two sides of a step stand in the same block, or in two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby
from typing import Any

import attrs

from gateway.registry.ledger import Audit, Block, Posting, seal_block
from gateway.registry.receipts import BLOCK_TYPE, ReceiptInvalid, verify_jws


@attrs.define
class _Sums:
    """The sums of steps and accounts, and what is wrong with single entries."""

    entries: int = 0
    open: dict[tuple[str, str, str], int] = attrs.field(factory=dict)
    balances: defaultdict[str, int] = attrs.field(factory=lambda: defaultdict(int))
    faults: list[str] = attrs.field(factory=list)

    def add(self, posting: Posting) -> None:
        """Take an entry in."""
        entry = posting.entry
        self.entries += 1
        if entry.entry_hash != posting.stored_hash:
            self.faults.append(f"entry {entry.entry_id} was altered")
        self.balances["payers" if entry.account.startswith("payer:") else entry.account] += entry.amount
        step = (entry.operation_id, entry.step, entry.asset)
        total = self.open.pop(step, 0) + entry.amount
        if total:
            self.open[step] = total


def audit_in_order(
    sealed: Iterable[Posting],
    unsealed: Iterable[Posting],
    blocks: Iterable[tuple[Block, str]],
    key_set: Mapping[str, Any] | None = None,
) -> Audit:
    """Check sums, entry hashes, the chain and, with a key set, the signature of every block.

    `sealed` are in order of height and entry id, `unsealed` in any, `blocks` in order of height with their signatures.
    """
    sums, faults = _Sums(), list[str]()
    count = 0
    of_blocks = _by_height(sealed, sums)
    waiting = next(of_blocks, None)
    previous: Block | None = None
    for block, signature in blocks:
        while waiting and waiting[0] < block.height:
            faults.append(_without_block(waiting[0]))
            waiting = next(of_blocks, None)
        hashes: list[str] = []
        if waiting and waiting[0] == block.height:
            hashes = waiting[1]
            waiting = next(of_blocks, None)
        if seal_block(previous, hashes, block.sealed_at) != block:
            faults.append(f"block {block.height} does not follow from its entries and the block before it")
        if key_set is not None:
            faults += _unsigned(block, signature, key_set)
        previous, count = block, count + 1
    faults += [_without_block(height) for height, _ in chain([waiting] if waiting else [], of_blocks)]
    in_blocks = sums.entries
    for posting in unsealed:
        sums.add(posting)
    unequal = [f"step {step} of {operation} does not sum to zero" for operation, step, _ in sorted(sums.open)]
    found = (*sums.faults, *unequal, *faults)
    return Audit(sums.entries, count, sums.entries - in_blocks, dict(sums.balances), found)


def _by_height(sealed: Iterable[Posting], sums: _Sums) -> Iterator[tuple[int, list[str]]]:
    """Return the hashes of the entries of one block after another."""
    for height, postings in groupby(sealed, lambda posting: posting.height or 0):
        hashes = []
        for posting in postings:
            sums.add(posting)
            hashes.append(posting.stored_hash)
        yield height, hashes


def _without_block(height: int) -> str:
    return f"entries name block {height}, which does not exist"


def _unsigned(block: Block, signature: str, key_set: Mapping[str, Any]) -> list[str]:
    try:
        if verify_jws(signature, key_set, BLOCK_TYPE) != block.head:
            return [f"the signature of block {block.height} is another block's"]
    except ReceiptInvalid as error:
        return [f"block {block.height} is not signed by this node: {error}"]
    return []
