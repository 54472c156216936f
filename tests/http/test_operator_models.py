from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.actors.leases import ALONE
from gateway.actors.probe_history import ProbeHistory
from gateway.actors.probe_thinning import DAY_MS, thin
from gateway.actors.prober import Message, Route, prober, reporter
from gateway.actors.runtime import Inbox, Ref, open_runtime
from gateway.actors.store import open_sqlite
from gateway.actors.store.sqlite import inline
from gateway.errors import StoreUnavailable
from gateway.http.operator_models import Registry, add_models, recent, totals
from gateway.http.server import GatewayApp
from gateway.registry.qualification import Finding, Outcome, Proofs, Rules, qualification_id
from tests.registry.ai.shelf import LUNA, SMOLLM2, route

START = datetime(2026, 1, 1, tzinfo=UTC)
LOST = Outcome(f"ai/{LUNA}", ok=False, reason="status_500", ms=40)


def utc() -> datetime:
    return START + timedelta(seconds=trio.current_time())


def clock_ms() -> int:
    return round(utc().timestamp() * 1000)


@attrs.define(eq=False)
class Site:
    """The pages over a real prober with its history; `health` is what each route's probe finds."""

    health: dict[str, Finding]
    registry: Registry
    app: GatewayApp
    ref: Ref[Message]

    async def get(self, path: str) -> Any:
        answer = await self.app.test_client().get(path)
        assert answer.headers["Cache-Control"] == "no-store"
        return await answer.get_json()

    async def probe(self, body: object = None) -> Any:
        answer = await self.app.test_client().post("/registry/probe", json=body)
        return await answer.get_json()

    async def find(self, route_id: str = f"ai/{LUNA}") -> Any:
        return next(each for each in (await self.get("/models"))["routes"] if each["route"] == route_id)


@asynccontextmanager
async def open_site(directory: Path, **changes: Any) -> AsyncIterator[Site]:
    models = [
        attrs.evolve(route(LUNA, simulated=True), billed=True),
        attrs.evolve(route(LUNA), route_id=f"ai/{LUNA}-2"),
        route(SMOLLM2),
    ]
    names = [*(each.route_id for each in models), "search/index"]
    health = dict.fromkeys(names, Finding(ok=True))
    health[f"ai/{SMOLLM2}"] = Finding(ok=False, reason="unreachable")

    async def look(name: str) -> Finding:
        return health[name]

    async with open_runtime() as runtime, open_sqlite(runtime, directory / "node.db", run=inline) as store:
        history, proofs = ProbeHistory(store, node="node-1", clock_ms=clock_ms), Proofs(trio.current_time)
        await runtime.start("probe-history", history.watch)
        routes = [Route(name, partial(look, name), rules=Rules(failures_to_close=1)) for name in names]
        body = partial(prober, routes=routes, proofs=proofs, utc=utc, noted=history.note)
        ref = await runtime.start("prober", body)
        registry = attrs.evolve(Registry(models, proofs, ref, store, clock_ms), **changes)
        app = GatewayApp(base_url="http://node.example", body_cap=lambda _: 1000)
        add_models(app, registry)
        yield Site(health, registry, app, ref)


# -- what is proved now ------------------------------------------------------------------------------------------------


