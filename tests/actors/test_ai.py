from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import attrs
import orjson
import pytest
import trio
from trio.testing import MockClock

from gateway.actors.ai import (
    EMBEDDED_QUEUE,
    FAIR_TRIAL_S,
    LAST_WORD_S,
    AiFamily,
    ai_routes,
    prove,
    settings_of,
    try_out,
)
from gateway.actors.prober import prober, reporter
from gateway.actors.runtime import open_runtime
from gateway.actors.upstream import Caller, upstream
from gateway.errors import (
    CapabilityUnavailable,
    CapacityExhausted,
    ContextLengthExceeded,
    ExecutionFailed,
    GatewayError,
    ModelUnavailable,
)
from gateway.http.advice import advice
from gateway.registry.ai.adapter import ModelRoute
from gateway.registry.ai.anthropic import AnthropicAdapter
from gateway.registry.ai.catalog import CATALOG
from gateway.registry.ai.embedded import EmbeddedAdapter, Endpoint
from gateway.registry.ai.embedded_engine import MODEL
from gateway.registry.ai.embedded_engine import SLOTS as EMBEDDED_SLOTS
from gateway.registry.ai.openai import OpenAiAdapter
from gateway.registry.ai.prompt import Message, Prompt, Sampling
from gateway.registry.call_evidence import Weight
from gateway.registry.canonical import result_hash
from gateway.registry.execution import Family, Served, Work
from gateway.registry.http_call import (
    AnswerLost,
    AnswerTooLarge,
    HttpAnswer,
    HttpCall,
    NodeOverloaded,
    UpstreamBroken,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from gateway.registry.qualification import Evidence, Finding, Outcome, Proofs, Rules, State
from tests.actors.back_ends import serving

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LUNA, FREE, FAST, SMART = "openai/gpt-5.6-luna", "openai/gpt-oss-20b", "gateway/fast", "gateway/smart"
SMOL = "huggingfacetb/smollm2-135m-instruct"
NETWORK = "192.0.2.7"
USAGE = {"prompt_tokens": 9, "completion_tokens": 3}


@attrs.frozen
class Request:
    prompt: Prompt


def asks(model: str = LUNA, **sampling: Any) -> Request:
    return Request(Prompt(model, (Message("user", "hello"),), 16, sampling=Sampling(**sampling)))


def completion(model: str, **changes: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}
    return {"id": "x", "model": model, "choices": [choice], "usage": USAGE} | changes


def answer(body: Any, status: int = 200, **headers: str) -> HttpAnswer:
    return HttpAnswer(status, headers, orjson.dumps(body), 7)


def route(name: str, model: str = LUNA, **changes: Any) -> ModelRoute:
    adapter = OpenAiAdapter(f"http://{name}.example", name, "key")
    given: dict[str, Any] = {"billed": False, "canary": False} | changes
    return ModelRoute(f"ai/{name}", model, adapter, **given)


def embedded(name: str = "embedded") -> ModelRoute:
    adapter = EmbeddedAdapter(lambda: Endpoint(f"http://{name}.example", "key"))
    return ModelRoute(f"ai/{name}", SMOL, adapter, billed=False, canary=False)


class Upstreams:
    """Model upstreams by host name: what each answers, raises, or how long it takes; any other serves."""

    def __init__(self, **hosts: Any) -> None:
        self._hosts = hosts
        self.calls: list[HttpCall] = []
        self.stopped = 0

    async def __call__(self, call: HttpCall, *, stops: bool = False) -> HttpAnswer:
        self.calls.append(call)
        host = (urlsplit(call.url).hostname or "").removesuffix(".example")
        scripted = self._hosts.get(host)
        if isinstance(scripted, Exception):
            raise scripted
        if isinstance(scripted, float):
            try:
                await trio.sleep(scripted)
            except trio.Cancelled:
                self.stopped += stops
                raise
            scripted = None
        await trio.lowlevel.checkpoint()
        if scripted is None:
            return answer(completion(MODEL if host == "embedded" else host))
        return scripted if isinstance(scripted, HttpAnswer) else answer(scripted)

    @property
    def asked(self) -> list[str]:
        return [(urlsplit(call.url).hostname or "").removesuffix(".example") for call in self.calls]


@attrs.define
class Scene:
    family: AiFamily
    outcomes: list[Outcome]

    async def run(
        self,
        request: Request | None = None,
        operation: str = "ai.execute",
        seconds: float = 60.0,
        budget: str | None = None,
        network: str = NETWORK,
    ) -> Served:
        deadline = trio.current_time() + seconds
        return await self.family.execute(
            Work("op_1", operation, request or asks(), 1, deadline, budget, network=network)
        )

    async def fails(self, request: Request | None = None, seconds: float = 60.0) -> GatewayError:
        with pytest.raises(GatewayError) as caught:
            await self.run(request, seconds=seconds)
        return caught.value


def scene(
    routes: Sequence[ModelRoute],
    call: Callable[..., Awaitable[HttpAnswer]] | None = None,
    *,
    closed: Sequence[str] = (),
    degraded: Sequence[str] = (),
) -> Scene:
    def state(name: str) -> State:
        return State.UNAVAILABLE if name in closed else State.DEGRADED if name in degraded else State.AVAILABLE

    proofs = Proofs(trio.current_time)
    names = {each.route_id: each.route_id.removeprefix("ai/") for each in routes}
    proofs.publish(
        {
            route_id: Evidence(
                route_id,
                state(name),
                f"q_{name}",
                "unreachable" if name in closed else None,
                expires=trio.current_time() + 1e6,
            )
            for route_id, name in names.items()
        }
    )
    outcomes: list[Outcome] = []
    return Scene(AiFamily(CATALOG, routes, proofs, call or Upstreams(), outcomes.append, lambda: NOW), outcomes)


# -- admission ---------------------------------------------------------------------------------------------------------


async def test_it_is_a_family() -> None:
    family: Family = scene([route("a")]).family
    family.admit("chat.completions", asks())


async def test_what_no_proven_route_can_serve_is_not_admitted() -> None:
    picky = ModelRoute("ai/a", LUNA, AnthropicAdapter("http://a.example", "a", "k"), billed=False, canary=False)
    with pytest.raises(ModelUnavailable):
        scene([route("a")], closed=["a"]).family.admit("ai.execute", asks())
    with pytest.raises(CapabilityUnavailable):
        scene([picky]).family.admit("ai.execute", asks(seed=1))


async def test_a_free_call_spends_the_budget_of_the_billed_route_that_is_asked_first() -> None:
    billed, plain = route("b", FREE, billed=True), route("p", FREE)
    assert scene([billed, plain]).family.budget("ai.execute", asks(FREE)) == "billed:ai/b"
    assert scene([plain, billed]).family.budget("ai.execute", asks(FREE)) is None


async def test_a_paid_call_spends_no_budget() -> None:
    assert scene([route("b", billed=True)]).family.budget("ai.execute", asks(LUNA)) is None


# -- serving -----------------------------------------------------------------------------------------------------------


async def test_a_chat_is_served_with_a_true_route(autojump_clock: MockClock) -> None:
    here = scene([route("a"), route("b")])
    served = await here.run()
    assert served.output == {
        "model": LUNA,
        "message": {"role": "assistant", "content": "Hi."},
        "finishReason": "stop",
        "usage": {"inputTokens": 9, "outputTokens": 3, "reasoningTokens": None},
        "route": {
            "routeId": "ai/a",
            "qualificationId": "q_a",
            "servingAdapters": ["a"],
            "degraded": False,
            "fallback": False,
            "cost": {"asset": "USD", "amountAtomic": "0", "usd": "0.000000", "basis": "no_charge_per_call"},
        },
    }
    assert served.execution == {
        "usage": {"inputTokens": 9, "outputTokens": 3, "reasoningTokens": None},
        "usageReported": True,
        "finishReason": "stop",
        "attempts": [{"route": "ai/a", "outcome": "served", "ms": 0}],
    }
    assert here.outcomes == [Outcome("ai/a", True, None, 0, 0.0)]


async def test_the_chat_operation_answers_in_the_form_of_openai(autojump_clock: MockClock) -> None:
    served = await scene([route("a")]).run(operation="chat.completions")
    assert (served.output["object"], served.output["id"]) == ("chat.completion", "chatcmpl-1")
    assert (served.output["created"], served.output["model"]) == (1767225600, LUNA)
    assert served.output["route"]["routeId"] == "ai/a"


async def test_usage_that_the_upstream_did_not_tell_stays_null_and_is_flagged(autojump_clock: MockClock) -> None:
    served = await scene([route("a")], Upstreams(a=completion("a", usage=None))).run()
    assert served.output["usage"] is None
    assert (served.execution["usage"], served.execution["usageReported"]) == (None, False)


@pytest.mark.parametrize("count", [2**50, 2**53 - 1, 2**53, -1, 1.5])
async def test_an_output_has_its_canonical_form_whatever_the_upstream_counted(
    autojump_clock: MockClock, count: float
) -> None:
    usage = {"prompt_tokens": count, "completion_tokens": count}
    served = await scene([route("a")], Upstreams(a=completion("a", usage=usage))).run(operation="chat.completions")
    assert result_hash(served.output).startswith("sha256:")


async def test_an_alias_is_served_by_the_id_behind_it_and_says_so(autojump_clock: MockClock) -> None:
    first, second, *_ = CATALOG.models[SMART].candidates
    here = scene([route("a", first), route("b", second)], closed=["a"])
    served = await here.run(asks(SMART))
    assert served.output["model"] == SMART
    assert (served.output["route"]["model"], served.output["route"]["fallback"]) == (second, True)


async def test_an_alias_is_not_asked_of_a_second_id_after_the_first_has_failed(autojump_clock: MockClock) -> None:
    first, second, *_ = CATALOG.models[SMART].candidates
    upstreams = Upstreams(a=answer({}, 500))
    failure = await scene([route("a", first), route("b", second)], upstreams).fails(asks(SMART))
    assert failure.extra["reason"] == "status_500"
    assert upstreams.asked == ["a"]


async def test_a_degraded_route_is_told_to_be_so(autojump_clock: MockClock) -> None:
    served = await scene([route("a")], degraded=["a"]).run()
    assert served.output["route"]["degraded"] is True


# -- failures ----------------------------------------------------------------------------------------------------------

TOOL = completion("a", choices=[{"message": {"content": None, "tool_calls": [{}]}, "finish_reason": "tool_calls"}])
ODD = completion("a", choices=[{"message": {"content": "Hi"}, "finish_reason": "because"}])
EMPTY = completion("a", choices=[{"message": {"content": ""}, "finish_reason": "stop"}])
FAILURES = [
    (UpstreamUnreachable("x"), "unreachable", Weight.PROOF),
    (UpstreamTimeout("x"), "timeout", Weight.DOUBT),
    (UpstreamBroken("x"), "connection_broken", Weight.FAULT),
    (AnswerTooLarge("x"), "answer_too_large", Weight.DOUBT),
    (answer({}, 500), "status_500", Weight.FAULT),
    (answer({}, 429), "status_429", Weight.PROOF),
    (answer({}, 401), "status_401", Weight.PROOF),
    (answer({}, 403), "status_403", Weight.FAULT),
    (HttpAnswer(200, {}, b"<html>", 1), "malformed_answer", Weight.DOUBT),
    (completion("a", choices=[]), "empty_choices", Weight.DOUBT),
    (completion("another"), "wrong_model", Weight.PROOF),
    (TOOL, "tool_call", Weight.DOUBT),
    (ODD, "unfinished", Weight.DOUBT),
    (EMPTY, "empty_content", Weight.DOUBT),
    (1000.0, "timeout", Weight.DOUBT),
]


@pytest.mark.parametrize(("broken", "reason", "weight"), FAILURES)
async def test_every_cause_of_a_failure_has_its_own_name_and_weight(
    autojump_clock: MockClock, broken: Any, reason: str, weight: Weight
) -> None:
    here = scene([route("a")], Upstreams(a=broken))
    failure = await here.fails()
    assert isinstance(failure, ExecutionFailed)
    assert failure.extra["reason"] == reason
    assert [(each["route"], each["outcome"]) for each in failure.extra["attempts"]] == [("ai/a", reason)]
    assert [(each.ok, each.reason, each.weight) for each in here.outcomes] == [(False, reason, weight)]
    assert [each.caller for each in here.outcomes] == [NETWORK]


@pytest.mark.parametrize(("broken", "reason"), [each[:2] for each in FAILURES])
async def test_another_route_to_the_same_id_serves_as_a_fallback(
    autojump_clock: MockClock, broken: Any, reason: str
) -> None:
    served = await scene([route("a"), route("b")], Upstreams(a=broken)).run()
    assert (served.output["route"]["routeId"], served.output["route"]["fallback"]) == ("ai/b", True)
    assert served.output["route"]["qualificationId"] == "q_b"
    assert [each["outcome"] for each in served.execution["attempts"]] == [reason, "served"]


async def test_no_other_model_is_asked_whatever_fails(autojump_clock: MockClock) -> None:
    upstreams = Upstreams(a=answer({}, 500))
    await scene([route("a"), route("other", FREE), route("alias", "gateway/code")], upstreams).fails()
    assert upstreams.asked == ["a"]


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_prompt_that_an_upstream_refuses_is_not_sent_to_the_next_nor_counted(
    autojump_clock: MockClock, status: int
) -> None:
    upstreams = Upstreams(a=answer({"error": {"message": "no"}}, status))
    here = scene([route("a"), route("b")], upstreams)
    failure = await here.fails()
    assert failure.extra["reason"] == f"status_{status}"
    assert not advice(failure).retryable
    assert (upstreams.asked, here.outcomes) == (["a"], [])


async def test_a_prompt_that_is_too_long_for_the_model_is_the_callers_fault(autojump_clock: MockClock) -> None:
    refused = answer({"error": {"message": "too long", "code": "context_length_exceeded"}}, 400)
    failure = await scene([route("a"), route("b")], Upstreams(a=refused)).fails()
    assert isinstance(failure, ContextLengthExceeded)
    assert failure.extra["attempts"] == [{"route": "ai/a", "outcome": "context_length_exceeded", "ms": 0}]


async def test_when_all_fail_the_last_reason_is_told_and_each_attempt(autojump_clock: MockClock) -> None:
    failing = Upstreams(a=UpstreamUnreachable("x"), b=answer({}, 429, **{"retry-after": "7"}))
    failure = await scene([route("a"), route("b")], failing).fails()
    assert (failure.extra["reason"], failure.retry_after) == ("status_429", 7.0)
    assert [each["outcome"] for each in failure.extra["attempts"]] == ["unreachable", "status_429"]


async def test_at_most_three_routes_are_asked(autojump_clock: MockClock) -> None:
    upstreams = Upstreams(**dict.fromkeys("abcd", UpstreamUnreachable("x")))
    await scene([route(name) for name in "abcd"], upstreams).fails()
    assert upstreams.asked == ["a", "b", "c"]


async def test_one_hanging_route_leaves_time_for_the_next(autojump_clock: MockClock) -> None:
    upstreams = Upstreams(a=1000.0, b=20.0)
    served = await scene([route("a"), route("b")], upstreams).run()
    assert [each["outcome"] for each in served.execution["attempts"]] == ["timeout", "served"]
    assert upstreams.stopped == 1


async def test_what_a_quick_failure_leaves_of_the_time_is_the_next_ones(autojump_clock: MockClock) -> None:
    served = await scene([route("a"), route("b")], Upstreams(a=answer({}, 500), b=55.0)).run()
    assert served.output["route"]["routeId"] == "ai/b"


async def test_a_failure_is_told_before_the_deadline_is_over(autojump_clock: MockClock) -> None:
    began = trio.current_time()
    failure = await scene([route("a")], Upstreams(a=1000.0)).fails(seconds=60)
    assert trio.current_time() - began == pytest.approx(60 - LAST_WORD_S)
    assert failure.extra["reason"] == "timeout"


async def test_without_time_nobody_is_asked(autojump_clock: MockClock) -> None:
    upstreams = Upstreams()
    failure = await scene([route("a")], upstreams).fails(seconds=1)
    assert (failure.extra["reason"], failure.extra["attempts"], upstreams.calls) == ("deadline", [], [])


async def test_a_time_out_after_a_short_trial_says_nothing_of_the_route(autojump_clock: MockClock) -> None:
    short, fair = scene([route("a")], Upstreams(a=1000.0)), scene([route("a")], Upstreams(a=1000.0))
    await short.fails(seconds=FAIR_TRIAL_S - 1)
    await fair.fails(seconds=FAIR_TRIAL_S + 1)
    assert (short.outcomes, [each.reason for each in fair.outcomes]) == ([], ["timeout"])


@pytest.mark.parametrize(("tokens", "counted"), [(1024, True), (16_384, False)])
async def test_a_time_out_of_a_long_answer_says_nothing_of_the_route(
    autojump_clock: MockClock, tokens: int, counted: bool
) -> None:
    here = scene([route("a")], Upstreams(a=1000.0))
    failure = await here.fails(Request(Prompt(LUNA, (Message("user", "count"),), tokens)))
    assert failure.extra["reason"] == "timeout"
    assert bool(here.outcomes) is counted


async def test_a_prompt_that_the_embedded_model_reads_for_minutes_closes_it_for_nobody(
    autojump_clock: MockClock,
) -> None:
    here = scene([embedded()], Upstreams(embedded=1000.0))
    failure = await here.fails(asks(SMOL))
    assert (failure.extra["reason"], here.outcomes) == ("timeout", [])


async def test_this_nodes_own_queue_is_not_held_against_a_route(autojump_clock: MockClock) -> None:
    for problem, reason in ((NodeOverloaded("x"), "node_overloaded"), (AnswerLost("x"), "answer_lost")):
        here = scene([route("a")], Upstreams(a=problem))
        assert (await here.fails()).extra["reason"] == reason
        assert here.outcomes == []


async def test_a_call_that_was_never_sent_is_counted_without_a_time(autojump_clock: MockClock) -> None:
    here = scene([route("a"), route("b")], Upstreams(a=UpstreamUnreachable("x"), b=answer({}, 500)))
    await here.fails()
    assert [(each.route_id, each.ms) for each in here.outcomes] == [("ai/a", None), ("ai/b", 0)]


async def test_a_billed_call_that_failed_after_it_was_sent_makes_the_cost_unknown(autojump_clock: MockClock) -> None:
    routes = [route("a", billed=True, rates=(1, 1)), route("b", billed=True, rates=(1_000_000, 6_000_000))]
    lost = await scene(routes, Upstreams(a=UpstreamBroken("x"))).run()
    assert lost.output["route"]["cost"]["basis"] == "unknown"
    unsent = await scene(routes, Upstreams(a=UpstreamUnreachable("x"))).run()
    assert unsent.output["route"]["cost"] == {
        "asset": "USD",
        "amountAtomic": "27",
        "usd": "0.000027",
        "basis": "upstream_rates",
    }


async def test_a_free_call_never_goes_on_to_a_billed_route_whose_budget_was_not_reserved(
    autojump_clock: MockClock,
) -> None:
    routes = [route("a", FREE), route("b", FREE, billed=True), route("c", FREE)]
    upstreams = Upstreams(a=UpstreamUnreachable("x"))
    served = await scene(routes, upstreams).run(asks(FREE))
    assert (served.output["route"]["routeId"], upstreams.asked) == ("ai/c", ["a", "c"])
    paid = Upstreams(a=UpstreamUnreachable("x"))
    await scene([route("a"), route("b", billed=True)], paid).run(asks(LUNA))
    assert paid.asked == ["a", "b"]


async def test_a_billed_route_that_opened_after_the_admission_is_not_asked_for_a_free_call(
    autojump_clock: MockClock,
) -> None:
    upstreams = Upstreams()
    here = scene([route("a", FREE), route("b", FREE, billed=True)], upstreams, closed=["a"])
    failure = await here.fails(asks(FREE))
    assert (failure.status, failure.extra["reason"], upstreams.asked) == (503, "budget_not_reserved", [])
    served = await here.run(asks(FREE), budget="billed:ai/b")
    assert (served.output["route"]["routeId"], upstreams.asked) == ("ai/b", ["b"])


# -- the embedded model ------------------------------------------------------------------------------------------------


async def test_the_embedded_model_is_asked_as_often_at_once_as_it_has_slots_and_refuses_a_long_queue(
    autojump_clock: MockClock,
) -> None:
    upstreams = Upstreams(embedded=5.0)
    here = scene([embedded()], upstreams)
    served: list[Served] = []
    refused: list[CapacityExhausted] = []

    async def ask(network: str) -> None:
        try:
            served.append(await here.run(asks(FAST), network=network))
        except CapacityExhausted as full:
            refused.append(full)

    async with trio.open_nursery() as nursery:
        for number in range(EMBEDDED_SLOTS + EMBEDDED_QUEUE + 3):
            nursery.start_soon(ask, f"192.0.2.{number}/32")
        await trio.testing.wait_all_tasks_blocked()
        assert (len(upstreams.calls), len(refused)) == (EMBEDDED_SLOTS, 3)
        assert {(each.extra["reason"], each.retry_after) for each in refused} == {("embedded_model_busy", 5.0)}
        with pytest.raises(CapacityExhausted):
            here.family.admit("chat.completions", asks(FAST))
        with pytest.raises(CapacityExhausted):
            here.family.admit("chat.completions", asks(SMOL))
    assert len(served) == EMBEDDED_SLOTS + EMBEDDED_QUEUE
    here.family.admit("chat.completions", asks(FAST))


async def test_waiting_for_the_embedded_model_is_not_held_against_it(autojump_clock: MockClock) -> None:
    here = scene([embedded()], Upstreams(embedded=50.0))
    failures = []

    async def ask() -> None:
        try:
            await here.run(asks(FAST))
        except GatewayError as failure:
            failures.append(failure)

    async with trio.open_nursery() as nursery:
        for _ in range(EMBEDDED_SLOTS + 1):
            nursery.start_soon(ask)
    (failure,) = failures
    assert failure.extra["reason"] in {"timeout", "embedded_model_busy"}
    assert [each.ok for each in here.outcomes] == [True] * EMBEDDED_SLOTS


async def test_another_route_is_asked_when_the_embedded_model_has_no_slot(autojump_clock: MockClock) -> None:
    upstreams = Upstreams(embedded=1000.0)
    here = scene([embedded(), route("b", SMOL)], upstreams)
    async with trio.open_nursery() as nursery:

        async def occupy() -> None:
            await here.run(asks(FAST), seconds=10_000)

        for _ in range(EMBEDDED_SLOTS + EMBEDDED_QUEUE):
            nursery.start_soon(occupy)
        await trio.testing.wait_all_tasks_blocked()
        here.family.admit("chat.completions", asks(FAST))
        served = await here.run(asks(FAST))
        assert [each["outcome"] for each in served.execution["attempts"]] == ["no_slot", "served"]
        nursery.cancel_scope.cancel()


async def test_an_engine_that_is_still_busy_with_calls_that_were_left_is_not_held_against_the_model(
    autojump_clock: MockClock,
) -> None:
    alone = scene([embedded()], Upstreams(embedded=answer({}, 503)))
    failure = await alone.fails(asks(FAST))
    assert isinstance(failure, CapacityExhausted)
    assert failure.extra["attempts"] == [{"route": "ai/embedded", "outcome": "busy", "ms": 0}]
    assert (failure.headers, alone.outcomes) == ({}, [])
    both = scene([embedded(), route("b", SMOL)], Upstreams(embedded=answer({}, 503)))
    assert (await both.run(asks(SMOL))).output["route"]["routeId"] == "ai/b"


async def test_a_call_that_is_cancelled_gives_its_slot_back(autojump_clock: MockClock) -> None:
    here = scene([embedded()], Upstreams(embedded=30.0))
    for _ in range(EMBEDDED_SLOTS + 1):
        with trio.move_on_after(1):
            await here.run(asks(FAST))
    assert (await here.run(asks(FAST))).output["model"] == FAST


# -- over real connections ---------------------------------------------------------------------------------------------


async def test_an_execution_that_is_cancelled_stops_the_upstream_within_a_second() -> None:
    hung_up, asked = trio.Event(), trio.Event()

    async def hang(stream: trio.SocketStream) -> None:
        asked.set()
        if not await stream.receive_some(1):
            hung_up.set()

    async with serving(hang) as server, open_runtime(grace=1) as runtime:
        caller = Caller(await runtime.start("upstream", upstream))
        adapter = OpenAiAdapter(server.url, "m")
        here = scene([ModelRoute("ai/a", LUNA, adapter, billed=False, canary=False)], caller)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(here.run)
            await asked.wait()
            nursery.cancel_scope.cancel()
        with trio.fail_after(1):
            await hung_up.wait()
        assert here.outcomes == []


async def test_one_failed_call_closes_a_route_and_it_opens_again_by_itself() -> None:
    body = orjson.dumps(completion("m") | {"data": [{"id": "m"}]})
    healthy = [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)]
    said = list(healthy)

    async def respond(stream: trio.SocketStream) -> None:
        await stream.send_all(said[0])

    async with serving(respond) as server, open_runtime(grace=1) as runtime:
        caller = Caller(await runtime.start("upstream", upstream))
        routes = [ModelRoute("ai/a", LUNA, OpenAiAdapter(server.url, "m"), billed=False, canary=False)]
        proofs, rules = Proofs(trio.current_time), Rules(retry_first_s=0.05, failures_to_close=1)
        body_of_prober = partial(prober, routes=ai_routes(routes, caller, rules), proofs=proofs, utc=lambda: NOW)
        ref = await runtime.start("prober", body_of_prober)
        here = Scene(AiFamily(CATALOG, routes, proofs, caller, reporter(ref), lambda: NOW), [])
        assert (await here.run()).output["message"]["content"] == "Hi."

        said[0] = b"HTTP/1.1 500 Down\r\ncontent-length: 0\r\n\r\n"
        assert (await here.fails()).extra["reason"] == "status_500"
        with trio.fail_after(5):
            while proofs.of("ai/a").open:
                await trio.lowlevel.checkpoint()
        began = trio.current_time()
        assert isinstance(await here.fails(), ModelUnavailable)
        assert trio.current_time() - began < 0.05

        said[0] = healthy[0]
        with trio.fail_after(5):
            while not proofs.of("ai/a").open:
                await trio.lowlevel.checkpoint()
        assert (await here.run()).output["message"]["content"] == "Hi."


