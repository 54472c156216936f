"""The calls to Linux that Python 3.11 has no names for.

Standard library only: the launcher imports this.  Source: prctl(2), setns(2), mount(2), ioctl_nsfs(2), listmount(2),
and `struct pidfd_info` in the kernel's include/uapi/linux/pidfd.h.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
CLONE_NEWNS, CLONE_NEWUSER = 0x0002_0000, 0x1000_0000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096

NS_GET_USERNS, NS_GET_MNTNS_ID = 0xB701, 0x8008B705
LISTMOUNT = 458
"""The call's number on every architecture but alpha (6.8; of another namespace since 6.11)."""
LSMT_ROOT = 0xFFFF_FFFF_FFFF_FFFF
MOST_MOUNTS = 256
PIDFD_GET_INFO = 0xC040FF0B
PIDFD_INFO_EXIT = 8
PIDFD_INFO = struct.Struct("QQ11Ii")
"""mask, cgroupid, eleven ids, exit_code: the first 64 bytes, which every kernel with the call knows."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _done(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def prctl(option: int, value: int) -> None:
    """Set one thing about this process.  Raises `OSError`."""
    _done(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def setns(descriptor: int, kind: int) -> None:
    """Enter the namespace that `descriptor` is of.  Raises `OSError`."""
    _done(_libc.setns(descriptor, kind), "setns")


def mount(kind: bytes | None, target: bytes, flags: int, options: bytes | None) -> None:
    """Mount, or mount anew with other flags and options.  Raises `OSError`."""
    _done(_libc.mount(kind, target, kind, ctypes.c_ulong(flags), options), f"mount {target.decode()}")


def owner_of_namespace(namespace: int) -> int:
    """Return a descriptor of the user namespace that owns this one.  Raises `OSError`."""
    return fcntl.ioctl(namespace, NS_GET_USERNS)


def mount_namespace_id(namespace: int) -> int | None:
    """Return the number of a mount namespace, which is never given twice; None before Linux 6.11."""
    try:
        told = fcntl.ioctl(namespace, NS_GET_MNTNS_ID, bytes(8))
    except OSError:
        return None
    number: int = struct.unpack("Q", told)[0]
    return number


def mounts_in(namespace_id: int) -> int | None:
    """Return how many mounts a mount namespace has, 0 when it is no more, None where that cannot be told."""
    request = struct.pack("IIQQQ", 32, 0, LSMT_ROOT, 0, namespace_id)
    found = (ctypes.c_uint64 * MOST_MOUNTS)()
    count: int = _libc.syscall(
        LISTMOUNT, ctypes.c_char_p(request), found, ctypes.c_size_t(MOST_MOUNTS), ctypes.c_ulong(0)
    )
    if count >= 0:
        return count
    return 0 if ctypes.get_errno() == errno.ENOENT else None


def exit_status(pidfd: int) -> int | None:
    """Return the wait(2) status of a process that is over, whoever reaped it; None before Linux 6.15, and of others."""
    try:
        told = fcntl.ioctl(pidfd, PIDFD_GET_INFO, PIDFD_INFO.pack(PIDFD_INFO_EXIT, *[0] * 13))
    except OSError:
        return None
    mask, *_, status = PIDFD_INFO.unpack(told)
    return status if mask & PIDFD_INFO_EXIT else None
