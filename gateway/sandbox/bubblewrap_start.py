"""Bubblewrap started in a group with nothing that is a command's: its streams are its own, it executes the starter.

Standard library only: the launcher imports this.
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from gateway.sandbox import bubblewrap
from gateway.sandbox.cgroup_entry import fork_into
from gateway.sandbox.cgroup_files import Descriptor
from gateway.sandbox.cgroups import Cgroups, Group
from gateway.sandbox.event_loop import EventLoop
from gateway.sandbox.launcher_child import Descriptors, become
from gateway.sandbox.launcher_messages import Bounds


@dataclass(frozen=True)
class Place:
    """What all sandboxes of a launcher share: the program, the arguments of the image, the groups, the loop, a starter.

    `prefix` begins the names of their groups, and one of `numbers` ends each; `starter` is a descriptor of it.
    """

    program: Path
    image: list[str]
    cgroups: Cgroups
    loop: EventLoop
    prefix: str
    starter: int
    numbers: Iterator[int] = field(default_factory=itertools.count)


@dataclass(frozen=True)
class Kind:
    """What a sandbox is made of before there is a command: its bounds, and the bytes of its filter.

    None is for one that no command is ever given.
    """

    bounds: Bounds
    filter: bytes | None = field(repr=False)


@dataclass(frozen=True)
class Started:
    """Bubblewrap, the launcher's child `pid`, and this process's ends of what it was given.

    A byte written to `block` lets it go on to the starter; on `status` it tells of its child and of the end, on
    `complaints` what is wrong; `orders` is the starter's, and tells who it is.
    """

    pid: int
    block: Descriptor
    status: Descriptor
    complaints: Descriptor
    orders: socket.socket

    def close(self) -> None:
        """Close them."""
        for each in (self.block, self.status, self.complaints, self.orders):
            each.close()


def start_bubblewrap(place: Place, group: Group, kind: Kind, user: int | None) -> Started:
    """Start it as the host user `user` (None: this one).  Raises `OSError`."""
    bounds, filtered = kind.bounds, kind.filter is not None
    arguments = bubblewrap.arguments(
        place.image, disk_bytes=bounds.disk_bytes, artifact_bytes=bounds.artifact_bytes, filtered=filtered
    )
    with ExitStack() as given, ExitStack() as kept:
        told = _file(given, arguments)
        program = None if kind.filter is None else _file(given, kind.filter)
        # It has nothing to read, and what it writes is for the launcher alone.
        nothing, no_writer = os.pipe2(os.O_CLOEXEC)
        given.callback(os.close, nothing)
        os.close(no_writer)
        complaints, complains = _pipe(given, kept)
        status, tells = _pipe(given, kept)
        reads, releases = os.pipe2(os.O_CLOEXEC)
        block = Descriptor(releases)
        kept.callback(block.close)
        given.callback(os.close, reads)
        # Who waits for the release holds the other end too: no death is an end of file, which would be a release.
        waits = os.open(f"/proc/self/fd/{reads}", os.O_RDWR | os.O_CLOEXEC)
        given.callback(os.close, waits)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        kept.callback(ours.close)
        given.callback(theirs.close)
        ours.setblocking(False)  # noqa: FBT003 - the standard library's
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        streams = (nothing, complains, complains)
        descriptors = Descriptors(streams, told, waits, tells, place.starter, theirs.fileno(), program)
        parent = os.getpid()
        pid = fork_into(group.places)
        if pid == 0:
            become(place.program, bounds, descriptors, user=user, parent=parent)
        kept.pop_all()
        return Started(pid, block, status, complaints, ours)


def _file(opened: ExitStack, content: bytes) -> int:
    file = os.memfd_create("given", os.MFD_CLOEXEC)
    opened.callback(os.close, file)
    os.write(file, content)
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _pipe(given: ExitStack, kept: ExitStack) -> tuple[Descriptor, int]:
    """Return the end that is read here, and never waited at, and the one that is given away."""
    reads, writes = os.pipe2(os.O_CLOEXEC)
    given.callback(os.close, writes)
    ours = Descriptor(reads)
    kept.callback(ours.close)
    os.set_blocking(reads, False)
    return ours, writes
