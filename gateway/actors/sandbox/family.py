"""The sandbox family: admits what can be run now, has the supervisor run it, and tells of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import attrs
import structlog
import trio

from gateway.actors.prober import Route
from gateway.actors.runtime import ActorCrashed, ActorDown, ActorError, Overloaded, Ref, Unanswered
from gateway.actors.sandbox.closed import RETRY_AFTER_S
from gateway.actors.sandbox.place import SandboxPlace, Standing
from gateway.actors.sandbox.run import CALLED_OFF, NO_TIME, Command, lost, never_ran
from gateway.actors.sandbox.supervisor import Execute, Executed, Leave, Message
from gateway.errors import CapacityExhausted, ExecutionFailed, ExecutionReconciliation, OperationUnavailable
from gateway.registry.call_evidence import Weight
from gateway.registry.execution import Served, Work
from gateway.registry.qualification import CANARY, Evidence, Finding, Outcome, Proofs, State
from gateway.registry.search.output import Asset
from gateway.sandbox.image import PINNED
from gateway.sandbox.outcome import Outcome as Ending
from gateway.sandbox.pricing import price_class
from gateway.sandbox.request import SandboxRequest

log = structlog.get_logger(__name__)

ADAPTER = "bubblewrap"
ROUTE_ID = f"sandbox:{ADAPTER}"
IMAGE_FROM_HOST = "sandbox.image_from_host"
LOST_SIGHT = "supervisor_lost"
ANSWER_S = 5.0
"""How much longer than its deadline a run's answer is waited for: the supervisor keeps the deadline itself."""
LEAVE_S = 8.0
NOT_THE_ROUTE_S = frozenset({CALLED_OFF, NO_TIME, Ending.NOT_STARTED.value, Ending.CANCELLED.value})
"""Reasons that say nothing of the route: the node's own, and what a command of its caller's choice comes to."""


@attrs.frozen
class SandboxFamily:
    """Executor of `sandbox.execute`.

    Attributes:
        place: what the supervisor knows.
        ref: the supervisor.
        proofs: what the prober publishes.
        report: takes the outcome of every real call; must not block.
        asset: what costs are stated in.
    """

    place: SandboxPlace
    ref: Ref[Message]
    proofs: Proofs
    report: Callable[[Outcome], None]
    asset: Asset = attrs.field(factory=Asset)

    def admit(self, operation: str, request: SandboxRequest) -> None:  # noqa: ARG002 - there is one operation
        """Return if `request` can be run now, or soon enough.

        Raises `OperationUnavailable` where the sandbox is closed, `CapacityExhausted` where as many runs wait as may,
        and where this one takes more memory than the node has for runs.
        """
        self.place.room.admit(request.limits)
        self._proof()

    def budget(self, operation: str, request: SandboxRequest) -> str | None:  # noqa: ARG002
        """Return None: nobody bills a run."""
        return None

    async def execute(self, work: Work) -> Served:
        """Run the command once.

        Raises `CapacityExhausted`, `OperationUnavailable`, `ExecutionFailed` with the reason, and what `Work.release`
        raises, where it never ran; `ExecutionReconciliation` where it may have and there is no result.  A cancelled
        asker's run is over when this ends.
        """
        request: SandboxRequest = work.request
        evidence, began = self._proof(), trio.current_time()
        try:
            executed = await self._run(work, request)
            told = _served(executed, request, evidence, self.asset)
        except (ExecutionFailed, ExecutionReconciliation) as failure:
            reason = str(failure.extra.get("reason", failure.code))
            if reason not in NOT_THE_ROUTE_S:
                ms = _ms_since(began)
                self.report(
                    Outcome(
                        ROUTE_ID, ok=False, reason=reason, ms=ms, began=began, weight=Weight.FAULT, caller=work.network
                    )
                )
            raise
        self.report(Outcome(ROUTE_ID, ok=True, ms=_ms_since(began), began=began))
        return told

    def _proof(self) -> Evidence:
        evidence = self.proofs.of(ROUTE_ID)
        if not evidence.open:
            told, reason = "The sandbox is not proved to work now.", evidence.reason or "not_probed"
            raise OperationUnavailable(told, retry_after=RETRY_AFTER_S, extra={"reason": reason})
        return evidence

    async def _run(self, work: Work, request: SandboxRequest) -> Executed:
        released = False

        async def release() -> None:
            nonlocal released
            await work.release()
            released = True

        run = f"{work.operation_id}-{work.attempt}".lower()
        command = Command(run, request.arguments, request.stdin, request.limits, work.deadline, release, work.caller)
        order = Execute(command)
        try:
            return await self.ref.ask(order, within=work.deadline - trio.current_time() + ANSWER_S)
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                await self._leave(order)
            raise
        except (Overloaded, ActorDown) as error:
            full = CapacityExhausted("The node takes no more runs now.", retry_after=RETRY_AFTER_S)
            raise full from error
        except (Unanswered, ActorCrashed) as error:
            raise (lost(LOST_SIGHT) if released else never_ran(LOST_SIGHT)) from error

    async def _leave(self, order: Execute) -> None:
        try:
            await self.ref.ask(Leave(order), within=LEAVE_S)
        except ActorError as error:
            log.warning("sandbox_run_left", run=order.command.run, error=type(error).__name__)


def sandbox_routes(place: SandboxPlace) -> tuple[Route, ...]:
    """Return what the prober has to prove: the one route, which every node has to look at itself."""
    return (Route(ROUTE_ID, partial(prove, place)),)


async def prove(place: SandboxPlace) -> Finding:
    """Return what the supervisor's canaries found last; its place is open only where all of them were content."""
    state = place.now()
    if not isinstance(state, Standing):
        return Finding(ok=False, reason=state.reason)
    if state.image.kind != PINNED:
        return Finding(ok=True, reason=IMAGE_FROM_HOST, basis=CANARY, degraded=True)
    return Finding(ok=True, basis=CANARY)


def _served(executed: Executed, request: SandboxRequest, evidence: Evidence, asset: Asset) -> Served:
    """Return the result of a run; raises where it is none."""
    result, standing = executed.result, executed.standing
    outcome = result.ending.outcome
    if outcome is Ending.NOT_STARTED:
        raise never_ran(outcome.value)
    if not outcome.charged:
        raise lost(outcome.value)
    return Served(
        output={**result.output(), "route": _route(evidence, asset)},
        execution={
            "image": standing.image.digest,
            "filter": standing.filter_for(request.limits).digest,
            "bubblewrap": standing.bubblewrap,
            "cgroups": standing.cgroups,
            "limits": request.limits.as_json(),
            "priceClass": price_class(request.limits).value,
            **result.measured(),
        },
    )


def _route(evidence: Evidence, asset: Asset) -> dict[str, Any]:
    return {
        "routeId": ROUTE_ID,
        "qualificationId": evidence.qualification_id or "",
        "servingAdapters": [ADAPTER],
        "degraded": evidence.state is State.DEGRADED,
        "fallback": False,
        "cost": {
            "asset": asset.symbol,
            "amountAtomic": "0",
            "usd": _nothing(asset),
            "basis": "no_charge_per_call",
        },
    }


@cache
def _nothing(asset: Asset) -> str:
    return asset.usd(0)


def _ms_since(began: float) -> int:
    return round((trio.current_time() - began) * 1000)
