"""Assemble the system-call filters of the sandbox from their policy: `python tools/make_seccomp_filters.py`.

It reads `policy.toml` and `syscalls.tsv` in `gateway/sandbox/filters` and writes a classic BPF program for each
architecture and variant beside them (`struct sock_filter`, linux/filter.h; `struct seccomp_data`, linux/seccomp.h), and
`digests.json`.  The numbers are those of asm/unistd_64.h and asm-generic/unistd.h of Linux 6.1 with the three that came
next (451 to 453).  The same input gives the same bytes on every machine; only the standard library is needed.

A program is put together from blocks.  A block always ends in a return, so that a choice between two blocks is one jump
in front of both and no offset is ever patched.
"""
# ruff: noqa: INP001  # scripts, no package

from __future__ import annotations

import argparse
import errno
import hashlib
import json
import struct
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

FILTERS = Path(__file__).parent.parent / "gateway" / "sandbox" / "filters"

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # linux/audit.h
X32_BIT = {"x86_64": 0x40000000}  # asm/unistd.h, __X32_SYSCALL_BIT

LOAD, JUMP, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT, RETURN = 0x20, 0x05, 0x15, 0x35, 0x45, 0x06
NUMBER_AT, ARCH_AT, ARGUMENTS_AT = 0, 4, 16

ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000  # SECCOMP_RET_ALLOW, _KILL_PROCESS, _ERRNO
FURTHEST = 255
"""How many instructions a conditional jump can leap over."""
LONGEST = 4096
"""BPF_MAXINSNS."""


class Instruction(NamedTuple):
    """One `struct sock_filter`: what to do, how far to leap when true and when false, and a constant."""

    code: int
    if_true: int
    if_false: int
    constant: int


Block = tuple[Instruction, ...]


def main() -> None:
    """Write the four programs and their digests."""
    parser = argparse.ArgumentParser(description="Assemble the system-call filters from their policy.")
    parser.add_argument("--into", type=Path, default=FILTERS, help="where to write; beside the policy when not given")
    into: Path = parser.parse_args().into
    policy = tomllib.loads((FILTERS / "policy.toml").read_text())
    digests = {}
    for arch in AUDIT_ARCH:
        for single in (False, True):
            name = f"{arch}.single.bpf" if single else f"{arch}.bpf"
            program = assemble(policy, arch, single=single)
            (into / name).write_bytes(program)
            digests[name] = "sha256:" + hashlib.sha256(program).hexdigest()
    (into / "digests.json").write_text(json.dumps(digests, indent=2) + "\n")


def assemble(policy: Mapping[str, Any], arch: str, *, single: bool) -> bytes:
    """Return the program for an architecture; raises `ValueError` on a policy that names a call twice or wrongly."""
    numbers = read_numbers(arch)
    answers = {numbers[name]: block for name, block in read_policy(policy, single=single).items() if name in numbers}
    program = (
        Instruction(LOAD, 0, 0, ARCH_AT),
        Instruction(JUMP_EQUAL, 1, 0, AUDIT_ARCH[arch]),
        *give(KILL),
        Instruction(LOAD, 0, 0, NUMBER_AT),
        *choose(list(runs(answers, X32_BIT.get(arch)))),
    )
    if len(program) > LONGEST:
        raise ValueError(f"{len(program)} instructions are more than the kernel takes")
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


# -- what the files say ----------------------------------------------------------------------------------------------


def read_numbers(arch: str) -> dict[str, int]:
    """Return the number of every call that the architecture has."""
    head, *rows = (line.split("\t") for line in (FILTERS / "syscalls.tsv").read_text().splitlines())
    column = head.index(arch)
    return {row[0]: int(row[column]) for row in rows if row[column]}


def read_policy(policy: Mapping[str, Any], *, single: bool) -> dict[str, Block]:
    """Return what each named call is answered with."""
    answers = dict(_answers(policy))
    if single:
        answers |= dict(_answers(policy["single"]))
    unknown = set(answers) - set().union(*(read_numbers(arch) for arch in AUDIT_ARCH))
    if unknown:
        raise ValueError(f"no architecture has {sorted(unknown)}")
    return answers


def _answers(policy: Mapping[str, Any]) -> Iterator[tuple[str, Block]]:
    named: set[str] = set()
    groups = [(give(ALLOW), policy.get("allow", {}))]
    groups += [(give(REFUSE | getattr(errno, name)), group) for name, group in policy["refuse"].items()]
    plain = [(name, block) for block, group in groups for names in group.values() for name in names.split()]
    for name, block in [*plain, *((name, check(tests)) for name, tests in policy["check"].items())]:
        if name in named:
            raise ValueError(f"{name} is named twice")
        named.add(name)
        yield name, block


# -- blocks ----------------------------------------------------------------------------------------------------------


def give(verdict: int) -> Block:
    """Return the block that answers every call with a verdict."""
    return (Instruction(RETURN, 0, 0, verdict),)


def check(tests: list[dict[str, Any]]) -> Block:
    """Return the block that allows a call whose arguments pass every test."""
    program: Block = ()
    for test in tests:
        program += _test(test, give(REFUSE | getattr(errno, test["otherwise"])))
    return program + give(ALLOW)


def _test(test: Mapping[str, Any], failure: Block) -> Block:
    """Return instructions that run on past their end when a test holds, and into `failure` when not."""
    low = ARGUMENTS_AT + 8 * test["argument"]  # both architectures are little-endian
    load = Instruction(LOAD, 0, 0, low)
    match test:
        case {"among": values}:
            leaps = range(len(values), 0, -1)
            compared = (Instruction(JUMP_EQUAL, leap, 0, value) for leap, value in zip(leaps, values, strict=True))
            return (load, *compared, *failure)
        case {"clear": bits}:
            return (load, Instruction(JUMP_ANY_BIT, 0, 1, bits), *failure)
        case {"set": bit}:
            return (load, Instruction(JUMP_ANY_BIT, 1, 0, bit), *failure)
        case {"zero": True}:
            high = Instruction(LOAD, 0, 0, low + 4)
            return (load, Instruction(JUMP_EQUAL, 0, 2, 0), high, Instruction(JUMP_EQUAL, 1, 0, 0), *failure)
    raise ValueError(f"no such test: {test}")


def runs(answers: Mapping[int, Block], x32_bit: int | None) -> Iterator[tuple[int, Block]]:
    """Yield each number from which on the answer is another, from 0 up, with that answer."""
    unnamed = give(REFUSE | errno.ENOSYS)
    answer: Block = ()
    for number in range(max(answers) + 2):
        if answers.get(number, unnamed) != answer:
            answer = answers.get(number, unnamed)
            yield number, answer
    if x32_bit is not None:
        yield x32_bit, give(KILL)


def choose(starts: list[tuple[int, Block]]) -> Block:
    """Return the block that finds the run a number is in, by halves: a call costs about eight comparisons."""
    if len(starts) == 1:
        return starts[0][1]
    half = len(starts) // 2
    pivot = starts[half][0]
    below, above = choose(starts[:half]), choose(starts[half:])
    if len(below) <= FURTHEST:
        return (Instruction(JUMP_AT_LEAST, len(below), 0, pivot), *below, *above)
    return (
        Instruction(JUMP_AT_LEAST, 0, 1, pivot),
        Instruction(JUMP, 0, 0, len(below)),
        *below,
        *above,
    )


if __name__ == "__main__":
    main()
