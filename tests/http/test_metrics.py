from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio
from hypercorn.typing import HTTPScope
from prometheus_client.parser import text_string_to_metric_families
from quart import Response

from gateway.actors.runtime import open_runtime
from gateway.actors.store import open_sqlite
from gateway.errors import EngineBlocked, PaymentRequired
from gateway.http import metrics as figures
from gateway.http.metrics import Endings, MeteredFamily, Metrics
from gateway.http.problems import Answer
from gateway.http.server import Account, GatewayApp, bind, serve
from gateway.registry.execution import Served, Work
from gateway.registry.qualification import Evidence, State
from gateway.registry.table import OPERATIONS
from tests.store_of_a_node import NOW, SETTLED, WAITING, operation


def read(metrics: Metrics, gauges: object = ()) -> dict[tuple[str, str], float]:
    """The page as (sample name, its label values joined) -> value."""
    page = metrics.page(gauges).decode()  # type: ignore[arg-type]  # any metrics
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


# -- answers -----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def counted() -> AsyncIterator[tuple[Metrics, str]]:
    app = GatewayApp(base_url="https://node.example", body_cap=lambda _: 1000)
    metrics = Metrics()

    async def paid(scope: HTTPScope, body: bytes, account: Account) -> Answer:
        del scope
        if body == b"gone":
            await trio.sleep_forever()
        if body != b"{}":
            raise PaymentRequired
        account.replayed = True
        return 200, {}, b"{}"

    async def free(scope: HTTPScope, body: bytes, account: Account) -> Answer:
        raise RuntimeError(scope, body, account)

    @app.get("/healthz")
    async def healthz() -> Response:
        return Response("alive")

    app.add_operation(OPERATIONS["search.paid"].path, paid)
    app.add_operation(OPERATIONS["search.free"].path, free)
    metrics.watch(app, {name: OPERATIONS[name] for name in ("search.paid", "search.free")})
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        urls = await nursery.start(partial(serve, app, [bind("127.0.0.1:0")], stop=stop))
        yield metrics, urls[0]
        stop.set()


async def test_every_answer_is_counted_by_operation_and_status(counted: tuple[Metrics, str]) -> None:
    metrics, url = counted
    async with httpx.AsyncClient(base_url=url) as client:
        await client.post("/v1/search/paid", content=b"x")
        await client.post("/v1/search/paid", content=b"{}")
        await client.post("/v1/search/free", content=b"a defect")
        await client.get("/v1/search/paid")
        await client.get("/nothing")
        await client.get("/healthz")
    seen = read(metrics)
    assert seen["gateway_requests_total", "search.paid,402"] == 1
    assert seen["gateway_requests_total", "search.paid,200"] == 1
    assert seen["gateway_requests_total", "search.free,500"] == 1
    assert seen["gateway_requests_total", "other,405"] == 1
    assert seen["gateway_requests_total", "other,404"] == 1
    assert seen["gateway_requests_total", "other,200"] == 1
    assert seen["gateway_request_seconds_count", "search.paid"] == 2
    assert seen["gateway_replays_total", ""] == 1


async def test_a_client_that_hangs_up_counts_as_499(counted: tuple[Metrics, str]) -> None:
    metrics, url = counted
    async with httpx.AsyncClient(base_url=url, timeout=httpx.Timeout(5, read=0.05)) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/search/paid", content=b"gone")
    with trio.fail_after(30):
        while ("gateway_requests_total", "search.paid,499") not in read(metrics):  # noqa: ASYNC110 - told by no event
            await trio.sleep(0.01)


# -- executions --------------------------------------------------------------------------------------------------------


class Family:
    def __init__(self, failure: Exception | None) -> None:
        self.failure = failure

    def admit(self, operation: str, request: object) -> None:
        raise ValueError(operation, request)

    def budget(self, operation: str, request: object) -> str | None:
        return f"{operation}{request}"

    async def execute(self, work: Work) -> Served:
        await trio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure
        return Served({"of": work.operation_id}, {})


WORK = Work("op_1", "search.free", None, 1, 0.0)


