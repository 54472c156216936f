"""Where commands run now, or why none can: what the supervisor knows, for everyone in the loop to read."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import attrs

from gateway.actors.sandbox.closed import STARTING, Closed
from gateway.actors.sandbox.room import Room
from gateway.actors.sandbox.settings import SandboxSettings
from gateway.sandbox.image import Image
from gateway.sandbox.limits import Limits
from gateway.sandbox.seccomp import Filter


@attrs.frozen
class Standing:
    """What runs are made of: image, filters, the version of bubblewrap, the kind of cgroups, the starter's digest."""

    image: Image
    filter: Filter
    single: Filter
    bubblewrap: str
    cgroups: str
    starter: str

    def filter_for(self, limits: Limits) -> Filter:
        """Return the filter of a run with these limits."""
        return self.single if limits.single else self.filter

    @property
    def fingerprint(self) -> str:
        """32 hex digits over all that the proof of a run depends on."""
        parts = [self.image.digest, self.filter.digest, self.single.digest, self.bubblewrap, self.cgroups]
        parts.append(self.starter)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


@attrs.frozen
class Seen:
    """What the last run of a canary showed: `fault` is None where it proved what it should."""

    fault: str | None
    ms: int
    at: datetime


@attrs.define(eq=False)
class SandboxPlace:
    """Where commands run now, or why none can.  Read by anyone in the loop, written by the supervisor alone.

    Attributes:
        room: slots, queue and memory.
        state: see `now`.
        changed: called after every change of `state`; it must not wait.
        pid: of the launcher, while there is one.
        starts: how often a launcher has been started.
        swept: groups of earlier lives that the last launcher removed when it started.
        canaries: what the last run of each showed, by name.
        ended: how many runs that were sold ended how: outcomes, and the reasons of those that gave no result.
    """

    room: Room
    state: Standing | Closed = attrs.field(factory=lambda: Closed(STARTING))
    changed: Callable[[], object] = attrs.field(default=lambda: None)
    pid: int | None = None
    starts: int = 0
    swept: int = 0
    canaries: Mapping[str, Seen] = attrs.field(factory=dict)
    ended: Counter[str] = attrs.field(factory=Counter)

    @classmethod
    def of(cls, settings: SandboxSettings) -> SandboxPlace:
        """Return the place of a sandbox that is not started yet; of the settings as they are on a machine."""
        return cls(Room(settings.memory_bytes, settings.queue))

    def now(self) -> Standing | Closed:
        """Return what runs are made of, or why there are none."""
        return self.state

    def tell(self, state: Standing | Closed) -> None:
        """Publish, and let runs in or send those away that wait."""
        if isinstance(state, Closed):
            self.room.close(state)
        else:
            self.room.open()
        if state != self.state:
            self.state = state
            self.changed()

    def resolves(self, name: str) -> object:
        """Return what the image would run for argv[0] `name`, or something false; anything while there is no image."""
        return self.state.image.resolves(name) if isinstance(self.state, Standing) else True

    def shown(self) -> dict[str, Any]:
        """Return what an operator sees of it."""
        room = self.room
        return {
            **(_standing(self.state) if isinstance(self.state, Standing) else _closed(self.state)),
            "slots": room.usable,
            "running": len(room.used),
            "queued": room.waiting,
            "quarantined": sorted(room.quarantined),
            "memoryBytes": room.memory_bytes,
            "reservedBytes": room.reserved_bytes,
            "launcher": {"pid": self.pid, "starts": self.starts, "swept": self.swept},
            "runs": dict(self.ended),
            "canaries": [
                {"name": name, "ok": each.fault is None, "fault": each.fault, "ms": each.ms, "at": each.at.isoformat()}
                for name, each in self.canaries.items()
            ],
        }


def _standing(standing: Standing) -> dict[str, Any]:
    return {
        "open": True,
        "reason": None,
        "image": standing.image.digest,
        "imageKind": standing.image.kind,
        "filters": [standing.filter.digest, standing.single.digest],
        "bubblewrap": standing.bubblewrap,
        "cgroups": standing.cgroups,
        "fingerprint": standing.fingerprint,
    }


def _closed(closed: Closed) -> dict[str, Any]:
    return {"open": False, "reason": closed.reason, "detail": closed.detail or None, "fix": closed.fix or None}
