"""The starter: what it is made of, what it becomes at an order, and that nothing else makes it become anything."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import shutil
import socket
import struct
import subprocess
import sys
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from gateway.sandbox import starter
from gateway.sandbox.bubblewrap import ORDERS_AT, STARTER_AT
from gateway.sandbox.starter import BLOCK, STARTERS, StarterUnavailable, laid_out, open_starter, path_of, verified
from tests.sandbox.in_groups import descriptors, unavailable

ROOT = Path(__file__).parent.parent.parent
MACHINES = ("x86_64", "aarch64")
FORGOTTEN, NOT_EXECUTED = 125, 126
MEMORY = 256 << 20


@attrs.define(eq=False)
class Started:
    """A starter that waits, outside any sandbox, and the launcher's end of its socket."""

    pid: int
    orders: socket.socket
    stdout: int
    writes: int

    def send(self, numbers: bytes, given: Sequence[int]) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", given))] if given else []
        self.orders.sendmsg([numbers], rights)

    def command(self, *command: bytes) -> None:
        order, nothing = starter.order(command, MEMORY), os.open("/dev/null", os.O_RDWR)
        self.send(order.numbers, [nothing, self.writes, self.writes, order.descriptor])
        os.close(order.descriptor)
        os.close(nothing)

    def said(self) -> bytes:
        """All that it wrote; waits for its end."""
        os.close(self.writes)
        self.writes = -1
        return b"".join(iter(lambda: os.read(self.stdout, 65536), b""))

    def ended(self) -> int:
        pid, self.pid = self.pid, 0
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@contextmanager
def started() -> Iterator[Started]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    image, (reads, writes) = open_starter(platform.machine()), os.pipe()
    pid = os.fork()
    if pid == 0:
        aside = [os.dup2(each, 60 + at) for at, each in enumerate((image, theirs.fileno()))]
        os.dup2(aside[0], STARTER_AT)
        os.dup2(aside[1], ORDERS_AT)
        os.closerange(ORDERS_AT + 1, 256)
        os.execve(f"/proc/self/fd/{STARTER_AT}", ["starter"], {"A": "b"})
    theirs.close()
    os.close(image)
    ours.settimeout(10)
    one = Started(pid, ours, reads, writes)
    try:
        assert ours.recv(16) == starter.HERE
        yield one
    finally:
        ours.close()
        os.close(reads)
        if one.writes >= 0:
            os.close(one.writes)
        if one.pid:
            os.waitpid(one.pid, 0)


# -- bytes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", MACHINES)
def test_the_script_makes_the_shipped_bytes_again(machine: str, tmp_path: Path) -> None:
    if not all(shutil.which(f"{machine}-linux-gnu-{tool}") for tool in ("as", "objcopy")):
        if machine != platform.machine():
            pytest.skip(f"there is no assembler for {machine} here (apt-get install binutils-{machine}-linux-gnu)")
        unavailable(f"there is no assembler for {machine} here (apt-get install binutils)")
    script = ROOT / "tools/make_sandbox_starters.py"
    made = [sys.executable, "-I", "-S", str(script), "--into", str(tmp_path), "--machine", machine]
    subprocess.run(made, check=True)
    assert (tmp_path / f"{machine}.elf").read_bytes() == (STARTERS / f"{machine}.elf").read_bytes()
    shipped = json.loads((STARTERS / "digests.json").read_bytes())
    assert json.loads((tmp_path / "digests.json").read_bytes()).items() <= shipped.items()


@pytest.mark.parametrize("machine", MACHINES)
def test_it_is_bound_to_its_digest(machine: str, tmp_path: Path) -> None:
    for each in ("digests.json", f"{machine}.elf"):
        shutil.copy(STARTERS / each, tmp_path)
    assert verified(machine, tmp_path) == verified(machine)
    with (tmp_path / f"{machine}.elf").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(StarterUnavailable, match="should be sha256") as wrong:
        verified(machine, tmp_path)
    assert wrong.value.reason == "sandbox.starter_digest_mismatch"
    (tmp_path / "digests.json").write_text("{")
    with pytest.raises(StarterUnavailable) as odd:
        verified(machine, tmp_path)
    assert odd.value.reason == "sandbox.starter_digest_mismatch"


