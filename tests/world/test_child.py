from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import trio

from gateway.world.child import open_child
from tests.world.programs import gone_within


def python(program: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", program]


async def test_its_lines_come_one_by_one_and_end(tmp_path: Path) -> None:
    program = python("print('one'); print('two', end='')")
    async with open_child("it", program, log=tmp_path / "log", read=True) as child:
        assert [await child.line(), await child.line(), await child.line()] == ["one", "two", None]
        assert await child.wait() == 0


async def test_it_has_ended_when_the_block_is_left(tmp_path: Path) -> None:
    async with open_child("it", ["/bin/sleep", "600"], log=tmp_path / "log") as child:
        pid, before = child.pid, child.returncode
    assert (before, child.returncode) == (None, -signal.SIGTERM)
    assert gone_within(pid, 0)


async def test_one_that_will_not_end_is_killed_after_its_grace(tmp_path: Path) -> None:
    program = python(
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); signal.pause()"
    )
    async with open_child("it", program, log=tmp_path / "log", read=True, grace=0.05) as child:
        await child.line()
    assert child.returncode == -signal.SIGKILL


async def test_a_failure_tells_how_it_ended_and_what_it_said(tmp_path: Path) -> None:
    program = python("import sys; sys.exit('no luck today')")
    async with open_child("the thing", program, log=tmp_path / "log") as child:
        failure = str(await child.failure())
    assert failure.startswith("the thing ended with 1")
    assert failure.endswith("no luck today")


async def test_waiting_can_be_given_up(tmp_path: Path) -> None:
    async with open_child("it", ["/bin/sleep", "600"], log=tmp_path / "log") as child:
        with trio.move_on_after(0.01) as scope:
            await child.wait()
        assert scope.cancelled_caught


def test_it_ends_when_the_world_is_killed(tmp_path: Path) -> None:
    world = f"""
import trio
from pathlib import Path
from gateway.world.child import open_child
async def main():
    async with open_child("it", ["/bin/sleep", "600"], log=Path({str(tmp_path)!r}) / "log") as child:
        print(child.pid, flush=True)
        await trio.sleep_forever()
trio.run(main)
"""
    with subprocess.Popen([sys.executable, "-c", world], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
        process.wait(20)
    assert gone_within(pid, 5)


async def test_a_program_that_is_not_there_fails_at_once(tmp_path: Path) -> None:
    async with open_child("it", ["/nowhere/at/all"], log=tmp_path / "log") as child:
        with trio.fail_after(10):
            assert "FileNotFoundError" in str(await child.failure())
