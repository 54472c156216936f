"""The ledger's arithmetic: double entry, append only, hash-chained.

A step of an operation posts entries that sum to zero; an entry's id derives from (operation, step, account), so that
a step done twice posts once.  Blocks seal entries under the hash of the block before them; amounts are atomic units.

Accounts: `payer:0x…` (what a payer owes is negative), `hold` (results made, payment not yet settled), `revenue`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from gateway.registry.canonical import canonical_json, sha256_hash
from gateway.registry.receipts import BLOCK_TYPE, ReceiptInvalid, verify_jws

GENESIS = "sha256:" + "0" * 64
HOLD, REVENUE = "hold", "revenue"


@attrs.frozen
class Entry:
    """One side of a posting."""

    operation_id: str
    step: str
    account: str
    network: str
    asset: str
    amount: int
    posted_at: int

    @property
    def entry_id(self) -> str:
        """What makes a repeated step post nothing."""
        return f"{self.operation_id}/{self.step}/{self.account}"

    @property
    def entry_hash(self) -> str:
        """SHA-256 over the RFC 8785 form of the entry, the amount as a decimal string."""
        return sha256_hash(canonical_json(attrs.asdict(self) | {"amount": str(self.amount)}))


@attrs.frozen
class Block:
    """A sealed run of entries."""

    height: int
    previous_hash: str
    block_hash: str
    entries: int
    sealed_at: int

    @property
    def head(self) -> bytes:
        """What the node signs of a block: its height, its hash and that of the block before it."""
        return canonical_json({"height": self.height, "blockHash": self.block_hash, "previousHash": self.previous_hash})


def payer_account(address: str) -> str:
    """Return the account of a payer."""
    return f"payer:{address.lower()}"


def move(
    *, operation_id: str, step: str, debit: str, credit: str, network: str, asset: str, amount: int, at: int
) -> tuple[Entry, Entry]:
    """Return the two entries that move `amount` from `debit` to `credit`."""
    if amount <= 0:
        raise ValueError("a posting moves a positive amount")
    return (
        Entry(operation_id, step, debit, network, asset.lower(), -amount, at),
        Entry(operation_id, step, credit, network, asset.lower(), amount, at),
    )


def seal_block(previous: Block | None, entry_hashes: Sequence[str], sealed_at: int) -> Block:
    """Return the block that follows `previous` and seals entries in the order given (by entry id)."""
    height = previous.height + 1 if previous else 1
    previous_hash = previous.block_hash if previous else GENESIS
    body: dict[str, Any] = {
        "height": height,
        "previousHash": previous_hash,
        "entries": list(entry_hashes),
        "sealedAt": sealed_at,
    }
    return Block(height, previous_hash, sha256_hash(canonical_json(body)), len(entry_hashes), sealed_at)


@attrs.frozen
class Audit:
    """What checking a ledger found: `faults` is empty when it stands."""

    entries: int
    blocks: int
    unsealed: int
    balances: dict[str, int]
    faults: tuple[str, ...]


@attrs.frozen
class Posting:
    """An entry as the store has it: with the hash it was posted under and the block that seals it."""

    entry: Entry
    stored_hash: str
    height: int | None


def audit(
    postings: Iterable[Posting],
    blocks: Sequence[Block],
    signatures: Sequence[str] = (),
    key_set: Mapping[str, Any] | None = None,
) -> Audit:
    """Check sums, entry hashes, the chain and, with a key set, the signature of every block.

    `blocks` are in order of height, `signatures` those of the blocks.
    """
    faults: list[str] = []
    sums: defaultdict[tuple[str, str, str], int] = defaultdict(int)
    balances: defaultdict[str, int] = defaultdict(int)
    by_height: defaultdict[int, list[str]] = defaultdict(list)
    count = unsealed = 0
    for posting in sorted(postings, key=lambda each: each.entry.entry_id):
        entry, count = posting.entry, count + 1
        if entry.entry_hash != posting.stored_hash:
            faults.append(f"entry {entry.entry_id} was altered")
        sums[entry.operation_id, entry.step, entry.asset] += entry.amount
        balances[entry.account if not entry.account.startswith("payer:") else "payers"] += entry.amount
        if posting.height is None:
            unsealed += 1
        else:
            by_height[posting.height].append(posting.stored_hash)
    faults += [
        f"step {step} of {operation} does not sum to zero" for (operation, step, _), total in sums.items() if total
    ]
    faults += _broken_links(blocks, by_height)
    if key_set is not None:
        faults += _unsigned(blocks, signatures, key_set)
    return Audit(count, len(blocks), unsealed, dict(balances), tuple(faults))


def _broken_links(blocks: Sequence[Block], by_height: dict[int, list[str]]) -> list[str]:
    faults = []
    previous: Block | None = None
    for block in blocks:
        expected = seal_block(previous, by_height.pop(block.height, []), block.sealed_at)
        if expected != block:
            faults.append(f"block {block.height} does not follow from its entries and the block before it")
        previous = block
    return faults + [f"entries name block {height}, which does not exist" for height in by_height]


def _unsigned(blocks: Sequence[Block], signatures: Sequence[str], key_set: Mapping[str, Any]) -> list[str]:
    faults = []
    for index, block in enumerate(blocks):
        signature = signatures[index] if index < len(signatures) else ""
        try:
            if verify_jws(signature, key_set, BLOCK_TYPE) != block.head:
                faults.append(f"the signature of block {block.height} is another block's")
        except ReceiptInvalid as error:
            faults.append(f"block {block.height} is not signed by this node: {error}")
    return faults
