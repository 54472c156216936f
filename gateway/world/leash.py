"""Becomes another program that the kernel ends when this one's parent dies: `python leash.py PARENT SIGNAL PROGRAM...`.

With `--as UID GID` before the program it runs as that user; the kernel forgets the request when the user changes, so
that comes first.

Standard library only, because it runs isolated from the environment (`-I -S`) to start in a few milliseconds.  The
request survives `exec` (prctl(2), PR_SET_PDEATHSIG); a parent that died before it was made is noticed by its id.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Take the leash, then become the program."""
    parent, signal, *command = arguments
    if command[0] == "--as":
        os.setgroups([])
        os.setgid(int(command[2]))
        os.setuid(int(command[1]))
        command = command[3:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal))
    if os.getppid() != int(parent):
        sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606 - the command is the caller's, no shell reads it


if __name__ == "__main__":
    main(sys.argv[1:])
