"""Two runs at once: what one does is nothing to the other; and what is ended from outside leaves nothing either."""

from __future__ import annotations

import os
import random
import signal

import pytest
import trio

from gateway.actors.sandbox.run import Run
from gateway.errors import ExecutionFailed, ExecutionReconciliation
from gateway.sandbox.image import Image
from tests.sandbox.battery.case import CPU, MEMORY, MIB, OUTPUT, WALL, Case, hostile, limits, node, table
from tests.sandbox.battery.outside import processes_of
from tests.sandbox.battery.real_path import Sandbox, open_sandbox
from tests.sandbox.battery.sleepers import CANCELLED, RUNNING, ends_as_cancelled, running, three_processes_of

QUIET = Case(
    "one that works a little, and is seen to live on",
    node("let n = 0; const t = setInterval(() => { if (++n === 8) { clearInterval(t); console.log('done') } }, 50)"),
    says="done\n",
)


@table(
    Case("a fork bomb", hostile("forkbomb"), CPU, limits=limits(cpu_millis=500, wall_time_ms=10_000)),
    Case("all memory", hostile("membomb"), MEMORY),
    Case("a flood", hostile("say", "1", str(100 * MIB)), OUTPUT, says="b" * 65536),
    Case("a kill of all", hostile("killall"), says="kill(-1, SIGKILL): ESRCH\n"),
    Case("a kill of every number", hostile("killinit"), says="init lives: ok\nothers killed: 0\n"),
    Case("every descriptor", hostile("fdexhaust"), says=None),
    Case("a sleeper", hostile("longsleep"), WALL, limits=limits(wall_time_ms=300)),
)
async def test_a_neighbour_of(sandbox: Sandbox, case: Case) -> None:
    async def run(which: Case, slot: int) -> None:
        which.judge(await sandbox.run_beside_others(which, slot=slot))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, QUIET, 1)
        nursery.start_soon(run, case, 0)
    await sandbox.prove_nothing_left()


async def test_each_slot_has_a_user_of_its_own(sandbox: Sandbox) -> None:
    async with running(sandbox, slot=0), running(sandbox, slot=1):
        first = sandbox.settings.first_uid
        assert [len(processes_of(range(user, user + 1))) for user in (first, first + 1)] == [3, 3]


async def test_runs_that_are_called_off_at_any_time_leave_nothing(sandbox: Sandbox) -> None:
    when = random.Random(5)
    for _ in range(12):
        run = sandbox.begin(RUNNING)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(live_to_be_called_off, run)
            await trio.sleep(when.uniform(0, 0.1))
            run.call_off()
        assert run.clean
        await sandbox.prove_nothing_left()


async def live_to_be_called_off(run: Run) -> None:
    try:
        result = await run.live()
    except ExecutionFailed as never:
        assert never.extra == {"reason": "called_off"}  # noqa: PT017 - either way is right, each in its time
        assert not run.released
    else:
        assert result.ending == CANCELLED
        assert run.released


async def test_a_killed_bubblewrap_takes_its_run_with_it_and_no_other(sandbox: Sandbox) -> None:
    async with running(sandbox, slot=1):
        run = sandbox.begin(RUNNING)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ends_as_cancelled, run)
            users = range(sandbox.settings.first_uid, sandbox.settings.first_uid + 1)
            pids = await three_processes_of(users)
            os.kill(min(pids), signal.SIGKILL)
        assert processes_of(users) == {}
    await sandbox.prove_nothing_left()


async def test_a_killed_launcher_takes_every_run_with_it(image: Image) -> None:
    async with open_sandbox(image, ends_by_itself=False) as sandbox:
        run = sandbox.begin(RUNNING)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ends_as_lost, run)
            await three_processes_of(sandbox.users)
            sandbox.link.process.kill()
        with trio.fail_after(1):
            # Whether zombies stay for longer is up to the init of the machine, whose children they are by then.
            while processes_of(sandbox.users, zombies=False) or sandbox.groups():  # noqa: ASYNC110 - nobody tells
                await trio.sleep(0.01)


async def ends_as_lost(run: Run) -> None:
    with pytest.raises(ExecutionReconciliation):
        await run.live()
