"""The ledger actor: seals what the durable steps posted into the hash chain.

Entries are posted in the same commit as the step they belong to; the chain follows within a second, so that no
payment waits for a single chain's order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import structlog
import trio

from gateway.actors.runtime import Ask, Inbox
from gateway.actors.store import Conflict, Row, Statement, Store
from gateway.errors import StoreUnavailable
from gateway.registry.ledger import REVENUE, Audit, Block, Entry, Posting, audit, seal_block
from gateway.registry.receipts import BLOCK_TYPE, Signer

log = structlog.get_logger(__name__)

SEAL_AFTER_S = 0.5
SEAL_EVERY_S = 10.0
BLOCK_ENTRIES = 500


@attrs.frozen
class Posted:
    """Something was posted."""


@attrs.frozen
class Head(Ask[Block | None]):
    """The last block."""


Message = Posted | Head

LAST_BLOCK = (
    "SELECT height, previous_hash, block_hash, entries, sealed_at FROM ledger_blocks ORDER BY height DESC LIMIT 1"
)
UNSEALED = "SELECT entry_id, entry_hash FROM ledger_entries WHERE height IS NULL ORDER BY posted_at LIMIT :limit"
ENTRIES = """
    SELECT operation_id, step, account, network, asset, amount, posted_at, entry_hash, height FROM ledger_entries
"""
BLOCKS = "SELECT height, previous_hash, block_hash, entries, sealed_at, signature FROM ledger_blocks ORDER BY height"
UNPOSTED = """
    SELECT o.operation_id FROM operations o
    WHERE o.funding = 'paid' AND o.state = 'receipted' AND NOT EXISTS (
        SELECT 1 FROM ledger_entries e
        WHERE e.operation_id = o.operation_id AND e.step = 'receipted' AND e.account = :revenue AND e.amount = o.amount)
    ORDER BY o.operation_id LIMIT :limit
"""
FAULTS_LISTED = 100


async def ledger(inbox: Inbox[Message], *, store: Store, signer: Signer, clock_ms: Callable[[], int]) -> None:
    """Seal soon after a posting, and now and then in any case; once more at the end."""
    posted = trio.Event()

    async def keep_sealing() -> None:
        nonlocal posted
        while True:
            with trio.move_on_after(SEAL_EVERY_S):
                await posted.wait()
                await trio.sleep(SEAL_AFTER_S)
            posted = trio.Event()
            await _seal(store, signer, clock_ms)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_sealing)
        inbox.ready()
        async for letter in inbox:
            message = letter.message
            if isinstance(message, Posted):
                posted.set()
                continue
            try:
                letter.answer(message, await last_block(store))
            except StoreUnavailable as error:
                letter.refuse(error)
        nursery.cancel_scope.cancel()
    with trio.move_on_after(5):
        await _seal(store, signer, clock_ms)


async def _seal(store: Store, signer: Signer, clock_ms: Callable[[], int]) -> None:
    try:
        while await seal_next(store, signer, clock_ms()):
            pass
    except (StoreUnavailable, Conflict) as error:
        log.warning("ledger_seal_failed", reason=str(error))


async def seal_next(store: Store, signer: Signer, now: int) -> bool:
    """Seal one block of unsealed entries; return True if there may be more.

    Raises `Conflict` if another node was first.
    """
    found = await store.fetch(UNSEALED, {"limit": BLOCK_ENTRIES})
    if not found:
        return False
    entries = sorted((str(entry_id), str(entry_hash)) for entry_id, entry_hash in found)
    block = seal_block(await last_block(store), [entry_hash for _, entry_hash in entries], now)
    insert = Statement(
        """
        INSERT INTO ledger_blocks (height, previous_hash, block_hash, entries, sealed_at, signature)
        VALUES (:height, :previous_hash, :block_hash, :entries, :sealed_at, :signature) ON CONFLICT DO NOTHING
        """,
        attrs.asdict(block) | {"signature": signer.jws(block.head, BLOCK_TYPE)},
        rows=1,
    )
    marks = [
        Statement(
            "UPDATE ledger_entries SET height = :height WHERE entry_id = :entry_id AND height IS NULL",
            {"height": block.height, "entry_id": entry_id},
            rows=1,
        )
        for entry_id, _ in entries
    ]
    await store.commit(insert, *marks)
    return len(found) == BLOCK_ENTRIES


async def last_block(store: Store) -> Block | None:
    """Return the head of the chain."""
    found = await store.fetch(LAST_BLOCK)
    return _block(found[0]) if found else None


async def audit_store(store: Store, key_set: Mapping[str, Any] | None = None) -> Audit:
    """Check the whole ledger of a store, from one snapshot: sums, hashes, chain, and that no receipt lacks its posting.

    With the node's key set the signature of every block is checked as well, so that a chain that was written anew
    does not pass.
    """
    entries, blocks, unposted = await store.fetch_many(
        [(ENTRIES, {}), (BLOCKS, {}), (UNPOSTED, {"revenue": REVENUE, "limit": FAULTS_LISTED})]
    )
    found = audit(
        (Posting(Entry(*row[:7]), str(row[7]), row[8] if isinstance(row[8], int) else None) for row in entries),  # type: ignore[arg-type]  # the schema's types
        [_block(row[:5]) for row in blocks],
        [str(row[5]) for row in blocks],
        key_set,
    )
    missing = tuple(f"operation {row[0]!s} is receipted and its payment is not posted" for row in unposted)
    return attrs.evolve(found, faults=found.faults + missing)


def _block(row: Row) -> Block:
    return Block(*row)  # type: ignore[arg-type]  # the schema's types
