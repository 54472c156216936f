"""Watching settled payments for a while: a reorganisation may take a transaction away.

The same authorization is then settled again while it is valid; the result stands and is not charged again.  When it
cannot be, the operator is told.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import attrs
import orjson
import structlog

from gateway.actors.operations import rows
from gateway.actors.operations.in_hand import Life, Surroundings, desk
from gateway.actors.operations.keeping import settled_in
from gateway.actors.operations.life import State
from gateway.actors.operations.paying import long_dead
from gateway.actors.payment import PUBLIC_COLUMNS, Payment
from gateway.actors.runtime import ActorError
from gateway.actors.settlement import ChainUnavailable, Look, Settle, Sighting, Standing, StillStands
from gateway.actors.store import Conflict, Statement
from gateway.errors import OperatorNeeded
from gateway.registry.receipts import Signer
from gateway.registry.sealing import SealBroken

log = structlog.get_logger(__name__)

WATCH_BLOCKS = 64
WATCH_MS = 30 * 60 * 1000

RECENT = """
    SELECT operation_id, epoch, transaction_hash, block_number, block_hash, ended_at
    FROM operations
    WHERE ended_at IS NOT NULL AND ended_at > :since
        AND receipt IS NOT NULL AND settlement = 'settled' AND network = :network AND asset = :asset
    ORDER BY ended_at DESC LIMIT 10000
"""
SOLD = f"""
    SELECT {", ".join(PUBLIC_COLUMNS)}, sealed_payment, receipt FROM operations
    WHERE operation_id = :operation_id AND receipt IS NOT NULL
