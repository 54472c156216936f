"""The supervisor of sold commands: holds the launcher, gives out slots, and lets nothing run that is not proved.

It is closed until an image stands that is what its digest says, a launcher works and every canary is content; and again
as soon as one of these is no longer so.  The node does not wait for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial

import attrs
import structlog
import trio

from gateway.actors.runtime import Ask, Inbox, Letter
from gateway.actors.sandbox.closed import CLEANUP_FAILED, LAUNCHER_DIED, LAUNCHER_MISSING, STOPPED, Closed
from gateway.actors.sandbox.ground import Ground, find_ground
from gateway.actors.sandbox.link import Link, open_link
from gateway.actors.sandbox.place import SandboxPlace, Standing
from gateway.actors.sandbox.proving import Round
from gateway.actors.sandbox.room import Slot
from gateway.actors.sandbox.run import CALLED_OFF, NO_TIME, Command, Run, bounds_of, lay_ahead, lost, never_ran
from gateway.actors.sandbox.settings import SandboxSettings
from gateway.errors import ExecutionFailed, GatewayError, OperationUnavailable
from gateway.sandbox.canaries import CANARIES, Canary
from gateway.sandbox.image import Image, ImageMismatch, unchanged
from gateway.sandbox.launcher_messages import Unfit
from gateway.sandbox.limits import Limits
from gateway.sandbox.outcome import Outcome
from gateway.sandbox.run_result import RunResult

log = structlog.get_logger(__name__)

SETUP_S = 1.0
"""What is kept of a run's time for its set-up, and not waited for a slot."""
CRASHED = "crashed"


@attrs.frozen
class Executed:
    """What a run came to, and what it was made of."""

    result: RunResult
    standing: Standing


@attrs.frozen(eq=False)
class Execute(Ask[Executed]):
    """Make a run.

    Refused as `Run.live` says, with `CapacityExhausted` and with `OperationUnavailable`.
    """

    command: Command


@attrs.frozen(eq=False)
class Leave(Ask[None]):
    """Nobody waits for this run any more: it is not begun, or ended.  Answered once nothing of it is left."""

    execute: Execute


Message = Execute | Leave


async def sandbox(
    inbox: Inbox[Message],
    *,
    place: SandboxPlace,
    settings: SandboxSettings,
    canaries: Sequence[Canary] = CANARIES,
    ground: Callable[[SandboxSettings, Image | None], Ground | Closed] = find_ground,
    utc: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> None:
    """Run what is asked for until the mailbox closes and all of it is over; become ready before anything can run."""
    supervisor = _Supervisor(place, settings, canaries, ground, utc)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.keep)
        async with trio.open_nursery() as runs:
            take = partial(supervisor.take, runs)
            inbox.ready(at_once=take)
            async for letter in inbox:
                take(letter)
        nursery.cancel_scope.cancel()


@attrs.define(eq=False)
class _Order:
    """An order in hand: waiting for a slot while `run` is None; `left` are the letters to answer when it is over."""

    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    run: Run | None = None
    left: list[tuple[Letter[Message], Leave]] = attrs.field(factory=list)


@attrs.frozen(eq=False)
class _Launched:
    """A launcher that works, and what runs under it are made of."""

    link: Link
    standing: Standing


