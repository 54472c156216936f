"""The launcher's loop: descriptors that become ready, moments, and children that end, each with what it calls.

A single thread, so that no child is ever killed by the end of the thread that started it (PDEATHSIG).  Standard library
only: the launcher imports this.
"""

from __future__ import annotations

import heapq
import itertools
import os
import select
import signal
import time
from collections.abc import Callable

Call = Callable[[], None]
ENOUGH_S = 60.0


class Moment:
    """Something to be called at a moment, unless `cancel` comes first."""

    __slots__ = ("call",)

    def __init__(self, call: Call) -> None:
        self.call: Call | None = call

    def cancel(self) -> None:
        """Let it not be called."""
        self.call = None


class EventLoop:
    """Calls what waits for descriptors, moments and children, one after the other, until it is told to stop.

    It takes over SIGCHLD and SIGTERM of this process, and reaps every child there is.  SIGINT and SIGHUP change nothing
    (whoever holds a terminal stops the node, and the node stops the launcher), nor do SIGPIPE and SIGXFSZ: they are
    caught, and not ignored, which a program that is executed would inherit.
    """

    def __init__(self) -> None:
        self._readable: dict[int, Call] = {}
        self._writable: dict[int, Call] = {}
        self._moments: list[tuple[float, int, Moment]] = []
        self._order = itertools.count()
        self._children: dict[int, Callable[[int], None]] = {}
        self._reaped: Call = _nothing
        self._terminated: Call = _nothing
        self._stopped = False
        self._term = False
        self._woken, wakes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._terminate)
        # Whoever started this may have blocked some, which a program that is executed would inherit, too.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for each in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(each, lambda *_: None)
        # What whoever started the node ignores (a shell's background job: SIGQUIT) would be ignored in every run, too.
        for each in signal.valid_signals():
            if signal.getsignal(each) is signal.SIG_IGN:
                signal.signal(each, signal.SIG_DFL)
        self.watch(self._woken, self._signalled)

    def watch(self, descriptor: int, call: Call) -> None:
        """Call this whenever the descriptor is readable or at its end."""
        self._readable[descriptor] = call

    def unwatch(self, descriptor: int) -> None:
        """Do not any more; before the descriptor is closed."""
        self._readable.pop(descriptor, None)

    def once_writable(self, descriptor: int, call: Call) -> None:
        """Call this once, as soon as there is room for something to be written."""
        self._writable[descriptor] = call

    def after(self, seconds: float, call: Call) -> Moment:
        """Call this once, in so many seconds."""
        moment = Moment(call)
        heapq.heappush(self._moments, (time.monotonic() + seconds, next(self._order), moment))
        return moment

    def on_exit(self, pid: int, call: Callable[[int], None]) -> None:
        """Call this with the wait(2) status of a child when it was reaped."""
        self._children[pid] = call

    def on_reaped(self, call: Call) -> None:
        """Call this after any child was reaped, also one that was an orphan."""
        self._reaped = call

    def on_terminate(self, call: Call) -> None:
        """Call this on SIGTERM, also one that came before."""
        self._terminated = call
        if self._term:
            call()

    def stop(self) -> None:
        """Return from `run` once what is called now returns, or as soon as it is begun."""
        self._stopped = True

    def run(self) -> None:
        """Go on until `stop`."""
        self.reap()
        while not self._stopped:
            # Not epoll, whose moments are whole milliseconds; there are a few descriptors, and their numbers are low.
            watched = dict(self._readable)
            readable, writable, _ = select.select(watched, self._writable, (), self._due_in())
            for descriptor in readable:
                # What is called before it may close it, and the number be another's, which is not known to be ready.
                call = self._readable.get(descriptor)
                if call is not None and call is watched[descriptor] and not self._stopped:
                    call()
            for descriptor in writable:
                call = self._writable.pop(descriptor, None)
                if call is not None and not self._stopped:
                    call()
            self._call_what_is_due()
        self._stopped = False

    def reap(self) -> None:
        """Reap every child that is over, and tell who waits for it."""
        reaped = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            reaped = True
            self._children.pop(pid, _no_one)(status)
        if reaped:
            self._reaped()

    def _due_in(self) -> float:
        while self._moments and self._moments[0][2].call is None:
            heapq.heappop(self._moments)
        return ENOUGH_S if not self._moments else max(0.0, self._moments[0][0] - time.monotonic())

    def _call_what_is_due(self) -> None:
        now = time.monotonic()
        while self._moments and self._moments[0][0] <= now and not self._stopped:
            call = heapq.heappop(self._moments)[2].call
            if call is not None:
                call()

    def _terminate(self, *_: object) -> None:
        self._term = True

    def _signalled(self) -> None:
        os.read(self._woken, 512)
        self.reap()
        if self._term:
            self._terminated()


def _nothing() -> None:
    return None


def _no_one(_: int) -> None:
    return None
