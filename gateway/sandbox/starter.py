"""The starter: what every sandbox executes first, which waits for one order and then becomes the command.

A sandbox can so be set up, hardened and looked at before there is a command, and whether the command could be executed
is told by the kernel alone.  It is a program of some hundred instructions' bytes that ships with the node, bound to its
digest; `starters/x86_64.S` says what it does.  Standard library only: the launcher imports this.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gateway.sandbox.bubblewrap import ENVIRONMENT, SCRATCH

STARTERS = Path(__file__).with_name("starters")
HERE = b"\1"
"""What it says once it is there."""
BLOCK = 0x1000_0000
"""Where the block of an order lies in its memory."""
REFUSED = struct.Struct("=i")
"""What it says where the command cannot be executed: the errno."""
MFD_EXEC = 0x10
"""Of memfd_create(2), since Linux 6.3: to be executed."""
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE

_NUMBERS = struct.Struct("=4Q")
_POINTER = struct.Struct("=Q")
_MIB = 2**20


class StarterUnavailable(Exception):
    """There is no starter that is known to be right: the sandbox must stay closed.

    Attributes:
        reason: a machine reason, `sandbox.starter_missing` or `sandbox.starter_digest_mismatch`.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def verified(machine: str, starters: Path = STARTERS) -> str:
    """Return the `sha256:` digest of the starter for a machine as `uname -m` names it.

    Raises `StarterUnavailable` for an architecture without one, and for bytes that differ from their digest.
    """
    import hashlib

    name = f"{machine}.elf"
    try:
        expected: str | None = json.loads((starters / "digests.json").read_bytes()).get(name)
        if expected is None:
            raise StarterUnavailable("sandbox.starter_missing", f"there is no starter for {machine}")
        found = "sha256:" + hashlib.sha256((starters / name).read_bytes()).hexdigest()
    except (OSError, ValueError) as error:
        raise StarterUnavailable("sandbox.starter_digest_mismatch", f"{starters}: {error}") from error
    if found != expected:
        raise StarterUnavailable(
            "sandbox.starter_digest_mismatch", f"{starters / name} is {found} and should be {expected}"
        )
    return found


def open_starter(machine: str, starters: Path = STARTERS) -> int:
    """Return a descriptor of a sealed file in memory that is the starter, to be executed.

    Raises `OSError`: there is none for this machine, or nothing in memory may be executed (`vm.memfd_noexec=2`).
    """
    program = (starters / f"{machine}.elf").read_bytes()
    written = _file("starter", program, MFD_EXEC)
    try:
        # Whoever executes it may not find anybody who could write it.
        return os.open(f"/proc/self/fd/{written}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(written)


def _file(name: str, content: bytes, flags: int) -> int:
    always = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    made = -1
    with suppress(OSError):  # kernels that do not know the flag have such files executed anyway
        made = os.memfd_create(name, always | flags)
    made = os.memfd_create(name, always) if made < 0 else made
    try:
        os.truncate(made, len(content))
        os.pwrite(made, content, 0)
        fcntl.fcntl(made, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(made)
        raise
    return made


@dataclass(frozen=True)
class Order:
    """What the starter is to become: what it is sent, with the block in `descriptor` after the three streams."""

    numbers: bytes
    descriptor: int = field(repr=False)


def environment(memory_bytes: int) -> list[bytes]:
    """Return the environment of a command whose processes may use `memory_bytes` together, each as `NAME=value`.

    V8 sizes its heap by the host's memory and collects garbage too late for a smaller limit.  `NODE_OPTIONS` gives it
    its heap from the limit, so that it collects in time, and explains on standard error what really does not fit.  The
    rest of the limit is for what V8 has beside its heap (some 10 MiB, and buffers).
    """
    memory = memory_bytes // _MIB
    semi_space = min(max(memory // 16, 1), 16)
    old_space = max(memory - 3 * semi_space - max(memory // 8, 16), 8)
    node = f"--max-old-space-size={old_space} --max-semi-space-size={semi_space}"
    given = {**ENVIRONMENT, "PWD": SCRATCH, "NODE_OPTIONS": node}
    return [f"{name}={value}".encode() for name, value in given.items()]


def order(command: Sequence[bytes], memory_bytes: int) -> Order:
    """Return the order for a command of a run with this limit of memory; its descriptor is the caller's.

    Raises `OSError`.
    """
    block, path, argv, envp = laid_out(command, environment(memory_bytes))
    return Order(_NUMBERS.pack(len(block), path, argv, envp), _file("order", block, 0))


def laid_out(command: Sequence[bytes], variables: Sequence[bytes]) -> tuple[bytes, int, int, int]:
    """Return a block as it has to lie at `BLOCK`, and where in it path, arguments and environment begin.

    `variables` are the environment, each as `NAME=value`.

    The path is where `execvp` would look under the `PATH` that the command has.
    """
    strings = [path_of(command[0]), *command, *variables]
    argv = BLOCK
    envp = argv + (len(command) + 1) * _POINTER.size
    at = envp + (len(variables) + 1) * _POINTER.size
    places = []
    for each in strings:
        places.append(at)
        at += len(each) + 1
    path, arguments, values = places[0], places[1 : 1 + len(command)], places[1 + len(command) :]
    pointers = b"".join(map(_POINTER.pack, (*arguments, 0, *values, 0)))
    return pointers + b"".join(each + b"\0" for each in strings), path, argv, envp


def path_of(name: bytes) -> bytes:
    """Return the path that a command's first argument names: none for an empty one, which the kernel then refuses."""
    return name if b"/" in name or not name else ENVIRONMENT["PATH"].encode() + b"/" + name


def refusal(said: bytes) -> int | None:
    """Return the errno that the starter told; None where it told none: it has executed the command, or was killed."""
    return REFUSED.unpack(said[: REFUSED.size])[0] if len(said) >= REFUSED.size else None