# -- proofs ------------------------------------------------------------------------------------------------------------


async def test_a_route_is_proved_by_its_listing(autojump_clock: MockClock) -> None:
    upstreams = Upstreams(a={"data": [{"id": "a"}]})
    assert await prove(route("a"), upstreams) == Finding(ok=True)
    assert [(each.method, each.url) for each in upstreams.calls] == [("GET", "http://a.example/v1/models")]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (UpstreamUnreachable("x"), "unreachable"),
        (UpstreamTimeout("x"), "timeout"),
        (answer({}, 401), "status_401"),
        (answer({}, 404), "status_404"),
        ({"data": []}, "model_not_listed"),
    ],
)
async def test_a_route_that_is_not_proved_says_why(autojump_clock: MockClock, said: Any, reason: str) -> None:
    assert await prove(route("a"), Upstreams(a=said)) == Finding(ok=False, reason=reason)


async def test_a_canary_is_a_small_real_call(autojump_clock: MockClock) -> None:
    upstreams = Upstreams()
    assert (await try_out(route("a"), upstreams)).ok
    assert orjson.loads(upstreams.calls[0].content)["max_tokens"] == 16


async def test_a_canary_that_cannot_be_planned_says_why() -> None:
    resting = ModelRoute("ai/e", SMOL, EmbeddedAdapter(lambda: "crashed"), billed=False, canary=True)
    assert await try_out(resting, Upstreams()) == Finding(ok=False, reason="crashed")


