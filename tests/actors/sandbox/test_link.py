from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from gateway.actors.sandbox.link import MOST_UNHEARD, Heard, Line, Link, open_link
from gateway.actors.sandbox.pipes import open_pipes
from gateway.sandbox.launcher_messages import Bounds, Failed, Laid, Left, Ready, Release, Spawn, Stop, Unfit, Up, packet
from tests.actors.sandbox.scenes import SOON_S, descriptors, launched, opened, script, settings_in, until

BOUNDS = Bounds(1, 1, 1, 1, 1, 1, 1, single=False)


def spawn(link: Link, run: str, **members: object) -> None:
    with closing(open_pipes(script(**members), b"", b"")) as pipes:
        link.say(Spawn(run, 0, BOUNDS), pipes.given)


async def heard_on(line: Line) -> Heard:
    """Return what is heard next."""
    with trio.fail_after(SOON_S):
        heard = await line.receive()
    assert heard is not None
    return heard


async def greeting(images: Path, *options: str, within: float = SOON_S) -> Up | Unfit:
    async with open_link(settings_in(images, *options).command(images / "image"), end_s=0.2) as link:
        return await link.greeting(within)
    raise AssertionError


async def test_a_launcher_says_that_it_works(tmp_path: Path) -> None:
    assert await greeting(tmp_path) == Up("0.8.0", "hybrid", 2, 0)


async def test_one_that_cannot_work_here_says_why(tmp_path: Path) -> None:
    told = await greeting(tmp_path, "--unfit")
    assert told == Unfit("sandbox.userns_denied", "no user namespaces", "allow them")


async def test_one_that_ends_before_it_says_anything_is_unfit_and_its_last_words_are_logged(tmp_path: Path) -> None:
    with capture_logs() as logs:
        told = await greeting(tmp_path, "--dies")
    assert isinstance(told, Unfit)
    assert told.reason == "sandbox.launcher_died"
    assert "it cannot start" in [each.get("said") for each in logs]


async def test_one_that_says_nothing_is_unfit_and_killed(tmp_path: Path) -> None:
    with capture_logs() as logs:
        told = await greeting(tmp_path, "--silent", within=0.3)
    assert isinstance(told, Unfit)
    assert told.reason == "sandbox.launcher_hung"
    (killed,) = [each["pid"] for each in logs if each["event"] == "sandbox_launcher_killed"]
    assert not psutil.pid_exists(killed)


async def test_a_program_that_is_not_there_leaves_nothing_open(tmp_path: Path) -> None:
    before = descriptors()
    with pytest.raises(OSError, match="nowhere"):
        async with open_link((str(tmp_path / "nowhere"),), end_s=1.0):
            pass
    assert descriptors() == before


async def test_it_ends_with_the_block_and_leaves_nothing_open(tmp_path: Path) -> None:
    before = descriptors()
    async with launched(tmp_path) as here:
        pid = here.link.process.pid
    assert not psutil.pid_exists(pid)
    assert descriptors() == before


async def test_it_is_killed_where_it_does_not_end_by_itself(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with open_link(settings_in(tmp_path, "--stays").command(tmp_path / "image"), end_s=0.2) as link:
            await link.greeting(SOON_S)
    assert link.process.returncode == -signal.SIGKILL
    assert "sandbox_launcher_killed" in [each["event"] for each in logs]


async def test_one_that_has_more_privilege_and_does_not_end_is_left_and_the_operator_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_: trio.Process) -> None:
        raise PermissionError

    with monkeypatch.context() as patched, capture_logs() as logs:
        patched.setattr(trio.Process, "kill", denied)
        with trio.fail_after(SOON_S):
            async with open_link(settings_in(tmp_path, "--stays").command(tmp_path / "image"), end_s=0.2) as link:
                await link.greeting(SOON_S)
    assert {"event": "sandbox_launcher_left", "fix": f"as root: kill -9 {link.process.pid}"}.items() <= logs[-1].items()
    link.process.kill()
    await link.process.wait()


async def test_it_ends_with_the_block_also_where_that_is_cancelled(tmp_path: Path) -> None:
    links: list[Link] = []
    with trio.CancelScope() as scope:
        async with launched(tmp_path) as here:
            links.append(here.link)
            scope.cancel()
            await trio.sleep_forever()
    assert links[0].process.returncode is not None


async def test_descriptors_go_both_ways(tmp_path: Path) -> None:
    async with launched(tmp_path) as here:
        with here.link.line("run-1") as line:
            spawn(here.link, "run-1", much=True)
            assert isinstance((await heard_on(line)).message, Ready)
            here.link.say(Release("run-1"))
            heard = await heard_on(line)
            assert isinstance(heard.message, Left)
            assert [os.get_inheritable(each) for each in heard.descriptors] == [False, False]
            assert [name.rpartition("/")[2] for name in map(opened, heard.descriptors)] == ["scratch", "out"]
            heard.close()


