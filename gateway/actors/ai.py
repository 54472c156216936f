"""The AI family: admits what a proven route can answer, and answers it over the first that does.

One call asks routes to one canonical id only, and none again: an upstream may bill what it failed to deliver.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Protocol

import attrs
import trio

from gateway.actors.prober import Route
from gateway.actors.slots import Slots
from gateway.errors import CapacityExhausted, ContextLengthExceeded, ExecutionFailed, GatewayError
from gateway.registry.ai.adapter import Completion, ModelFailed, ModelRoute
from gateway.registry.ai.catalog import Catalog
from gateway.registry.ai.choice import Choice, choose
from gateway.registry.ai.embedded_engine import SLOTS as EMBEDDED_SLOTS
from gateway.registry.ai.output import Answered, chat_completion, executed, own_usage
from gateway.registry.ai.prompt import AiRequest, Prompt
from gateway.registry.call_evidence import Weight
from gateway.registry.execution import Served, Work
from gateway.registry.fingerprint import fingerprint
from gateway.registry.http_call import HttpAnswer, HttpCall, UpstreamFailed, UpstreamTimeout
from gateway.registry.qualification import Evidence, Finding, Outcome, Proofs, Rules, State
from gateway.registry.search.output import Asset

CHAT = "chat.completions"
ATTEMPTS = 3
SHORTEST_ATTEMPT_S = 1.0
FAIR_TRIAL_S = 10.0
"""A time-out after less than this says nothing of a route: the rest of somebody's deadline was short."""
FAIR_PACE = 60.0
"""Tokens a second.  Nor does a time-out say anything where the caller asked for more of them than this: else whoever
asks for a long answer could close a route for all."""
TOO_LONG = "context_length_exceeded"
SERVED = "served"
BUSY = "busy"
"""The embedded model has no slot: a call before gives its own back only once the engine has noticed that it is over."""
UNPAID = "budget_not_reserved"
LAST_WORD_S = 0.5
"""What is left of the deadline for telling of a failure."""
EMBEDDED_QUEUE = 6
"""Calls that may wait for the embedded model: more would not be answered within their deadline."""
PROOF_VERSION = 1
"""One more whenever `prove` or an adapter judges the same answers differently: releases then do not share findings."""


class Call(Protocol):
    """Makes an `HttpCall`; raises `UpstreamFailed`."""

    def __call__(self, call: HttpCall, *, stops: bool = False) -> Awaitable[HttpAnswer]:
        """Make the call; with `stops`, an asker that is cancelled takes the exchange with it."""
        ...


@attrs.frozen
class Attempt:
    """One route asked once; `weight` is what a failure says of it."""

    route: ModelRoute
    outcome: str
    ms: int
    sent: bool = True
    weight: Weight = Weight.NOTHING


class _Hurried(UpstreamTimeout):
    """The time-out of a call that had too little time, for what was asked, to say anything of its route."""

    own_weight = Weight.NOTHING


def _busy() -> CapacityExhausted:
    told = "The embedded model has as many calls as it can answer in time."
    return CapacityExhausted(told, retry_after=5.0, extra={"reason": "embedded_model_busy"})