async def test_executions_are_counted_by_how_they_ended() -> None:
    metrics = Metrics()
    assert (await MeteredFamily(Family(None), metrics).execute(WORK)).output == {"of": "op_1"}
    with pytest.raises(EngineBlocked):
        await MeteredFamily(Family(EngineBlocked()), metrics).execute(WORK)
    with pytest.raises(ZeroDivisionError):
        await MeteredFamily(Family(ZeroDivisionError()), metrics).execute(WORK)
    with trio.CancelScope() as scope:
        scope.cancel()
        await MeteredFamily(Family(None), metrics).execute(WORK)
    seen = read(metrics)
    for outcome in ("served", "engine_blocked", "crashed", "cancelled"):
        assert seen["gateway_executions_total", f"search.free,{outcome}"] == 1


def test_admission_is_the_familys_own() -> None:
    with pytest.raises(ValueError, match=r"search\.free"):
        MeteredFamily(Family(None), Metrics()).admit("search.free", None)


# -- settlements -------------------------------------------------------------------------------------------------------


async def test_payments_are_counted_once_by_how_they_ended_and_only_since_the_start(tmp_path: Path) -> None:
    metrics, now = Metrics(), NOW
    async with open_runtime() as runtime, open_sqlite(runtime, tmp_path / "gateway.db") as store:
        await store.commit(operation("op_before", NOW - 1))
        endings = Endings(store, metrics, lambda: now, "node-1")
        await endings.look()
        assert ("gateway_settlements_total", "settled") not in read(metrics)
        stuck = {"state": "needs_operator", "settlement": "unknown"}
        lost = {"state": "failed", "settlement": "not_settled", "failure_code": "settlement_failed"}
        refused = {"state": "failed", "settlement": "not_settled", "failure_code": "payment_rejected"}
        await store.commit(
            operation(SETTLED, NOW + 5),
            operation(WAITING, NOW + 5, **stuck),
            operation("op_lost", NOW + 6, **lost),
            operation("op_refused", NOW + 6, **refused),
            operation("op_free", NOW + 6, funding="free", settlement="none"),
            operation("op_of_another_node", NOW + 6, node="node-2"),
        )
        await endings.look()
        await endings.look()
        await store.commit(operation("op_late", NOW + 4))  # committed after one that ended later
        await endings.look()
    seen = read(metrics)
    assert seen["gateway_settlements_total", "settled"] == 2
    assert seen["gateway_settlements_total", "unknown"] == 1
    assert seen["gateway_settlements_total", "failed"] == 1


async def test_more_endings_than_one_query_takes_are_all_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "ENDED_AT_ONCE", 10)
    metrics = Metrics()
    async with open_runtime() as runtime, open_sqlite(runtime, tmp_path / "gateway.db") as store:
        endings = Endings(store, metrics, lambda: NOW, "node-1")
        await store.commit(*(operation(f"op_{index}", NOW + index // 4) for index in range(57)))
        await endings.look()
    assert read(metrics)["gateway_settlements_total", "settled"] == 57


# -- gauges ------------------------------------------------------------------------------------------------------------


def test_a_closed_route_is_0_and_the_age_of_its_probe_is_in_seconds() -> None:
    probed = datetime(2026, 1, 1, tzinfo=UTC)
    routes = {
        "search/a": Evidence("search/a", state=State.AVAILABLE, last_probe_at=probed),
        "search/b": Evidence("search/b"),
    }
    seen = read(Metrics(), figures.route_gauges(routes, probed.timestamp() + 12.5))
    assert seen["gateway_route_available", "search/a"] == 1
    assert seen["gateway_route_available", "search/b"] == 0
    assert seen["gateway_probe_age_seconds", "search/a"] == 12.5
    assert ("gateway_probe_age_seconds", "search/b") not in seen


async def test_actors_show_their_mailboxes_and_crashes() -> None:
    async with open_runtime() as runtime:
        await runtime.start("idle", _idle)
        seen = read(Metrics(), figures.actor_gauges(runtime.health()))
    assert seen["gateway_actor_mailbox_depth", "idle"] == 0
    assert seen["gateway_actor_restarts_total", "idle"] == 0


async def _idle(inbox: object) -> None:
    inbox.ready()  # type: ignore[attr-defined]  # an Inbox
    async for _ in inbox:  # type: ignore[attr-defined]
        pass


def test_two_nodes_in_one_process_count_apart_and_no_series_tells_when_it_was_made() -> None:
    one, other = Metrics(), Metrics()
    one.settled("settled")
    assert ("gateway_settlements_total", "settled") in read(one)
    assert ("gateway_settlements_total", "settled") not in read(other)
    assert [name for name, _ in read(one) if name.endswith("_created")] == []
