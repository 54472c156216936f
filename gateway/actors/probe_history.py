"""The history of probes: what became of each route, kept for operators for 90 days (the table `probe_history`).

The prober's notes cost it a few additions in memory; a batch of rows is written every `WRITE_EVERY_S`.  While the store
is away, spells wait, up to `MOST_WAITING` of them.  Of several nodes each writes what it saw itself, and one of them
thins out what is old (`gateway.actors.probe_thinning`).
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Never, final

import attrs
import structlog
import trio

from gateway.actors.leases import Hold, alone
from gateway.actors.probe_thinning import keep_thinning
from gateway.actors.runtime import Inbox
from gateway.actors.store import Statement, Store
from gateway.errors import StoreUnavailable
from gateway.registry.qualification import Evidence, Observation
from gateway.registry.spells import FINE_MS, Spell

log = structlog.get_logger(__name__)

LEASE = "probe-history"
WRITE_EVERY_S = 15.0
PATIENCE_S = 10.0
"""How long a batch waits for the store; it is written again in any case, and the same row twice is one row."""

LEAVE_S = 2.0
AT_ONCE = 256
MOST_WAITING = 4096
UNWATCHED_MS = 60_000
"""After a pause of this length in its notes, a node does not say what the route was meanwhile."""

TIMINGS = 64
"""Of so many of a spell's last calls, and of so many of its last probes, the median is taken."""

COLUMNS = tuple(field.name for field in attrs.fields(Spell))
_KEY = ("route", "began_at", "node")
WRITE = f"""
    INSERT INTO probe_history ({", ".join(COLUMNS)}) VALUES ({", ".join(f":{name}" for name in COLUMNS)})
    ON CONFLICT (route, began_at, node) DO UPDATE SET
        {", ".join(f"{name} = excluded.{name}" for name in COLUMNS if name not in _KEY)}
"""  # noqa: S608 - the names of columns


def written(spell: Spell) -> Statement:
    """Return the statement that writes a spell, over what was written of it before."""
    return Statement(WRITE, attrs.asdict(spell))


