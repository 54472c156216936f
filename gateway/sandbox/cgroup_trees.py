"""One group's directories in one or several trees of cgroups: its processes ended, that proved, and all removed.

Everything here holds for cgroup v2, for v1, and for both beside each other; standard library only (`cgroup_files`).
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from gateway.sandbox.cgroup_files import NAME, Descriptor, Files, content, fields, members

UNIFIED = "unified"
"""The tree of cgroup v2, alone or beside those of v1: it alone has `cgroup.kill` and `cgroup.events`."""
LEAF = "gateway.own"
"""The group of the node's own processes, where they had to leave the one that runs get their groups in."""

PAUSE = 0.001
BY_THE_KERNEL = 0.25
"""Seconds that `cgroup.kill` is given before each process is ended by itself; tearing down 512 MiB takes some."""
MOST_DIRECTORIES = 20_000
UNITS = (".service", ".slice", ".scope", ".mount", ".socket")
"""Ends of the names that systemd gives to groups of its own."""


class GroupTrees:
    """The directories of one group by tree; reads, writes and ends nothing but what is in them."""

    def __init__(self, places: Mapping[str, Path], files: Files, events: Descriptor | None = None) -> None:
        self.places = dict(places)
        """Where the group stands: a directory by tree (v2: one, named `unified`)."""
        self.files = files
        self.directories = tuple(dict.fromkeys(self.places.values()))
        """The same without repetitions: v1 often has cpu and cpuacct in one tree."""
        self._events = events

    @property
    def name(self) -> str:
        """Return the group's name."""
        return self.directories[0].name

    @property
    def join_paths(self) -> tuple[Path, ...]:
        """Return the files to write a pid to ("0" is the writer) to bring it under the bounds: all of them, in order.

        The first write after some 10 ms without any has the kernel wait about 12 ms; `cgroup_entry` goes around that.
        """
        return tuple(each / "cgroup.procs" for each in self.directories)

    @property
    def oom_events(self) -> int | None:
        """Return a descriptor that is readable when memory may have run out, or the group is gone; ask `oom_seen` then.

        None where there is none to be had (v1: PREEMPT_RT kernels; v2: this user has no inotify instance left; both:
        another process made the group): look at `oom_seen` now and then.
        """
        return None if self._events is None else self._events.fileno()

    def populated(self) -> bool:
        """Return True while any process of the group lives, in any of its trees; a zombie does not count."""
        return any(self._populated(each) for each in self.directories)

    def _populated(self, directory: Path) -> bool:
        told = None
        if directory == self.places.get(UNIFIED):
            told = fields(self.files, directory / "cgroup.events").get("populated")
        return bool(members(self.files, directory)) if told is None else told == 1

    def kill(self, within: float = 2.0) -> bool:
        """SIGKILL every process of the group, and return True when none is left: the proof, not the wish.

        Where the kernel has `cgroup.kill` (5.14 and later) that does it at once; else, and for what it leaves, the
        group is frozen, so that none forks, and each process is ended by itself.  Takes `within` seconds at most.
        """
        until = time.monotonic() + within
        if self._kill_at_once():
            self._wait(min(until, time.monotonic() + BY_THE_KERNEL))
            if not self.populated():
                return True
        while True:
            self._kill_each()
            if not self.populated():
                return True
            if time.monotonic() >= until:
                return False
            time.sleep(PAUSE)

    def begin_to_kill(self) -> None:
        """SIGKILL what is in the group, and neither wait nor look whether anything is left."""
        if not self._kill_at_once():
            self._kill_each()

    def _kill_at_once(self) -> bool:
        if UNIFIED not in self.places:
            return False
        try:
            self.files.write(self.places[UNIFIED] / "cgroup.kill", "1")
        except OSError:
            return False
        return True

    def _wait(self, until: float) -> None:
        while self.populated() and time.monotonic() < until:
            time.sleep(PAUSE)

    def _kill_each(self) -> None:
        with self._held_still():
            for directory in self.directories:
                for pid in members(self.files, directory):
                    self._end(directory, pid)

    def _end(self, directory: Path, pid: int) -> None:
        # The number may have passed to a stranger since it was read: the descriptor pins the process, then it is
        # looked up again, and only who is still listed is ended.
        try:
            pinned = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        except OSError:  # before 5.3, and under the filters of some containers
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            return
        try:
            if pid in members(self.files, directory):
                signal.pidfd_send_signal(pinned, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return
        finally:
            os.close(pinned)

    @contextmanager
    def _held_still(self) -> Iterator[None]:
        """Let nothing fork meanwhile: frozen where that exists, else by a bound of no tasks."""
        frozen = self._each_write(("cgroup.freeze", "1"), ("freezer.state", "FROZEN"))
        if not frozen:
            self._each_write(("pids.max", "0"))
        try:
            self._wait_frozen(frozen)
            yield
        finally:
            # In v1 a frozen process does not even die.
            self._each_write(("cgroup.freeze", "0"), ("freezer.state", "THAWED"))

    def _each_write(self, *settings: tuple[str, str]) -> tuple[Path, ...]:
        written = []
        for directory in self.directories:
            for name, value in settings:
                with suppress(OSError):
                    self.files.write(directory / name, value)
                    written.append(directory / name)
        return tuple(written)

    def _wait_frozen(self, frozen: tuple[Path, ...]) -> None:
        until = time.monotonic() + 0.05
        while not all(map(self._is_frozen, frozen)) and time.monotonic() < until:
            time.sleep(PAUSE)

    def _is_frozen(self, switch: Path) -> bool:
        if switch.name == "freezer.state":
            return (content(self.files, switch) or "FROZEN").strip() == "FROZEN"
        return fields(self.files, switch.with_name("cgroup.events")).get("frozen", 1) == 1

    def remove(self, within: float = 1.0) -> tuple[Path, ...]:
        """Remove the directories, close `oom_events`, and return what still stands: nothing is the proof of it.

        The kernel answers EBUSY for a moment after the last process is gone; that is tried again for `within` seconds.
        """
        if self._events is not None:
            self._events.close()
        until = time.monotonic() + within
        return tuple(each for each in self.directories if not remove_directory(self.files, each, until))


def remove_directory(files: Files, directory: Path, until: float) -> bool:
    """Remove a group and those within it; return False when it still stands at `until` (monotonic seconds)."""
    emptied = False
    while True:
        try:
            files.rmdir(directory)
        except FileNotFoundError:
            return True
        except OSError as refused:
            # One that has others within is refused as well, and few have any.
            within = () if emptied else _groups_in(directory)
            emptied = True
            for each in within:
                remove_directory(files, each, until)
            if within:
                continue
            if refused.errno != errno.EBUSY or time.monotonic() >= until:
                return False
            time.sleep(PAUSE)
        else:
            return True


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did: the names it removed, and the directories that it could not."""

    removed: tuple[str, ...]
    left: tuple[Path, ...]


def leftovers(roots: Mapping[str, Path], own: Mapping[str, Path], prefix: str, files: Files) -> list[GroupTrees]:
    """Return the groups whose name begins with `prefix`, wherever they stand in the trees that begin at `roots`.

    Everywhere, because an earlier run of the node may have been started from another session.  The groups that this
    process is in (`own`), all above them, and systemd's units are never among them.

    Raises:
        ValueError: the prefix is too short to be this node's alone.
    """
    if not NAME.fullmatch(prefix):
        raise ValueError(f"{prefix!r} is no prefix of groups to be swept: 6 to 64 of a-z, 0-9, dot, dash, underscore")
    spared = {above for each in own.values() for above in (each, *each.parents)}
    found: dict[str, dict[str, list[Path]]] = {}
    for tree, root in roots.items():
        for directory in _below(root):
            if directory.name.startswith(prefix) and directory not in spared and not _foreign(directory.name):
                found.setdefault(directory.name, {}).setdefault(tree, []).append(directory)
    return [
        GroupTrees({tree: each for tree, each in zip(places, paths, strict=True) if each is not None}, files)
        for places in found.values()
        for paths in zip_longest(*places.values())
    ]


def sweep(groups: list[GroupTrees]) -> Swept:
    """End every process in these groups, and remove them."""
    removed: list[str] = []
    left: list[Path] = []
    for group in groups:
        group.kill()
        standing = group.remove()
        left += standing
        if not standing:
            removed.append(group.name)
    return Swept(tuple(removed), tuple(left))


def _foreign(name: str) -> bool:
    return name == LEAF or name.endswith(UNITS)


def _below(root: Path) -> Iterator[Path]:
    waiting = [root]
    for _ in range(MOST_DIRECTORIES):
        if not waiting:
            return
        within = _groups_in(waiting.pop())
        waiting += within
        yield from within


def _groups_in(directory: Path) -> list[Path]:
    with suppress(OSError), os.scandir(directory) as entries:
        return sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))
    return []
