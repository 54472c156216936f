"""Thinning of the history of probes: hours in place of minutes after a day, nothing after 90 days.

One node at a time does it for all (`gateway.actors.leases`), an hour of a route in a step.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import structlog
import trio

from gateway.actors.leases import Held
from gateway.actors.store import Conflict, Row, Statement, Store, Value
from gateway.actors.store_time import reached
from gateway.errors import StoreUnavailable
from gateway.registry.spells import COARSE_MS, FINE_MS, Spell, thinned

log = structlog.get_logger(__name__)

THIN_EVERY_S = 600.0
DAY_MS = 24 * 3600 * 1000
FINE_FOR_MS = DAY_MS
KEPT_MS = 90 * DAY_MS
HOURS_AT_ONCE = 64

_NAMES = ", ".join(field.name for field in attrs.fields(Spell))
OLDEST = """
    SELECT route, began_at FROM probe_history WHERE width = :width AND began_at < :before
    ORDER BY width, began_at LIMIT :limit
"""
READ = f"""
    SELECT {_NAMES} FROM probe_history WHERE route = :route AND began_at >= :border AND began_at < :end
    ORDER BY began_at, node
"""  # noqa: S608 - the names of columns
CLEAR = "DELETE FROM probe_history WHERE route = :route AND began_at >= :border AND began_at < :end"
ADD = f"INSERT INTO probe_history ({_NAMES}) VALUES (:{_NAMES.replace(', ', ', :')})"  # noqa: S608 - names of columns
DROP = "DELETE FROM probe_history WHERE width = :width AND began_at < :before"


async def keep_thinning(store: Store, held: Held) -> None:
    """Thin again and again while the lease is held; a store that is away is thinned later.

    What is old is told by the store's mark, not by a clock (`gateway.actors.store_time`).
    """
    while True:
        try:
            now = await reached(store)
            if now is not None:
                await thin(store, now, held)
        except (StoreUnavailable, Conflict) as error:
            log.info("probe_history_unthinned", reason=str(error))
        await trio.sleep(THIN_EVERY_S)


async def thin(store: Store, now: int, held: Held) -> None:
    """Drop what is past its life, then make one spell of those of an hour that are older than a day.

    Raises `StoreUnavailable`, and `Conflict` where another node has taken over or has just written to the same hour.
    """
    for width in (COARSE_MS, FINE_MS):
        await _drop(store, held, width, now - KEPT_MS)
    before = (now - FINE_FOR_MS) // COARSE_MS * COARSE_MS
    while due := await store.fetch(OLDEST, {"width": FINE_MS, "before": before, "limit": HOURS_AT_ONCE}):
        for route, hour in dict.fromkeys((str(route), int(began_at or 0) // COARSE_MS) for route, began_at in due):
            await _merge(store, held, route, hour * COARSE_MS)


async def _drop(store: Store, held: Held, width: int, before: int) -> None:
    """Forget what began before; a day in a step, so that none is long after a node was off for months."""
    while oldest := await store.fetch(OLDEST, {"width": width, "before": before, "limit": 1}):
        until = min(before, int(oldest[0][1] or 0) + DAY_MS)
        await store.commit(held.fence(), Statement(DROP, {"width": width, "before": until}))


async def _merge(store: Store, held: Held, route: str, border: int) -> None:
    hour: Mapping[str, Value] = {"route": route, "border": border, "end": border + COARSE_MS}
    found = await store.fetch(READ, hour)
    await store.commit(
        held.fence(),
        Statement(CLEAR, hour, rows=len(found)),
        *(Statement(ADD, attrs.asdict(each)) for each in thinned(map(spell_of, found))),
    )


def spell_of(row: Row) -> Spell:
    """Return a row of all columns as a spell."""
    return Spell(*row)  # type: ignore[arg-type]  # the schema says of what types they are
