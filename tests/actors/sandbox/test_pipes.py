from __future__ import annotations

import os
import random

import pytest
import trio

from gateway.actors.sandbox.pipes import open_pipes
from tests.actors.sandbox.scenes import SOON_S, descriptors


def read_all(descriptor: int) -> bytes:
    return b"".join(iter(lambda: os.read(descriptor, 2**16), b""))


async def test_the_command_and_the_filter_are_read_from_their_beginning() -> None:
    pipes = open_pipes((b"node", b"-e", "ü".encode()), b"", b"\x01\x02")
    assert [read_all(each) for each in pipes.given[3:]] == [b"node\0-e\0\xc3\xbc\0", b"\x01\x02"]
    pipes.close()


async def test_a_short_input_is_there_before_the_run_begins_and_ends() -> None:
    pipes = open_pipes((b"node",), b"x" * 2**16, b"")
    assert pipes.stdin == -1
    assert read_all(pipes.given[0]) == b"x" * 2**16
    pipes.close()


async def test_without_input_it_is_at_its_end() -> None:
    pipes = open_pipes((b"node",), b"", b"")
    assert read_all(pipes.given[0]) == b""
    pipes.close()


async def test_a_long_input_is_written_as_it_is_read() -> None:
    text = random.Random(5).randbytes(2**20)
    pipes = open_pipes((b"node",), text, b"")
    read = os.dup(pipes.given[0])
    pipes.hand_over()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pipes.write)
        assert await trio.to_thread.run_sync(read_all, read) == text
    os.close(read)
    pipes.close()


async def test_input_that_nobody_reads_any_more_is_let_be() -> None:
    pipes = open_pipes((b"node",), b"x" * 2**20, b"")
    pipes.hand_over()
    with trio.fail_after(SOON_S):
        await pipes.write()
    assert pipes.stdin == -1
    pipes.close()


async def test_only_this_end_does_not_block() -> None:
    pipes = open_pipes((b"node",), b"x" * 2**20, b"")
    assert [os.get_blocking(each) for each in pipes.given[:3]] == [True, True, True]
    assert not any(os.get_blocking(each) for each in (pipes.stdin, pipes.stdout, pipes.stderr))
    pipes.close()


async def test_closed_they_leave_nothing_open_however_often() -> None:
    before = descriptors()
    pipes = open_pipes((b"node",), b"x" * 2**20, b"")
    assert len(descriptors()) == len(before) + 8
    pipes.hand_over()
    pipes.close()
    pipes.close()
    assert descriptors() == before


@pytest.mark.parametrize("output_bytes", [2**16, 388_892, 2**20])
async def test_the_pipes_of_the_output_hold_all_that_may_be_written(output_bytes: int) -> None:
    pipes = open_pipes((b"node",), b"", b"", output_bytes)
    for written in pipes.given[1:3]:
        os.set_blocking(written, False)
        assert os.write(written, b"x" * output_bytes) == output_bytes
    pipes.close()
