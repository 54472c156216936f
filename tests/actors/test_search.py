from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.actors.prober import prober, reporter
from gateway.actors.runtime import open_runtime
from gateway.actors.search import WORKERS, SearchFamily, prove, run_worker, search_routes, settings_of
from gateway.actors.upstream import Caller, upstream
from gateway.errors import (
    CapabilityUnavailable,
    EngineBlocked,
    ExecutorFailed,
    OperationUnavailable,
)
from gateway.registry.call_evidence import Weight
from gateway.registry.execution import Family, Work
from gateway.registry.http_call import (
    AnswerTooLarge,
    HttpAnswer,
    HttpCall,
    NodeOverloaded,
    UpstreamBroken,
    UpstreamFailed,
    UpstreamTimeout,
    UpstreamUnreachable,
    WorkerFailed,
)
from gateway.registry.qualification import Evidence, Outcome, Proofs, State
from gateway.registry.search.adapter import Adapter, Cost, WorkerCall
from gateway.registry.search.adapters import AdapterSettings, build
from gateway.registry.search.brave import BraveAdapter
from gateway.registry.search.ddgs import DdgsAdapter
from gateway.registry.search.request import SearchRequest
from gateway.registry.search.searxng import SearxngAdapter

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FIRST = SearxngAdapter("first", "http://first.example")
SECOND = SearxngAdapter("second", "http://second.example", Cost(300, "configured_per_call"))
BRAVE = BraveAdapter("brave", "k", Cost(5000, "configured_per_call"))
REQUEST = SearchRequest("trio")
PAGE = {
    "results": [{"url": "https://trio.example/", "title": "Trio", "content": "c", "engine": "bing"}],
    "unresponsive_engines": [],
}


def answer(body: Any, status: int = 200) -> HttpAnswer:
    return HttpAnswer(status, {}, json.dumps(body).encode(), 7)


class Engines:
    """Back ends by host name: what each answers, raises, or how long it takes."""

    def __init__(self, **hosts: Any) -> None:
        self._hosts = hosts
        self.calls: list[HttpCall] = []

    async def __call__(self, call: HttpCall) -> HttpAnswer:
        self.calls.append(call)
        scripted = self._hosts[(urlsplit(call.url).hostname or "").split(".")[-2]]
        if isinstance(scripted, Exception):
            raise scripted
        if isinstance(scripted, float):
            await trio.sleep(scripted)
            return answer(PAGE)
        await trio.lowlevel.checkpoint()
        return scripted if isinstance(scripted, HttpAnswer) else answer(scripted)


@attrs.define
class Scene:
    family: SearchFamily
    outcomes: list[Outcome]

    async def run(self, request: SearchRequest = REQUEST, seconds: float = 12.0) -> Any:
        deadline = trio.current_time() + seconds
        return await self.family.execute(Work("op_1", "search.paid", request, 1, deadline))

    async def fails(self, request: SearchRequest = REQUEST, seconds: float = 12.0) -> ExecutorFailed:
        with pytest.raises(ExecutorFailed) as caught:
            await self.run(request, seconds)
        return caught.value


def scene(adapters: Sequence[Adapter], call: Callable[..., Any], closed: Sequence[str] = ()) -> Scene:
    proofs = Proofs(trio.current_time)
    proofs.publish(
        {
            f"search/{adapter.name}": Evidence(
                f"search/{adapter.name}",
                State.UNAVAILABLE if adapter.name in closed else State.AVAILABLE,
                f"q_{adapter.name}",
                "unreachable" if adapter.name in closed else None,
                expires=trio.current_time() + 45,
            )
            for adapter in adapters
        }
    )
    outcomes: list[Outcome] = []
    return Scene(SearchFamily(adapters, proofs, call, outcomes.append, lambda: NOW), outcomes)


async def test_it_is_a_family() -> None:
    family: Family = scene([FIRST], Engines(first=PAGE)).family
    family.admit("search.free", REQUEST)


async def test_a_free_search_spends_the_budget_of_an_engine_that_bills() -> None:
    billing = BraveAdapter("brave", "k", Cost(5000, "configured_per_call", billed=True))
    family = scene([billing, FIRST], Engines(first=PAGE)).family
    assert family.budget("search.free", REQUEST) == "billed:search/brave"
    assert family.budget("search.paid", REQUEST) is None
    assert scene([FIRST, billing], Engines(first=PAGE)).family.budget("search.free", REQUEST) is None


