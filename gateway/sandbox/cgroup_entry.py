"""A child that is in its group from birth, in a way that does not make the kernel wait.

A pid written to `cgroup.procs` has the kernel wait until no process anywhere is in the midst of a fork: 8 to 15 ms,
unless another such write came just before.  `clone3` into a v2 group (5.7 and later), and "0" written to a v1 `tasks`
by a process of one thread, do not wait: 4 ms instead of 13 for fork and join together.  Standard library only
(`cgroup_files`).  Source: clone(2), and `cgroup_procs_write_start` in the kernel's kernel/cgroup/cgroup.c.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

CLONE3 = 435
"""The call's number on every architecture but alpha."""
CLONE_INTO_CGROUP = 0x2_0000_0000
NOT_JOINED = 97
"""How a child ends that could not enter every tree; it has run nothing of the caller's."""
NOT_THIS_WAY = (errno.ENOSYS, errno.EINVAL, errno.E2BIG, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP)
"""What older kernels and the filters of containers answer: then the child joins as v1 has it."""


def fork_into(places: Mapping[str, Path]) -> int:
    """Fork as `os.fork` does, but the child is under all bounds of the group at `places` before it goes on, or ends.

    For programs of one thread: Python's own preparations for a child are passed over, so it should execute another
    program soon.  Hooks of `os.register_at_fork` do not run.

    Raises:
        RuntimeError: there is another thread, whose locks nobody would open in the child.
        OSError: no process can be made (EAGAIN, ENOMEM), or the group is gone.
    """
    if len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208 - names are enough
        raise RuntimeError("a program with several threads cannot fork into a group")
    # Before the fork: the child has a page copied for whatever it touches.
    entrances = {each: _entrance(each) for each in places.values()}
    born_in = places.get("unified")
    pid = None if born_in is None else _clone_into(born_in)
    if born_in is not None and pid is not None:
        del entrances[born_in]
    if pid is None:
        pid = os.fork()
    if pid == 0:
        _join(entrances.values())
    return pid


def _entrance(directory: Path) -> str:
    alone = f"{directory}/tasks"
    return alone if os.access(alone, os.F_OK) else f"{directory}/cgroup.procs"


def _clone_into(directory: Path) -> int | None:
    """Return what `fork` would, or None where this cannot be had here."""
    # Not CDLL, which would let go of the interpreter's lock for the call, and in the child nobody else could free it.
    kernel = ctypes.PyDLL(None, use_errno=True)
    group = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack (2), tls, set_tid (2), cgroup
        arguments = struct.pack("11Q", CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, group)
        pid: int = kernel.syscall(CLONE3, ctypes.c_char_p(arguments), ctypes.c_size_t(len(arguments)))
        number = ctypes.get_errno()
    finally:
        os.close(group)
    if pid >= 0:
        return pid
    if number in NOT_THIS_WAY:
        return None
    raise OSError(number, os.strerror(number), str(directory))


def _join(entrances: Iterable[str]) -> None:
    """Enter these groups, in the child, or end."""
    try:
        for each in entrances:
            entrance = os.open(each, os.O_WRONLY | os.O_CLOEXEC)
            os.write(entrance, b"0")
            os.close(entrance)
    except OSError:
        os._exit(NOT_JOINED)
