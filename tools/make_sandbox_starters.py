"""Assemble the starters of the sandbox from their sources: `python tools/make_sandbox_starters.py`.

It reads `x86_64.S` and `aarch64.S` in `gateway/sandbox/starters` and writes a program for each beside them, and
`digests.json`.  It takes GNU as and objcopy of both architectures (Debian: binutils, binutils-aarch64-linux-gnu).  They
give the instructions alone; the head is put before them here (elf(5)), so that the bytes do not depend on a linker:
one segment, read and executed, at a fixed place, and a stack that is not executed.
"""
# ruff: noqa: INP001  # scripts, no package

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

STARTERS = Path(__file__).parent.parent / "gateway" / "sandbox" / "starters"
MACHINES = {"x86_64": 62, "aarch64": 183}  # linux/elf-em.h
PLACE = 0x400000
PAGE = 0x10000  # the largest that either architecture has

HEAD, SEGMENT = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQQQ")
IDENTITY = b"\x7fELF\x02\x01\x01"  # 64 bits, the least byte first, version 1
EXECUTABLE, VERSION = 2, 1
LOAD, STACK = 1, 0x6474E551
RUN, WRITE, READ = 1, 2, 4


def main() -> None:
    """Write the programs and their digests."""
    parser = argparse.ArgumentParser(description="Assemble the starters of the sandbox.")
    parser.add_argument("--into", type=Path, default=STARTERS, help="where to write; beside the sources when not given")
    parser.add_argument("--machine", choices=MACHINES, action="append", help="only for these; for all when not given")
    told = parser.parse_args()
    digests = {}
    for machine in told.machine or MACHINES:
        program = linked(assembled(STARTERS / f"{machine}.S", machine), machine)
        (told.into / f"{machine}.elf").write_bytes(program)
        digests[f"{machine}.elf"] = "sha256:" + hashlib.sha256(program).hexdigest()
    (told.into / "digests.json").write_text(json.dumps(digests, indent=2) + "\n")


def assembled(source: Path, machine: str) -> bytes:
    """Return the instructions.  Raises `FileNotFoundError` where there is no assembler for the machine."""
    with tempfile.TemporaryDirectory() as place:
        made, text = Path(place, "made"), Path(place, "text")
        subprocess.run([tool("as", machine), "-o", made, source], check=True)  # noqa: S603 - of this machine
        only = ("--output-target=binary", "--only-section=.text")
        subprocess.run([tool("objcopy", machine), *only, made, text], check=True)  # noqa: S603 - of this machine
        return text.read_bytes()


def tool(name: str, machine: str) -> str:
    """Return the path of a tool of binutils for a machine.  Raises `FileNotFoundError`."""
    found = shutil.which(f"{machine}-linux-gnu-{name}")
    if found is None:
        raise FileNotFoundError(f"there is no {machine}-linux-gnu-{name} here (binutils)")
    return found


def linked(text: bytes, machine: str) -> bytes:
    """Return the program that begins with the first of these instructions."""
    before = HEAD.size + 2 * SEGMENT.size
    size = before + len(text)
    head = HEAD.pack(
        IDENTITY,
        EXECUTABLE,
        MACHINES[machine],
        VERSION,
        PLACE + before,
        HEAD.size,  # where the segments are told
        0,
        0,
        HEAD.size,
        SEGMENT.size,
        2,
        0,
        0,
        0,
    )
    load = SEGMENT.pack(LOAD, READ | RUN, 0, PLACE, PLACE, size, size, PAGE)
    stack = SEGMENT.pack(STACK, READ | WRITE, 0, 0, 0, 0, 0, 16)
    return head + load + stack + text


if __name__ == "__main__":
    main()
