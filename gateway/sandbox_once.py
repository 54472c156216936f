"""A sandbox for as long as an operator's command takes, through the very path of sold runs.

It stands beside a node that runs: it has a launcher and groups of its own, and a user that is none of the node's slots.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import attrs
import trio

from gateway.actors.runtime import Ref, open_runtime
from gateway.actors.sandbox import Closed, Message, SandboxPlace, SandboxSettings, sandbox
from gateway.actors.sandbox.closed import STARTING
from gateway.actors.sandbox.place import Seen
from gateway.actors.sandbox.run import Command
from gateway.actors.sandbox.supervisor import Execute, Executed
from gateway.errors import GatewayError
from gateway.sandbox.canaries import CANARIES, Canary
from gateway.sandbox.host import Machine
from gateway.sandbox.request import SandboxRequest, check

T = TypeVar("T")
OPENS_WITHIN_S = 60.0
ANSWERS_WITHIN_S = 5.0
"""After the deadline of the run."""


class SandboxClosed(Exception):
    """Nothing can be run, or nothing is proved; `why` says what closes it."""

    def __init__(self, why: Closed) -> None:
        fix = f". Fix: {why.fix}" if why.fix and why.fix not in why.detail else ""
        super().__init__(f"{why.reason}: {why.detail}{fix}")
        self.why = why


async def run_once(settings: SandboxSettings, request: SandboxRequest) -> Executed:
    """Make one run, which nobody pays for and no canary goes before.

    Raises `SandboxClosed`, `CommandNotFound` and `InvalidRequest` as a seller would, and what the supervisor refuses
    a run with.
    """

    async def one(place: SandboxPlace, ref: Ref[Message]) -> Executed:
        _require_open(place)
        fault = check(request, resolves=place.resolves)
        if fault is not None:
            raise fault
        within, limits = request.limits.deadline_s, request.limits
        deadline = trio.current_time() + within
        command = Command("once", request.arguments, request.stdin, limits, deadline, trio.lowlevel.checkpoint)
        return await ref.ask(Execute(command), within=within + ANSWERS_WITHIN_S)

    return await _in_a_sandbox(settings, (), one)


async def prove_once(settings: SandboxSettings, canaries: Sequence[Canary] = CANARIES) -> Mapping[str, Seen]:
    """Run every canary and return what each showed.  Raises `SandboxClosed` where none could be run."""

    async def all_of_them(place: SandboxPlace, ref: Ref[Message]) -> Mapping[str, Seen]:  # noqa: ARG001
        if not place.canaries:
            _require_open(place)
        return place.canaries

    return await _in_a_sandbox(settings, canaries, all_of_them)


def apart(settings: SandboxSettings, machine: Machine) -> SandboxSettings:
    """Return settings for one slot that a node with these does not touch."""
    whole = settings.on(machine)
    return attrs.evolve(
        whole,
        prefix=f"gateway-once-{os.getpid()}-{secrets.token_hex(3)}-",
        first_uid=whole.first_uid + whole.slots,
        slots=1,
        ahead=False,
    )


async def _in_a_sandbox(
    settings: SandboxSettings,
    canaries: Sequence[Canary],
    use: Callable[[SandboxPlace, Ref[Message]], Awaitable[T]],
) -> T:
    """Return what is made of a sandbox that has found out whether it is open; raises `use`'s failure as it is."""
    settings = apart(settings, Machine())
    told = trio.Event()
    place = attrs.evolve(SandboxPlace.of(settings), changed=told.set)
    async with open_runtime() as runtime:
        ref = await runtime.start("sandbox", partial(sandbox, place=place, settings=settings, canaries=canaries))
        with trio.move_on_after(OPENS_WITHIN_S):
            await told.wait()
        made: T | SandboxClosed | GatewayError
        try:
            made = await use(place, ref)
        except (SandboxClosed, GatewayError) as failure:
            made = failure
    if isinstance(made, (SandboxClosed, GatewayError)):
        raise made
    return made


def _require_open(place: SandboxPlace) -> None:
    state = place.now()
    if isinstance(state, Closed):
        late = state.reason == STARTING
        raise SandboxClosed(attrs.evolve(state, detail=f"not open within {OPENS_WITHIN_S:.0f} s") if late else state)
