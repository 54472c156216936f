"""The launcher at work: what the node asks for, done; what may not go on, ended.

Standard library only, one thread (`launcher`).
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from gateway.sandbox import bubblewrap, cgroups, starter
from gateway.sandbox.bubblewrap_start import Kind, Place
from gateway.sandbox.cgroups import Cgroups, MechanismMissing
from gateway.sandbox.dead_mans_switch import DeadMansSwitch
from gateway.sandbox.event_loop import EventLoop
from gateway.sandbox.held_sandbox import Events, HeldSandbox
from gateway.sandbox.kernel_calls import PR_SET_CHILD_SUBREAPER, prctl
from gateway.sandbox.laid_ahead import LaidAhead
from gateway.sandbox.launched_run import LaunchedRun
from gateway.sandbox.launcher_messages import (
    MOST_DESCRIPTORS,
    Clear,
    Failed,
    Laid,
    Lay,
    Message,
    Release,
    Settings,
    Spawn,
    Stop,
    Unfit,
    Up,
    message_of,
    packet,
)
from gateway.sandbox.node_socket import NodeSocket
from gateway.sandbox.rehearsal import FIXES, rehearse

LONGEST_FILTER = 8 * 4096
"""Bytes: BPF_MAXINSNS instructions."""
NOBODY_HEARS = Events(lambda: None, lambda _reason, _detail: None, lambda: None)
ROOT_KEPT = "sandbox.launcher_root_uid"
REAPED_WITHIN_S = 1.0
NOT_YET_S = 0.001
LAY_AFTER_S, LAY_AT_LEISURE_S = 0.005, 0.05
"""When a sandbox is laid ahead: once the node has kept a run that asked for it, and where the next may be another."""


class NotFit(Exception):
    """No launcher can work here; `unfit` says why."""

    def __init__(self, reason: str, detail: str, fix: str) -> None:
        super().__init__(reason)
        self.unfit = Unfit(reason, detail, fix)


def launch(node: socket.socket, settings: Settings) -> int:
    """Do what the node asks for until it is gone; returns 0, or 1 where this machine is not fit."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        launcher = Launcher(node, settings)
    except NotFit as why:
        with contextlib.suppress(OSError):
            node.send(packet(why.unfit), socket.MSG_DONTWAIT)
        return 1
    launcher.serve()
    return 0