"""  # noqa: S608 - columns
LAST_END = "SELECT MAX(ended_at) FROM operations WHERE ended_at IS NOT NULL AND ended_at <= :store_ms"
"""An end that was written by a clock ahead is not taken for the last."""
LOOK_BACK_MS = 60_000
"""How much later than its time an end may become durable, and how far the clocks of two nodes may be apart."""


@attrs.define
class Watched:
    """A settled payment whose block may still go away; `missing` once it has.

    There are many and none of them goes: what was paid with and receipted is read from the store when one does.
    """

    owner: rows.Owner
    settled: rows.Settled
    missing: bool = False


@attrs.frozen
class Sold:
    """What a missing settlement had paid, and how it was receipted; `ours` if this node can submit the payment."""

    payment: Payment = attrs.field(repr=False)
    receipt: Mapping[str, Any] = attrs.field(repr=False)
    ours: bool


@attrs.define(eq=False)
class Watch:
    """The settled payments of the last `WATCH_BLOCKS` blocks, each until it was seen to stand that deep.

    One node watches for all.  `head` is the last block number seen; `read_to` how far this node has read what settled,
    None while another node watches.
    """

    around: Surroundings
    head: Callable[[], int | None]
    watched: dict[str, Watched] = attrs.field(factory=dict)
    read_to: int | None = None

    def add(self, life: Life) -> None:
        """Watch a life that has just settled here."""
        if self.read_to is None:
            return
        if life.settled_in is not None:
            self.watched[life.operation_id] = Watched(life.owner, life.settled_in)

    def leave(self) -> None:
        """Let another node watch."""
        self.read_to = None
        self.watched.clear()

    async def load(self) -> None:
        """Watch what settled on other nodes since the last look; at first, what settled before the last end.

        Nobody may have looked at that since, however long all nodes were down.  Raises `StoreUnavailable`.
        """
        around = self.around
        if around.settlement is None or (self.read_to is not None and not around.store.shared):
            return
        if self.read_to is None:
            ((last,),) = await around.store.fetch(LAST_END)
            since = int(last or 0) - WATCH_MS
        else:
            since = self.read_to - LOOK_BACK_MS
        await self._read(since)

    async def _read(self, since: int) -> None:
        around, asset = self.around, self.around.asset
        found = await around.store.fetch(RECENT, {"since": since, "network": asset.network, "asset": asset.address})
        now = around.clock_ms()
        self.read_to = max([self.read_to or since, *(min(int(ended_at or 0), now) for *_, ended_at in found)])
        for operation_id, epoch, transaction, number, block_hash, _ in found:
            owner = rows.Owner(str(operation_id), around.node, int(epoch or 0))
            settled = rows.Settled(str(transaction), int(number or 0), str(block_hash))
            self.watched.setdefault(owner.operation_id, Watched(owner, settled))

    async def check(self) -> None:
        """Look whether the blocks of the watched transactions still stand: one question a block while they do.

        Raises `StoreUnavailable` where what was found cannot be recorded; it is found again.
        """
        try:
            for block in self._blocks():
                head = self.head()
                if block[0].missing or not await self._stands(block[0]):
                    for each in block:
                        await self._see_to(each)
                elif head is not None and head - block[0].settled.block_number > WATCH_BLOCKS:
                    for each in block:
                        self.watched.pop(each.owner.operation_id, None)
        except (ChainUnavailable, ActorError) as error:
            log.info("reorg_watch_undecided", reason=str(error))

    def _blocks(self) -> Sequence[Sequence[Watched]]:
        """Return what is watched by the block that it was seen in."""
        blocks: defaultdict[tuple[str, bool], list[Watched]] = defaultdict(list)
        for each in self.watched.values():
            blocks[each.settled.block_hash, each.missing].append(each)
        return list(blocks.values())

    async def _stands(self, each: Watched) -> bool:
        return await desk(self.around).ask(StillStands(each.settled.transaction, each.settled.block_hash), within=30)

    async def _see_to(self, each: Watched) -> None:
        """Find the payment's new transaction, or submit the same authorization again, or tell the operator."""
        if await self._stands(each):
            each.missing = False
            return
        each.missing = True
        sold = await self._sold(each)
        if sold is None:
            self.watched.pop(each.owner.operation_id, None)
            return
        sighting = await self._look(each, sold)
        if sighting.standing is Standing.UNUSED and sold.ours:
            log.warning(
                "settlement_reorganised", operation_id=each.owner.operation_id, transaction=each.settled.transaction
            )
            message = Settle(sold.payment)
            submission = await desk(self.around).ask(message, within=self.around.settle_timeout_s + 5)
            sighting = await self._look(each, sold, *([submission.transaction] if submission.transaction else []))
        await self._record(each, sold, sighting)

    async def _sold(self, each: Watched) -> Sold | None:
        """Return what the store has of it; None where that is gone.

        A payment that this node cannot open is looked for until it is dead; only who can open it submits it again.
        """
        operation_id = each.owner.operation_id
        for *public, sealed, receipt in await self.around.store.fetch(SOLD, {"operation_id": operation_id}):
            told = orjson.loads(str(receipt))
            if isinstance(sealed, bytes):
                with suppress(SealBroken):
                    return Sold(Payment.load(self.around.seal.unwrap(operation_id, sealed)), told, ours=True)
            return Sold(Payment.of_columns(dict(zip(PUBLIC_COLUMNS, public, strict=True))), told, ours=False)
        return None

    async def _look(self, each: Watched, sold: Sold, *hints: str) -> Sighting:
        return await desk(self.around).ask(Look(sold.payment, each.settled.block_number, hints), within=60)

    async def _record(self, each: Watched, sold: Sold, sighting: Sighting) -> None:
        match sighting.standing:
            case Standing.PAID:
                settled = settled_in(sighting)
                receipt = signed_anew(sold.receipt, settled, self.around.signer)
                step = rows.resettle(each.owner, receipt_json=orjson.dumps(receipt).decode(), settled=settled)
                await self._commit(each, step, State.SETTLED, "settled again after a reorganisation")
                each.settled, each.missing = settled, False
            case Standing.EXPIRED | Standing.CANCELLED:
                await self._alarm(each, "a reorganisation took the settled transaction, and the authorization is dead")
            case Standing.DIVERTED:
                await self._alarm(each, "a reorganisation took the settled transaction, and another transfer was made")
            case Standing.UNTRACED if await long_dead(sold.payment, self.around, sighting):
                await self._alarm(each, "a reorganisation took the settled transaction, and no other can be found")
            case _:
                return

    async def _alarm(self, each: Watched, why: str) -> None:
        log.error("settlement_lost", operation_id=each.owner.operation_id, why=why)
        step = rows.alarm(each.owner, failure_code=OperatorNeeded.code, failure_detail=why)
        await self._commit(each, step, State.NEEDS_OPERATOR, why)
        self.watched.pop(each.owner.operation_id, None)

    async def _commit(self, each: Watched, step: Statement, state: State, note: str) -> None:
        store, owner = self.around.store, each.owner
        told, _ = await rows.history(store, owner.operation_id)
        happening = rows.Happening(state, self.around.clock_ms(), note)
        try:
            await store.commit(step, *rows.happenings(owner, told + 1, [happening]))
        except Conflict:
            self.watched.pop(owner.operation_id, None)


def signed_anew(receipt: Mapping[str, Any], settled: rows.Settled, signer: Signer) -> dict[str, Any]:
    """Return a receipt with another transaction, signed."""
    unsigned = {name: value for name, value in receipt.items() if name != "signature"}
    return signer.sign(unsigned | {"settlement": unsigned["settlement"] | {"transaction": settled.transaction}})