async def test_what_is_laid_is_given_once_and_to_a_run_of_its_kind(tmp_path: Path) -> None:
    async with launched(tmp_path) as here:
        roomier, longer = replace(BOUNDS, memory_bytes=2), replace(BOUNDS, wall_us=2)
        assert not here.link.gives(0, BOUNDS)
        for asked, given in ((BOUNDS, True), (longer, True), (roomier, False)):
            here.link._take(packet(Laid(0, BOUNDS)), (), 0)
            assert here.link.gives(0, asked) is given
            assert not here.link.gives(0, BOUNDS)
        here.link._take(packet(Laid(1, BOUNDS)), (), 0)
        assert not here.link.gives(0, BOUNDS)
        assert here.link.lost is None


async def test_what_is_said_of_a_run_that_nobody_hears_leaves_nothing_open(tmp_path: Path) -> None:
    async with launched(tmp_path) as here:
        before = descriptors()
        with here.link.line("run-1"):
            spawn(here.link, "run-1", much=True)
            here.link.say(Release("run-1"))
            await until(lambda: len(descriptors()) == len(before) + 2)
        spawn(here.link, "run-2", much=True)
        here.link.say(Release("run-2"))
        with here.link.line("run-3") as line:
            spawn(here.link, "run-3")
            (await heard_on(line)).close()
        await until(lambda: descriptors() == before)


async def test_what_was_heard_before_the_end_is_told_before_it() -> None:
    line = Line()
    said = [Heard(Release("run-1")), Heard(Release("run-2"))]
    assert [line.put(each) for each in said] == [True, True]
    line.end()
    assert [await line.receive() for _ in range(3)] == [*said, None]


async def test_who_stops_listening_loses_nothing() -> None:
    line = Line()
    with trio.move_on_after(0.01):
        await line.receive()
    line.put(Heard(Release("run-1")))
    assert await heard_on(line) == Heard(Release("run-1"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(heard_on, line)
        await trio.testing.wait_all_tasks_blocked()
        line.put(Heard(Release("run-2")))


async def test_what_is_too_much_to_be_kept_is_closed(tmp_path: Path) -> None:
    async with launched(tmp_path) as here:
        before = descriptors()
        with here.link.line("run-1"):
            spawn(here.link, "run-1", much=True, leaves=MOST_UNHEARD + 4)
            here.link.say(Release("run-1"))
            await until(lambda: len(descriptors()) == len(before) + 2 * (MOST_UNHEARD - 1))  # one is its `Ready`
            here.link.say(Stop("run-of-nobody", "wall"))
        await until(lambda: descriptors() == before)
        assert here.link.lost is None


async def test_a_launcher_that_is_killed_is_lost_and_so_is_every_run_of_it(tmp_path: Path) -> None:
    async with launched(tmp_path) as here:
        with here.link.line("run-1") as line:
            os.kill(here.link.process.pid, signal.SIGKILL)
            with trio.fail_after(SOON_S):
                assert await line.receive() is None
        assert here.link.lost == "sandbox.launcher_died"
        assert here.link.over.is_set()
        here.link.say(Release("run-1"))
        with here.link.line("run-2") as line:
            assert await line.receive() is None


async def test_its_death_is_seen_also_where_another_process_holds_its_end_of_the_socket(tmp_path: Path) -> None:
    text = "import os, sys, time\nif (pid := os.fork()): open(sys.argv[1], 'w').write(str(pid))\nelse: time.sleep(60)\n"
    other = tmp_path / "pid"
    async with open_link((sys.executable, "-I", "-S", "-c", text, str(other)), end_s=0.2) as link:
        with trio.fail_after(SOON_S):
            await link.over.wait()
        assert link.lost == "sandbox.launcher_died"
        os.kill(int(other.read_text()), signal.SIGKILL)


async def test_what_is_no_message_ends_the_use_of_it() -> None:
    text = "import socket, time; socket.socket(fileno=0).send(b'[]'); time.sleep(60)"
    async with open_link((sys.executable, "-I", "-S", "-c", text), end_s=0.1) as link:
        with trio.fail_after(SOON_S):
            await link.over.wait()
        assert link.lost == "sandbox.launcher_broken"


async def test_what_the_socket_has_no_room_for_is_sent_in_order_once_it_has() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    process = await trio.lowlevel.open_process([sys.executable, "-I", "-S", "-c", "input()"], stdin=-1)
    link = Link(process, ours)
    read, write = os.pipe()
    said = [packet(Stop(f"run-{number}", "cancelled")) for number in range(2000)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.speak)
        for number in range(2000):
            link.say(Stop(f"run-{number}", "cancelled"), [write] if number == 1999 else [])
        os.close(write)
        theirs.setblocking(False)
        heard: list[bytes] = []
        passed: list[int] = []
        with trio.fail_after(SOON_S):
            while len(heard) < len(said):
                await trio.lowlevel.wait_readable(theirs)
                text, more, _, _ = socket.recv_fds(theirs, 2**16, 1)
                heard.append(text)
                passed += more
        nursery.cancel_scope.cancel()
    assert heard == said
    os.write(passed[0], b"x")
    assert os.read(read, 1) == b"x"
    process.kill()
    await process.wait()
    link.close()
    theirs.close()
    for each in (read, *passed):
        os.close(each)


async def test_a_failed_run_is_told_with_its_reason(tmp_path: Path) -> None:
    async with launched(tmp_path) as here:
        with here.link.line("run-1") as line:
            spawn(here.link, "run-1", fails="sandbox.no_room")
            assert (await heard_on(line)).message == Failed("run-1", "sandbox.no_room", "as the script says")