def test_an_architecture_without_one_is_told() -> None:
    with pytest.raises(StarterUnavailable, match="no starter for riscv64") as missing:
        verified("riscv64")
    assert missing.value.reason == "sandbox.starter_missing"
    with pytest.raises(FileNotFoundError):
        open_starter("riscv64")


@pytest.mark.parametrize("machine", MACHINES)
def test_it_is_one_segment_that_nobody_writes_and_a_stack_that_nobody_executes(machine: str) -> None:
    program = (STARTERS / f"{machine}.elf").read_bytes()
    assert len(program) < 1024
    kinds = [struct.unpack_from("<II", program, 64 + 56 * each) for each in range(2)]
    assert kinds == [(1, 5), (0x6474E551, 6)]


def test_the_sources_have_the_numbers_that_it_is_started_with() -> None:
    for machine in MACHINES:
        source = (STARTERS / f"{machine}.S").read_text().split()
        told = {source[at + 1].rstrip(","): int(source[at + 2], 0) for at, word in enumerate(source) if word == ".set"}
        assert (told["IMAGE"], told["ORDERS"], told["BLOCK"]) == (STARTER_AT, ORDERS_AT, BLOCK)
        assert bytes([told["HERE"]]) == starter.HERE
        assert (told["FORGOTTEN"], told["NOT_EXECUTED"]) == (FORGOTTEN, NOT_EXECUTED)


def test_nobody_can_write_what_is_executed() -> None:
    image = open_starter(platform.machine())
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(image, b"x", 0)
    with pytest.raises(PermissionError):
        os.pwrite(os.open(f"/proc/self/fd/{image}", os.O_RDWR), b"x", 0)
    os.close(image)


# -- orders ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "path"),
    [
        (b"node", b"/usr/bin/node"),
        (b"--version", b"/usr/bin/--version"),
        (b"/usr/bin/../bin/node", b"/usr/bin/../bin/node"),
        (b"./here", b"./here"),
        (b"", b""),
        (b".", b"/usr/bin/."),
    ],
)
def test_a_name_is_looked_for_as_execvp_does(name: bytes, path: bytes) -> None:
    assert path_of(name) == path


def test_a_block_holds_what_its_addresses_say() -> None:
    command = [b"node", b"", "\U0001f600".encode() * 4096, b"\xff\n"]
    block, path, argv, envp = laid_out(command, starter.environment(MEMORY))

    def string(at: int) -> bytes:
        return block[at - BLOCK : block.index(b"\0", at - BLOCK)]

    def strings(at: int) -> list[bytes]:
        found: list[bytes] = []
        while (pointer := struct.unpack_from("=Q", block, at - BLOCK + 8 * len(found))[0]) != 0:
            found.append(string(pointer))
        return found

    assert string(path) == b"/usr/bin/node"
    assert strings(argv) == command
    node = b"NODE_OPTIONS=--max-old-space-size=176 --max-semi-space-size=16"
    assert strings(envp) == [b"PATH=/usr/bin", b"HOME=/scratch", b"TMPDIR=/scratch", b"PWD=/scratch", node]
    assert block.endswith(node + b"\0")


@pytest.mark.parametrize("mebibytes", [16, 17, 32, 48, 64, 100, 128, 256, 512])
def test_the_heap_of_v8_fits_into_the_limit_of_memory(mebibytes: int) -> None:
    (options,) = [each for each in starter.environment(mebibytes << 20) if each.startswith(b"NODE_OPTIONS=")]
    old, semi = map(int, re.findall(rb"=(\d+)", options.removeprefix(b"NODE_OPTIONS")))
    assert old >= 8
    assert semi >= 1
    assert old + 3 * semi <= mebibytes - 5
    assert mebibytes < 64 or old + 3 * semi >= mebibytes * 0.7


