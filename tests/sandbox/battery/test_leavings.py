"""Runs that leave traps in `/out`: names, links, sockets, holes, depths, crowds."""

from __future__ import annotations

import hashlib

import pytest

from gateway.sandbox.artifacts import Artifact, Skip
from gateway.sandbox.run_result import RunResult
from tests.sandbox.battery.case import MIB, Case, dies_of, hostile, limits, node, table, within
from tests.sandbox.battery.real_path import Sandbox


def file(name: str, content: bytes) -> Artifact:
    return Artifact(name, len(content), hashlib.sha256(content).hexdigest())


def crowd_is_cut(result: RunResult) -> None:
    assert not result.artifacts.complete
    assert len(result.artifacts.artifacts) == 256
    assert {each.size for each in result.artifacts.artifacts} == {0}


def is_complete(result: RunResult) -> None:
    assert result.artifacts.complete


IN_OUT = "const fs = require('fs'); process.chdir('/out');"


@table(
    Case(
        "a name of a line break and a mark of direction",
        node(IN_OUT + r"fs.writeFileSync('a\nb\u202e', 'z')"),
        artifacts=(file("a%0Ab%E2%80%AE", b"z"),),
    ),
    Case(
        "a name that is no text",
        node(IN_OUT + "fs.writeFileSync(Buffer.from('ff41c328', 'hex'), 'z')"),
        artifacts=(file("%FFA%C3(", b"z"),),
    ),
    Case(
        "the longest name",
        node(IN_OUT + "fs.writeFileSync('n'.repeat(255), 'z')"),
        artifacts=(file("n" * 255, b"z"),),
    ),
    Case(
        "links are not followed",
        node(
            IN_OUT + "for (const [n, to] of [['l', '/etc/passwd'], ['d', '/proc/self/root'], ['up', '../../../etc'],"
            " ['self', 'self'], ['host', '/proc/1/root/etc/shadow']]) fs.symlinkSync(to, n)"
        ),
        artifacts=tuple(Artifact(name, skipped=Skip.SYMLINK) for name in ("d", "host", "l", "self", "up")),
    ),
    Case(
        "a hard link is the same file",
        node(IN_OUT + "fs.writeFileSync('b', 'x'); fs.linkSync('b', 'a')"),
        artifacts=(file("a", b"x"), Artifact("b", skipped=Skip.HARD_LINK)),
    ),
    Case(
        "a hard link to the image cannot be made",
        node(IN_OUT + "try { fs.linkSync('/usr/bin/node', 'n') } catch (e) { console.log(e.code) }"),
        says="EXDEV\n",
    ),
    Case(
        "a file of holes is as large as it seems",
        node(IN_OUT + f"fs.writeFileSync('s', ''); fs.truncateSync('s', {8 * MIB})"),
        artifacts=(Artifact("s", 8 * MIB, skipped=Skip.TOO_LARGE),),
        facts=(within("artifact_bytes", 0, 0),),
    ),
    Case(
        "holes within the limit are zeros",
        node(IN_OUT + "fs.writeFileSync('s', ''); fs.truncateSync('s', 1 << 20)"),
        artifacts=(file("s", bytes(MIB)),),
    ),
    Case(
        "a file that its maker may not read",
        node(
            IN_OUT
            + "fs.writeFileSync('f', 'x'); fs.chmodSync('f', 0); fs.mkdirSync('d'); fs.writeFileSync('d/f', 'y');"
            "fs.chmodSync('d', 0)"
        ),
        artifacts=None,
        facts=(is_complete,),
    ),
    Case(
        "/out itself closed",
        node(IN_OUT + "fs.writeFileSync('f', 'x'); fs.chmodSync('/out', 0)"),
        artifacts=None,
    ),
    Case(
        "deep directories",
        hostile("deepdirs", "300"),
        says="file at the bottom: ok\n",
        artifacts=(Artifact("/".join("d" * 9), skipped=Skip.TOO_DEEP),),
        facts=(is_complete,),
    ),
    Case("thousands of files", hostile("manyfiles", "5000"), artifacts=None, facts=(crowd_is_cut,)),
    Case(
        "a crowd of files that just fits",
        hostile("manyfiles", "256"),
        artifacts=tuple(file(f"{n:05}", b"") for n in range(256)),
        facts=(is_complete,),
    ),
    Case(
        "a file that is still written to when the run ends",
        node(
            IN_OUT + "fs.writeFileSync('f', 'first'); setInterval(() => {}, 1e3); process.kill(process.pid, 'SIGKILL')"
        ),
        dies_of(9),
        artifacts=(file("f", b"first"),),
    ),
    Case("a crash leaves no core", hostile("crash"), dies_of(11)),
    Case(
        "files in many directories count together",
        node(
            IN_OUT + "for (const d of ['a', 'b', 'c']) { fs.mkdirSync(d);"
            " try { fs.writeFileSync(d + '/f', Buffer.alloc(4096)) } catch (e) { console.log(d, e.code) } }"
        ),
        says="c ENOSPC\n",
        limits=limits(artifact_bytes=8192),
        artifacts=(file("a/f", bytes(4096)), file("b/f", bytes(4096)), file("c/f", b"")),
    ),
)
async def test_artifacts(sandbox: Sandbox, case: Case) -> None:
    case.judge(await sandbox.run(case))


@pytest.mark.campaign
async def test_a_crowd_that_fills_all_inodes_is_listed_in_time(sandbox: Sandbox) -> None:
    case = Case(
        "",
        hostile("manyfiles", "60000"),
        artifacts=None,
        limits=limits(cpu_millis=10_000, wall_time_ms=20_000, memory_bytes=256 * MIB),
        facts=(crowd_is_cut,),
    )
    case.judge(await sandbox.run(case))