class Launcher:
    """One launcher: making it finds out whether it can work here, `serve` works."""

    def __init__(self, node: socket.socket, settings: Settings) -> None:
        """Raises `NotFit`."""
        self._settings = settings
        self._root = os.geteuid() == 0
        self._slots = settings.slots if self._root else 1
        if self._root and settings.first_uid < 1:
            _not_fit(ROOT_KEPT, "slots would run as uid 0", "set `first_uid` to a uid beyond 0")
        self._runs: dict[str, LaunchedRun] = {}
        self._loop = EventLoop()
        self._node = NodeSocket(node, self._loop)
        program = _program(Path(settings.bubblewrap), self._user(0))
        found = _cgroups()
        swept = found.sweep(settings.prefix)
        if swept.left:
            _not_fit(
                "sandbox.leftovers",
                f"of an earlier run there are still {', '.join(map(str, swept.left))}",
                "end the processes in there and remove the directories, or start the machine anew",
            )
        # A launcher that follows at once has names of its own, so the switch of this one does not end its runs.
        generation = f"{settings.prefix}-{os.urandom(3).hex()}"
        image = _image(Path(settings.image))
        self._place = Place(program.path, image, found, self._loop, generation, _starter())
        self._ahead = LaidAhead(self._place, self._user, lambda slot, kind: self._say(Laid(slot, kind.bounds), ()))
        self._switch = DeadMansSwitch(found, generation)
        self._loop.on_exit(self._switch.pid, lambda _: self._end("its dead man's switch is gone"))
        self._rehearse(program.version)
        self._say(Up(program.version, found.kind, self._slots, len(swept.removed)), ())

    def _user(self, slot: int) -> int | None:
        return self._settings.first_uid + slot if self._root else None

    def _rehearse(self, version: str) -> None:
        failed = rehearse(self._place, self._user(0))
        if failed is not None:
            self._put_away()
            _not_fit(failed.reason, f"bubblewrap {version}: {failed.detail}", failed.fix)

    def serve(self) -> None:
        """Work until the node is gone, or SIGTERM comes; then nothing is left."""
        self._loop.on_reaped(self._look_at_ending)
        self._loop.on_terminate(lambda: self._end("SIGTERM"))
        self._loop.watch(self._node.fileno(), self._hear)
        # What is there now stays there: children share the pages as long as nobody counts references in them.
        gc.collect()
        gc.freeze()
        self._loop.run()
        self._put_away()

    def _put_away(self) -> None:
        # All is begun before any of it is waited for; a run's release is let go of only after that.
        self._ahead.kill()
        for run in self._runs.values():
            run.kill()
        for run in self._runs.values():
            run.abandon()
        self._ahead.abandon()
        self._node.forget()
        self._place.cgroups.sweep(self._place.prefix)
        self._switch.end()
        _reap_all(time.monotonic() + REAPED_WITHIN_S)

    def _end(self, why: str) -> None:
        self._loop.stop()
        # The node's end of this may be gone with it, and what is buffered would be written once more at the end.
        with contextlib.suppress(OSError):
            os.write(sys.stderr.fileno(), f"launcher: ends: {why}\n".encode())

    def _look_at_ending(self) -> None:
        for run in tuple(self._runs.values()):
            run.look_whether_dead()
        self._ahead.look_whether_dead()

    def _hear(self) -> None:
        try:
            heard = self._node.hear()
        except OSError as gone:
            self._end(f"the node is gone: {gone.strerror}")
            return
        if heard is None:
            return
        try:
            if not heard.content:
                self._end("the node is gone")
            elif heard.cut:
                self._end("the node said more than it may")
            else:
                self._do(message_of(heard.content), heard.descriptors)
        except ValueError as odd:
            self._end(f"the node said what is no message: {odd}")
        finally:
            for each in heard.descriptors:
                os.close(each)

    def _do(self, message: Message, descriptors: Sequence[int]) -> None:
        if isinstance(message, Spawn):
            self._spawn(message, descriptors)
            return
        if isinstance(message, Lay):
            self._lay(message, descriptors)
            return
        # A run that has failed meanwhile is not known any more, and needs nothing.
        run = self._runs.get(message.run) if isinstance(message, Release | Stop | Clear) else None
        if run is not None and isinstance(message, Release):
            run.release()
        elif run is not None and isinstance(message, Stop):
            run.stop(message.reason)
        elif run is not None:
            run.clear()

    def _spawn(self, asked: Spawn, descriptors: Sequence[int]) -> None:
        wrong = self._why_not(asked, descriptors)
        if wrong:
            self._say(Failed(asked.run, "sandbox.spawn_refused", wrong), ())
            return
        *streams, command, filter_ = descriptors
        kind, user = Kind(asked.bounds, _content(filter_)), self._user(asked.slot)
        laid = self._ahead.take(asked.slot, kind)
        if asked.again:
            self._ahead.want(asked.slot, kind)
        run = LaunchedRun(
            asked,
            self._place,
            laid or HeldSandbox(self._place, kind, user, NOBODY_HEARS),
            user=user,
            send=self._say,
            gone=lambda clean: self._forget(asked, clean=clean),
        )
        self._runs[asked.run] = run
        run.start(streams, command)

    def _lay(self, asked: Lay, descriptors: Sequence[int]) -> None:
        if len(descriptors) != 1 or not _is_program(descriptors[0]):
            raise ValueError("what is to be laid has no filter")
        kind = Kind(asked.bounds, _content(descriptors[0]))
        busy = {run.asked.slot for run in self._runs.values()}
        for slot in range(self._slots):
            self._ahead.want(slot, kind)
            if slot not in busy:
                # One after the other, now and when they are old: each keeps the launcher from looking at what runs.
                self._ahead.lay_in(LAY_AT_LEISURE_S * (slot + 1), slot)

    def _forget(self, asked: Spawn, *, clean: bool) -> None:
        self._runs.pop(asked.run, None)
        if clean:
            self._ahead.lay_in(LAY_AFTER_S if asked.again else LAY_AT_LEISURE_S, asked.slot)

    def _why_not(self, asked: Spawn, descriptors: Sequence[int]) -> str | None:
        if len(descriptors) != MOST_DESCRIPTORS:
            return f"{len(descriptors)} descriptors instead of {MOST_DESCRIPTORS}"
        if not 0 <= asked.slot < self._slots:
            return f"there is no slot {asked.slot}"
        if asked.run in self._runs or any(run.asked.slot == asked.slot for run in self._runs.values()):
            return f"slot {asked.slot} has a run, or there is one of that name"
        return None if _is_program(descriptors[-1]) else "the filter is no program"

    def _say(self, message: Message, descriptors: Sequence[int]) -> None:
        """Tell the node; one that does not listen is gone."""
        try:
            self._node.say(packet(message), descriptors)
        except OSError as deaf:
            self._end(f"the node does not listen: {deaf.strerror}")