@attrs.frozen
class AiFamily:
    """Executor of `ai.execute` and `chat.completions`.

    Attributes:
        catalog: what the ids mean.
        routes: in the operator's order (`registry.ai.adapters.build`).
        proofs: what the prober publishes.
        call: makes an `HttpCall`.
        report: takes the outcome of every real call; must not block.
        utc: wall clock.
        asset: what costs are stated in.
    """

    catalog: Catalog
    routes: Sequence[ModelRoute]
    proofs: Proofs
    call: Call
    report: Callable[[Outcome], None]
    utc: Callable[[], datetime]
    asset: Asset = attrs.field(factory=Asset)
    _slots: Slots = attrs.field(factory=lambda: Slots(EMBEDDED_SLOTS, EMBEDDED_QUEUE, _busy), init=False)

    def admit(self, operation: str, request: AiRequest) -> None:  # noqa: ARG002 - both operations ask the same routes
        """Return if a proven route can answer `request`.

        Raises `ModelUnavailable`, `CapabilityUnavailable`, or `CapacityExhausted` where the embedded model is all there
        is and has its hands full.
        """
        candidates = self._choose(request.prompt).candidates
        if all(_embedded(route) for route, _ in candidates):
            self._slots.admit()

    def budget(self, operation: str, request: AiRequest) -> str | None:  # noqa: ARG002 - same
        """Return the daily budget of the route that a free call would go over first, if it bills; see `admit`."""
        prompt = request.prompt
        if self._paid(prompt):
            return None
        return self._choose(prompt).candidates[0][0].budget

    async def execute(self, work: Work) -> Served:
        """Ask the routes in turn until one answers.

        Raises `ExecutionFailed` when none does, its `extra["reason"]` that of the last one and `extra["attempts"]`
        telling of each; `ContextLengthExceeded` when the model counted more tokens than it can take;
        `CapacityExhausted` when the embedded model has no slot to the end.
        """
        request: AiRequest = work.request
        prompt = request.prompt
        choice = self._choose(prompt)
        attempts: list[Attempt] = []
        failure: GatewayError = ExecutionFailed("No time was left to ask a model.", extra={"reason": "deadline"})
        candidates = self._affordable(prompt, choice, work.budget)
        if not candidates:
            raise ExecutionFailed("The open route bills, and no budget for it was reserved.", extra={"reason": UNPAID})
        for turn, (route, evidence) in enumerate(candidates):
            left = work.deadline - LAST_WORD_S - trio.current_time()
            within = left / (len(candidates) - turn)
            if within < SHORTEST_ATTEMPT_S:
                break
            started = trio.current_time()
            try:
                completion = await self._ask(route, prompt, within, work.caller)
            except CapacityExhausted as full:
                attempts.append(Attempt(route, "no_slot", _ms_since(started), sent=False))
                failure = full
            except UpstreamFailed as problem:
                attempts.append(
                    Attempt(route, problem.reason, _ms_since(started), sent=problem.sent, weight=problem.weight)
                )
                failure = _told(attempts[-1], problem)
            except ModelFailed as problem:
                attempts.append(Attempt(route, problem.reason, _ms_since(started), weight=problem.weight))
                failure = _told(attempts[-1], problem)
                if problem.weight is Weight.NOTHING and problem.reason != BUSY:
                    break  # it is the prompt, and no other route to the same model would say otherwise
            else:
                attempts.append(Attempt(route, SERVED, _ms_since(started)))
                self._count(work, attempts[-1], started)
                return self._served(work, completion, evidence, attempts, fallback=route.route_id != choice.preferred)
            self._count(work, attempts[-1], started)
        failure.extra["attempts"] = _shown(attempts)
        raise failure

    def _choose(self, prompt: Prompt) -> Choice:
        return choose(self.catalog, self.routes, prompt, self.proofs.of)

    def _paid(self, prompt: Prompt) -> bool:
        model = self.catalog.get(prompt.model)
        return model is not None and model.billing == "paid"

    def _affordable(self, prompt: Prompt, choice: Choice, budget: str | None) -> Sequence[tuple[ModelRoute, Evidence]]:
        """Return the candidates that are asked in turn: of those that bill, a free call has the budget of one at most.

        It was reserved before the claim, and which routes are open may have changed since.
        """
        if self._paid(prompt):
            return choice.candidates[:ATTEMPTS]
        return [each for each in choice.candidates if each[0].budget in (None, budget)][:ATTEMPTS]

    async def _ask(self, route: ModelRoute, prompt: Prompt, within: float, caller: str) -> Completion:
        if not _embedded(route):
            return await self._complete(route, prompt, within)
        until = trio.current_time() + within
        async with self._slots.slot(until - SHORTEST_ATTEMPT_S, caller):
            return await self._complete(route, prompt, until - trio.current_time())

    async def _complete(self, route: ModelRoute, prompt: Prompt, within: float) -> Completion:
        planned = route.adapter.plan(prompt, timeout_s=within)
        try:
            with trio.fail_after(within):
                answer = await self.call(planned, stops=True)
        except (trio.TooSlowError, UpstreamTimeout) as slow:
            if not _is_fair(route, prompt, within):
                raise _Hurried(f"{route.route_id}: only {within:.1f} s were left") from slow
            if isinstance(slow, UpstreamTimeout):
                raise
            raise UpstreamTimeout(f"{route.route_id}: no answer after {within:.1f} s") from slow
        return route.adapter.read(prompt, answer)

    def _count(self, work: Work, attempt: Attempt, began: float) -> None:
        route_id, ms = attempt.route.route_id, attempt.ms if attempt.sent else None
        if attempt.outcome == SERVED:
            self.report(Outcome(route_id, ok=True, ms=ms, began=began))
        elif attempt.weight is not Weight.NOTHING:
            self.report(
                Outcome(
                    route_id,
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
        work: Work,
        completion: Completion,
        evidence: Evidence,
        attempts: Sequence[Attempt],
        *,
        fallback: bool,
    ) -> Served:
        *before, serving = attempts
        answered = Answered(
            operation_id=work.operation_id,
            model=work.request.prompt.model,
            completion=completion,
            route=serving.route,
            qualification=evidence.qualification_id or "",
            at=self.utc(),
            asset=self.asset,
            degraded=evidence.state is State.DEGRADED,
            fallback=fallback,
            lost=any(each.route.billed and each.sent for each in before),
        )
        output = chat_completion(answered) if work.operation == CHAT else executed(answered)
        usage = own_usage(completion.usage)
        return Served(
            output=output,
            execution={
                "usage": usage,
                "usageReported": usage is not None,
                "finishReason": completion.finish_reason,
                "attempts": _shown(attempts),
            },
        )


def ai_routes(routes: Sequence[ModelRoute], call: Call, rules: Rules | None = None) -> tuple[Route, ...]:
    """Return what the prober has to prove, by `rules`: every route, by a billed canary where the operator allows it."""
    return tuple(
        Route(
            each.route_id,
            partial(prove, each, call),
            settings_of(each),
            rules=rules,
            canary=partial(try_out, each, call) if each.canary else None,
        )
        for each in routes
    )


def settings_of(route: ModelRoute) -> str | None:
    """Return a fingerprint of what the proof of a route depends on.

    None where every node has to look itself: at a model inside the node or on its own host, and at its own
    configuration.
    """
    adapter = route.adapter
    if _embedded(route):
        return None
    calls = [*adapter.probe_calls(), *([adapter.canary()] if route.canary else [])]
    return fingerprint(calls, PROOF_VERSION, adapter.kind, adapter.upstream_model)


async def prove(route: ModelRoute, call: Call) -> Finding:
    """Prove a route by its unbilled calls, or by its configuration where it has none."""
    answers = []
    for each in route.adapter.probe_calls():
        try:
            answers.append(await call(each, stops=True))
        except UpstreamFailed as problem:
            return Finding(ok=False, reason=problem.reason)
    return route.adapter.read_probe(answers)


async def try_out(route: ModelRoute, call: Call) -> Finding:
    """Prove a route by a real call, which may be billed."""
    try:
        return route.adapter.read_canary(await call(route.adapter.canary(), stops=True))
    except (UpstreamFailed, ModelFailed) as problem:
        return Finding(ok=False, reason=problem.reason)


def _is_fair(route: ModelRoute, prompt: Prompt, within: float) -> bool:
    """Return True if so many seconds are enough for any answer to a prompt that a sound route gives.

    They never are for the embedded model, which reads a long prompt in minutes; its supervisor sees when it hangs.
    """
    return not _embedded(route) and within >= max(FAIR_TRIAL_S, prompt.max_output_tokens / FAIR_PACE)


def _embedded(route: ModelRoute) -> bool:
    return route.adapter.kind == "embedded"


def _told(attempt: Attempt, problem: UpstreamFailed | ModelFailed) -> GatewayError:
    """Return what the caller is told of a failed attempt."""
    if attempt.outcome == BUSY:
        return _busy()
    kind = ContextLengthExceeded if attempt.outcome == TOO_LONG else ExecutionFailed
    told = kind(
        f"{attempt.route.model}: {attempt.outcome.replace('_', ' ')}",
        retry_after=problem.retry_after if isinstance(problem, ModelFailed) else None,
        extra={"reason": attempt.outcome},
    )
    told.__cause__ = problem
    return told


def _shown(attempts: Sequence[Attempt]) -> list[dict[str, Any]]:
    return [{"route": each.route.route_id, "outcome": each.outcome, "ms": each.ms} for each in attempts]


def _ms_since(started: float) -> int:
    return round((trio.current_time() - started) * 1000)
