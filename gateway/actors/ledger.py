"""The ledger actor: seals what the durable steps posted into the hash chain.

Entries are posted in the same commit as the step they belong to; the chain follows within a second, so that no
payment waits for a single chain's order.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import structlog
import trio

from gateway.actors.runtime import Ask, Inbox
from gateway.actors.store import Conflict, Row, Statement, Store
from gateway.errors import StoreUnavailable
from gateway.registry.canonical import canonical_json
from gateway.registry.ledger import Audit, Block, Entry, audit, seal_block
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
    ORDER BY entry_id
"""
BLOCKS = "SELECT height, previous_hash, block_hash, entries, sealed_at FROM ledger_blocks ORDER BY height"


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
    head = canonical_json({"height": block.height, "blockHash": block.block_hash, "previousHash": block.previous_hash})
    insert = Statement(
        """
        INSERT INTO ledger_blocks (height, previous_hash, block_hash, entries, sealed_at, signature)
        VALUES (:height, :previous_hash, :block_hash, :entries, :sealed_at, :signature) ON CONFLICT DO NOTHING
        """,
        attrs.asdict(block) | {"signature": signer.jws(head, BLOCK_TYPE)},
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


async def audit_store(store: Store) -> Audit:
    """Check the whole ledger of a store, from one snapshot."""
    entries, blocks = await store.fetch_many([(ENTRIES, {}), (BLOCKS, {})])
    return audit(
        ((Entry(*row[:7]), str(row[7]), row[8] if isinstance(row[8], int) else None) for row in entries),  # type: ignore[arg-type]  # the schema's types
        [_block(row) for row in blocks],
    )


def _block(row: Row) -> Block:
    return Block(*row)  # type: ignore[arg-type]  # the schema's types
