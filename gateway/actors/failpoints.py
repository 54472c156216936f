"""Labelled points where a crash campaign may kill the process.  Off, a failpoint is one comparison with None.

`GATEWAY_FAILPOINT=label` kills the process at the first pass of that label, `label:3` at the third.
"""

from __future__ import annotations

import os
import signal

LABELS = (
    "claim.before",
    "claim.after",
    "verify.before",
    "verify.after",
    "execute.before",
    "execute.after",
    "keep.before",
    "keep.after",
    "settle.before",
    "settle.after",
    "look.before",
    "look.after",
    "receipt.before",
    "receipt.after",
    "fail.before",
    "fail.after",
    "answer.before",
)
"""Every label, in the order in which a paid call passes them."""

_armed: str | None = os.environ.get("GATEWAY_FAILPOINT") or None
_passes = 0


def failpoint(label: str) -> None:
    """Die by SIGKILL here if this label is armed."""
    if _armed is None:
        return
    _hit(label)


def _hit(label: str) -> None:
    global _passes  # noqa: PLW0603 - one process, one armed label
    name, _, count = (_armed or "").partition(":")
    if name != label:
        return
    _passes += 1
    if _passes >= int(count or 1):
        os.kill(os.getpid(), signal.SIGKILL)
