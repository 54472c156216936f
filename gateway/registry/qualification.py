"""Which routes may be used now: pure rules over the evidence of probes and of real calls.

A route is open only while a proof of it is younger than its validity: no proof, an expired proof and a failed probe all
close it, and nothing opens it but a successful probe.  Failed calls close it too (`route_calls`); a route closed that
way is half open after a back-off: the next successful probe opens it, and the next failure then closes it again.

Some routes can be proved by more than an unbilled look, by a canary: a small real call.  It is the last rung of the
ladder and rare: it is wanted before the route opens for the first time, when it is half open, and when nothing real has
succeeded for long.  While it is wanted, no other success opens the route.  It is wanted as well where callers doubt the
route, and a good one outweighs them all.

Times named `at` and `now` are seconds on the caller's monotonic clock; wall times only tell people when something was.
"""

from __future__ import annotations

import enum
import hashlib
import re
import statistics
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

import attrs

from gateway.registry.call_evidence import Voice, Weight, refuted

CANARY = "canary"
BASES = ("probe", "configuration", CANARY)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAME = re.compile(r"q_([0-9a-f]{13})[0-9a-f]{7}")


class State(enum.StrEnum):
    """What the last valid evidence says of a route; the first two are open."""

    AVAILABLE = "available"
    DEGRADED = "degraded"
    UNAVAILABLE = "unavailable"
    UNPROVEN = "unproven"


@attrs.frozen
class Rules:
    """The prober's timing, in seconds, and the limits of failed calls in a row and of unrelated callers in doubt.

    A canary may take so long that a proof of the round before still stands when it ends.  A caller has one voice in
    `voice_s`.
    """

    interval_s: float = 15.0
    probe_timeout_s: float = 5.0
    retry_first_s: float = 1.0
    failures_to_close: int = 3
    callers_to_close: int = 3
    voice_s: float = 600.0
    observations: int = 50
    canary_interval_s: float = 3600.0
    canary_timeout_s: float = 20.0

    @property
    def validity_s(self) -> float:
        """How long a proof stands: three intervals, so that one lost probe closes nothing."""
        return 3 * self.interval_s

    def back_off(self, times: int) -> float:
        """Return the pause after the `times`-th failure in a row: doubling from `retry_first_s` up to the interval."""
        return self._doubled(times, self.interval_s)

    def canary_back_off(self, times: int) -> float:
        """Return the pause after the `times`-th failed canary in a row: doubling up to the interval of canaries."""
        return self._doubled(times, self.canary_interval_s)

    def _doubled(self, times: int, most: float) -> float:
        return min(self.retry_first_s * 2.0 ** min(times - 1, 64), most)


@attrs.frozen
class Finding:
    """What one probe found.

    `basis` says what the finding rests on: `probe` (the back end answered an unbilled question), `configuration` (no
    unbilled question exists, so only the configuration was looked at and real calls decide the rest) or `canary` (it
    answered a small real call, or failed to).
    """

    ok: bool
    reason: str | None = None
    basis: str = "probe"
    degraded: bool = False


@attrs.frozen
class Outcome:
    """How one real call over a route went: the passive evidence.

    `ms` is None when it was never sent; `began` is when it was, on the clock of the prober, where that is known.
    `weight` is what a failure says of the route; `caller` is the network of who asked.
    """

    route_id: str
    ok: bool
    reason: str | None = None
    ms: int | None = None
    began: float | None = None
    weight: Weight = Weight.PROOF
    caller: str = attrs.field(default="", repr=False)


@attrs.frozen
class Evidence:
    """What may be said of a route, and until when.

    Attributes:
        qualification_id: names this proof; None while the route is closed.
        reason: a machine word for why the route is closed or degraded.
        basis: `probe`, `configuration` or `canary`, see `Finding`; None before the first proof.
        valid_until: wall time at which the proof expires; None while the route is closed.
        expires: the same moment on the monotonic clock.
        p50_ms: median of recent successful calls, or of probes where there were no calls.
        error_rate: share of recent probes and calls that failed, 0 to 1; what a request may bring about is no failure.
    """

    route_id: str
    state: State = State.UNPROVEN
    qualification_id: str | None = None
    reason: str | None = "not_probed"
    basis: str | None = None
    last_probe_at: datetime | None = None
    valid_until: datetime | None = None
    expires: float = float("-inf")
    p50_ms: int | None = None
    error_rate: float | None = None

    @property
    def open(self) -> bool:
        """True when the route may be used."""
        return self.state in {State.AVAILABLE, State.DEGRADED}

    def at(self, now: float) -> Evidence:
        """Return what this evidence is worth at `now`: an expired proof proves nothing."""
        if self.open and now >= self.expires:
            return attrs.evolve(
                self, state=State.UNPROVEN, reason="proof_expired", qualification_id=None, valid_until=None
            )
        return self


