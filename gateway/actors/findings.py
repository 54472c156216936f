"""What the last probe of a shared route found, for all nodes: the table `findings`.

A finding counts for nodes whose settings are the same, told by a fingerprint, and from the moment at which its probe
ended by the store's clock: never later, however long it took to be stored or read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta

import attrs
import orjson
import structlog
import trio

from gateway.actors.leases import Duty, Held, Hold
from gateway.actors.store import Conflict, NodeStore, Row, Statement
from gateway.errors import StoreUnavailable
from gateway.registry.qualification import Finding

log = structlog.get_logger(__name__)

TOPIC = "findings"
PATIENCE_S = 2.0
"""How long a probe waits for the store: its result counts on this node in any case."""

READ = """
    SELECT route, settings, node, probed_at, :store_ms - probed_at, took_ms, finding FROM findings
    WHERE probed_at > :store_ms - :horizon AND probed_at <= :store_ms
"""
NOW = "SELECT :store_ms"
# A clock that was put back, by a new primary perhaps, must not keep what it has not seen yet.
WRITE = """
    INSERT INTO findings (route, settings, node, probed_at, took_ms, finding)
    VALUES (:route, :settings, :node, :probed_at, :took_ms, :finding)
    ON CONFLICT (route, settings) DO UPDATE SET node = excluded.node, probed_at = excluded.probed_at,
        took_ms = excluded.took_ms, finding = excluded.finding
    WHERE findings.probed_at < excluded.probed_at OR findings.probed_at > :store_ms
"""


@attrs.frozen
class Look:
    """One probe: what it found, when it ended on the clock of who reads this, how long it took, its proof's name."""

    finding: Finding
    ended: float
    took_ms: int
    name: str


@attrs.frozen
class Told:
    """A look of some node, as the store has it; `key` tells it from every other."""

    route_id: str
    settings: str
    key: tuple[str, int]
    look: Look


@attrs.frozen(eq=False)
class Findings:
    """The findings of a store, and the leases of who makes them; `clock` is that of all `Look.ended`."""

    store: NodeStore
    hold: Hold
    clock: Callable[[], float] = trio.current_time

    @property
    def shared(self) -> bool:
        """Whether there are other nodes to find anything for."""
        return self.store.shared

    def hear(self) -> AbstractContextManager[trio.Event]:
        """An event that is set once something new was written."""
        return self.store.hear(TOPIC)

    async def lead(self, route_id: str, settings: str, duty: Duty) -> None:
        """Run the duty while this node is the one that probes the route for all with these settings."""
        await self.hold(f"probe/{route_id}/{settings}", duty)

    async def read(self, younger_than_s: float) -> Sequence[Told]:
        """Return what was found lately; nothing where the store cannot be asked."""
        began = self.clock()
        try:
            with trio.move_on_after(PATIENCE_S):
                rows = await self.store.fetch(READ, {"horizon": round(younger_than_s * 1000)})
                return [told for told in (_told(row, began) for row in rows) if told is not None]
        except StoreUnavailable as error:
            log.debug("findings_unread", reason=error.detail)
        return ()

    async def write(self, held: Held, route_id: str, settings: str, look: Look) -> None:
        """Tell the other nodes of a look, unless another one leads by now; what cannot be stored is lost."""
        try:
            with trio.move_on_after(PATIENCE_S):
                ((now,),) = await self.store.fetch(NOW)
                # Rounded so that it seems older, never younger: both clocks are cut off to whole milliseconds.
                ago = math.ceil((self.clock() - look.ended) * 1000) + 1
                statement = Statement(
                    WRITE,
                    {
                        "route": route_id,
                        "settings": settings,
                        "node": held.node,
                        "probed_at": int(now or 0) - ago,
                        "took_ms": look.took_ms,
                        "finding": _written(look),
                    },
                )
                await self.store.commit(held.fence(), statement)
                self.store.tell(TOPIC)
        except (StoreUnavailable, Conflict) as error:
            log.info("finding_not_told", route=route_id, reason=str(error))


def wall_time(look: Look, *, now: float, utc: datetime) -> datetime:
    """Return when a look ended, by this node's wall clock."""
    return utc - timedelta(seconds=now - look.ended)


def _written(look: Look) -> str:
    return orjson.dumps(attrs.asdict(look.finding) | {"qualification": look.name}).decode()


def _told(row: Row, began: float) -> Told | None:
    """Read a row; one that another release wrote in another form tells nothing."""
    route_id, settings, node, probed_at, age_ms, took_ms, text = row
    try:
        content = orjson.loads(str(text))
    except orjson.JSONDecodeError:
        return None
    match content:
        case {
            "ok": bool(ok),
            "reason": (str() | None) as reason,
            "basis": str(basis),
            "degraded": bool(degraded),
            "qualification": str(name),
        }:
            finding = Finding(ok, reason, basis, degraded)
        case _:
            return None
    look = Look(finding, began - int(age_ms or 0) / 1000, int(took_ms or 0), name)
    return Told(str(route_id), str(settings), (str(node), int(probed_at or 0)), look)
