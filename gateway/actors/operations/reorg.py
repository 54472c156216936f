"""Watching settled payments for a while: a reorganisation may take a transaction away.

The same authorization is then settled again while it is valid; the result stands and is not charged again.  When it
cannot be, the operator is told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import orjson
import structlog

from gateway.actors.operations import rows
from gateway.actors.operations.life import State
from gateway.actors.operations.live import Life, Surroundings
from gateway.actors.payment import Payment
from gateway.actors.runtime import ActorError
from gateway.actors.settlement import ChainUnavailable, Look, Settle, Standing, StillStands
from gateway.actors.store import Conflict
from gateway.registry.sealing import SealBroken

log = structlog.get_logger(__name__)

WATCH_BLOCKS = 64
WATCH_MS = 10 * 60 * 1000

RECENT = """
    SELECT operation_id, epoch, sealed_payment, transaction_hash, block_number, block_hash, receipt FROM operations
    WHERE ended_at IS NOT NULL AND ended_at > :since AND state = 'receipted' AND settlement = 'settled'
    ORDER BY ended_at LIMIT 10000
"""


@attrs.define
class Watched:
    """A settled payment whose block may still go away."""

    owner: rows.Owner
    payment: Payment = attrs.field(repr=False)
    settled: rows.Settled
    receipt: dict[str, Any] = attrs.field(repr=False)


@attrs.define(eq=False)
class Watch:
    """The settled payments of the last `WATCH_BLOCKS` blocks; `head` is the last block number seen."""

    around: Surroundings
    head: Callable[[], int | None]
    watched: dict[str, Watched] = attrs.field(factory=dict)

    def add(self, life: Life) -> None:
        """Watch a life that has just settled."""
        if life.payment is not None and life.settled_in is not None and life.ended is not None:
            self.watched[life.operation_id] = Watched(
                life.owner, life.payment, life.settled_in, dict(life.ended.receipt)
            )

    async def load(self) -> None:
        """Watch what settled shortly before this start."""
        found = await self.around.store.fetch(RECENT, {"since": self.around.clock_ms() - WATCH_MS})
        for operation_id, epoch, sealed, transaction, number, block_hash, receipt in found:
            owner = rows.Owner(str(operation_id), self.around.node, int(epoch or 0))
            try:
                payment = Payment.load(self.around.seal.unwrap(owner.operation_id, bytes(sealed or b"")))  # type: ignore[arg-type]  # a BLOB
            except SealBroken:
                continue
            settled = rows.Settled(str(transaction), int(number or 0), str(block_hash))
            self.watched[owner.operation_id] = Watched(owner, payment, settled, orjson.loads(str(receipt)))

    async def check(self) -> None:
        """Look whether each watched transaction still stands where it was seen."""
        if self.around.settlement is None:
            return
        for operation_id, each in list(self.watched.items()):
            head = self.head()
            if head is not None and head - each.settled.block_number > WATCH_BLOCKS:
                del self.watched[operation_id]
                continue
            try:
                message = StillStands(each.settled.transaction, each.settled.block_hash)
                if not await self.around.settlement.ask(message, within=30):
                    await self.settle_again(each)
            except (ChainUnavailable, ActorError) as error:
                log.info("reorg_watch_undecided", reason=str(error))
                return

    async def settle_again(self, each: Watched) -> None:
        """Find the payment's new transaction, or submit the same authorization again, or tell the operator."""
        around = self.around
        if around.settlement is None:
            return
        sighting = await around.settlement.ask(Look(each.payment, each.settled.block_number, ()), within=60)
        if sighting.standing is Standing.UNUSED:
            log.warning(
                "settlement_reorganised", operation_id=each.owner.operation_id, transaction=each.settled.transaction
            )
            submission = await around.settlement.ask(Settle(each.payment), within=around.settle_timeout_s + 5)
            hints = (submission.transaction,) if submission.transaction else ()
            sighting = await around.settlement.ask(Look(each.payment, each.settled.block_number, hints), within=60)
        try:
            if sighting.standing is Standing.PAID and sighting.transaction and sighting.block_hash:
                each.settled = rows.Settled(sighting.transaction, sighting.block_number or 0, sighting.block_hash)
                each.receipt = self.signed_anew(each)
                told = rows.Happening(State.SETTLED, around.clock_ms(), "settled again after a reorganisation")
                await around.store.commit(
                    rows.resettle(each.owner, receipt_json=orjson.dumps(each.receipt).decode(), settled=each.settled),
                    *rows.happenings(each.owner, around.clock_ms(), [told]),
                )
            elif sighting.standing in {Standing.EXPIRED, Standing.CANCELLED}:
                del self.watched[each.owner.operation_id]
                told = rows.Happening(State.NEEDS_OPERATOR, around.clock_ms(), "the settlement was reorganised away")
                await around.store.commit(
                    rows.alarm(
                        each.owner,
                        failure_code="operator_needed",
                        failure_detail="a reorganisation took the settled transaction, and the authorization is dead",
                    ),
                    *rows.happenings(each.owner, around.clock_ms(), [told]),
                )
        except Conflict:
            self.watched.pop(each.owner.operation_id, None)

    def signed_anew(self, each: Watched) -> dict[str, Any]:
        """Return the receipt with the new transaction, signed."""
        unsigned = {name: value for name, value in each.receipt.items() if name != "signature"}
        unsigned["settlement"] = unsigned["settlement"] | {"transaction": each.settled.transaction}
        return self.around.signer.sign(unsigned)