@pytest.mark.parametrize(
    ("said", "reason"), [(UpstreamBroken("x"), "connection_broken"), (answer({}, 500), "status_500")]
)
async def test_a_canary_that_fails_says_why(autojump_clock: MockClock, said: Any, reason: str) -> None:
    finding = await try_out(route("a"), Upstreams(a=said))
    assert (finding.ok, finding.reason) == (False, reason)


async def test_the_prober_is_given_every_route_with_the_rules_and_a_canary_where_it_is_allowed() -> None:
    rules = Rules(failures_to_close=1)
    first, second = ai_routes([route("a"), route("b", canary=True)], Upstreams(), rules)
    assert (first.route_id, second.route_id) == ("ai/a", "ai/b")
    assert first.rules is second.rules is rules
    assert first.canary is None
    assert second.canary is not None
    assert (await first.probe()).reason == "model_not_listed"
    assert (await second.canary()).ok


def test_the_fingerprint_of_a_route_covers_its_key_its_model_and_its_canary() -> None:
    def told(**changes: Any) -> str | None:
        adapter = attrs.evolve(OpenAiAdapter("http://a.example", "a", "k"), **changes)
        return settings_of(ModelRoute("ai/a", LUNA, adapter, billed=True, canary=False))

    plain = told()
    assert plain is not None
    assert plain == told()
    assert len({plain, told(key="other"), told(upstream_model="b"), told(base_url="http://b.example")}) == 4
    with_canary = settings_of(route("a", canary=True))
    assert with_canary not in {None, settings_of(route("a"))}


def test_the_proof_of_a_model_on_this_host_is_this_nodes_alone() -> None:
    adapter = OpenAiAdapter("http://127.0.0.1:1", "a")
    assert settings_of(ModelRoute("ai/a", LUNA, adapter, billed=False, canary=True)) is None
    assert settings_of(embedded()) is None
