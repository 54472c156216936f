"""The prober: proves every route before the node sells it, and again and again while it runs.

It owns the records of all routes and the time between probes; the rules are `gateway.registry.qualification`.  A route
is anything with an id and a probe, perhaps a canary: this module knows nothing of what it proves.

Of several nodes one probes a shared route for all, the holder of its lease, and tells what it found; the others take
that in, and look themselves only where their own calls say otherwise or nobody seems to look any more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial

import attrs
import trio

from gateway.actors.findings import Findings, Look, Told, wall_time
from gateway.actors.leases import Held
from gateway.actors.runtime import ActorError, Ask, Inbox, Letter, Ref
from gateway.registry.qualification import (
    CANARY,
    Evidence,
    Finding,
    Observation,
    Outcome,
    Proofs,
    Record,
    Rules,
    canary_allowed,
    canary_wanted,
    evidence,
    next_probe,
    probed,
)
from gateway.registry.route_calls import called
from gateway.registry.shared_proof import learned, next_own_probe

DEFAULT_RULES = Rules()
LEARN_EVERY_S = 1.0
FIGURES_EVERY_S = 1.0
"""How often successful calls of an open route renew its published evidence, of which they change the figures alone."""
START_PATIENCE_S = 10.0
"""How long the node's start waits for first canaries; probes are bounded by their own time-outs."""

Noted = Callable[[Evidence, Observation | None], None]
"""Told of every probe and call of this node, and of what it learns of others (None); must not block or raise."""


@attrs.frozen
class Route:
    """Something to prove.

    `probe` looks at it once, without being billed; `canary` is a small real call of it, made only where nothing less
    proves it.  Both may raise, and may be cancelled when they take too long.
    `settings` is a fingerprint of all that the finding depends on, where it holds for every node with the same one;
    None: what a node finds says nothing to others.
    `rules` are the route's own; None: the prober's.
    """

    route_id: str
    probe: Callable[[], Awaitable[Finding]]
    settings: str | None = None
    rules: Rules | None = None
    canary: Callable[[], Awaitable[Finding]] | None = None


@attrs.frozen
class Snapshot(Ask[Mapping[str, Evidence]]):
    """Ask for the evidence of every route, by route id."""


@attrs.frozen
class ProbeNow(Ask[Mapping[str, Evidence]]):
    """Probe one route (None: all) at once and answer with the evidence of those probed; an unknown id answers empty.

    A canary that is wanted does not wait for the pause after failed ones: somebody has perhaps mended what it found.
    """

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
    findings: Findings | None = None,
    noted: Noted = lambda _evidence, _observation: None,
) -> None:
    """Have all routes proved, become ready, then probe on and take in the outcomes of real calls.

    `proofs`, `findings` and `Outcome.began` must be of the same `clock`.  `jitter` returns the factor by which one
    regular interval is stretched.  `rules` are those of routes without their own.  `findings` are those of a store that
    other nodes may share.
    """
    shared = findings if findings and findings.shared else None
    rounds = _Rounds(routes, proofs, utc, clock, jitter, rules, shared, noted)
    await rounds.learn()
    async with trio.open_nursery() as nursery:
        due = [route for route in routes if rounds.due(route)]
        for route in routes:
            nursery.start_soon(rounds.watch, route)
        with trio.move_on_after(START_PATIENCE_S):
            await rounds.first_looks(due)

        def serve(letter: Letter[Message]) -> None:
            match letter.message:
                case Outcome() as outcome:
                    rounds.take(outcome)
                case Snapshot() as question:
                    letter.answer(question, proofs.snapshot())
                case ProbeNow() as question:
                    nursery.start_soon(_answer, rounds, letter, question)

        inbox.ready(at_once=serve)
        rounds.join(nursery)
        async for letter in inbox:
            serve(letter)
        nursery.cancel_scope.cancel()


async def _answer(rounds: _Rounds, letter: Letter[Message], question: ProbeNow) -> None:
    chosen = [route for route in rounds.routes if question.route_id in {None, route.route_id}]
    async with trio.open_nursery() as nursery:
        for route in chosen:
            nursery.start_soon(partial(rounds.examine, route, asked_at=rounds.clock()))
    letter.answer(question, {route.route_id: rounds.proofs.of(route.route_id) for route in chosen})


