"""Why no run can be made now: the machine word, what was found, and what mends it."""

from __future__ import annotations

import attrs

from gateway.errors import OperationUnavailable

STARTING = "starting"
STOPPED = "stopped"
CLEANUP_FAILED = "sandbox.cleanup_failed"
LAUNCHER_BROKEN = "sandbox.launcher_broken"
LAUNCHER_DIED = "sandbox.launcher_died"
LAUNCHER_HUNG = "sandbox.launcher_hung"
LAUNCHER_MISSING = "sandbox.launcher_missing"
RETRY_AFTER_S = 5.0


@attrs.frozen
class Closed:
    """Why nothing runs: `reason` for machines; `detail` and `fix` are the operator's, callers do not see them."""

    reason: str
    detail: str = ""
    fix: str = ""

    def refusal(self) -> OperationUnavailable:
        """Return what a caller is told."""
        return OperationUnavailable(
            f"The sandbox is closed ({self.reason}).", retry_after=RETRY_AFTER_S, extra={"reason": self.reason}
        )
