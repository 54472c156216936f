"""The node's figures as Prometheus reads them (spec/operating, "Operator surface").

Counters count what this process saw since it started.  Gauges are read when the page is asked for.  What the store
alone knows, how settlements ended, is counted from the rows that ended since the last look.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs
import trio
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from quart import Response, g

from gateway.actors.runtime import Health
from gateway.actors.store import Row, Store
from gateway.errors import GatewayError
from gateway.http.server import Account, GatewayApp
from gateway.registry.execution import Family, Served, Work
from gateway.registry.operation import Operation
from gateway.registry.qualification import Evidence

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OTHER = "other"
"""The operation of a request that is none of the table's."""

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)
LOOK_BACK_MS = 60_000
ENDED_AT_ONCE = 2_000

ENDED = """
    SELECT operation_id, attempt, ended_at, state, settlement, failure_code FROM operations
    WHERE ended_at > :since AND funding = 'paid' AND node = :node ORDER BY ended_at LIMIT :limit
"""


class Metrics:
    """What one node counts while it runs."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "gateway_requests", "Answered requests.", ["operation", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "gateway_request_seconds", "Time to the answer.", ["operation"], buckets=SECONDS, registry=self._registry
        )
        self._replays = Counter("gateway_replays", "Answers from a stored result.", registry=self._registry)
        self._executions = Counter(
            "gateway_executions", "Executions by how they ended.", ["operation", "outcome"], registry=self._registry
        )
        self._settlements = Counter(
            "gateway_settlements", "Payments by how they ended.", ["outcome"], registry=self._registry
        )
        self._answers: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        """What one answer is counted on: to find a series by its labels costs more than to count on it."""
        ProcessCollector(registry=self._registry)

    def answered(self, operation: str, status: int, seconds: float, *, replayed: bool) -> None:
        """Count an answer to a request."""
        series = self._answers.get((operation, status))
        if series is None:
            series = self._requests.labels(operation, str(status)), self._seconds.labels(operation)
            self._answers[operation, status] = series
        answers, latency = series
        answers.inc()
        latency.observe(seconds)
        if replayed:
            self._replays.inc()

    def executed(self, operation: str, outcome: str) -> None:
        """Count an execution; `outcome` is `served`, `cancelled`, `crashed` or the code of its failure."""
        self._executions.labels(operation, outcome).inc()

    def settled(self, outcome: str) -> None:
        """Count a decided payment; `outcome` is `settled`, `failed` or `unknown`."""
        self._settlements.labels(outcome).inc()

    def watch(self, app: GatewayApp, table: Mapping[str, Operation]) -> None:
        """Count every answer of an application; what is no operation of the table counts as `other`.

        A client that left before its answer counts as 499.  What the server refuses beneath the application (a
        malformed head, a body that is too large or too slow) is not counted.
        """
        operations = {operation.path: operation.id for operation in table.values()}

        def hear(account: Account) -> None:
            operation = operations.get(account.path, OTHER)
            self.answered(operation, account.status, account.seconds, replayed=account.replayed)

        async def begin() -> None:
            g.began = time.perf_counter()

        async def count(response: Response) -> Response:
            self.answered(OTHER, response.status_code, time.perf_counter() - g.began, replayed=False)
            return response

        app.before_request_funcs.setdefault(None, []).insert(0, begin)
        app.after_request(count)
        app.accountants.append(hear)

    def page(self, gauges: Iterable[Metric]) -> bytes:
        """Return the page: the counters, and what was read for it."""
        return generate_latest(_Page(self._registry, tuple(gauges)))


@attrs.frozen(eq=False)
class _Page:
    """What prometheus_client takes for a registry."""

    registry: CollectorRegistry
    gauges: Sequence[Metric]

    def collect(self) -> Iterable[Metric]:
        for metric in self.registry.collect():
            metric.samples = [each for each in metric.samples if not each.name.endswith("_created")]
            yield metric
        yield from self.gauges


@attrs.frozen(eq=False)
class MeteredFamily:
    """A family whose executions are counted."""

    inner: Family
    metrics: Metrics

    def admit(self, operation: str, request: object) -> None:
        """See `Family.admit`."""
        self.inner.admit(operation, request)

    def budget(self, operation: str, request: object) -> str | None:
        """See `Family.budget`."""
        return self.inner.budget(operation, request)

    async def execute(self, work: Work) -> Served:
        """See `Family.execute`."""
        outcome = "crashed"
        try:
            served = await self.inner.execute(work)
            outcome = "served"
        except GatewayError as failure:
            outcome = failure.code
            raise
        except trio.Cancelled:
            outcome = "cancelled"
            raise
        finally:
            self.metrics.executed(work.operation, outcome)
        return served


@attrs.define(eq=False)
class Endings:
    """Counts how payments ended, each attempt once, from the rows that end.

    A row is written a while after the time that it ends at, so each look goes back by `LOOK_BACK_MS` and passes over
    what it has counted.  Of several nodes each counts what it ended itself.
    """

    store: Store
    metrics: Metrics
    clock_ms: Callable[[], int]
    node: str
    started: int = attrs.field(init=False)
    counted: dict[tuple[str, int], int] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.started = self.clock_ms()

    async def look(self) -> None:
        """Count what ended since the last look; raises `StoreUnavailable`."""
        since = max(self.started, max(self.counted.values(), default=0) - LOOK_BACK_MS) - 1
        while True:
            found = await self.store.fetch(ENDED, {"since": since, "node": self.node, "limit": ENDED_AT_ONCE})
            for row in found:
                self._count(row)
            if len(found) < ENDED_AT_ONCE:
                break
            since = int(found[-1][2] or 0) - 1
        newest = max(self.counted.values(), default=0)
        self.counted = {name: at for name, at in self.counted.items() if at >= newest - 2 * LOOK_BACK_MS}

    def _count(self, row: Row) -> None:
        operation_id, attempt, ended_at, state, settlement, failure_code = row
        name = (str(operation_id), int(attempt or 0))
        if name in self.counted:
            return
        self.counted[name] = int(ended_at or 0)
        if settlement == "settled":
            self.metrics.settled("settled")
        elif state == "needs_operator":
            self.metrics.settled("unknown")
        elif failure_code == "settlement_failed":
            self.metrics.settled("failed")


def operations_gauge(counts: Mapping[str, int]) -> Metric:
    """Return how many operations the store holds of each state."""
    family = GaugeMetricFamily("gateway_operations", "Operations in the store by state.", labels=["state"])
    for state, count in counts.items():
        family.add_metric([state], count)
    return family


def exposure_gauge(atomic: int) -> Metric:
    """Return what is executed or being executed and not yet settled, in atomic units."""
    return GaugeMetricFamily("gateway_unsettled_exposure_atomic", "Unsettled amounts, atomic units.", value=atomic)


def actor_gauges(health: Sequence[Health]) -> list[Metric]:
    """Return what is to be seen of the actors."""
    depth = GaugeMetricFamily("gateway_actor_mailbox_depth", "Letters that queue.", labels=["actor"])
    crashes = CounterMetricFamily("gateway_actor_restarts", "Crashes, each followed by a restart.", labels=["actor"])
    for each in health:
        depth.add_metric([each.actor], each.depth)
        crashes.add_metric([each.actor], each.crashes)
    return [depth, crashes]


def route_gauges(evidence: Mapping[str, Evidence], now: float) -> list[Metric]:
    """Return what is proven of the routes; `now` is in seconds since 1970."""
    available = GaugeMetricFamily("gateway_route_available", "1 while a proof of the route stands.", labels=["route"])
    age = GaugeMetricFamily("gateway_probe_age_seconds", "Time since the last probe.", labels=["route"])
    for route, each in evidence.items():
        available.add_metric([route], int(each.open))
        if each.last_probe_at is not None:
            age.add_metric([route], max(0.0, now - each.last_probe_at.timestamp()))
    return [available, age]


def settlement_gauge(*, is_open: bool) -> Metric:
    """Return whether payments can be verified, settled and looked up."""
    return GaugeMetricFamily("gateway_settlement_open", "1 while the settlement path is proven.", value=int(is_open))


def nodes_gauge(alive: int) -> Metric:
    """Return how many nodes of this store are alive."""
    return GaugeMetricFamily("gateway_nodes", "Nodes of this store whose lease is alive.", value=alive)


def store_gauge(*, writable: bool) -> Metric:
    """Return whether the store takes writes."""
    return GaugeMetricFamily("gateway_store_writable", "1 while the store takes writes.", value=int(writable))
