"""The launcher's loop, each time in a process of its own: it takes signals over, and reaps every child."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BEFORE = f"""
import os, signal, sys, time
sys.path.append({str(ROOT)!r})
from gateway.sandbox.event_loop import EventLoop
loop = EventLoop()
def say(*what): print(*what, flush=True)
"""


def said(code: str) -> list[str]:
    """Run it, with a loop, and return the lines that it said."""
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", BEFORE + code], capture_output=True, text=True, timeout=20, check=False
    )
    assert (ran.stderr, ran.returncode) == ("", 0)
    return ran.stdout.splitlines()


def test_moments_come_in_their_order_and_not_early() -> None:
    code = """
began = time.monotonic()
loop.after(0.02, lambda: say("second", time.monotonic() - began >= 0.02))
loop.after(0.01, lambda: say("first", time.monotonic() - began >= 0.01))
loop.after(0.03, loop.stop)
loop.run()
"""
    assert said(code) == ["first True", "second True"]


def test_a_cancelled_moment_never_comes() -> None:
    code = """
moment = loop.after(0.001, lambda: say("came"))
loop.after(0, moment.cancel)
loop.after(0.02, loop.stop)
loop.run()
"""
    assert said(code) == []


def test_what_is_readable_is_called_until_it_is_not_watched() -> None:
    code = """
reads, writes = os.pipe()
os.write(writes, b"abc")
def read():
    say(os.read(reads, 1).decode())
    if len(seen) == 1:
        loop.unwatch(reads)
        loop.after(0.01, loop.stop)
    seen.append(1)
seen = []
loop.watch(reads, read)
loop.run()
"""
    assert said(code) == ["a", "b"]


def test_a_number_that_is_another_descriptor_s_meanwhile_is_not_called_for_that_one() -> None:
    code = """
(first, begins), (second, goes_on) = os.pipe(), os.pipe()
def read():
    loop.unwatch(first)
    loop.unwatch(second)
    os.close(second)
    reads, writes = os.pipe()
    kept.append(writes)
    say(reads == second)
    loop.watch(reads, lambda: say("called"))
    loop.after(0.01, loop.stop)
kept = []
loop.watch(first, read)
loop.watch(second, lambda: say("early"))
os.write(begins, b"x")
os.write(goes_on, b"x")
loop.run()
"""
    assert said(code) == ["True"]


def test_a_child_is_reaped_with_its_status_and_an_orphan_is_reaped_too() -> None:
    code = """
from gateway.sandbox.kernel_calls import PR_SET_CHILD_SUBREAPER, prctl
prctl(PR_SET_CHILD_SUBREAPER, 1)
reads, writes = os.pipe()
def child():
    if os.fork() == 0:
        os.read(reads, 1)
        os._exit(0)
    os._exit(7)
pid = os.fork()
if pid == 0:
    child()
rounds = []
def reaped():
    rounds.append(1)
    if len(rounds) == 1:
        os.write(writes, b"x")
    else:
        loop.stop()
loop.on_exit(pid, lambda status: say(os.waitstatus_to_exitcode(status)))
loop.on_reaped(reaped)
loop.run()
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    say("nobody")
"""
    assert said(code) == ["7", "nobody"]


def test_sigterm_is_told_also_when_it_came_before_anybody_asked() -> None:
    code = """
os.kill(os.getpid(), signal.SIGTERM)
def end():
    say("term")
    loop.stop()
loop.on_terminate(end)
loop.run()
"""
    assert said(code) == ["term"]


def test_a_terminal_s_signals_are_the_node_s_business() -> None:
    code = """
for each in (signal.SIGINT, signal.SIGHUP):
    os.kill(os.getpid(), each)
loop.after(0.01, loop.stop)
loop.run()
say("here")
"""
    assert said(code) == ["here"]


def test_a_loop_that_was_stopped_can_run_again() -> None:
    code = """
loop.stop()
loop.run()
loop.after(0, lambda: say("again"))
loop.after(0.001, loop.stop)
loop.run()
"""
    assert said(code) == ["again"]


def test_room_to_write_is_told_once_and_not_before_there_is_any() -> None:
    code = """
reads, writes = os.pipe()
os.set_blocking(writes, False)
try:
    while True: os.write(writes, bytes(65536))
except BlockingIOError: pass
loop.once_writable(writes, lambda: say("room"))
loop.after(0.01, lambda: say("none yet"))
loop.after(0.02, lambda: say(len(os.read(reads, 65536))))
loop.after(0.04, loop.stop)
loop.run()
"""
    assert said(code) == ["none yet", "65536", "room"]


def test_a_program_that_is_executed_inherits_no_signal_that_is_ignored_or_blocked() -> None:
    code = """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
EventLoop()
os.execv("/bin/sed", ["sed", "-n", "s/^Sig\\\\(Ign\\\\|Blk\\\\):.//p", "/proc/self/status"])
"""
    assert said(code) == ["0" * 16, "0" * 16]