@attrs.define(eq=False)
class _Rounds:
    """The records of all routes and the alarms that cut the wait for a route's next probe short.

    `turns` let one canary of a route run at a time; `looked` are set once a route was looked at; `renewed` is when the
    published evidence of a route was last made.

    Of shared routes also: which of them this node probes for all (`leading`), what it last saw of each itself
    (`looks`), and which finding of another it took in last (`taken`).
    """

    routes: Sequence[Route]
    proofs: Proofs
    utc: Callable[[], datetime]
    clock: Callable[[], float]
    jitter: Callable[[], float]
    rules: Rules
    findings: Findings | None
    noted: Noted
    records: dict[str, Record] = attrs.field(init=False)
    published: dict[str, Evidence] = attrs.field(init=False)
    renewed: dict[str, float] = attrs.field(init=False, factory=dict)
    alarms: dict[str, trio.Event] = attrs.field(init=False)
    turns: dict[str, trio.Lock] = attrs.field(init=False)
    looked: dict[str, trio.Event] = attrs.field(init=False)
    own_rules: dict[str, Rules] = attrs.field(init=False)
    leading: dict[str, _Lead] = attrs.field(init=False, factory=dict)
    looks: dict[str, Look] = attrs.field(init=False, factory=dict)
    taken: dict[str, tuple[str, int]] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self.records = {route.route_id: Record(route.route_id) for route in self.routes}
        self.alarms = {route.route_id: trio.Event() for route in self.routes}
        self.turns = {route.route_id: trio.Lock() for route in self.routes}
        self.looked = {route.route_id: trio.Event() for route in self.routes}
        self.own_rules = {route.route_id: route.rules or self.rules for route in self.routes}
        self.published = {
            route_id: evidence(record, rules=self.own_rules[route_id]) for route_id, record in self.records.items()
        }
        self.proofs.publish(self.published)

    # -- probing -------------------------------------------------------------------------------------------------------

    async def first_looks(self, routes: Sequence[Route]) -> None:
        """Wait until each of the routes was looked at."""
        for route in routes:
            await self.looked[route.route_id].wait()

    async def examine(self, route: Route, *, asked_at: float | None = None) -> None:
        """Prove a route, publish what was found, and tell the other nodes of it where this one looks for all.

        `asked_at`: somebody asked for it then.
        """
        rules, started = self.own_rules[route.route_id], self.clock()
        finding = await _bounded(route.probe, rules.probe_timeout_s, "probe")
        elapsed = round((self.clock() - started) * 1000)
        async with self.turns[route.route_id]:
            now = self.clock()
            if finding.ok and route.canary is not None and canary_wanted(self._record(route), now=now, rules=rules):
                finding = await self._by_canary(route, route.canary, asked_at)
                now = self.clock()
            lead = self.leading.get(route.route_id)
            look = self._look(route, finding, now, elapsed, lead=lead is not None)
        if lead is not None:
            await self._tell(route, lead.held, look)
            if not finding.ok:
                lead.over.set()

    async def _by_canary(
        self, route: Route, canary: Callable[[], Awaitable[Finding]], asked_at: float | None
    ) -> Finding:
        """Return what a canary finds; until the next one may be sent, what the last one found stands."""
        rules, record = self.own_rules[route.route_id], self._record(route)
        mended = asked_at is not None and record.canary_at < asked_at
        if not (mended or canary_allowed(record, now=self.clock(), rules=rules)):
            return Finding(ok=False, reason=record.canary_refusal)
        return attrs.evolve(await _bounded(canary, rules.canary_timeout_s, CANARY), basis=CANARY)

    def _look(self, route: Route, finding: Finding, now: float, elapsed: int, *, lead: bool) -> Look:
        rules = self.own_rules[route.route_id]
        record = probed(self._record(route), finding, now=now, wall=self.utc(), ms=elapsed, rules=rules)
        self._keep(attrs.evolve(record, vouched=finding.ok) if lead else record, record.observations[-1])
        self.looked[route.route_id].set()
        look = Look(finding, now, elapsed, record.proof.qualification_id if record.proof else "")
        self.looks[route.route_id] = look
        return look

    async def watch(self, route: Route) -> None:
        """Probe a route whenever it is due, for ever."""
        while True:
            stretch = self.jitter()
            while (pause := self._pause(route, stretch)) > 0:
                alarm = self.alarms[route.route_id] = trio.Event()
                with trio.move_on_after(pause):
                    await alarm.wait()
            await self.examine(route)

    def due(self, route: Route) -> bool:
        """Return True if a route is to be probed now."""
        return self._pause(route, 1.0) <= 0

    def take(self, outcome: Outcome) -> None:
        """Take in how a real call went.

        Figures that more good calls of an open route change wait for the next call or probe after a second.
        """
        route_id, now = outcome.route_id, self.clock()
        record = self.records.get(route_id)
        if record is None:
            return
        after, told = called(record, outcome, now=now, rules=self.own_rules[route_id]), self.published[route_id]
        if outcome.ok and told.open and now - self.renewed[route_id] < FIGURES_EVERY_S:
            self.records[route_id] = after
            self.noted(told, after.observations[-1])
        else:
            self._keep(after, after.observations[-1])

    def _record(self, route: Route) -> Record:
        return self.records[route.route_id]

    def _pause(self, route: Route, stretch: float) -> float:
        record, rules = self._record(route), self.own_rules[route.route_id]
        if self._follows(route):
            return next_own_probe(record, rules=rules) - self.clock()
        return next_probe(record, rules=rules, jitter=stretch) - self.clock()

    def _keep(self, record: Record, observation: Observation | None) -> None:
        self.records[record.route_id] = record
        self.renewed[record.route_id] = self.clock()
        told = self.published[record.route_id] = evidence(record, rules=self.own_rules[record.route_id])
        self.proofs.publish(self.published)
        self.alarms[record.route_id].set()
        self.noted(told, observation)

    # -- several nodes -------------------------------------------------------------------------------------------------

    def join(self, nursery: trio.Nursery) -> None:
        """Take part in the probing of shared routes."""
        shared = [route for route in self.routes if self.findings and route.settings is not None]
        for route in shared:
            nursery.start_soon(self.keep_leading, route)
        if shared:
            nursery.start_soon(self.keep_learning)

    async def keep_leading(self, route: Route) -> None:
        """Probe a route for all nodes whenever no other does.

        After a failure another node may look at once: it may be this one that cannot reach the back end.
        """
        while self.findings is not None and route.settings is not None:
            await self.findings.lead(route.route_id, route.settings, partial(self.lead, route))
            await trio.sleep(self.own_rules[route.route_id].back_off(self._record(route).failed_probes))

    async def lead(self, route: Route, held: Held) -> None:
        """Have the route probed by the rules of who looks for all, until a probe fails."""
        self.leading[route.route_id] = lead = _Lead(held)
        self.alarms[route.route_id].set()
        try:
            look = self.looks.get(route.route_id)
            if look is not None and look.finding.ok and look.ended == self._record(route).probed_at:
                await self._tell(route, held, look)
            await lead.over.wait()
        finally:
            del self.leading[route.route_id]
            self.alarms[route.route_id].set()

    async def keep_learning(self) -> None:
        """Take in what other nodes find, soon after they tell and every second in any case."""
        while self.findings is not None:
            with self.findings.hear() as told:
                await self.learn()
                with trio.move_on_after(LEARN_EVERY_S):
                    await told.wait()

    async def learn(self) -> None:
        """Take in each finding of another node once, if its proof still stands and its settings are this node's."""
        if self.findings is None:
            return
        settings = {route.route_id: route.settings for route in self.routes}
        oldest = max((rules.validity_s for rules in self.own_rules.values()), default=0.0)
        for told in await self.findings.read(oldest):
            if settings.get(told.route_id) == told.settings and self.taken.get(told.route_id) != told.key:
                self.taken[told.route_id] = told.key
                self._learn(told)

    def _learn(self, told: Told) -> None:
        record, look, rules = self.records[told.route_id], told.look, self.own_rules[told.route_id]
        wall = wall_time(look, now=self.clock(), utc=self.utc())
        after = learned(record, look.finding, now=look.ended, wall=wall, ms=look.took_ms, rules=rules, name=look.name)
        if after != record:
            self._keep(after, None)

    async def _tell(self, route: Route, held: Held, look: Look) -> None:
        if self.findings is not None and route.settings is not None:
            await self.findings.write(held, route.route_id, route.settings, look)

    def _follows(self, route: Route) -> bool:
        """Return True if the probing of a route is another node's, as far as this one knows."""
        return self.findings is not None and route.settings is not None and route.route_id not in self.leading


@attrs.frozen(eq=False)
class _Lead:
    """A spell of probing a route for all nodes; `over` once another may have a look."""

    held: Held
    over: trio.Event = attrs.field(factory=trio.Event)


def reporter(ref: Ref[Message]) -> Callable[[Outcome], None]:
    """Return a function that tells the prober of a real call; a full or closed mailbox loses it."""

    def report(outcome: Outcome) -> None:
        try:
            ref.tell(outcome)
        except ActorError:
            return

    return report


async def _bounded(look: Callable[[], Awaitable[Finding]], seconds: float, what: str) -> Finding:
    with trio.move_on_after(seconds):
        try:
            return await look()
        except Exception:  # noqa: BLE001 - a defect of one route's probe closes that route and no other
            return Finding(ok=False, reason=f"{what}_crashed")
    return Finding(ok=False, reason=f"{what}_timeout")