async def test_every_route_is_shown_with_its_model_and_its_evidence(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with open_site(tmp_path) as site:
        luna, _, small, search = (await site.get("/models"))["routes"]
    assert (luna["route"], luna["model"], luna["kind"]) == (f"ai/{LUNA}", LUNA, "openai")
    assert (luna["billed"], luna["simulated"], luna["upstreamModel"]) == (True, True, "gpt-5.6-luna")
    assert (luna["availability"], luna["reason"], luna["basis"]) == ("available", None, "probe")
    assert luna["lastProbeAt"] == "2026-01-01T00:00:00.000Z"
    assert luna["validUntil"] == "2026-01-01T00:00:45.000Z"
    assert luna["qualificationId"] == qualification_id(f"ai/{LUNA}", START, "probe")
    assert (small["availability"], small["reason"], small["qualificationId"]) == ("unavailable", "unreachable", None)
    assert (search["route"], search["model"], search["billed"]) == ("search/index", None, None)


async def test_the_totals_count_routes_models_and_reasons(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with open_site(tmp_path) as site:
        told = await site.get("/models")
    assert told["totals"] == {
        "routes": 4,
        "open": 3,
        "closed": 1,
        "billed": 1,
        "simulated": 1,
        "models": 2,
        "openModels": 1,
        "reasons": {"unreachable": 1},
    }
    assert totals([])["routes"] == 0


async def test_a_failed_call_is_seen_at_once(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with open_site(tmp_path) as site:
        reporter(site.ref)(LOST)
        await trio.testing.wait_all_tasks_blocked()
        assert (await site.find())["reason"] == "status_500"


# -- what became of it -------------------------------------------------------------------------------------------------


async def test_the_last_day_of_each_route_is_told_with_it(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with open_site(tmp_path) as site:
        await trio.sleep(599)
        reporter(site.ref)(LOST)
        await trio.sleep(100)
        told = (await site.find())["recent"]
        assert (await site.find(f"ai/{SMOLLM2}"))["recent"]["openShare"] == 0
    assert 0.99 < told["openShare"] < 1
    assert (told["hours"], told["calls"], told["failedCalls"]) == (24, 1, 1)
    assert [(each["availability"], each["reason"]) for each in told["states"]] == [
        ("available", None),
        ("unavailable", "status_500"),
    ]
    assert told["states"][0]["probes"] == told["probes"] > 40


async def test_before_anything_was_written_nothing_is_said_of_the_last_day(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with open_site(tmp_path) as site:
        told = (await site.find())["recent"]
    assert (told["openShare"], told["states"], told["probes"]) == (None, [], 0)
    assert recent([]) == told


@attrs.frozen(eq=False)
class Away:
    """A store that cannot be read."""

    async def fetch(self, *_: object) -> None:
        raise StoreUnavailable("gone")

    fetch_many = fetch


async def test_a_store_that_cannot_be_read_hides_no_evidence(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with open_site(tmp_path, store=Away()) as site:
        told = await site.find()
        assert (told["availability"], told["recent"]) == ("available", None)
        assert (await site.get("/models/history?route=search/index"))["code"] == "store_unavailable"


async def test_the_history_of_a_route_is_told_spell_by_spell_the_latest_first(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with open_site(tmp_path) as site:
        await trio.sleep(120)
        reporter(site.ref)(LOST)
        await trio.sleep(500)
        told = await site.get(f"/models/history?route=ai/{LUNA}&hours=1")
    assert (told["route"], told["hours"]) == (f"ai/{LUNA}", 1)
    assert [(each["availability"], each["from"][11:19], each["reason"]) for each in told["spells"]] == [
        ("available", "00:10:00", None),
        ("available", "00:05:00", None),
        ("available", "00:02:01", None),
        ("unavailable", "00:02:00", "status_500"),
        ("available", "00:00:00", None),
    ]
    assert told["spells"][-1] == {
        "route": f"ai/{LUNA}",
        "node": "node-1",
        "from": "2026-01-01T00:00:00.000Z",
        "to": "2026-01-01T00:02:00.000Z",
        "seconds": 120,
        "availability": "available",
        "reason": None,
        "qualificationId": qualification_id(f"ai/{LUNA}", START, "probe"),
        "probes": told["spells"][-1]["probes"],
        "failedProbes": 0,
        "calls": 0,
        "failedCalls": 0,
        "p50Ms": 0,
    }


async def test_only_so_many_hours_are_told(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with open_site(tmp_path) as site:
        await trio.sleep(4 * 3600 + 60)
        spells = {
            hours: (await site.get(f"/models/history?route=search/index&hours={hours}"))["spells"] for hours in (1, 3)
        }
    assert [len(each) for each in spells.values()] == [13, 37]


async def test_an_unknown_route_has_no_history(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with open_site(tmp_path) as site:
        assert (await site.get("/models/history?route=ai/none"))["code"] == "not_found"
        assert (await site.get("/models/history?route=search/index"))["spells"] == []


@pytest.mark.parametrize(
    "query", ["route=", "hours=3", "route=a&hours=0", "route=a&hours=2161", "route=a&hours=x", "qualificationId=q_1"]
)
async def test_a_wrong_query_is_400_and_names_the_parameter(
    autojump_clock: MockClock, tmp_path: Path, query: str
) -> None:
    async with open_site(tmp_path) as site:
        told = await site.get(f"/models/history?{query}")
    named = {"route=": "route", "hours=3": "route", "qualificationId=q_1": "qualificationId"}.get(query, "hours")
    assert (told["status"], [each["pointer"] for each in told["errors"]]) == (400, [f"#query/{named}"])


# -- a qualification id ------------------------------------------------------------------------------------------------


async def test_a_qualification_id_of_a_receipt_tells_its_route_its_time_and_what_was_seen_then(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with open_site(tmp_path) as site:
        await trio.sleep(1000)
        name = (await site.find())["qualificationId"]
        proved_at = (await site.find())["lastProbeAt"]
        reporter(site.ref)(LOST)
        await trio.sleep(100)
        told = await site.get(f"/models/history?qualificationId={name}")
        assert (told["route"], told["basis"], told["provedAt"]) == (f"ai/{LUNA}", "probe", proved_at)
        assert told["spells"][0]["availability"] == "available"
        assert told["spells"][0]["from"] <= told["provedAt"] <= told["spells"][0]["to"]
        await thin(site.registry.store, clock_ms() + 2 * DAY_MS, ALONE)
        thinned = await site.get(f"/models/history?qualificationId={name}")
        assert (thinned["route"], thinned["spells"][0]["probes"] > told["spells"][0]["probes"]) == (f"ai/{LUNA}", True)


async def test_a_proof_of_the_last_seconds_is_known_before_it_is_written(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with open_site(tmp_path) as site:
        name = (await site.find("search/index"))["qualificationId"]
        told = await site.get(f"/models/history?qualificationId={name}")
        assert (told["route"], told["spells"]) == ("search/index", [])


async def test_a_name_that_no_proof_has_is_not_found(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with open_site(tmp_path) as site:
        name = qualification_id("ai/none", START, "probe")
        assert (await site.get(f"/models/history?qualificationId={name}"))["code"] == "not_found"


# -- a probe at once ---------------------------------------------------------------------------------------------------


async def test_a_route_is_probed_at_once_and_its_evidence_told(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with open_site(tmp_path) as site:
        site.health[f"ai/{SMOLLM2}"] = Finding(ok=True)
        (told,) = (await site.probe({"id": f"ai/{SMOLLM2}"}))["routes"]
    assert (told["model"], told["availability"]) == (SMOLLM2, "available")


async def test_the_id_of_a_model_names_all_its_routes(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with open_site(tmp_path) as site:
        await trio.sleep(5)
        told = (await site.probe({"id": LUNA}))["routes"]
    assert [each["route"] for each in told] == [f"ai/{LUNA}", f"ai/{LUNA}-2"]
    assert {each["lastProbeAt"] for each in told} == {"2026-01-01T00:00:05.000Z"}


@pytest.mark.parametrize("body", [None, {}, {"id": None}])
async def test_without_an_id_everything_is_probed(
    autojump_clock: MockClock, tmp_path: Path, body: dict[str, None] | None
) -> None:
    async with open_site(tmp_path) as site:
        if body is None:
            answer = await site.app.test_client().post("/registry/probe")
            told = await answer.get_json()
        else:
            told = await site.probe(body)
    assert len(told["routes"]) == 4


async def test_an_id_without_a_route_is_not_found(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with open_site(tmp_path) as site:
        assert (await site.probe({"id": "gateway/smart"}))["code"] == "not_found"


@pytest.mark.parametrize(("body", "pointer"), [({"id": 7}, "/id"), ({"id": ""}, "/id"), ({"di": "a"}, "/di"), ([], "")])
async def test_what_is_no_request_for_a_probe_is_400(
    autojump_clock: MockClock, tmp_path: Path, body: object, pointer: str
) -> None:
    async with open_site(tmp_path) as site:
        told = await site.probe(body)
    assert (told["status"], [each["pointer"] for each in told["errors"]]) == (400, [pointer])


async def test_a_request_for_a_probe_is_json(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with open_site(tmp_path) as site:
        answer = await site.app.test_client().post("/registry/probe", data="id=a")
        assert answer.status_code == 415


async def test_a_prober_that_does_not_answer_is_503(autojump_clock: MockClock, tmp_path: Path) -> None:
    async def deaf(inbox: Inbox[Message]) -> None:
        inbox.ready()
        await trio.sleep(100)

    async with open_runtime() as runtime:
        ref: Ref[Message] = await runtime.start("deaf", deaf)
        for none in (ref, None):
            async with open_site(tmp_path, prober=none) as site:
                told = await site.probe({"id": LUNA})
                assert (told["status"], told["code"]) == (503, "operation_unavailable")
