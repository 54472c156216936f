"""Reads a classic BPF program as the kernel would (linux/filter.h, linux/seccomp.h), for tests on any machine."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

Instruction = tuple[int, int, int, int]

LOAD, JUMP, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT, RETURN = 0x20, 0x05, 0x15, 0x35, 0x45, 0x06
SECCOMP_DATA_BYTES = 64
LONGEST = 4096
LARGEST_NUMBER = 0xFFFFFFFF


def decode(program: bytes) -> list[Instruction]:
    """The instructions, after the checks of the kernel's `bpf_check_classic` and `seccomp_check_filter`."""
    instructions = list(struct.iter_unpack("<HBBI", program))
    assert 0 < len(instructions) <= LONGEST
    assert instructions[-1][0] == RETURN
    for at, (code, if_true, if_false, constant) in enumerate(instructions):
        leaps = {JUMP: (constant,), LOAD: (), RETURN: ()}.get(code, (if_true, if_false))
        assert all(at + 1 + leap < len(instructions) for leap in leaps)
        assert code in {LOAD, JUMP, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT, RETURN}
        assert code != LOAD or (constant % 4 == 0 and constant < SECCOMP_DATA_BYTES)
    return instructions


def answer(instructions: Sequence[Instruction], arch: int, number: int, arguments: Sequence[int] = ()) -> int:
    """What the program returns for one call."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    call = struct.pack("<IIQ6Q", number, arch, 0, *padded)
    accumulator, at = 0, 0
    while True:
        code, if_true, if_false, constant = instructions[at]
        at += 1
        if code == RETURN:
            return constant
        if code == LOAD:
            (accumulator,) = struct.unpack_from("<I", call, constant)
        elif code == JUMP:
            at += constant
        else:
            at += if_true if _holds(code, accumulator, constant) else if_false


def verdicts(instructions: Sequence[Instruction], arch: int) -> Iterator[tuple[int, int, int]]:
    """Every (first number, last number, verdict) that some arguments can reach, over all 2**32 numbers.

    A comparison of a number splits the range of numbers; one of an argument is taken both ways.
    """
    ways: list[tuple[int, str, int, int]] = [(0, "", 0, LARGEST_NUMBER)]
    while ways:
        at, held, first, last = ways.pop()
        if first > last:
            continue
        code, if_true, if_false, constant = instructions[at]
        then, other = at + 1 + if_true, at + 1 + if_false
        if code == RETURN:
            yield first, last, constant
        elif code == LOAD:
            ways.append((at + 1, {0: "number", 4: "arch"}.get(constant, "argument"), first, last))
        elif code == JUMP:
            ways.append((at + 1 + constant, held, first, last))
        elif held == "arch":
            ways.append((then if _holds(code, arch, constant) else other, held, first, last))
        elif held == "argument":
            ways += [(then, held, first, last), (other, held, first, last)]
        else:
            assert code == JUMP_AT_LEAST
            ways += [(then, held, max(first, constant), last), (other, held, first, min(last, constant - 1))]


def _holds(code: int, accumulator: int, constant: int) -> bool:
    return {
        JUMP_EQUAL: accumulator == constant,
        JUMP_AT_LEAST: accumulator >= constant,
        JUMP_ANY_BIT: accumulator & constant != 0,
    }[code]