@pytest.mark.parametrize(
    ("operation", "budget", "asked"),
    [
        ("search.free", "billed:search/brave", ["brave", "first"]),
        ("search.free", None, ["first"]),
        ("search.free", "billed:search/tavily", ["first"]),
        ("search.paid", None, ["brave", "first"]),
    ],
)
async def test_a_free_search_goes_to_no_engine_that_bills_but_the_one_that_it_was_counted_on(
    operation: str, budget: str | None, asked: list[str]
) -> None:
    billing = BraveAdapter("brave", "k", Cost(5000, "configured_per_call", billed=True))
    engines = Engines(brave=answer({}, 500), first=PAGE)
    family = scene([billing, FIRST], engines).family
    await family.execute(Work("op_1", operation, REQUEST, 1, trio.current_time() + 12, budget))
    assert [(urlsplit(call.url).hostname or "").split(".")[-2] for call in engines.calls] == asked


async def test_a_free_search_that_only_a_billing_engine_could_serve_fails_where_nothing_was_counted_on_it() -> None:
    billing = BraveAdapter("brave", "k", Cost(5000, "configured_per_call", billed=True))
    family = scene([billing], Engines()).family
    with pytest.raises(ExecutorFailed) as caught:
        await family.execute(Work("op_1", "search.free", REQUEST, 1, trio.current_time() + 12))
    assert caught.value.extra["reason"] == "budget_not_reserved"


async def test_a_search_is_served_with_a_true_route(autojump_clock: MockClock) -> None:
    here = scene([FIRST, SECOND], Engines(first=PAGE))
    served = await here.run()
    assert [result["url"] for result in served.output["results"]] == ["https://trio.example/"]
    assert served.output["route"] == {
        "routeId": "search/first",
        "qualificationId": "q_first",
        "servingAdapters": ["first"],
        "degraded": False,
        "fallback": False,
        "cost": {
            "asset": "USD",
            "amountAtomic": "0",
            "usd": "0.000000",
            "basis": "self_hosted_no_charge_per_call",
        },
    }
    assert served.execution == {"adapter": "first", "attempts": [{"adapter": "first", "outcome": "served", "ms": 0}]}
    assert here.outcomes == [Outcome("search/first", True, None, 0, 0.0)]


async def test_an_empty_page_is_an_answer(autojump_clock: MockClock) -> None:
    here = scene([FIRST, SECOND], Engines(first=PAGE | {"results": []}))
    served = await here.run()
    assert (served.output["results"], served.output["route"]["fallback"]) == ([], False)
    assert here.outcomes[0].ok


async def test_engines_that_did_not_respond_degrade_the_route(autojump_clock: MockClock) -> None:
    served = await scene([FIRST], Engines(first=PAGE | {"unresponsive_engines": [["google", "CAPTCHA"]]})).run()
    assert served.output["route"]["degraded"] is True
    assert served.output["unresponsive"] == ["google"]


@pytest.mark.parametrize(
    ("broken", "reason", "weight"),
    [
        (UpstreamUnreachable("x"), "unreachable", Weight.PROOF),
        (UpstreamTimeout("x"), "timeout", Weight.DOUBT),
        (UpstreamBroken("x"), "connection_broken", Weight.FAULT),
        (AnswerTooLarge("x"), "answer_too_large", Weight.DOUBT),
        (UpstreamFailed("x"), "upstream_failed", Weight.FAULT),
        (WorkerFailed("x"), "worker_failed", Weight.DOUBT),
        (answer({}, 500), "status_500", Weight.FAULT),
        (answer({}, 401), "status_401", Weight.PROOF),
        (answer({}, 302), "status_302", Weight.DOUBT),
        (answer({}, 204), "status_204", Weight.DOUBT),
        (answer({}, 403), "blocked", Weight.FAULT),
        (answer({}, 429), "blocked", Weight.PROOF),
        (HttpAnswer(200, {}, b"<p>Solve this CAPTCHA</p>", 1), "blocked", Weight.DOUBT),
        (answer({"results": [], "unresponsive_engines": [["google", "x"]]}), "blocked", Weight.DOUBT),
        (answer(["html"]), "malformed_answer", Weight.DOUBT),
        (30.0, "timeout", Weight.DOUBT),
    ],
)
async def test_when_the_first_fails_the_next_serves_as_a_fallback(
    autojump_clock: MockClock, broken: Any, reason: str, weight: Weight
) -> None:
    here = scene([FIRST, SECOND], Engines(first=broken, second=PAGE))
    served = await here.run()
    assert served.output["route"]["servingAdapters"] == ["second"]
    assert served.output["route"]["qualificationId"] == "q_second"
    assert served.output["route"]["fallback"] is True
    assert [each["outcome"] for each in served.execution["attempts"]] == [reason, "served"]
    assert [(each.ok, each.reason) for each in here.outcomes] == [(False, reason), (True, None)]
    assert here.outcomes[0].weight is weight


