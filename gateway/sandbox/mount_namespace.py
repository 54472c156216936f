"""A run's mount namespace, remembered while it stands, so that it can be told whether any of it is left.

The host's own table of mounts never shows what is mounted in there.  Standard library only: the launcher imports this.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from gateway.sandbox.kernel_calls import mount_namespace_id, mounts_in
from gateway.sandbox.outside_check import status_of


class MountNamespace:
    """The mount namespace of a process that lives and cannot end meanwhile."""

    def __init__(self, pid: int, user: int | None) -> None:
        """`user` is the host user that all in there are, None this process's own.  Raises `OSError`."""
        namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        try:
            number = mount_namespace_id(namespace)
            # To who may not look the kernel says that there is none: then it is of no use later.
            self._number = number if number is not None and mounts_in(number) else None
            self._inode = os.fstat(namespace).st_ino
        finally:
            os.close(namespace)
        self._user = os.geteuid() if user is None else user

    def left(self) -> int:
        """Return how many mounts are left of it, 0 where it is no more.

        Before Linux 6.11 nothing tells of the mounts themselves: then it is how many processes are in there, without
        which none of them stands.
        """
        told = None if self._number is None else mounts_in(self._number)
        return sum(map(self._holds, _all_processes())) if told is None else told

    def _holds(self, pid: int) -> bool:
        # Once it is gone another one may have its number, but not one of this user's: that is one run at a time.
        with suppress(OSError):
            if os.stat(f"/proc/{pid}/ns/mnt").st_ino == self._inode:  # noqa: PTH116 - thousands of them
                return str(self._user) in status_of(pid)["Uid"].split()
        return False


def _all_processes() -> list[int]:
    return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal()]
