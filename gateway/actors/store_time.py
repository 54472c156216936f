"""How far time has come for a store: the mark that everything is dropped by.

The mark stands in the store.  It follows the store's clock as long as that is plausible: by what
has passed since the last look and at most a day more.  A clock that jumped further (NTP, a resumed machine, a server
that was restored, a node that was off for long) moves the mark only by what has passed, until the time of the chain's
latest block confirms it.  So a wrong clock drops nothing, whichever node's or server's it is.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import structlog
import trio

from gateway.actors.leases import Held
from gateway.actors.store import Statement, Store, Value

log = structlog.get_logger(__name__)

DAY_MS = 24 * 3600 * 1000
FACT = "time-mark"
MARK = f"SELECT value FROM node_facts WHERE name = '{FACT}'"  # noqa: S608 - a constant
LOOK = f"""
    SELECT :store_ms, (SELECT MAX(ended_at) FROM operations WHERE ended_at IS NOT NULL),
        (SELECT value FROM node_facts WHERE name = '{FACT}')
"""  # noqa: S608 - a constant
SET_MARK = """
    INSERT INTO node_facts (name, value) VALUES (:name, :value) ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""


@attrs.frozen
class Reached:
    """How far time has come, in milliseconds since 1970; `confirmed` where the chain says so too.

    `ms` is what may be dropped by, `mark` what the store remembers.
    """

    ms: int
    mark: int
    confirmed: bool


def confirmed(ms: int) -> Reached:
    """Return that time has come so far, as the chain says too."""
    return Reached(ms, ms, confirmed=True)


def advanced(mark: int, now: int, elapsed_ms: int, chain_ms: int | None) -> Reached:
    """Return how far time has come when the store's clock says `now`; `chain_ms` is the latest block's time, if known.

    A clock that the chain confirms is right, and corrects a mark that was too far.  Nothing is dropped by a time that
    is a day past the clock or the chain, whatever the mark says.
    """
    if chain_ms is not None and abs(now - chain_ms) <= DAY_MS:
        return confirmed(now)
    plausible = chain_ms is None and now <= mark + elapsed_ms + DAY_MS
    mark = max(mark, now if plausible else min(now, mark + elapsed_ms))
    latest = now if chain_ms is None else min(now, chain_ms)
    return Reached(min(mark, latest + DAY_MS), mark, confirmed=False)


def mark_of(value: Value) -> int | None:
    """Return the mark from its fact; None where the store has none yet."""
    return int(value) if isinstance(value, str) and value.isdecimal() else None


async def reached(store: Store) -> int | None:
    """Return how far time has come, as the holder of the lease "retention" last found; None before that."""
    found = await store.fetch(MARK)
    return mark_of(found[0][0]) if found else None


@attrs.define(eq=False)
class StoreTime:
    """Moves the mark of a store on; one node at a time does.

    `chain_ms` returns the time of the chain's latest block where one was seen lately.
    """

    store: Store
    chain_ms: Callable[[], int | None]
    _looked_at: float | None = None
    _held_back: bool = False

    async def advance(self, held: Held) -> Reached:
        """Look at the store's clock and move the mark.  Raises `StoreUnavailable`, and `Conflict` without the lease.

        A store that has no mark yet begins with the newest that it has recorded, not with what its clock says.
        """
        ((now_ms, newest, fact),) = await self.store.fetch(LOOK)
        looked_at = trio.current_time()
        elapsed_ms = 0 if self._looked_at is None else round((looked_at - self._looked_at) * 1000)
        now, found = int(now_ms or 0), mark_of(fact)
        mark = min(int(newest or now), now) if found is None else found
        moved = advanced(mark, now, elapsed_ms, self.chain_ms())
        if moved.mark != found:
            await self.store.commit(held.fence(), Statement(SET_MARK, {"name": FACT, "value": str(moved.mark)}))
        self._looked_at = looked_at
        self._tell(now, moved)
        return moved

    def _tell(self, now: int, moved: Reached) -> None:
        """Log that the store's clock is not followed, or is again."""
        held_back = now > moved.ms
        if held_back and not self._held_back:
            log.error(
                "clock_unconfirmed",
                clock_ahead_ms=now - moved.ms,
                what="the store's clock is further than its history shows; nothing is dropped by it",
                until="the time of the chain's latest block confirms it",
            )
        elif self._held_back and not held_back:
            log.info("clock_confirmed")
        self._held_back = held_back