async def test_the_cost_counts_a_billed_call_that_failed_but_not_one_that_was_never_sent(
    autojump_clock: MockClock,
) -> None:
    served = await scene([BRAVE, SECOND], Engines(brave=answer({}, 500), second=PAGE)).run()
    assert served.output["route"]["cost"]["amountAtomic"] == "5300"
    assert served.output["route"]["cost"]["basis"] == "configured_per_call_and_failed_attempts"
    served = await scene([BRAVE, SECOND], Engines(brave=UpstreamUnreachable("x"), second=PAGE)).run()
    assert served.output["route"]["cost"]["amountAtomic"] == "300"


async def test_a_closed_first_choice_makes_the_second_a_fallback_without_being_asked(autojump_clock: MockClock) -> None:
    engines = Engines(second=PAGE)
    served = await scene([FIRST, SECOND], engines, closed=["first"]).run()
    assert served.output["route"]["fallback"] is True
    assert len(engines.calls) == 1


async def test_an_adapter_that_cannot_serve_the_request_is_never_asked_and_the_next_is_no_fallback(
    autojump_clock: MockClock,
) -> None:
    engines = Engines(first=PAGE)
    served = await scene([BRAVE, FIRST], engines).run(SearchRequest("x" * 500))
    assert served.output["route"]["servingAdapters"] == ["first"]
    assert served.output["route"]["fallback"] is False
    assert served.output["query"] == "x" * 500


async def test_when_all_fail_the_last_failure_is_told_with_every_attempt(autojump_clock: MockClock) -> None:
    here = scene([FIRST, SECOND], Engines(first=answer({}, 500), second=UpstreamUnreachable("x")))
    problem = await here.fails()
    assert problem.status == 502
    assert problem.extra["reason"] == "unreachable"
    assert [each["outcome"] for each in problem.extra["attempts"]] == ["status_500", "unreachable"]


async def test_a_blocked_engine_is_not_an_empty_answer(autojump_clock: MockClock) -> None:
    problem = await scene([FIRST], Engines(first=answer({}, 429))).fails()
    assert isinstance(problem, EngineBlocked)
    assert (problem.status, problem.code) == (502, "engine_blocked")


async def test_a_hanging_engine_gets_eight_seconds_and_the_next_the_rest(autojump_clock: MockClock) -> None:
    engines = Engines(first=30.0, second=30.0)
    started = trio.current_time()
    problem = await scene([FIRST, SECOND], engines).fails()
    assert trio.current_time() - started == pytest.approx(12.0)
    assert [call.timeout_s for call in engines.calls] == [8.0, 4.0]
    assert problem.extra["reason"] == "timeout"


async def test_without_time_no_engine_is_asked(autojump_clock: MockClock) -> None:
    engines = Engines(first=PAGE)
    problem = await scene([FIRST], engines).fails(seconds=0.1)
    assert (problem.extra, engines.calls) == ({"reason": "deadline", "attempts": []}, [])


async def test_a_full_queue_of_this_node_is_not_held_against_the_engine(autojump_clock: MockClock) -> None:
    here = scene([FIRST], Engines(first=NodeOverloaded("first")))
    assert (await here.fails()).extra["reason"] == "node_overloaded"
    assert here.outcomes == []


@pytest.mark.parametrize("status", [400, 413, 414, 422])
async def test_an_engine_that_refuses_one_callers_query_is_not_closed_by_it(
    autojump_clock: MockClock, status: int
) -> None:
    here = scene([FIRST], Engines(first=answer({}, status)))
    assert (await here.fails()).extra["reason"] == f"status_{status}"
    assert here.outcomes == []