def test_an_order_is_a_sealed_file_and_leaves_no_descriptor() -> None:
    before = descriptors()
    order = starter.order([b"node"], MEMORY)
    with pytest.raises(PermissionError):
        os.pwrite(order.descriptor, b"x", 0)
    os.close(order.descriptor)
    assert descriptors() == before


# -- what it becomes ---------------------------------------------------------------------------------------------------


def test_it_becomes_the_command_with_its_arguments_and_environment() -> None:
    arguments = ["a", "", "ä" * 4096, "-n"]
    script = "import os, sys; print(sys.argv[1:], dict(os.environ), sep='\\n')"
    with started() as one:
        one.command(sys.executable.encode(), b"-I", b"-S", b"-c", script.encode(), *map(str.encode, arguments))
        assert one.orders.recv(16) == b""
        told, environment = one.said().decode().splitlines()
        assert told == str(arguments)
        assert "'PWD': '/scratch'" in environment
        assert "'A'" not in environment
        assert one.ended() == 0


def test_the_command_has_nothing_of_it() -> None:
    with started() as one:
        one.command(b"/bin/sh", b"-c", b"readlink /proc/$$/exe; cat /proc/$$/maps; ls -1 /proc/$$/fd")
        *seen, zero, first, second = one.said().splitlines()
        assert (zero, first, second) == (b"0", b"1", b"2")
        assert not any(b"memfd" in each or each.startswith(b"00400000-00401000") for each in seen)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        (b"nothing-of-the-kind", errno.ENOENT),
        (b"", errno.ENOENT),
        (b"/etc", errno.EACCES),
        (b"/etc/passwd", errno.EACCES),
        (b"/etc/passwd/x", errno.ENOTDIR),
        (b"x" * 300, errno.ENAMETOOLONG),
    ],
)
def test_what_cannot_be_executed_is_told_with_its_number(name: bytes, number: int) -> None:
    with started() as one:
        one.command(name, b"more")
        assert starter.refusal(one.orders.recv(16)) == number
        assert (one.said(), one.ended()) == (b"", NOT_EXECUTED)


def test_no_shell_is_asked_about_what_is_no_program(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("echo ran\n")
    script.chmod(0o755)
    with started() as one:
        one.command(bytes(script))
        assert starter.refusal(one.orders.recv(16)) == errno.ENOEXEC
        assert one.said() == b""


def test_more_than_the_kernel_takes_is_told() -> None:
    with started() as one:
        one.command(b"/bin/true", b"x" * (1 << 18))
        assert starter.refusal(one.orders.recv(16)) == errno.E2BIG


def test_the_end_of_the_socket_ends_it() -> None:
    with started() as one:
        one.orders.close()
        assert one.ended() == FORGOTTEN


@pytest.mark.parametrize(
    ("what", "number"),
    [
        ("short", errno.EBADMSG),
        ("long", errno.EBADMSG),
        ("without", errno.EBADMSG),
        ("few", errno.EBADMSG),
        ("many", errno.EBADMSG),
        ("no block", errno.ENODEV),
        ("an empty block", errno.EINVAL),
    ],
)
def test_anything_odd_is_told_and_nothing_is_executed(what: str, number: int) -> None:
    order, nothing = starter.order([b"/bin/echo", b"ran"], MEMORY), os.open("/dev/null", os.O_RDWR)
    numbers = {
        "short": order.numbers[:-1],
        "long": order.numbers + b"x",
        "an empty block": b"\0" * 8 + order.numbers[8:],
    }
    with started() as one:
        streams = [nothing, one.writes, one.writes]
        given = {
            "without": [],
            "few": streams,
            "many": [*streams, order.descriptor, nothing],
            "no block": [*streams, nothing],
        }
        one.send(numbers.get(what, order.numbers), given.get(what, [*streams, order.descriptor]))
        assert starter.refusal(one.orders.recv(16)) == number
        assert (one.said(), one.ended()) == (b"", NOT_EXECUTED)
    os.close(order.descriptor)
    os.close(nothing)


def test_what_is_told_is_a_number_or_nothing() -> None:
    assert starter.refusal(b"") is None
    assert starter.refusal(struct.pack("=i", errno.ENOENT)) == errno.ENOENT
