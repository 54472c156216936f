"""What a rehearsal tells of a machine is the reason that the machine has, with the fix."""

from __future__ import annotations

import pytest

from gateway.sandbox.launcher_messages import Failed
from gateway.sandbox.rehearsal import ALLOW_NAMESPACES, OTHERWISE, explained

NAMESPACES = [
    "bwrap: No permissions to create new namespace, likely because the kernel does not allow non-privileged user",
    "bwrap: Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces exceeded (ENOSPC)",
    "bwrap: setting up uid map: Permission denied",
    "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted",
]


@pytest.mark.parametrize("complaint", NAMESPACES)
def test_what_bubblewrap_says_of_namespaces_is_known(complaint: str) -> None:
    told = explained(Failed("a", "sandbox.bwrap_failed", f"bubblewrap ended with 1: {complaint}"))
    assert (told.reason, told.fix) == ("sandbox.userns_denied", ALLOW_NAMESPACES)
    assert complaint in told.detail


def test_what_it_says_of_anything_else_is_told_as_it_is() -> None:
    said = "bubblewrap ended with 1: bwrap: Can't find source path /image/usr: Permission denied"
    told = explained(Failed("a", "sandbox.bwrap_failed", said))
    assert (told.reason, told.fix, told.detail) == ("sandbox.bwrap_failed", OTHERWISE, said)


def test_a_reason_of_the_launcher_s_own_stays() -> None:
    told = explained(Failed("a", "sandbox.hardening_failed", NAMESPACES[0], left="/sys/a"))
    assert told.reason == "sandbox.hardening_failed"
    assert "5.8" in told.fix
    assert told.detail.endswith("/sys/a")
