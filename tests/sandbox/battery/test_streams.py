"""Runs that talk: too much, not text, on both streams, with no input or all of it, and after they should be gone."""

from __future__ import annotations

import base64
import hashlib

import pytest

from gateway.sandbox.run_result import RunResult
from tests.sandbox.battery.case import OUTPUT, Case, Fact, exits, hostile, limits, node, table, within
from tests.sandbox.battery.real_path import Sandbox

MIB = 2**20
NOT_TEXT = bytes(range(256)) + b"\xff\xfe\x00\x80\xed\xa0\x80"


def keeps(stdout: int, stderr: int, *, truncated: tuple[bool, bool] = (False, False)) -> Fact:
    def fact(result: RunResult) -> None:
        assert (len(result.stdout.kept), len(result.stderr.kept)) == (stdout, stderr)
        assert (result.stdout.truncated, result.stderr.truncated) == truncated
        assert result.usage.output_bytes == stdout + stderr

    return fact


def keeps_together(most: int) -> Fact:
    def fact(result: RunResult) -> None:
        assert len(result.stdout.kept) + len(result.stderr.kept) == most
        assert result.stdout.truncated or result.stderr.truncated

    return fact


def spoken(name: str, *words: str, **changed: object) -> Case:
    return Case(name, hostile("say", *words), says=None, complains=None, **changed)  # type: ignore[arg-type]


@table(
    spoken("exactly as much as may be", "1", "65536", facts=(keeps(65536, 0),)),
    spoken("a byte more", "1", "65537", ending=OUTPUT, facts=(keeps(65536, 0, truncated=(True, False)),)),
    spoken("exactly as much on both streams", "1", "40000", "2", "25536", facts=(keeps(40000, 25536),)),
    spoken("a byte more on both streams", "1", "40000", "2", "25537", ending=OUTPUT, facts=(keeps_together(65536),)),
    spoken("one byte where one may be", "2", "1", limits=limits(output_bytes=1), facts=(keeps(0, 1),)),
    spoken(
        "two where one may be",
        *("2", "2"),
        ending=OUTPUT,
        limits=limits(output_bytes=1),
        facts=(keeps(0, 1, truncated=(False, True)),),
    ),
    spoken("the most that can be asked for", "1", str(MIB), limits=limits(output_bytes=MIB), facts=(keeps(MIB, 0),)),
    spoken(
        "a byte more than that",
        *("1", str(MIB + 1)),
        ending=OUTPUT,
        limits=limits(output_bytes=MIB),
        facts=(keeps(MIB, 0, truncated=(True, False)),),
    ),
    Case(
        "a program that exits before its output was read",
        node("process.stdout.write('x'.repeat(388892)); process.exit(7)"),
        exits(7),
        limits=limits(output_bytes=MIB),
        says="x" * 388_892,
    ),
    Case(
        "one that writes many short lines and exits",
        node("for (let i = 0; i < 30000; i++) console.log('line'); process.exit(0)"),
        limits=limits(output_bytes=MIB),
        says="line\n" * 30_000,
    ),
    Case(
        "a flood",
        node("for (;;) require('fs').writeSync(1, 'x'.repeat(65536))"),
        OUTPUT,
        says="x" * 65536,
        facts=(within("wall_ms", 0, 2000),),
    ),
    Case(
        "a flood of a program that waits for its reader",
        node("(function more() { process.stdout.write('x'.repeat(65536), more) })()"),
        OUTPUT,
        says="x" * 65536,
    ),
    Case(
        "a flood on both streams",
        node("const say = require('fs').writeSync; for (;;) { say(1, 'y'.repeat(4096)); say(2, 'z'.repeat(4096)) }"),
        OUTPUT,
        says=None,
        complains=None,
        facts=(keeps_together(65536),),
    ),
    Case(
        "bytes that are no text", node(f"process.stdout.write(Buffer.from('{NOT_TEXT.hex()}', 'hex'))"), says=NOT_TEXT
    ),
    Case(
        "text that would drive a terminal",
        node(r"console.log('\x1b]0;x\x07\x1b[2J\u202e')"),
        says="\x1b]0;x\x07\x1b[2J\u202e\n",
    ),
)
async def test_output(sandbox: Sandbox, case: Case) -> None:
    case.judge(await sandbox.run(case))


async def test_bytes_that_are_no_text_can_be_had_back_from_the_answer(sandbox: Sandbox) -> None:
    case = Case("", node(f"process.stdout.write(Buffer.from('{NOT_TEXT.hex()}', 'hex'))"))
    told = (await sandbox.run(case)).output()["stdout"]
    assert (told["encoding"], base64.b64decode(told["data"])) == ("base64", NOT_TEXT)
    assert told["sha256"] == hashlib.sha256(NOT_TEXT).hexdigest()


COUNT = "let n = 0; process.stdin.on('data', d => n += d.length).on('end', () => console.log(n))"
ECHO = "process.stdin.pipe(process.stdout)"


@table(
    Case("no input ends at once", node(COUNT), says="0\n"),
    Case("the most that can be given is read", node(COUNT), stdin=b"a" * MIB, says=f"{MIB}\n"),
    Case(
        "the most that can be given comes back",
        node(ECHO),
        stdin=NOT_TEXT * (MIB // len(NOT_TEXT)),
        says=NOT_TEXT * (MIB // len(NOT_TEXT)),
        limits=limits(output_bytes=MIB),
    ),
    Case("input that nobody reads holds nothing up", node("setTimeout(() => {}, 200)"), stdin=b"a" * MIB),
    Case("eight times the most that can be sold, unread", node("setTimeout(() => {}, 200)"), stdin=b"a" * 8 * MIB),
    Case(
        "streams that are turned around",
        hostile("turn_streams"),
        stdin=b"a" * MIB,
        says="read from its output: ok\nwrite to its input: ok\nwrite to init's output: EACCES\n",
    ),
    Case("input of which one byte is read", hostile("quiet_reader"), stdin=b"a" * MIB, says="read: 1\n"),
    Case("a program from its input", ("node", "-"), stdin=b"console.log(6 * 7)", says="42\n"),
)
async def test_input(sandbox: Sandbox, case: Case) -> None:
    case.judge(await sandbox.run(case))


@table(
    Case("one closes every descriptor and lives on", hostile("closefds"), exits(7)),
    Case(
        "a daemon that left its session ends with the command",
        hostile("daemon"),
        says="the daemon lives\n",
        facts=(within("wall_ms", 0, 1000),),
    ),
    Case(
        "a daemon that holds the output ends with the command",
        hostile("daemon_hold"),
        says="the daemon lives\n",
        facts=(within("wall_ms", 0, 1400),),
    ),
    Case(
        "a detached child of node ends with the command",
        node(
            "const spawn = require('child_process').spawn;"
            "const child = spawn('node', ['-e', 'setInterval(() => {}, 1e3)'], {detached: true, stdio: 'inherit'});"
            "child.on('spawn', () => { child.unref(); console.log('spawned') })"
        ),
        says="spawned\n",
        facts=(within("wall_ms", 0, 1500),),
    ),
)
async def test_what_stays_behind(sandbox: Sandbox, case: Case) -> None:
    case.judge(await sandbox.run(case))


@pytest.mark.campaign
async def test_a_hundred_floods_leave_nothing(sandbox: Sandbox) -> None:
    case = spoken("", "1", "200000", ending=OUTPUT, facts=(keeps_together(65536),))
    for _ in range(100):
        case.judge(await sandbox.run(case))
