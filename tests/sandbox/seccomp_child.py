"""A process that puts itself under a filter for good, then makes the system calls it is told or becomes a command.

`seccomp_child.py FILTER exec COMMAND...` becomes the command.  `seccomp_child.py FILTER calls` reads a JSON array of
calls from stdin, each `[number, argument...]` with "memory" for the address of zeroed memory, and writes an array of
`[result, errno]`.  `seccomp_child.py FILTER code HEX` runs machine code.  It never runs anything when the filter does
not hold.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import sys
from pathlib import Path
from typing import Any

PR_SET_SECCOMP, SECCOMP_MODE_FILTER, PR_SET_NO_NEW_PRIVS = 22, 2, 38
MEMORY_BYTES = 1 << 16

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


class SockFprog(ctypes.Structure):
    """`struct sock_fprog` of linux/filter.h."""

    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def confine(program: bytes) -> None:
    fprog = SockFprog(len(program) // 8, program)
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(fprog))):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "the kernel did not take the filter")


def call(arguments: list[Any], memory: int) -> tuple[int, int]:
    numbers = [ctypes.c_long(memory if each == "memory" else each) for each in arguments]
    ctypes.set_errno(0)
    return libc.syscall(*numbers), ctypes.get_errno()


def run_machine_code(code: bytes) -> None:
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()


def main() -> None:
    program, what, *rest = sys.argv[1:]
    calls = json.load(sys.stdin) if what == "calls" else []
    memory = ctypes.create_string_buffer(MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    confine(Path(program).read_bytes())
    if what == "exec":
        os.execv(rest[0], rest)
    elif what == "code":
        run_machine_code(bytes.fromhex(rest[0]))
    else:
        sys.stdout.write(json.dumps([call(each, ctypes.addressof(memory)) for each in calls]))


if __name__ == "__main__":
    main()
