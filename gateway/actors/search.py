"""The search family: admits what a proven adapter can serve, and serves it from the first that does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import attrs
import trio

from gateway.actors.prober import Route
from gateway.errors import ExecutorFailed
from gateway.registry.call_evidence import Weight, weight_of
from gateway.registry.execution import Served, Work
from gateway.registry.fingerprint import fingerprint
from gateway.registry.http_call import (
    AnswerTooLarge,
    HttpAnswer,
    HttpCall,
    UpstreamFailed,
    UpstreamTimeout,
    WorkerFailed,
)
from gateway.registry.qualification import Evidence, Finding, Outcome, Proofs
from gateway.registry.search.adapter import Adapter, LocalAdapter, WorkerCall, budget_of, route_id
from gateway.registry.search.choice import choose
from gateway.registry.search.output import Asset, Spent, output, route
from gateway.registry.search.page import SearchPage, failed
from gateway.registry.search.request import SearchRequest

Call = Callable[[HttpCall], Awaitable[HttpAnswer]]

FREE = "search.free"
SERVED = "served"
UNPAID = "budget_not_reserved"
ATTEMPT_S = 8.0
SHORTEST_ATTEMPT_S = 0.25
WORKERS = 4
PROOF_VERSION = 1
"""One more whenever `prove` or an adapter judges the same answers differently: releases then do not share findings."""
WORKER_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


@attrs.frozen
class Attempt:
    """One adapter asked once; `weight` is what a failure says of its route."""

    adapter: Adapter
    outcome: str
    ms: int
    sent: bool = True
    weight: Weight = Weight.NOTHING


@attrs.frozen
class SearchFamily:
    """Executor of `search.free` and `search.paid`.

    Attributes:
        adapters: in the operator's order, all of one coverage (`registry.search.adapters.build`).
        proofs: what the prober publishes.
        call: makes an `HttpCall`; raises `UpstreamFailed`.
        report: takes the outcome of every real call; must not block.
        utc: wall clock.
        asset: what costs are stated in.
    """

    adapters: Sequence[Adapter]
    proofs: Proofs
    call: Call
    report: Callable[[Outcome], None]
    utc: Callable[[], datetime]
    asset: Asset = attrs.field(factory=Asset)
    _workers: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(WORKERS), init=False)
    _lookups: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)

    def admit(self, operation: str, request: SearchRequest) -> None:  # noqa: ARG002 - free and paid search are one engine
        """Return if a proven adapter can serve `request`; raises `OperationUnavailable` or `CapabilityUnavailable`."""
        choose(self.adapters, request, self.proofs.of)

    def budget(self, operation: str, request: SearchRequest) -> str | None:
        """Return the daily budget of the engine that a free search would be put to first, if it bills; see `admit`."""
        if operation != FREE:
            return None
        candidates = choose(self.adapters, request, self.proofs.of).candidates
        return budget_of(candidates[0][0])

    async def execute(self, work: Work) -> Served:
        """Ask the adapters in turn until one answers.

        Raises the last one's `ExecutorFailed` (a blocked engine: `EngineBlocked`) when none does; `extra["attempts"]`
        tells of each.  An empty page is an answer.
        """
        request: SearchRequest = work.request
        choice = choose(self.adapters, request, self.proofs.of)
        attempts: list[Attempt] = []
        failure = failed("search", "deadline", "no time was left to ask an engine")
        candidates = _affordable(work, choice.candidates)
        if not candidates:
            raise failed("search", UNPAID, "the open engine bills, and no budget for it was reserved")
        for adapter, evidence in candidates:
            within = min(ATTEMPT_S, work.deadline - trio.current_time())
            if within < SHORTEST_ATTEMPT_S:
                break
            started = trio.current_time()
            try:
                page = await self._ask(adapter, request, within)
            except (ExecutorFailed, UpstreamFailed) as problem:
                attempts.append(_failed_attempt(adapter, problem, started))
                failure = _told(adapter, problem, attempts[-1])
                self._count(work, attempts[-1], started)
                continue
            attempts.append(Attempt(adapter, SERVED, _ms_since(started)))
            self._count(work, attempts[-1], started)
            fallback = adapter.name != choice.preferred
            return self._served(request, page, evidence, attempts, fallback=fallback)
        failure.extra["attempts"] = _shown(attempts)
        raise failure

    async def _ask(self, adapter: Adapter, request: SearchRequest, within: float) -> SearchPage:
        if isinstance(adapter, LocalAdapter):
            return await trio.to_thread.run_sync(adapter.search, request, limiter=self._lookups)
        planned = adapter.plan(request)
        with trio.move_on_after(within):  # a cancelled asker leaves the exchange itself alone, see actors.upstream
            if isinstance(planned, WorkerCall):
                async with self._workers:
                    answer = await run_worker(planned)
            else:
                answer = await self.call(attrs.evolve(planned, timeout_s=within))
            return adapter.read(request, answer)
        raise UpstreamTimeout(f"{adapter.name}: no answer after {within:.1f} s")

    def _count(self, work: Work, attempt: Attempt, began: float) -> None:
        asked, ms = route_id(attempt.adapter), attempt.ms if attempt.sent else None
        if attempt.outcome == SERVED:
            self.report(Outcome(asked, ok=True, ms=ms, began=began))
        elif attempt.weight is not Weight.NOTHING:
            self.report(
                Outcome(
                    asked,
                    ok=False,
                    reason=attempt.outcome,
                    ms=ms,
                    began=began,
                    weight=attempt.weight,
                    caller=work.network,
                )
            )

    def _served(
        self,
        request: SearchRequest,
        page: SearchPage,
        evidence: Evidence,
        attempts: Sequence[Attempt],
        *,
        fallback: bool,
    ) -> Served:
        adapter = attempts[-1].adapter
        told = route(adapter, evidence.qualification_id or "", page, _spent(attempts), self.asset, fallback=fallback)
        return Served(
            output=output(request, page, adapter, told, retrieved_at=self.utc()),
            execution={"adapter": adapter.name, "attempts": _shown(attempts)},
        )


def _affordable(work: Work, candidates: Sequence[tuple[Adapter, Evidence]]) -> Sequence[tuple[Adapter, Evidence]]:
    """Return who is asked in turn: of those that bill, a free search has the budget of one at most.

    It was reserved before the claim, and which engines are open may have changed since.
    """
    if work.operation != FREE:
        return candidates
    return [each for each in candidates if budget_of(each[0]) in (None, work.budget)]


def search_routes(adapters: Sequence[Adapter], call: Call) -> tuple[Route, ...]:
    """Return what the prober has to prove: one route for each adapter."""
    return tuple(Route(route_id(each), partial(prove, each, call), settings_of(each)) for each in adapters)


def settings_of(adapter: Adapter) -> str | None:
    """Return a fingerprint of what the proof of an adapter depends on: its probe's calls, keys and all.

    None where every node has to look itself: at an engine inside the node or on its own host, and at its own
    configuration.
    """
    calls = () if isinstance(adapter, LocalAdapter) else adapter.probe_calls()
    return fingerprint(calls, PROOF_VERSION, adapter.kind)


async def prove(adapter: Adapter, call: Call) -> Finding:
    """Prove one adapter by its unbilled calls, or by its configuration where it has none."""
    if isinstance(adapter, LocalAdapter):
        return await trio.to_thread.run_sync(adapter.prove)
    answers = []
    for each in adapter.probe_calls():
        try:
            answers.append(await call(each))
        except UpstreamFailed as problem:
            return Finding(ok=False, reason=problem.reason)
    return adapter.read_probe(answers)


async def run_worker(call: WorkerCall) -> HttpAnswer:
    """Run a worker to its end and return its output as the content of a 200; killed at once when cancelled.

    Raises `UpstreamTimeout` after `timeout_s`, `WorkerFailed` when it fails, `AnswerTooLarge`.
    """
    started = trio.current_time()
    with trio.move_on_after(call.timeout_s):
        done = await trio.run_process(
            call.argv,
            stdin=call.stdin,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env=WORKER_ENVIRONMENT,
            deliver_cancel=_kill,
        )
        if done.returncode != 0:
            raise WorkerFailed(f"{call.target}: the worker ended with {done.returncode}")
        if len(done.stdout) > call.max_bytes:
            raise AnswerTooLarge(f"{call.target}: over {call.max_bytes} bytes")
        return HttpAnswer(200, {}, done.stdout, _ms_since(started))
    raise UpstreamTimeout(f"{call.target}: no answer after {call.timeout_s:g} s")


async def _kill(process: trio.Process) -> None:
    process.kill()


def _failed_attempt(adapter: Adapter, problem: ExecutorFailed | UpstreamFailed, started: float) -> Attempt:
    if isinstance(problem, UpstreamFailed):
        return Attempt(adapter, problem.reason, _ms_since(started), sent=problem.sent, weight=problem.weight)
    reason = str(problem.extra.get("reason", "executor_failed"))
    weight = weight_of(str(problem.extra.get("cause", reason)))
    return Attempt(adapter, reason, _ms_since(started), weight=weight)


def _told(adapter: Adapter, problem: ExecutorFailed | UpstreamFailed, attempt: Attempt) -> ExecutorFailed:
    if isinstance(problem, ExecutorFailed):
        return problem
    told = failed(adapter.name, attempt.outcome, f"no answer ({attempt.outcome.replace('_', ' ')})")
    told.__cause__ = problem
    return told


def _spent(attempts: Sequence[Attempt]) -> Spent:
    """Return what the calls cost together: an engine that failed after it was asked may bill all the same."""
    *before, serving = attempts
    lost = [each.adapter.cost.atomic for each in before if each.sent]
    costs = [*lost, serving.adapter.cost.atomic]
    basis = serving.adapter.cost.basis + ("_and_failed_attempts" if any(each != 0 for each in lost) else "")
    known = [each for each in costs if each is not None]
    return Spent(sum(known) if len(known) == len(costs) else None, basis)


def _shown(attempts: Sequence[Attempt]) -> list[dict[str, Any]]:
    return [{"adapter": each.adapter.name, "outcome": each.outcome, "ms": each.ms} for each in attempts]


def _ms_since(started: float) -> int:
    return round((trio.current_time() - started) * 1000)
