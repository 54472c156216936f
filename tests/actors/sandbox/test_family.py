from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from gateway.actors.runtime import Inbox, open_runtime
from gateway.actors.sandbox.closed import Closed
from gateway.actors.sandbox.family import ROUTE_ID, SandboxFamily, prove, sandbox_routes
from gateway.actors.sandbox.place import SandboxPlace, Standing
from gateway.actors.sandbox.supervisor import Execute, Message, sandbox
from gateway.errors import (
    CapacityExhausted,
    ExecutionFailed,
    ExecutionReconciliation,
    GatewayError,
    OperationUnavailable,
    StoreUnavailable,
)
from gateway.registry.execution import Served, Work
from gateway.registry.qualification import Outcome, Proofs, Record, Rules, evidence, probed
from gateway.sandbox.image import HOST_LIBRARIES
from gateway.sandbox.limits import Limits
from gateway.sandbox.request import OPERATION, SandboxRequest
from tests.actors.sandbox.scenes import LIMITS, SOON_S, at_once, canary, ground_of, script, settings_in, until
from tests.actors.sandbox.test_place import STANDING

RULES = Rules()


def request(limits: Limits = LIMITS, **members: Any) -> SandboxRequest:
    return SandboxRequest(tuple(each.decode() for each in script(**members)), None, limits)


def work(
    asked: SandboxRequest, *, within: float = 20.0, release: Callable[[], Awaitable[None]] = at_once, attempt: int = 1
) -> Work:
    deadline = trio.current_time() + within
    return Work("op_01HZZZZZZZZZZZZZZZZZZZZZZZ", OPERATION, asked, attempt, deadline, None, release)


@attrs.define(eq=False)
class Scene:
    family: SandboxFamily
    place: SandboxPlace
    proofs: Proofs
    notes: Path
    reported: list[Outcome]

    async def prove(self) -> None:
        """Do what the prober does."""
        now = trio.current_time()
        record = probed(Record(ROUTE_ID), await prove(self.place), now=now, wall=datetime.now(UTC), ms=1, rules=RULES)
        self.proofs.publish({ROUTE_ID: evidence(record, rules=RULES)})

    async def run(self, **members: Any) -> Served:
        return await self.family.execute(work(request(**members)))

    async def fails(self, kind: type[GatewayError], what: Work) -> object:
        with pytest.raises(kind) as failure:
            await self.family.execute(what)
        return failure.value.extra.get("reason")


@asynccontextmanager
async def scene(images: Path, body: Callable[[Inbox[Message]], Awaitable[None]] | None = None) -> AsyncIterator[Scene]:
    settings = settings_in(images)
    (image := images / "image").mkdir()
    place, proofs, reported = SandboxPlace.of(settings), Proofs(trio.current_time), list[Outcome]()
    real = partial(
        sandbox,
        place=place,
        settings=settings,
        canaries=[canary()],
        ground=lambda _settings, _before: ground_of(image),
    )
    async with open_runtime(grace=SOON_S) as runtime:
        ref = await runtime.start("sandbox", body or real)
        family = SandboxFamily(place, ref, proofs, reported.append)
        here = Scene(family, place, proofs, images / "work/heard", reported)
        if body is None:
            await until(lambda: isinstance(place.now(), Standing))
        else:
            place.room.open_slots([0, 1])
            place.tell(STANDING)
        await here.prove()
        yield here


# -- what is sold ------------------------------------------------------------------------------------------------------


