"""What the node and the launcher say to each other: one JSON object a packet of a Unix socket, descriptors beside it.

Standard library only: the launcher imports this, and nothing of what a stranger sent is in it (a command and its input
travel in descriptors of their own).  The order of a run:

    node                                     launcher
    Spawn + 5 descriptors               ->   group, bubblewrap, hardening, starter; or one that was laid ahead
                                        <-   Ready   (or Failed: it never ran, and nothing is left)
    Release                             ->   limits count from here on
    Stop, as often as it likes          ->
                                        <-   Left + 2 descriptors, where it has left something
                                        <-   Ended: every process of it is dead
    Clear after a Left, both closed     ->   groups removed; without a Left this is not waited for
                                        <-   Cleared

A run that is stopped before its release ends in `Failed`.  A node that is gone (end of file) has every run killed
first, whatever holds a run back is let go of only then, and the launcher ends.  With `Lay`, and with what it says in a
`Spawn`, the node has sandboxes laid ahead: the launcher tells of each as `Laid`, and they are looked for by the next
`Spawn` in their slot.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

LONGEST = 64 * 1024
"""Bytes of one packet at most."""
MOST_DESCRIPTORS = 5


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a launcher is to work: its first argument, as JSON.

    `image` is the directory of a verified image, `bubblewrap` the program's path.  `first_uid` and `slots` say which
    host user each slot runs under where the launcher is root (slot n: `first_uid + n`); without privilege there is one
    slot, under the launcher's own user.  `prefix` begins the name of every group of a run.
    """

    image: str
    bubblewrap: str
    prefix: str
    first_uid: int
    slots: int


@dataclasses.dataclass(frozen=True)
class Bounds:
    """What the kernel and the launcher hold a run to, in the units of the names.

    `host_bytes` bounds the group's memory with all that was written; `memory_bytes` what its processes may have beside
    that; `single` that no process follows the first.
    """

    cpu_us: int
    memory_bytes: int
    host_bytes: int
    tasks: int
    disk_bytes: int
    artifact_bytes: int
    wall_us: int
    single: bool

    def set_up_as(self, other: Bounds) -> bool:
        """Return whether a sandbox with these bounds can be given to a run with others: its time counts from then."""
        return {**vars(self), "wall_us": 0} == {**vars(other), "wall_us": 0}


@dataclasses.dataclass(frozen=True)
class Spawn:
    """Set a run up and hold it back.

    Descriptors, in this order: the read end of its standard input, the write ends of its standard output and error, a
    file with its command (arguments in sequence, each ended by NUL), a file with its filter.  `again` asks for another
    of its kind to be laid ahead in that slot from its end on; else what was laid there before is laid again.
    """

    run: str
    slot: int
    bounds: Bounds
    again: bool = False


@dataclasses.dataclass(frozen=True)
class Lay:
    """Have a sandbox laid ahead in every slot, as soon as it has no run.  Descriptor: a file with its filter."""

    bounds: Bounds


@dataclasses.dataclass(frozen=True)
class Laid:
    """A sandbox with these bounds is laid in a slot, and is held.  What becomes of it later, the next `Spawn` tells."""

    slot: int
    bounds: Bounds


@dataclasses.dataclass(frozen=True)
class Release:
    """Let the command be executed."""

    run: str


@dataclasses.dataclass(frozen=True)
class Stop:
    """End a run; `reason` is one of `outcome.Stop`, and the first reason counts."""

    run: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Clear:
    """Remove what is left of an ended run that has `Left` something; the node holds no descriptor of it any more."""

    run: str


@dataclasses.dataclass(frozen=True)
class Up:
    """The launcher works: the version of bubblewrap, the kind of cgroups, how many slots it has, what it swept."""

    bubblewrap: str
    cgroups: str
    slots: int
    swept: int


@dataclasses.dataclass(frozen=True)
class Unfit:
    """The launcher cannot work here and ends: a machine reason (`sandbox.cgroups_missing`), the fact, the exact fix."""

    reason: str
    detail: str
    fix: str


@dataclasses.dataclass(frozen=True)
class Ready:
    """The command is set up, hardened, looked at from outside and blocked before its execution.

    `places` are the directories of its groups, `setup_us` is how long that took from its `Spawn` on, `ahead` that it
    was begun before.
    """

    run: str
    places: dict[str, str]
    setup_us: int
    ahead: bool


@dataclasses.dataclass(frozen=True)
class Failed:
    """The run never ran, and nothing is left of it unless `left` says so (what, in words)."""

    run: str
    reason: str
    detail: str
    left: str | None = None


@dataclasses.dataclass(frozen=True)
class Left:
    """There is something in the `/out` of a run that is over, or much that the kernel has to take away with it.

    Descriptors: its directories `/scratch` and `/out`, which nobody else has when `Ended` follows.
    """

    run: str


@dataclasses.dataclass(frozen=True)
class Ended:
    """Every process of the run is dead; what was counted of it (None: could not be).

    `stopped` is the first reason to end it (`outcome.Stop`), `exit_code`, `sandbox_status` and `command_status` are
    those of `outcome.Evidence`; `disk_bytes` is what it used of `/scratch`, `processes` what is left alive, which
    should be 0.
    """

    run: str
    stopped: str | None
    exit_code: int | None
    sandbox_status: int | None
    command_status: int | None
    cpu_us: int
    wall_us: int
    peak_memory: int | None
    peak_tasks: int | None
    task_denials: int | None
    oom_kills: int | None
    disk_bytes: int | None
    processes: int | None


@dataclasses.dataclass(frozen=True)
class Cleared:
    """What is left of a run after all was removed; 0 each, None where it could not be looked at."""

    run: str
    mounts: int | None
    cgroups: int | None


Message = Spawn | Lay | Laid | Release | Stop | Clear | Up | Unfit | Ready | Failed | Left | Ended | Cleared
_KINDS: Mapping[str, type[Any]] = {
    each.__name__: each
    for each in (Spawn, Lay, Laid, Release, Stop, Clear, Up, Unfit, Ready, Failed, Left, Ended, Cleared)
}
_AS_JSON = json.JSONEncoder(default=vars)
"""Of messages, too, which have their fields and nothing else."""


def packet(message: Message) -> bytes:
    """Return the packet that says it."""
    return _AS_JSON.encode({"says": type(message).__name__, **vars(message)}).encode()


def message_of(packet: bytes) -> Message:
    """Return what a packet says; raises `ValueError` on what is none of it."""
    try:
        told = json.loads(packet.decode())
        kind = _KINDS[told.pop("says")]
        if "bounds" in told:
            told["bounds"] = Bounds(**told["bounds"])
        said: Message = kind(**told)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no message of the launcher's: {error!r}") from error
    return said
