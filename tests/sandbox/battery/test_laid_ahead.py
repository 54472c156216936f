"""Runs in a sandbox that was there before them: nothing of what waited in it is found, and all is as in any other."""

from __future__ import annotations

import pytest
import trio

from gateway.sandbox.run_result import RunResult
from tests.sandbox.battery.case import (
    CPU,
    MEMORY,
    NOT_STARTED,
    WALL,
    Case,
    dies_of,
    exits,
    hostile,
    limits,
    node,
    table,
)
from tests.sandbox.battery.real_path import Sandbox

FIRST = Case("", hostile("fds"), says=None)
LOOKS = """
const fs = require('fs'), seen = [];
const look = path => { try { return fs.readlinkSync(path) } catch (e) { return e.code } };
for (const pid of ['1', '2', 'self'])
    for (const fd of [...Array(16).keys()]) seen.push(look(`/proc/${pid}/fd/${fd}`));
for (const pid of ['1', '2', 'self']) seen.push(look(`/proc/${pid}/exe`), fs.readFileSync(`/proc/${pid}/maps`, 'utf8'));
console.log(seen.some(each => /memfd|starter|order|socket:/.test(each)), look('/proc/self/exe'));
console.log(fs.readFileSync('/proc/self/cmdline', 'utf8').split('\\0')[0]);
"""
WRITES = """
const fs = require('fs'); let written = 0;
for (const name of fs.readdirSync('/proc/1/fd')) try {
    fs.writeSync(fs.openSync('/proc/1/fd/' + name, 'r+'), 'x'); written++;
} catch {}
for (const number of [6, 7]) try { fs.writeSync(number, Buffer.from('0100', 'hex')) } catch {}
console.log(written);
"""
SAME = "console.log(process.pid, process.ppid, process.uptime() < 5)"


async def ahead(sandbox: Sandbox, case: Case) -> RunResult:
    """Run a case in a sandbox that was laid ahead."""
    first = Case("", FIRST.command, says=None, limits=case.limits)
    first.judge(await sandbox.begin(first, again=True).live())
    await trio.sleep(0.1)  # until it is laid
    result = await sandbox.begin(case).live()
    assert result.laid_ahead
    return result


@table(
    Case("it has three descriptors", hostile("fds"), says="0 1 2 \n"),
    Case("nothing of the starter is to be seen", node(LOOKS), says="false /usr/bin/node\nnode\n"),
    Case("what it writes elsewhere is heard by nobody", node(WRITES), says=None),
    Case("it is the second process, as any", node(SAME), says="2 1 true\n"),
    Case("exit code 126 is its own", node("process.exit(126)"), exits(126)),
    Case("exit code 125 is its own", node("process.exit(125)"), exits(125)),
    Case("its end by a signal is its own", hostile("raise", "15"), dies_of(15)),
    Case("a name that is not there", ("nothing",), NOT_STARTED, complains="nothing: No such file or directory\n"),
    Case("a directory", ("/usr",), NOT_STARTED, complains="/usr: Permission denied\n"),
    Case("processor time", node("for (;;);"), CPU, limits=limits(cpu_millis=300)),
    Case("time", node("setInterval(() => {}, 1000)"), WALL, limits=limits(wall_time_ms=300)),
    Case("memory", node("const a = []; for (;;) a.push(Buffer.alloc(1 << 20, 1))"), MEMORY, complains=None),
    Case(
        "processes: 1",
        node("console.log(require('child_process').spawnSync('node').error.code)"),
        says="EAGAIN\n",
        limits=limits(processes=1),
    ),
)
async def test_in_a_sandbox_laid_ahead(sandbox: Sandbox, case: Case) -> None:
    case.judge(await ahead(sandbox, case))


@pytest.mark.parametrize("arguments", [("ptrace",), ("keys",)], ids=lambda words: words[0])
async def test_the_filter_is_that_of_any_run(sandbox: Sandbox, arguments: tuple[str, ...]) -> None:
    case = Case("", hostile(*arguments), says=None)
    laid = await ahead(sandbox, case)
    assert laid.stdout.kept == (await sandbox.begin(case).live()).stdout.kept