async def test_a_run_is_told_with_what_it_was_made_of_what_it_used_and_the_route(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        served = await here.run(out="42\n", files={"a": "one"})
        output, execution = served.output, served.execution
        assert (output["outcome"], output["exitCode"], output["signal"]) == ("exited", 0, None)
        assert output["stdout"]["data"] == "42\n"
        assert [each["name"] for each in output["artifacts"]] == ["a"]
        route = output["route"]
        assert set(route) == {"routeId", "qualificationId", "servingAdapters", "degraded", "fallback", "cost"}
        assert route["routeId"] == "sandbox:bubblewrap"
        assert route["qualificationId"] == here.proofs.of(ROUTE_ID).qualification_id
        assert route["cost"]["amountAtomic"] == "0"
        assert {"image", "filter", "limits", "usage", "denials", "cleanup"} <= set(execution)
        assert (execution["image"], execution["filter"]) == ("sha256:5f", "sha256:01")
        assert execution["limits"] == LIMITS.as_json()
        assert execution["priceClass"] == "short"
        assert execution["cleanup"]["verified"] is True
        (reported,) = here.reported
        assert (reported.route_id, reported.ok) == (ROUTE_ID, True)


async def test_a_limit_is_a_result(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        assert (await here.run(stopped="wall")).output["outcome"] == "wall_limit"
        assert here.reported[0].ok


async def test_nobody_bills_a_run(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        assert here.family.budget(OPERATION, request()) is None


# -- what is refused before a quote ------------------------------------------------------------------------------------


async def test_what_can_be_run_is_admitted(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        here.family.admit(OPERATION, request())


async def test_a_closed_sandbox_admits_nothing_and_says_why(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        here.place.tell(Closed("sandbox.canary_inet"))
        with pytest.raises(OperationUnavailable) as refused:
            here.family.admit(OPERATION, request())
        assert refused.value.extra["reason"] == "sandbox.canary_inet"


async def test_without_a_proof_of_the_prober_s_nothing_is_admitted(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        here.proofs.publish({})
        with pytest.raises(OperationUnavailable) as refused:
            here.family.admit(OPERATION, request())
        assert refused.value.extra["reason"] == "not_probed"


async def test_what_takes_more_memory_than_there_is_is_never_admitted(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        with pytest.raises(CapacityExhausted) as refused:
            here.family.admit(OPERATION, request(Limits(disk_bytes=2**30)))
        assert refused.value.extra["reason"] == "memory"


async def test_with_the_line_full_nothing_more_is_admitted(tmp_path: Path) -> None:
    async with scene(tmp_path) as here, trio.open_nursery() as nursery:
        for attempt in range(6):
            nursery.start_soon(here.family.execute, work(request(slow_s=0.3), attempt=attempt))
        await until(lambda: here.place.room.waiting == 4)
        with pytest.raises(CapacityExhausted) as refused:
            here.family.admit(OPERATION, request())
        assert refused.value.extra["reason"] == "queue_full"


# -- failures ----------------------------------------------------------------------------------------------------------


async def test_a_command_that_was_never_executed_failed_and_is_not_held_against_the_route(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        assert await here.fails(ExecutionFailed, work(request(exit_code=None))) == "not_started"
        assert here.reported == []


async def test_a_set_up_that_fails_counts_against_the_route(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        assert await here.fails(ExecutionFailed, work(request(fails="sandbox.no_group"))) == "sandbox.no_group"
        assert [(each.ok, each.reason) for each in here.reported] == [(False, "sandbox.no_group")]


async def test_a_launcher_that_dies_under_a_run_leaves_it_to_reconciliation(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        what = work(request(at="released", then="die"))
        assert await here.fails(ExecutionReconciliation, what) == "sandbox.launcher_died"
        assert [(each.ok, each.reason) for each in here.reported] == [(False, "sandbox.launcher_died")]


async def test_a_commit_point_that_is_not_durable_is_told_as_it_is_and_not_held_against_the_route(
    tmp_path: Path,
) -> None:
    async def refuse() -> None:
        await at_once()
        raise StoreUnavailable

    async with scene(tmp_path) as here:
        await here.fails(StoreUnavailable, work(request(), release=refuse))
        assert here.reported == []


async def test_a_run_is_over_when_its_cancelled_asker_is(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        released = trio.Event()

        async def release() -> None:
            await at_once()
            released.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(here.family.execute, work(request(waits=True), release=release))
            await released.wait()
            nursery.cancel_scope.cancel()
        assert here.place.room.used == {}
        assert here.place.ended == {"cancelled": 1}
        assert '"cancelled"' in here.notes.read_text()


# -- a supervisor that is of no use ------------------------------------------------------------------------------------


async def test_a_supervisor_that_has_ended_takes_no_more_runs(tmp_path: Path) -> None:
    async def ends(inbox: Inbox[Message]) -> None:
        await trio.lowlevel.checkpoint()
        inbox.ready()

    async with scene(tmp_path, ends) as here:
        await here.fails(CapacityExhausted, work(request()))


@pytest.mark.parametrize(("releases", "kind"), [(False, ExecutionFailed), (True, ExecutionReconciliation)])
async def test_a_supervisor_that_crashes_is_told_by_whether_the_run_may_have_begun(
    tmp_path: Path, releases: bool, kind: type[GatewayError]
) -> None:
    async def crashes(inbox: Inbox[Message]) -> None:
        inbox.ready()
        async for letter in inbox:
            if releases and isinstance(letter.message, Execute):
                await letter.message.command.release()
            raise ZeroDivisionError

    async with scene(tmp_path, crashes) as here:
        assert await here.fails(kind, work(request())) == "supervisor_lost"


# -- the route ---------------------------------------------------------------------------------------------------------


async def test_the_route_is_proved_by_the_canaries_of_the_place() -> None:
    place = SandboxPlace.of(settings_in(Path("/images")))
    (route,) = sandbox_routes(place)
    assert (route.route_id, route.settings, route.canary) == ("sandbox:bubblewrap", None, None)
    closed = await route.probe()
    assert (closed.ok, closed.reason) == (False, "starting")
    place.tell(STANDING)
    proved = await route.probe()
    assert (proved.ok, proved.reason, proved.basis, proved.degraded) == (True, None, "canary", False)


async def test_an_image_with_this_machine_s_libraries_is_told_as_less_than_the_pinned_one() -> None:
    place = SandboxPlace.of(settings_in(Path("/images")))
    place.tell(attrs.evolve(STANDING, image=attrs.evolve(STANDING.image, kind=HOST_LIBRARIES)))
    found = await prove(place)
    assert (found.ok, found.degraded, found.reason) == (True, True, "sandbox.image_from_host")