@attrs.frozen
class Observation:
    """One probe or call that happened; `doubtful` is a failure that the request itself may have brought about."""

    ok: bool
    probe: bool
    ms: int | None
    doubtful: bool = False


@attrs.frozen
class Proof:
    """A successful probe: when, and what it rests on."""

    at: float
    seen_at: datetime
    finding: Finding
    qualification_id: str


@attrs.frozen
class Record:
    """All that is remembered of a route; a new one for every event.

    `refused_here` says that this node's own last probe failed, `vouched` that the last finding for all nodes was good
    (`gateway.registry.shared_proof`).  `reopened_at` is when it was last opened after calls had closed it, and
    `on_repetition` that the caller who closed it now had done so before.  A real call or a canary succeeded at
    `answered_at`; since then `failed_canaries` failed, the last one at `canary_at`, as `canary_refusal` says.
    `voices` are the callers whose calls have failed.
    """

    route_id: str
    proof: Proof | None = None
    refusal: str | None = None
    probed_at: float = float("-inf")
    last_probe_at: datetime | None = None
    failed_probes: int = 0
    failed_calls: int = 0
    closings: int = 0
    closed_until: float | None = None
    reopened_at: float = float("-inf")
    on_repetition: bool = False
    voices: tuple[Voice, ...] = attrs.field(default=(), repr=False)
    answered_at: float = float("-inf")
    canary_at: float = float("-inf")
    failed_canaries: int = 0
    canary_refusal: str | None = None
    suspect: bool = False
    refused_here: bool = False
    vouched: bool = False
    observations: tuple[Observation, ...] = ()


def probed(
    record: Record, finding: Finding, *, now: float, wall: datetime, ms: int, rules: Rules, name: str | None = None
) -> Record:
    """Return the record after a probe that ended at `now` and took `ms` milliseconds; `name` is its proof's, if any."""
    record = attrs.evolve(
        record,
        observations=observed(record, Observation(finding.ok, probe=True, ms=ms), rules),
        probed_at=now,
        last_probe_at=wall,
        suspect=False,
        refused_here=not finding.ok,
    )
    if finding.basis == CANARY:
        record = _canaried(record, finding, now)
    if not finding.ok:
        return attrs.evolve(
            record, proof=None, refusal=finding.reason or "probe_failed", failed_probes=record.failed_probes + 1
        )
    proof = Proof(now, wall, finding, name or qualification_id(record.route_id, wall, finding.basis))
    record = attrs.evolve(record, proof=proof, failed_probes=0)
    if record.closed_until is None:
        return attrs.evolve(record, refusal=None)
    if now < record.closed_until:
        return record
    return attrs.evolve(
        record, refusal=None, closed_until=None, failed_calls=rules.failures_to_close - 1, reopened_at=now
    )


def _canaried(record: Record, finding: Finding, now: float) -> Record:
    if finding.ok:
        voices = refuted(record.voices)
        return attrs.evolve(
            record, answered_at=now, canary_at=now, failed_canaries=0, canary_refusal=None, voices=voices
        )
    return attrs.evolve(
        record,
        answered_at=float("-inf"),
        canary_at=now,
        failed_canaries=record.failed_canaries + 1,
        canary_refusal=finding.reason or "canary_failed",
    )


