"""What a crash left, of this node or of another: open operations in nobody's hands are found and taken on.

One that cannot be taken on now rests, longer each time that living it has crashed, so that a defect in it costs little.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import attrs
import structlog
import trio

from gateway.actors.operations import rows
from gateway.actors.operations.in_hand import Life, Surroundings
from gateway.actors.operations.life import Event
from gateway.actors.operations.recovery import Unrecoverable, openable, recover
from gateway.actors.store import Conflict
from gateway.errors import StoreUnavailable
from gateway.registry.operation import Operation

log = structlog.get_logger(__name__)

RECONCILE_EVERY_S = 5.0
TAKE_OVER_EVERY_S = 0.5
"""How often a node of several looks for operations whose node has lost its lease."""
RECONCILE_AT_ONCE = 64
REST_AT_MOST_S = 300.0

Structure = Callable[[Operation, Mapping[str, Any]], Any]


@attrs.define(eq=False)
class LeftOver:
    """Finds them and takes them on.

    Attributes:
        in_hand: the operations in this node's hands.
        room: how many more it may take into them.
        take_on: takes one into them, with its first event.
    """

    around: Surroundings
    table: Mapping[str, Operation]
    structure: Structure
    in_hand: Callable[[], AbstractSet[str]]
    room: Callable[[], int]
    take_on: Callable[[Life, Event], None]
    _resting: dict[str, float] = attrs.field(factory=dict)

    async def take_up(self) -> None:
        """Take on every open operation that is in nobody's hands, as many as there is room for."""
        around = self.around
        while not around.draining.is_set():
            self._resting = {each: until for each, until in self._resting.items() if until > trio.current_time()}
            passed_over = self.in_hand() | self._resting.keys()
            found = await around.store.fetch(
                rows.OPEN,
                {
                    "node": around.node,
                    "network": around.asset.network if around.settlement is not None else "",
                    "asset": around.asset.address,
                    "limit": RECONCILE_AT_ONCE + len(passed_over),
                },
            )
            passed_over = self.in_hand() | self._resting.keys()
            left = [operation_id for (operation_id,) in found if operation_id not in passed_over][: self.room()]
            if not left:
                return
            read = await around.store.look_up([(rows.OPEN_ROW, {"operation_id": each}) for each in left])
            async with trio.open_nursery() as nursery:
                for row in (rows.open_row(each[0]) for each in read if each):
                    nursery.start_soon(self._take_on, row)

    async def _take_on(self, row: rows.OpenRow) -> None:
        """Take on one open operation; one that cannot be taken on rests or ends."""
        around, operation_id = self.around, row.operation_id
        owner = rows.Owner(operation_id, around.node, row.epoch + 1)
        self.rest(operation_id, RECONCILE_EVERY_S)
        if around.store.shared and not openable(row, around.seal):
            log.error("node_key_missing", operation_id=operation_id, remedy="copy the node keys of the other nodes")
            self.rest(operation_id, REST_AT_MOST_S)
            return
        try:
            ((taken,),) = await around.store.commit(rows.take_over(owner))
            row = rows.open_row(taken)
            told, epoch = await rows.history(around.store, operation_id)
            try:
                life, first = recover(
                    row, owner, around, self.table, self.structure, told=told, tries=owner.epoch - epoch
                )
            except Unrecoverable as lost:
                log.exception("operation_unrecoverable", operation_id=operation_id, error=lost.why)
                await around.store.commit(*lost.end(owner, told=told, now=around.clock_ms()))
                return
        except StoreUnavailable as error:
            log.warning("operation_not_taken_on", operation_id=operation_id, error=str(error))
            return
        except Conflict:
            log.info("operation_not_taken_on", operation_id=operation_id, error="it is in another node's hands")
            self.rest(operation_id, TAKE_OVER_EVERY_S)  # whose end is to be seen as soon as any other's
            return
        log.info("operation_taken_on", operation_id=operation_id, state=row.state, epoch=owner.epoch)
        del self._resting[operation_id]
        self.take_on(life, first)

    def rest(self, operation_id: str, seconds: float) -> None:
        """Leave an open operation alone for a while, of at most five minutes."""
        self._resting[operation_id] = trio.current_time() + min(seconds, REST_AT_MOST_S)