async def test_a_refused_key_is_held_against_the_route(autojump_clock: MockClock) -> None:
    here = scene([BRAVE], Engines(brave=answer({}, 401)))
    await here.fails()
    assert [each.reason for each in here.outcomes] == ["status_401"]


async def test_a_cancelled_search_reports_nothing(autojump_clock: MockClock) -> None:
    here = scene([FIRST], Engines(first=5.0))
    with trio.move_on_after(1):
        await here.run()
    assert here.outcomes == []


async def test_nothing_proven_is_not_admitted(autojump_clock: MockClock) -> None:
    here = scene([FIRST], Engines(first=PAGE), closed=["first"])
    with pytest.raises(OperationUnavailable) as caught:
        here.family.admit("search.free", REQUEST)
    assert caught.value.extra["reason"] == "unreachable"
    with pytest.raises(OperationUnavailable):
        await here.run()


async def test_what_the_proven_cannot_serve_is_not_admitted(autojump_clock: MockClock) -> None:
    here = scene([BRAVE], Engines())
    with pytest.raises(CapabilityUnavailable):
        here.family.admit("search.free", SearchRequest("x" * 401))


async def test_an_expired_proof_admits_nothing(autojump_clock: MockClock) -> None:
    here = scene([FIRST], Engines(first=PAGE))
    here.family.admit("search.free", REQUEST)
    await trio.sleep(45)
    with pytest.raises(OperationUnavailable) as caught:
        here.family.admit("search.free", REQUEST)
    assert caught.value.extra["reason"] == "proof_expired"


async def test_the_embedded_index_serves_and_says_that_it_is_local() -> None:
    (index,) = build([AdapterSettings("index")], base_url="http://127.0.0.1:8402")
    served = await scene([index], Engines()).run(SearchRequest("how are receipts verified", max_results=2))
    assert len(served.output["results"]) == 2
    assert served.output["coverage"] == "local"
    assert served.output["route"]["servingAdapters"] == ["embedded-index"]
    assert served.output["results"][0]["url"] == "http://127.0.0.1:8402/docs/receipts"
    assert served.output["results"][0]["source"] == "embedded-index"


async def test_the_embedded_index_that_finds_nothing_answers_nothing() -> None:
    (index,) = build([AdapterSettings("index")], base_url="http://127.0.0.1:8402")
    served = await scene([index], Engines()).run(SearchRequest('quark OR "gluon" AND ('))
    assert served.output["results"] == []


async def test_routes_are_proved_without_a_billed_call(autojump_clock: MockClock) -> None:
    engines = Engines(first=answer({"engines": [{"name": "bing", "enabled": True}]}))
    (index,) = build([AdapterSettings("index")], base_url="http://127.0.0.1:8402")
    assert (await prove(FIRST, engines)).ok
    assert [urlsplit(call.url).path for call in engines.calls] == ["/healthz", "/config"]
    assert (await prove(index, engines)).ok
    assert (await prove(BRAVE, engines)).basis == "configuration"
    assert len(engines.calls) == 2
    assert (await prove(FIRST, Engines(first=UpstreamUnreachable("x")))).reason == "unreachable"


def worker(program: str) -> WorkerCall:
    return WorkerCall((sys.executable, "-I", "-c", program), b'{"query": "trio"}', timeout_s=20.0, max_bytes=1000)


def test_the_proof_of_an_engine_elsewhere_holds_for_every_node_that_asks_it_the_same() -> None:
    settings = settings_of(FIRST)
    assert settings is not None
    assert settings == settings_of(SearxngAdapter("first", "http://first.example/"))
    assert [route.settings for route in search_routes([FIRST], Engines())] == [settings]


@pytest.mark.parametrize(
    "other",
    [SearxngAdapter("first", "http://other.example"), SearxngAdapter("second", "http://first.example")],
)
def test_the_proof_of_an_engine_does_not_hold_for_who_asks_something_else(other: SearxngAdapter) -> None:
    assert settings_of(other) != settings_of(FIRST)


def test_a_key_that_the_probe_sends_is_part_of_the_settings() -> None:
    @attrs.frozen
    class Keyed(SearxngAdapter):
        key: str = "k1"

        def probe_calls(self) -> tuple[HttpCall, ...]:
            return (HttpCall("GET", f"{self.base_url}/usage", (("authorization", self.key),)),)

    first, second = Keyed("first", "http://first.example"), Keyed("first", "http://first.example", key="k2")
    assert settings_of(first) != settings_of(second)
    assert "k1" not in (settings_of(first) or "")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8080", "http://127.8.8.8", "http://[::1]:8080", "http://localhost", "http://x.localhost/"]
)
def test_an_engine_on_a_node_s_own_host_is_proved_by_each_node(url: str) -> None:
    assert settings_of(SearxngAdapter("first", url)) is None


