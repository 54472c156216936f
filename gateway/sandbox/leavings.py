"""What a run has left in its directories, looked at in a few steps however much that is.

Standard library only: the launcher imports this.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

LITTLE_FILES, LITTLE_BYTES = 500, 16 << 20
"""What the kernel takes away in some two milliseconds, when nobody holds a filesystem any more."""


@dataclass(frozen=True)
class Leavings:
    """What was left by a run whose processes are all dead.

    Attributes:
        disk_bytes: what it used of `/scratch`; None where that cannot be told.
        nothing: there is nothing in `/out`, and little to be taken away; False where that cannot be told.
    """

    disk_bytes: int | None
    nothing: bool


def leavings(scratch: int, out: int) -> Leavings:
    """Return what was left in two open directories, each the root of a filesystem of its own; they stay open."""
    try:
        written = os.fstatvfs(scratch)
    except OSError:
        return Leavings(None, nothing=False)
    try:
        with os.scandir(out) as entries:
            nothing = next(entries, None) is None and _little(written) and _little(os.fstatvfs(out))
    except OSError:
        nothing = False
    return Leavings(_used(written), nothing)


def _little(told: os.statvfs_result) -> bool:
    return told.f_files - told.f_ffree <= LITTLE_FILES and _used(told) <= LITTLE_BYTES


def _used(told: os.statvfs_result) -> int:
    return (told.f_blocks - told.f_bfree) * told.f_frsize
