"""Labelled points where a crash campaign may kill the process.  Off, a failpoint is one comparison with None.

`GATEWAY_FAILPOINT=label` kills the process at the first pass of that label, `label:3` at the third.
"""

from __future__ import annotations

import os
import signal

import attrs

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
"""Those of a paid call in the order in which it passes them, `fail` where it ends without a charge."""
RUN_LABELS = ("release.before", "release.after")
"""Those that only what must never run twice passes, within its execution."""


@attrs.define
class Armed:
    """The label to die at, and how many passes of it are left."""

    label: str
    passes: int = 1

    @classmethod
    def of(cls, setting: str | None) -> Armed | None:
        """Read a setting; raises ValueError for a label that does not exist, which would never be passed."""
        if not setting:
            return None
        label, colon, count = setting.partition(":")
        if label not in LABELS + RUN_LABELS:
            raise ValueError(f"GATEWAY_FAILPOINT: there is no failpoint {label}")
        if colon and not (count.isascii() and count.isdigit() and int(count)):
            raise ValueError(f"GATEWAY_FAILPOINT: {setting} does not say which pass")
        return cls(label, int(count or 1))

    def hit(self, label: str) -> None:
        """Die by SIGKILL if this is the pass to die at."""
        if label == self.label:
            self.passes -= 1
            if not self.passes:
                os.kill(os.getpid(), signal.SIGKILL)


armed: Armed | None = Armed.of(os.environ.get("GATEWAY_FAILPOINT"))


def failpoint(label: str) -> None:
    """Die by SIGKILL here if this label is armed."""
    if armed is not None:
        armed.hit(label)
