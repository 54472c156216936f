"""A run set up as every run is, looked at, and never released: what this machine denies is known before anybody asks.

Standard library only: the launcher imports this.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.sandbox.bubblewrap_start import Kind, Place
from gateway.sandbox.held_sandbox import Events, HeldSandbox
from gateway.sandbox.launched_run import LaunchedRun
from gateway.sandbox.launcher_messages import Bounds, Failed, Message, Spawn

MIB = 1 << 20
BOUNDS = Bounds(
    cpu_us=5_000_000,
    memory_bytes=64 * MIB,
    host_bytes=96 * MIB,
    tasks=18,
    disk_bytes=16 * MIB,
    artifact_bytes=MIB,
    wall_us=5_000_000,
    single=False,
)
COMMAND = b"node\0"
NAMESPACES_DENIED = (
    "namespace",
    "setting up uid map",
    "setting up gid map",
    "loopback",
    "max_user_namespaces",
    "Operation not permitted",
)
"""What bubblewrap says where the kernel, or AppArmor, or a container's filter denies it a user namespace."""
ALLOW_NAMESPACES = (
    "allow user namespaces: `sysctl user.max_user_namespaces=15000`, and where there are these settings "
    "`sysctl kernel.unprivileged_userns_clone=1`, `sysctl kernel.apparmor_restrict_unprivileged_userns=0` (or an "
    "AppArmor profile for bubblewrap); in a container, a seccomp profile that allows clone, unshare and mount"
)
FIXES = {
    "sandbox.userns_denied": ALLOW_NAMESPACES,
    "sandbox.launcher_root_uid": "give the launcher CAP_SETUID and CAP_SETGID and the users from `first_uid` on, or "
    "start the node as another user than root, with a cgroup v2 tree handed over to it",
    "sandbox.hardening_failed": "use a kernel of version 5.8 or later, and let the launcher enter namespaces",
}
OTHERWISE = "`gateway doctor` looks at what a sandbox needs, one by one"


@dataclass(frozen=True)
class FailedRehearsal:
    """Why no run can be set up, and the fix."""

    reason: str
    detail: str
    fix: str


def rehearse(place: Place, user: int | None) -> FailedRehearsal | None:
    """Set a run up and end it, and return why that cannot be done, or None."""
    said: list[Failed] = []
    ready: list[Message] = []

    def heard(message: Message, _: Sequence[int]) -> None:
        if isinstance(message, Failed):
            said.append(message)
            place.loop.stop()
        else:
            ready.append(message)
            run.stop("cancelled")

    # Without a filter, since it is given nothing: its starter ends.
    sandbox = HeldSandbox(place, Kind(BOUNDS, None), user, Events(_nothing, _nothing, _nothing))
    run = LaunchedRun(Spawn("rehearsal", 0, BOUNDS), place, sandbox, user=user, send=heard, gone=_nothing)
    place.loop.on_reaped(run.look_whether_dead)
    nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    command = os.memfd_create("command", os.MFD_CLOEXEC)
    try:
        os.write(command, COMMAND)
        run.start([nothing, nothing, nothing], command)
        place.loop.run()
    finally:
        for each in (nothing, command):
            os.close(each)
    if not said:
        return FailedRehearsal("sandbox.setup_failed", "the launcher was ended", OTHERWISE)
    if ready and said[0].left is None:
        return None
    return explained(said[0])


def _nothing(*_: object) -> None:
    return None


def explained(failed: Failed) -> FailedRehearsal:
    """Return what follows from a set-up that failed, whose detail holds what bubblewrap said."""
    reason = failed.reason
    if reason == "sandbox.bwrap_failed" and any(each in failed.detail for each in NAMESPACES_DENIED):
        reason = "sandbox.userns_denied"
    detail = " ".join(each for each in (failed.detail, failed.left) if each)
    return FailedRehearsal(reason, detail, FIXES.get(reason, OTHERWISE))