@attrs.define(eq=False)
class _Running:
    """A spell that goes on; `seen_at` is the last time that the route was known to be in it."""

    evidence: Evidence
    began_at: int
    seen_at: int
    qualification_id: str | None
    probes: int = 0
    failed_probes: int = 0
    calls: int = 0
    failed_calls: int = 0
    of_probes: deque[int] = attrs.field(factory=lambda: deque(maxlen=TIMINGS))
    of_calls: deque[int] = attrs.field(factory=lambda: deque(maxlen=TIMINGS))

    @property
    def border(self) -> int:
        """Where it is cut at the latest."""
        return (self.began_at // FINE_MS + 1) * FINE_MS

    def is_of(self, evidence: Evidence) -> bool:
        return (self.evidence.state, self.evidence.reason) == (evidence.state, evidence.reason)

    def count(self, observation: Observation) -> None:
        if observation.probe:
            self.probes += 1
            self.failed_probes += not observation.ok
        else:
            self.calls += 1
            self.failed_calls += not observation.ok
        if observation.ok and observation.ms is not None:
            (self.of_probes if observation.probe else self.of_calls).append(observation.ms)

    def told(self, node: str) -> Spell:
        timings = self.of_calls or self.of_probes
        return Spell(
            route=self.evidence.route_id,
            node=node,
            began_at=self.began_at,
            ended_at=self.seen_at,
            width=FINE_MS,
            lasted_ms=self.seen_at - self.began_at,
            state=self.evidence.state.value,
            reason=self.evidence.reason,
            qualification_id=self.qualification_id,
            probes=self.probes,
            failed_probes=self.failed_probes,
            calls=self.calls,
            failed_calls=self.failed_calls,
            p50_ms=round(statistics.median(timings)) if timings else None,
        )


@final
class ProbeHistory:
    """What one node writes down of its routes: the prober tells `note`, `watch` is the actor that writes.

    `clock_ms` is the wall clock; `clock` the one that proofs expire by.
    """

    def __init__(
        self,
        store: Store,
        *,
        node: str,
        clock_ms: Callable[[], int],
        hold: Hold = alone,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self._store = store
        self._node = node
        self._clock_ms = clock_ms
        self._hold = hold
        self._clock = clock
        self._running: dict[str, _Running] = {}
        self._ended: deque[Spell] = deque(maxlen=MOST_WAITING)
        self._lost = 0
        self._behind = False

    def note(self, evidence: Evidence, observation: Observation | None) -> None:
        """Take down a probe or call of this node (None: something that it learnt) and what is proved since."""
        now = self._clock_ms()
        running = self._seen(evidence, now)
        running.evidence = evidence
        running.qualification_id = running.qualification_id or evidence.qualification_id
        if observation is not None:
            running.count(observation)

    async def watch(self, inbox: Inbox[Never]) -> None:
        """The actor "probe-history": write now and then, and once more at the end."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_writing)
            nursery.start_soon(self._hold, LEASE, partial(keep_thinning, self._store))
            inbox.ready()
            async for _ in inbox:
                pass
            nursery.cancel_scope.cancel()
        with trio.move_on_after(LEAVE_S):
            await self._write()

    # -- taking down ---------------------------------------------------------------------------------------------------

    def _seen(self, evidence: Evidence, now: int) -> _Running:
        """Return the spell that evidence of now belongs to, after ending the one before where that is another."""
        running = self._running.get(evidence.route_id)
        if running is not None:
            watched = now - running.seen_at <= UNWATCHED_MS
            if watched:
                running.seen_at = max(running.seen_at, min(now, running.border))
                if running.is_of(evidence) and now < running.border:
                    return running
            self._end(running)
            # Two spells never begin in one millisecond, and a clock that was put back does not let one begin earlier.
            now = max(now, running.began_at + 1)
            if watched and now >= running.border:
                now = now // FINE_MS * FINE_MS
        begun = _Running(evidence, now, now, evidence.qualification_id)
        self._running[evidence.route_id] = begun
        return begun

    def _end(self, running: _Running) -> None:
        self._lost += len(self._ended) == MOST_WAITING
        self._ended.append(running.told(self._node))

    def _look(self) -> None:
        """Let the spells go on until now; a proof that nobody has renewed is over."""
        now = self._clock_ms()
        for running in tuple(self._running.values()):
            at_last = running.evidence.at(self._clock())
            self._seen(at_last, now).evidence = at_last

    # -- writing -------------------------------------------------------------------------------------------------------

    async def _keep_writing(self) -> None:
        while True:
            await trio.sleep(WRITE_EVERY_S)
            with trio.move_on_after(PATIENCE_S) as patience:
                await self._write()
            if patience.cancelled_caught:
                self._fell_behind(f"no answer within {PATIENCE_S:g} s")

    async def _write(self) -> None:
        self._look()
        due = [*self._ended, *(running.told(self._node) for running in self._running.values())]
        try:
            for first in range(0, len(due), AT_ONCE):
                batch = due[first : first + AT_ONCE]
                await self._store.commit(*map(written, batch))
                self._forget(batch)
        except StoreUnavailable as error:
            self._fell_behind(error.detail)
            return
        if self._lost:
            log.warning("probe_history_lost", spells=self._lost)
        self._lost, self._behind = 0, False

    def _forget(self, batch: Iterable[Spell]) -> None:
        """Drop what is written; what came meanwhile may have pushed some of it out already."""
        stored = {id(each) for each in batch}
        while self._ended and id(self._ended[0]) in stored:
            self._ended.popleft()

    def _fell_behind(self, reason: str) -> None:
        if not self._behind:
            log.warning("probe_history_unwritten", reason=reason, waiting=len(self._ended))
        self._behind = True
