"""How the sandbox is run on this node."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import attrs

import gateway.sandbox
from gateway.sandbox.host import Machine, Wanted
from gateway.sandbox.launcher_messages import Settings

PROGRAM = (sys.executable, "-I", "-S", str(Path(gateway.sandbox.__file__).with_name("launcher.py")))


@attrs.frozen
class SandboxSettings:
    """How the sandbox is run; all times are in seconds.

    Attributes:
        images: the directory of images.
        prefix: begins the names of this node's groups; no other node of the host may have it.
        slots: runs at once; 0: one a core, and in any case one where all would run as the node's own user.
        memory_bytes: what all of them together may take of the host; 0: half of what it has.
        queue: runs that may wait.
        first_uid: where the launcher is root, slot n runs as the host's user `first_uid + n`.
        canary_interval_s: from the end of a round of canaries to the next.
        doubt_s: from the end of a round to the next at the earliest, where a run gives reason to look again.
        canary_patience_s: how long a canary stands back behind runs that were sold.
        bubblewrap: the program; empty: the one on PATH.
        ahead: sandboxes are laid ahead of need, one a slot, of the kind that was last sold.
        launcher: the words before the launcher's own command, that give it its privilege.
        program: the launcher's own command, to which its settings are added.
        start_s: how long a launcher may take to say that it works; it sweeps what earlier ones left first.
        setup_s: how long a run may take until it is ready.
        end_s: how long each step may take that comes after a run's last process.
        retry_first_s: pause after a failure; doubles up to `retry_most_s`, and is forgotten once all was well so long.
    """

    images: Path
    prefix: str
    slots: int = 0
    memory_bytes: int = 0
    queue: int = 4
    first_uid: int = 64_400
    canary_interval_s: float = 600.0
    doubt_s: float = 30.0
    canary_patience_s: float = 60.0
    bubblewrap: str = ""
    ahead: bool = True
    launcher: tuple[str, ...] = ()
    program: tuple[str, ...] = PROGRAM
    start_s: float = 20.0
    setup_s: float = 5.0
    end_s: float = 3.0
    retry_first_s: float = 1.0
    retry_most_s: float = 60.0

    @property
    def wanted(self) -> Wanted:
        """What is looked for on the host; not the image, which is looked at apart."""
        return Wanted(self.slots, self.memory_bytes, self.first_uid, self.launcher, prefix=self.prefix)

    def on(self, machine: Machine) -> SandboxSettings:
        """Return them with what 0 and empty stand for on a machine."""
        return attrs.evolve(
            self,
            slots=self.wanted.slots_on(machine),
            memory_bytes=self.wanted.memory_on(machine),
            bubblewrap=self.bubblewrap or machine.bubblewrap or "bwrap",
        )

    def command(self, image: Path) -> tuple[str, ...]:
        """Return the command that starts a launcher for an image."""
        told = Settings(str(image), self.bubblewrap, self.prefix, self.first_uid, self.slots)
        return (*self.launcher, *self.program, json.dumps(dataclasses.asdict(told)))

    def back_off(self, failures: int) -> float:
        """Return the pause after the `failures`-th failure in a row."""
        return min(self.retry_first_s * 2.0 ** min(failures - 1, 16), self.retry_most_s)
