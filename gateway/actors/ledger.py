"""The ledger actor: seals what the durable steps posted into the hash chain.

Entries are posted in the same commit as the step they belong to; the chain follows within a second, so that no
payment waits for a single chain's order.  Of several nodes one seals for all, the holder of a lease; the others tell it
when they have posted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import structlog
import trio

from gateway.actors.leases import Held, Hold, alone
from gateway.actors.runtime import Ask, Inbox
from gateway.actors.store import Conflict, NodeStore, Row, Statement, Store
from gateway.errors import StoreUnavailable
from gateway.registry.ledger import REVENUE, Audit, Block, Entry, Posting, audit, seal_block
from gateway.registry.receipts import BLOCK_TYPE, Signer

log = structlog.get_logger(__name__)

SEAL_AFTER_S = 0.5
SEAL_EVERY_S = 10.0
SEAL_EVERY_SHARED_S = 2.0
"""The net for what was posted and not told: on another node, perhaps by one that has died since."""
LEASE = TOPIC = "ledger"
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


async def ledger(
    inbox: Inbox[Message], *, store: NodeStore, signer: Signer, clock_ms: Callable[[], int], hold: Hold = alone
) -> None:
    """Seal soon after a posting, and now and then in any case; once more at the end."""
    books = _Books(store, signer, clock_ms)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, LEASE, books.keep_sealing)
        if store.shared:
            nursery.start_soon(books.pass_on)
        inbox.ready()
        async for letter in inbox:
            message = letter.message
            if isinstance(message, Posted):
                books.note()
                continue
            try:
                letter.answer(message, await last_block(store))
            except StoreUnavailable as error:
                letter.refuse(error)
        with trio.move_on_after(5):
            await books.finish()
        nursery.cancel_scope.cancel()


@attrs.define(eq=False)
class _Books:
    """The sealing: `held` is the lease while this node has it.

    `posted` is set once there is something to seal, `untold` once the node that seals has to hear of something.
    """

    store: NodeStore
    signer: Signer
    clock_ms: Callable[[], int]
    held: Held | None = None
    posted: trio.Event = attrs.field(factory=trio.Event)
    untold: trio.Event = attrs.field(factory=trio.Event)
    sealing: trio.Lock = attrs.field(factory=trio.Lock)

    def note(self) -> None:
        """Take note that something was posted."""
        (self.posted if self.held or not self.store.shared else self.untold).set()

    async def keep_sealing(self, held: Held) -> None:
        """Seal for all nodes."""
        self.held = held
        try:
            async with trio.open_nursery() as nursery:
                if self.store.shared:
                    nursery.start_soon(self.listen)
                while True:
                    await self.seal(held)
                    with trio.move_on_after(SEAL_EVERY_SHARED_S if self.store.shared else SEAL_EVERY_S):
                        await self.posted.wait()
                        await trio.sleep(SEAL_AFTER_S)
        finally:
            self.held = None

    async def listen(self) -> None:
        """Hear of what other nodes have posted."""
        while True:
            with self.store.hear(TOPIC) as told:
                await told.wait()
            self.posted.set()

    async def pass_on(self) -> None:
        """Tell the node that seals, at most once in the time that it waits for more."""
        while True:
            await self.untold.wait()
            self.untold = trio.Event()
            self.store.tell(TOPIC)
            await trio.sleep(SEAL_AFTER_S)

    async def seal(self, held: Held) -> None:
        """Seal all that is there; what cannot be sealed now is sealed later."""
        async with self.sealing:
            self.posted = trio.Event()
            try:
                while await seal_next(self.store, self.signer, self.clock_ms(), held.fence()):
                    pass
            except (StoreUnavailable, Conflict) as error:
                log.warning("ledger_seal_failed", reason=str(error))

    async def finish(self) -> None:
        """Seal what was posted before the end, or leave it to the node that seals."""
        if self.held is not None:
            await self.seal(self.held)
        elif self.untold.is_set():
            self.store.tell(TOPIC)


async def seal_next(store: Store, signer: Signer, now: int, *guards: Statement) -> bool:
    """Seal one block of unsealed entries; return True if there may be more.

    Raises `Conflict` if another node was first, or a guard does not hold.
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
            # Heights begin at 1: IS NULL would let a planner walk all that is unsealed for each entry.
            "UPDATE ledger_entries SET height = :height WHERE entry_id = :entry_id AND COALESCE(height, 0) = 0",
            {"height": block.height, "entry_id": entry_id},
            rows=1,
        )
        for entry_id, _ in entries
    ]
    await store.commit(*guards, insert, *marks)
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
