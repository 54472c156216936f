"""The prober: proves every route before the node sells it, and again and again while it runs.

It owns the records of all routes and the time between probes; the rules are `gateway.registry.qualification`.  A route
is anything with an id and a probe: this module knows nothing of what it proves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime

import attrs
import trio

from gateway.actors.runtime import ActorError, Ask, Inbox, Letter, Ref
from gateway.registry.qualification import (
    Evidence,
    Finding,
    Outcome,
    Proofs,
    Record,
    Rules,
    called,
    evidence,
    next_probe,
    probed,
)

DEFAULT_RULES = Rules()


@attrs.frozen
class Route:
    """Something to prove.

    `probe` looks at it once, without being billed; it may raise, and may be cancelled when it takes too long.
    """

    route_id: str
    probe: Callable[[], Awaitable[Finding]]


@attrs.frozen
class Snapshot(Ask[Mapping[str, Evidence]]):
    """Ask for the evidence of every route, by route id."""


@attrs.frozen
class ProbeNow(Ask[Mapping[str, Evidence]]):
    """Probe one route (None: all) at once and answer with the evidence of those probed; an unknown id answers empty."""

    route_id: str | None = None


Message = Outcome | Snapshot | ProbeNow


async def prober(
    inbox: Inbox[Message],
    *,
    routes: Sequence[Route],
    proofs: Proofs,
    utc: Callable[[], datetime],
    clock: Callable[[], float] = trio.current_time,
    jitter: Callable[[], float] = lambda: 1.0,
    rules: Rules = DEFAULT_RULES,
) -> None:
    """Probe all routes, become ready, then probe on and take in the outcomes of real calls.

    `proofs` must read the same `clock`.  `jitter` returns the factor by which one regular interval is stretched.
    """
    rounds = _Rounds(routes, proofs, utc, clock, jitter, rules)
    await rounds.examine_all(routes)
    inbox.ready()
    async with trio.open_nursery() as nursery:
        for route in routes:
            nursery.start_soon(rounds.watch, route)
        async for letter in inbox:
            match letter.message:
                case Outcome() as outcome:
                    rounds.take(outcome)
                case Snapshot() as question:
                    letter.answer(question, proofs.snapshot())
                case ProbeNow() as question:
                    nursery.start_soon(_answer, rounds, letter, question)
        nursery.cancel_scope.cancel()


async def _answer(rounds: _Rounds, letter: Letter[Message], question: ProbeNow) -> None:
    chosen = [route for route in rounds.routes if question.route_id in {None, route.route_id}]
    await rounds.examine_all(chosen)
    letter.answer(question, {route.route_id: rounds.proofs.of(route.route_id) for route in chosen})


@attrs.define
class _Rounds:
    """The records of all routes and the alarms that cut the wait for a route's next probe short."""

    routes: Sequence[Route]
    proofs: Proofs
    utc: Callable[[], datetime]
    clock: Callable[[], float]
    jitter: Callable[[], float]
    rules: Rules
    records: dict[str, Record] = attrs.field(init=False)
    published: dict[str, Evidence] = attrs.field(init=False)
    alarms: dict[str, trio.Event] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.records = {route.route_id: Record(route.route_id) for route in self.routes}
        self.alarms = {route.route_id: trio.Event() for route in self.routes}
        self.published = {}

    async def examine_all(self, routes: Sequence[Route]) -> None:
        """Probe several routes at the same time."""
        async with trio.open_nursery() as nursery:
            for route in routes:
                nursery.start_soon(self.examine, route)

    async def examine(self, route: Route) -> None:
        """Probe a route and publish what was found."""
        started = self.clock()
        finding = await _bounded(route, self.rules.probe_timeout_s)
        now = self.clock()
        elapsed = round((now - started) * 1000)
        record = self.records[route.route_id]
        self._keep(probed(record, finding, now=now, wall=self.utc(), ms=elapsed, rules=self.rules))

    async def watch(self, route: Route) -> None:
        """Probe a route whenever it is due, for ever."""
        while True:
            stretch = self.jitter()
            while (pause := self._pause(route.route_id, stretch)) > 0:
                alarm = self.alarms[route.route_id] = trio.Event()
                with trio.move_on_after(pause):
                    await alarm.wait()
            await self.examine(route)

    def take(self, outcome: Outcome) -> None:
        """Take in how a real call went."""
        record = self.records.get(outcome.route_id)
        if record is not None:
            self._keep(called(record, outcome, now=self.clock(), rules=self.rules))

    def _pause(self, route_id: str, stretch: float) -> float:
        return next_probe(self.records[route_id], rules=self.rules, jitter=stretch) - self.clock()

    def _keep(self, record: Record) -> None:
        self.records[record.route_id] = record
        self.published[record.route_id] = evidence(record, rules=self.rules)
        self.proofs.publish(self.published)
        self.alarms[record.route_id].set()


def reporter(ref: Ref[Message]) -> Callable[[Outcome], None]:
    """Return a function that tells the prober of a real call; a full or closed mailbox loses it."""

    def report(outcome: Outcome) -> None:
        try:
            ref.tell(outcome)
        except ActorError:
            return

    return report


async def _bounded(route: Route, seconds: float) -> Finding:
    with trio.move_on_after(seconds):
        try:
            return await route.probe()
        except Exception:  # noqa: BLE001 - a defect of one route's probe closes that route and no other
            return Finding(ok=False, reason="probe_crashed")
    return Finding(ok=False, reason="probe_timeout")