def evidence(record: Record, *, rules: Rules) -> Evidence:
    """Return what the record proves; expiry is left to `Evidence.at`."""
    calls = [each.ms for each in record.observations if each.ok and not each.probe and each.ms is not None]
    probes = [each.ms for each in record.observations if each.ok and each.probe and each.ms is not None]
    timings = calls or probes
    failed = sum(not (each.ok or each.doubtful) for each in record.observations)
    closed = Evidence(
        record.route_id,
        state=State.UNAVAILABLE if record.refusal else State.UNPROVEN,
        reason=record.refusal or "not_probed",
        basis=record.proof.finding.basis if record.proof else None,
        last_probe_at=record.last_probe_at,
        p50_ms=round(statistics.median(timings)) if timings else None,
        error_rate=round(failed / len(record.observations), 6) if record.observations else None,
    )
    if record.refusal or record.proof is None:
        return closed
    finding = record.proof.finding
    return attrs.evolve(
        closed,
        state=State.DEGRADED if finding.degraded else State.AVAILABLE,
        reason=finding.reason,
        qualification_id=record.proof.qualification_id,
        valid_until=record.proof.seen_at + timedelta(seconds=rules.validity_s),
        expires=record.proof.at + rules.validity_s,
    )


def next_probe(record: Record, *, rules: Rules, jitter: float = 1.0) -> float:
    """Return when the next probe is due; `jitter` stretches the interval so that routes do not march in step.

    It is due at once where only other nodes' probes have failed.
    """
    if record.closed_until is not None:
        again = rules.back_off(record.failed_probes) if record.failed_probes else 0.0
        return max(record.closed_until, record.probed_at + again)
    if record.failed_probes and not record.refused_here:
        return record.probed_at
    if record.failed_probes:
        return record.probed_at + rules.back_off(record.failed_probes)
    if record.suspect:
        return record.probed_at + rules.retry_first_s
    return record.probed_at + rules.interval_s * jitter


def canary_wanted(record: Record, *, now: float, rules: Rules) -> bool:
    """Return True while only a canary can prove the route, where it has one.

    Doubt, and the faults that one caller repeats, bring one about once an interval at most.
    """
    half_open = record.closed_until is not None and now >= record.closed_until
    spared = now < record.canary_at + rules.interval_s
    if half_open and not (record.on_repetition and spared):
        return True
    doubted = not spared and any(each.stands for each in record.voices)
    return doubted or now - record.answered_at >= rules.canary_interval_s


def canary_allowed(record: Record, *, now: float, rules: Rules) -> bool:
    """Return True unless canaries have failed and the pause after the last one, which doubles, is not over."""
    return not record.failed_canaries or now >= record.canary_at + rules.canary_back_off(record.failed_canaries)


def qualification_id(route_id: str, wall: datetime, basis: str) -> str:
    """Return the name of a proof: `q_`, the time of the probe in 13 hex digits, and 7 over route, basis and time.

    The time is in microseconds since 1970, so that the history of probes need not keep the names of all proofs: it is
    looked into at that time, for the route and the basis that give this name.
    """
    micros = (wall - _EPOCH) // timedelta(microseconds=1)
    digest = hashlib.sha256(f"{route_id}\n{basis}\n{micros}".encode()).hexdigest()
    return f"q_{micros:013x}{digest[:7]}"


def proved_at(name: str) -> datetime | None:
    """Return when the proof of that name was made; None where it is no name of a proof."""
    found = _NAME.fullmatch(name)
    return _EPOCH + timedelta(microseconds=int(found[1], 16)) if found else None


def proof_basis(name: str, route_id: str) -> str | None:
    """Return the basis of the proof of that name if it is one of this route; else None."""
    at = proved_at(name)
    return next((basis for basis in BASES if at and qualification_id(route_id, at, basis) == name), None)


def observed(record: Record, observation: Observation, rules: Rules) -> tuple[Observation, ...]:
    """Return the observations that are remembered after one more."""
    return (*record.observations, observation)[-rules.observations :]


class Proofs:
    """The latest evidence of every route: the prober publishes, everyone else reads without asking.

    Readers see one immutable snapshot at a time, and an expired proof as `unproven`: a dead prober opens nothing.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._evidence: Mapping[str, Evidence] = MappingProxyType({})

    def publish(self, evidence: Mapping[str, Evidence]) -> None:
        """Replace the snapshot."""
        self._evidence = MappingProxyType(dict(evidence))

    def of(self, route_id: str) -> Evidence:
        """Return what is proved of a route now; an unknown route is `unproven`."""
        known = self._evidence.get(route_id)
        return Evidence(route_id) if known is None else known.at(self._clock())

    def snapshot(self) -> Mapping[str, Evidence]:
        """Return what is proved of every route now, by route id."""
        now = self._clock()
        return MappingProxyType({route_id: each.at(now) for route_id, each in self._evidence.items()})