@attrs.define(eq=False)
class _Supervisor:
    """`trouble` is why the launcher at hand has to be ended; `doubted` is set where the canaries should look again."""

    place: SandboxPlace
    settings: SandboxSettings
    canaries: Sequence[Canary]
    ground: Callable[[SandboxSettings, Image | None], Ground | Closed]
    utc: Callable[[], datetime]
    launched: _Launched | None = None
    image: Image | None = None
    trouble: Closed | None = None
    troubled: trio.Event = attrs.field(factory=trio.Event)
    doubted: trio.Event = attrs.field(factory=trio.Event)
    orders: dict[Execute, _Order] = attrs.field(factory=dict)
    numbers: itertools.count[int] = attrs.field(factory=itertools.count)

    # -- the launcher --------------------------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Have one launcher after another, with a pause between that doubles."""
        failures = 0
        try:
            while True:
                began = trio.current_time()
                why = await self.launch()
                self.place.tell(why)
                failures = 1 if trio.current_time() - began > self.settings.retry_most_s else failures + 1
                log.error("sandbox_closed", reason=why.reason, detail=why.detail, fix=why.fix)
                await trio.sleep(self.settings.back_off(failures))
        finally:
            self.place.tell(Closed(STOPPED))

    async def launch(self) -> Closed:
        """Have a launcher for as long as it is of use; returns why it is not, or why there is none."""
        ground = await trio.to_thread.run_sync(self.ground, self.settings, self.image, abandon_on_cancel=True)
        if isinstance(ground, Closed):
            return ground
        self.image, self.trouble, self.troubled = ground.image, None, trio.Event()
        try:
            async with open_link(self.settings.command(ground.image.path), end_s=self.settings.end_s) as link:
                self.place.pid, self.place.starts = link.process.pid, self.place.starts + 1
                why = await self.supervise(link, ground)
        except OSError as error:
            return Closed(LAUNCHER_MISSING, str(error), f"make {self.settings.command(ground.image.path)[0]} runnable")
        finally:
            self.place.pid = None
        return why

    async def supervise(self, link: Link, ground: Ground) -> Closed:
        """Let runs in once the canaries are content, until there is trouble and every run is over; return what it is.

        Runs in the hands of a launcher that is lost end by themselves.
        """
        up = await link.greeting(self.settings.start_s)
        if isinstance(up, Unfit):
            return Closed(up.reason, up.detail, up.fix)
        standing = Standing(ground.image, ground.filter, ground.single, up.bubblewrap, up.cgroups, ground.starter)
        self.place.swept = up.swept
        self.place.room.open_slots(range(min(up.slots, self.settings.slots)))
        self.launched = _Launched(link, standing)
        if self.settings.ahead:
            lay_ahead(link, bounds_of(Limits()), ground.filter.program)
        log.info("sandbox_launched", pid=link.process.pid, bubblewrap=up.bubblewrap, cgroups=up.cgroups, swept=up.swept)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.prove, standing)
            nursery.start_soon(self.watch, link)
            await self.troubled.wait()
            nursery.cancel_scope.cancel()
        self.launched = None
        await self.place.room.emptied()
        return self.trouble or Closed(LAUNCHER_DIED)

    async def watch(self, link: Link) -> None:
        """Wait for the launcher's loss."""
        await link.over.wait()
        why = link.lost or LAUNCHER_DIED
        self.end(Closed(why, f"the launcher {link.process.pid} is lost", "it is started again; see its log"))

    def end(self, why: Closed) -> None:
        """Let nothing more run under the launcher at hand, and have it ended once its runs are over."""
        if self.trouble is None:
            self.trouble = why
            self.place.tell(why)
            self.troubled.set()

    # -- proof ---------------------------------------------------------------------------------------------------------

    async def prove(self, standing: Standing) -> None:
        """Make rounds of canaries for ever, open where all are content and closed where one is not."""
        rounds, room, failures = Round(self.canaries, self.place, self.run_canary, self.utc), self.place.room, 0
        while True:
            began = trio.current_time()
            found = await rounds.make(at_once=1 if room.shut is None else max(room.usable, 1))
            if self.trouble is not None:
                return
            if found is None:
                failures, pause = 0, self.settings.canary_interval_s
                if room.shut is not None:
                    log.info("sandbox_open", seconds=round(trio.current_time() - began, 3), image=standing.image.digest)
                self.place.tell(standing)
            else:
                failures += 1
                pause = self.settings.back_off(failures)
                canary, seen = found
                self.place.tell(Closed(canary.reason, f"not proved: {canary.proves}; seen: {seen}", "gateway doctor"))
            if room.quarantined and not room.used:
                self.end(Closed(CLEANUP_FAILED, f"slots {sorted(room.quarantined)}: something was left of a run"))
                return
            await self.pause(pause)

    async def pause(self, seconds: float) -> None:
        """Wait until the next round is due, or there is doubt: a caller may give rise to it, but not without end."""
        unmoved = min(self.settings.doubt_s, seconds)
        await trio.sleep(unmoved)
        with trio.move_on_after(seconds - unmoved):
            await self.doubted.wait()
        self.doubted = trio.Event()

    async def run_canary(self, canary: Canary) -> RunResult:
        """Make the run of a canary."""
        run = f"canary-{canary.name}-{next(self.numbers)}".replace("_", "-").lower()
        arguments = tuple(each.encode() for each in canary.command)
        async with self.place.room.slot_behind(canary.limits, self.settings.canary_patience_s) as slot:
            deadline = trio.current_time() + canary.limits.deadline_s
            command = Command(run, arguments, canary.stdin, canary.limits, deadline, trio.lowlevel.checkpoint)
            return (await self.conduct(command, slot, _Order())).result

    # -- runs ----------------------------------------------------------------------------------------------------------

    def take(self, runs: trio.Nursery, letter: Letter[Message]) -> None:
        """Begin with a run in `runs`, or leave one."""
        match letter.message:
            case Execute() as execute:
                order = self.orders[execute] = _Order()
                runs.start_soon(self.serve, letter, execute, order)
            case Leave() as leave:
                self.leave(letter, leave)

    async def serve(self, letter: Letter[Message], execute: Execute, order: _Order) -> None:
        """Make a run that was sold and answer for it, whatever comes of it."""
        command = execute.command
        failure: GatewayError = never_ran(CALLED_OFF)
        try:
            with order.scope:
                until = command.begins_by(self.settings.end_s) - SETUP_S
                async with self.place.room.slot(command.limits, until, command.caller) as slot:
                    executed = await self.conduct(command, slot, order, again=self.settings.ahead)
                letter.answer(execute, executed)
                self.place.ended[executed.result.ending.outcome.value] += 1
                return
        except GatewayError as refusal:
            failure = refusal
        finally:
            del self.orders[execute]
            for waiting, leave in order.left:
                waiting.answer(leave, None)
        self.place.ended[str(failure.extra.get("reason", failure.code))] += 1
        letter.refuse(failure)

    def leave(self, letter: Letter[Message], leave: Leave) -> None:
        """Call a run off whose asker has left."""
        order = self.orders.get(leave.execute)
        if order is None:
            letter.answer(leave, None)
            return
        order.left.append((letter, leave))
        if order.run is None:
            order.scope.cancel()
        else:
            order.run.call_off()

    async def conduct(self, command: Command, slot: Slot, order: _Order, *, again: bool = False) -> Executed:
        """Make a run in a slot; a defect of this node's makes it one that never was, or one that is lost."""
        launched, settings = self._at_hand(), self.settings
        standing = launched.standing
        program, look = standing.filter_for(command.limits).program, partial(self.look, standing.image)
        run = Run(command, slot.number, launched.link, program, settings.setup_s, settings.end_s, again, look)
        order.run = run
        if order.left:
            raise never_ran(CALLED_OFF)
        try:
            result = await run.live()
        except GatewayError as failure:
            if isinstance(failure, ExecutionFailed):
                self.doubt(failure)
            raise
        except Exception as error:
            log.exception("sandbox_run_crashed", run=command.run)
            run.call_off()
            raise (lost(CRASHED) if run.released else never_ran(CRASHED)) from error
        finally:
            slot.spoiled = not run.clean
            if slot.spoiled and launched.link.lost is None and self.place.room.usable == 1:
                self.end(Closed(CLEANUP_FAILED, "something was left of a run in every slot"))
        if result.ending.outcome is Outcome.NOT_STARTED:
            self.doubted.set()
        return Executed(result, standing)

    def doubt(self, failure: ExecutionFailed) -> None:
        """Have the canaries look again after a run that could not be begun."""
        reason = failure.extra.get("reason")
        log.warning("sandbox_run_failed", reason=reason, detail="; ".join(getattr(failure, "__notes__", ())))
        if reason not in {CALLED_OFF, NO_TIME}:
            self.doubted.set()

    def look(self, image: Image) -> None:
        """Let nothing run, and raise the refusal of a run, where the image is not the one that was verified."""
        try:
            unchanged(image)
        except ImageMismatch as changed:
            self.end(Closed(changed.reason, str(changed), changed.fix))
            raise self._refusal() from None

    def _at_hand(self) -> _Launched:
        """Return the launcher, unless it is none any more."""
        if self.launched is None or self.trouble is not None:
            raise self._refusal()
        return self.launched

    def _refusal(self) -> OperationUnavailable:
        return (self.place.room.shut or Closed(LAUNCHER_DIED)).refusal()
