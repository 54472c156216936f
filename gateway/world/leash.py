"""Becomes another program that the kernel ends when this one's parent dies.

As a program: `python leash.py PARENT SIGNAL USER PROGRAM...`, where USER is `-` for the same user.  Standard
library only, because it runs isolated from the environment (`-I -S`) to start in a few milliseconds.  The request
survives `exec` (prctl(2), PR_SET_PDEATHSIG); a parent that died before it was made is noticed by its id.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
import sys
import warnings  # noqa: F401 - os.execvp wants it, when the new user may not be able to read it any more
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1
SAME_USER = "-"


def leashed(command: Sequence[str], last_signal: signal.Signals, user: str | None = None) -> list[str]:
    """Return the command that runs `command` on a leash held by this process, which is root if it names a `user`.

    The kernel sends `last_signal` when the thread that started the command has ended.
    """
    leash = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(int(last_signal)), user or SAME_USER]
    return [*leash, *command]


def main(arguments: list[str]) -> None:
    """Take the leash, then become the program."""
    parent, number, user, *command = arguments
    if user != SAME_USER:
        _become(pwd.getpwnam(user))
    # After the change of user, which takes it away.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number))
    if os.getppid() != int(parent):
        sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606 - the command is the caller's, no shell reads it


def _become(user: pwd.struct_passwd) -> None:
    os.initgroups(user.pw_name, user.pw_gid)
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)


if __name__ == "__main__":
    main(sys.argv[1:])