def test_what_rests_on_a_node_s_own_configuration_is_proved_by_each_node() -> None:
    local = build([AdapterSettings("index")], base_url="https://node.example")
    for adapter in (BRAVE, DdgsAdapter("ddgs"), *local):
        assert settings_of(adapter) is None


async def test_a_worker_reads_its_task_and_answers() -> None:
    done = await run_worker(worker("import sys; sys.stdout.write(sys.stdin.read())"))
    assert (done.status, done.content) == (200, b'{"query": "trio"}')


async def test_a_worker_sees_nothing_of_the_nodes_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_SECRET", "x")
    done = await run_worker(worker("import os, sys; sys.stdout.write(' '.join(sorted(os.environ)))"))
    assert b"GATEWAY_SECRET" not in done.content


async def test_a_worker_that_dies_is_a_broken_upstream() -> None:
    with pytest.raises(WorkerFailed):
        await run_worker(worker("import os; os.abort()"))


async def test_a_worker_that_talks_too_much_is_refused() -> None:
    with pytest.raises(AnswerTooLarge):
        await run_worker(worker("print('x' * 2000)"))


async def test_a_worker_that_will_not_end_is_killed() -> None:
    call = attrs.evolve(worker(STUBBORN), timeout_s=1.0)
    with pytest.raises(UpstreamTimeout):
        await run_worker(call)


async def test_a_library_adapter_is_served_from_its_worker() -> None:
    program = "import json; print(json.dumps({'results': [{'title': 'T', 'href': 'https://e.example/', 'body': 'b'}]}))"
    adapter = DdgsAdapter("ddgs", worker=(sys.executable, "-I", "-c", program), installed=True)
    served = await scene([adapter], Engines()).run()
    assert served.output["results"][0]["url"] == "https://e.example/"
    assert WORKERS > 0


async def test_a_stubborn_worker_costs_one_request_its_time_and_no_more() -> None:
    adapter = DdgsAdapter("ddgs", worker=(sys.executable, "-I", "-c", STUBBORN), installed=True)
    problem = await scene([adapter], Engines()).fails(seconds=1.5)
    assert problem.extra["reason"] == "timeout"


STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"


async def test_over_real_sockets_an_instance_that_dies_closes_its_route_and_opens_it_again() -> None:
    state = {"up": True}

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            head = await stream.receive_some(65536)
            path = head.split(b" ")[1]
            body = json.dumps(PAGE | {"engines": [{"name": "bing", "enabled": True}]}).encode()
            status = b"200 OK" if state["up"] else b"503 Gone"
            if path.startswith(b"/search") or state["up"]:
                await stream.send_all(
                    b"HTTP/1.1 %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (status, len(body), body)
                )

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        (adapter,) = build([AdapterSettings("searxng", base_url=f"http://127.0.0.1:{port}")], base_url="http://h")
        proofs = Proofs(trio.current_time)
        async with open_runtime() as runtime:
            call = Caller(await runtime.start("upstream", upstream))
            routes = search_routes([adapter], call)
            ref = await runtime.start(
                "prober", partial(prober, routes=routes, proofs=proofs, utc=lambda: datetime.now(UTC))
            )
            family = SearchFamily([adapter], proofs, call, reporter(ref), lambda: datetime.now(UTC))
            here = Scene(family, [])
            assert (await here.run()).output["results"][0]["title"] == "Trio"

            state["up"] = False
            assert (await here.fails()).extra["reason"] == "status_503"
            await until(lambda: not proofs.of("search/searxng").open)
            with pytest.raises(OperationUnavailable):
                family.admit("search.paid", REQUEST)

            state["up"] = True
            await until(lambda: proofs.of("search/searxng").open)
            assert (await here.run()).output["results"]
        nursery.cancel_scope.cancel()


async def until(holds: Callable[[], bool]) -> None:
    with trio.fail_after(10):
        while not holds():  # noqa: ASYNC110 - the prober publishes; there is no event to wait for
            await trio.sleep(0.02)