def _is_program(file: int) -> bool:
    size = os.fstat(file).st_size
    return 0 < size <= LONGEST_FILTER and size % 8 == 0


def _content(file: int) -> bytes:
    return os.pread(file, LONGEST_FILTER, 0)


def _reap_all(until: float) -> None:
    """Reap every child there is, as far as they end in time: in a container nobody else may."""
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < until:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(NOT_YET_S)


def _program(path: Path, user: int | None) -> bubblewrap.Program:
    fix = "install bubblewrap (Debian: `apt-get install bubblewrap`), and name it in `[sandbox]` where it is elsewhere"
    try:
        program = bubblewrap.examine(path, user)
    except PermissionError as kept:
        if kept.errno == errno.EPERM and user is not None:
            _not_fit(ROOT_KEPT, f"the launcher is root and cannot become uid {user}", FIXES[ROOT_KEPT])
        _not_fit("sandbox.bwrap_missing", f"{path}: {kept.strerror}", fix)
    except OSError as absent:
        _not_fit("sandbox.bwrap_missing", f"{path}: {absent.strerror}", fix)
    except ValueError as odd:
        _not_fit("sandbox.bwrap_missing", str(odd), fix)
    if program.too_old:
        _not_fit("sandbox.bwrap_too_old", f"{path} is bubblewrap {program.version}", "use version 0.8 or later")
    if program.setuid:
        _not_fit(
            "sandbox.bwrap_setuid",
            f"{path} takes another user's rights",
            f"`chmod u-s,g-s {path}`, and allow user namespaces",
        )
    return program


def _cgroups() -> Cgroups:
    try:
        return cgroups.find()
    except MechanismMissing as missing:
        first = missing.findings[0]
        _not_fit(first.reason, f"{first.fact}: {first.consequence}", first.fix)


def _image(path: Path) -> list[str]:
    try:
        return bubblewrap.image_arguments(path)
    except OSError as absent:
        _not_fit("sandbox.image_missing", f"{path}: {absent.strerror}", "gateway sandbox build")


def _starter() -> int:
    try:
        return starter.open_starter(os.uname().machine)
    except OSError as refused:
        _not_fit(
            "sandbox.starter_missing",
            f"the starter for {os.uname().machine} cannot be had: {refused}",
            "install the node anew; where it says EACCES, `sysctl vm.memfd_noexec=1`",
        )


def _not_fit(reason: str, detail: str, fix: str) -> NoReturn:
    raise NotFit(reason, detail, fix) from None
