"""Runs that take all they can get: processes, processor time, memory, disk, time."""

from __future__ import annotations

import signal

import pytest

from gateway.sandbox.artifacts import Artifact
from gateway.sandbox.run_result import RunResult
from tests.sandbox.battery.case import (
    CPU,
    MEMORY,
    MIB,
    TIGHT,
    WALL,
    Case,
    dies_of,
    hostile,
    limits,
    node,
    table,
    took,
    used_up_cpu,
    within,
)
from tests.sandbox.battery.real_path import Sandbox

FILL = """
const fs = require('fs'), file = fs.openSync(process.argv[1], 'w'), block = Buffer.alloc(1 << 20);
let n = 0;
try { for (;;) n += fs.writeSync(file, block) } catch (e) { console.log(n, e.code) }
"""
MANY_WORKERS = """
const {Worker} = require('worker_threads');
let n = 0;
for (let i = 0; i < 500; i++) {
    const w = new Worker('setInterval(() => {}, 1e3)', {eval: true});
    w.on('error', e => { console.log(e.code); process.exit(5) });
}
"""
WRITE = """
for (const path of process.argv.slice(1))
    try { require('fs').writeFileSync(path, 'x'); console.log(path, 'written') } catch (e) { console.log(path, e.code) }
"""
READ_ONLY = ("/x", "/usr/bin/node", "/usr/x", "/usr/lib/libc.so.6", "/lib64/x", "/etc/passwd", "/dev/x")
MISSING = ("/proc/x", "/dev/shm/x", "/run/x", "/sys/x", "/var/x", "/root/x")
GARBAGE = "for (let i = 0; i < 60; i++) 'word '.repeat(2e5).split(' '); console.log('done')"
GROUPS = """
const rows = Array.from({length: 300000}, (_, i) => `a${i % 1000},b${i},${i * 7 % 13}`), groups = {};
for (const row of rows.join('\\n').split('\\n')) {
    const [a, b, c] = row.split(',');
    (groups[a] ??= []).push({b, c: +c});
}
console.log(Object.keys(groups).length);
"""
OVERRUN = "const kept = []; for (;;) kept.push({text: 'y'.repeat(10) + kept.length})"
SPAWNS = """
const ran = require('child_process').spawnSync('node', ['-p', '6 * 7']);
console.log(ran.error?.code ?? String(ran.stdout).trim());
"""


ROOMY = limits(cpu_millis=20_000, wall_time_ms=20_000)


def out_of_heap(result: RunResult) -> None:
    assert b"JavaScript heap out of memory" in result.stderr.kept


def denied_tasks(result: RunResult) -> None:
    assert result.denials.processes
    assert result.usage.processes_peak == TIGHT.tasks


@table(
    Case(
        "a fork bomb ends at its cpu limit",
        hostile("forkbomb"),
        CPU,
        limits=limits(wall_time_ms=10_000, memory_bytes=256 * MIB),  # each of them takes a megabyte
        facts=(denied_tasks, used_up_cpu(2000)),
    ),
    Case(
        "children are denied at the limit of tasks",
        hostile("forkcount"),
        says=f"fork: EAGAIN\nchildren: {TIGHT.tasks - 3}\n",  # itself, and two of bubblewrap
        facts=(denied_tasks,),
    ),
    Case(
        "processes 1 is exact, and threads start all the same",
        hostile("fork1"),
        says="fork: EAGAIN\nraw vfork: EAGAIN\nraw clone: EAGAIN\nclone with the parent's parent: EAGAIN\n"
        "clone3: ENOSYS\nthread: ok\n",
        limits=limits(processes=1),
    ),
    Case("garbage is collected before the limit of memory", node(GARBAGE), says="done\n", limits=ROOMY),
    Case("a table is split and grouped within 128 MiB", node(GROUPS), says="1000\n", limits=ROOMY),
    Case("processes 1 denies node a child", node(SPAWNS), says="EAGAIN\n", limits=limits(processes=1)),
    Case("node runs a child", node(SPAWNS), says="42\n"),
    Case("hundreds of workers end at the memory limit", node(MANY_WORKERS), MEMORY),
)
async def test_processes(sandbox: Sandbox, case: Case) -> None:
    case.judge(await sandbox.run(case))


@table(
    Case("a program that takes all memory", hostile("membomb"), MEMORY),
    Case("eight children that take all memory, and a parent that exits with 0", hostile("membomb_kids"), MEMORY),
    Case(
        "the same where the kernel comes first",
        hostile("membomb_kids"),
        MEMORY,
        limits=limits(memory_bytes=16 * MIB, disk_bytes=MIB, artifact_bytes=1),
    ),
    Case("shared memory is memory", hostile("sharedbomb"), MEMORY),
    Case(
        "half again of the memory limit is over it, where the disk limit would leave room",
        hostile("hold", "private", "48", "2000"),
        MEMORY,
        limits=limits(memory_bytes=32 * MIB, disk_bytes=64 * MIB),
    ),
    Case(
        "half again of the memory limit is over it, where it is shared memory",
        hostile("hold", "shared", "48", "2000"),
        MEMORY,
        limits=limits(memory_bytes=32 * MIB, disk_bytes=64 * MIB),
    ),
    Case(
        "what is less than the memory limit is given",
        hostile("hold", "private", "48", "300"),
        says="held\n",
        limits=limits(memory_bytes=64 * MIB, disk_bytes=MIB),
    ),
    Case("full pipes are memory", hostile("buffers", "pipes"), MEMORY, limits=limits(memory_bytes=16 * MIB)),
    Case("full sockets are memory", hostile("buffers", "sockets"), MEMORY, limits=limits(memory_bytes=16 * MIB)),
    Case(
        "a heap of objects explains itself",
        node("const a = []; for (;;) a.push(new Array(1e5).fill(1))"),
        dies_of(signal.SIGABRT),
        complains=None,
        facts=(out_of_heap,),
    ),
    Case(
        "many small objects explain themselves",
        node(OVERRUN),
        dies_of(signal.SIGABRT),
        complains=None,
        limits=ROOMY,
        facts=(out_of_heap,),
    ),
    Case("a heap of buffers", node("const a = []; for (;;) a.push(Buffer.alloc(8 << 20, 1))"), MEMORY),
    Case(
        "node works in the least memory that can be asked for",
        node("console.log('ok')"),
        says="ok\n",
        limits=limits(memory_bytes=16 * MIB),
    ),
    Case("a stack without end", hostile("overflow"), dies_of(signal.SIGSEGV)),
    Case(
        "files without number, all empty", hostile("inodes"), MEMORY, limits=limits(cpu_millis=6000, wall_time_ms=9000)
    ),
)
async def test_memory(sandbox: Sandbox, case: Case) -> None:
    result = await sandbox.run(case)
    case.judge(result)
    assert result.usage.peak_memory_bytes is not None
    assert result.usage.peak_memory_bytes <= case.limits.host_bytes + 4 * MIB


@table(
    Case(
        "one spins",
        node("for (;;);"),
        CPU,
        limits=limits(cpu_millis=500, wall_time_ms=10_000),
        facts=(used_up_cpu(500),),
    ),
    Case(
        "eight spin",
        hostile("cpukids"),
        CPU,
        limits=limits(cpu_millis=500, wall_time_ms=10_000),
        facts=(used_up_cpu(500),),
    ),
    Case(
        "the dead are counted",
        hostile("cpuflies"),
        CPU,
        limits=limits(cpu_millis=500, wall_time_ms=10_000),
        facts=(used_up_cpu(500),),
    ),
    Case(
        "a catastrophic pattern",
        node("/^(a+)+$/.test('a'.repeat(40) + 'b')"),
        CPU,
        limits=limits(cpu_millis=400, wall_time_ms=10_000),
        facts=(used_up_cpu(400),),
    ),
    Case(
        "one closes its output and spins",
        node("require('fs').closeSync(1); require('fs').closeSync(2); for (;;);"),
        CPU,
        limits=limits(cpu_millis=300, wall_time_ms=10_000),
        facts=(used_up_cpu(300),),
    ),
    Case(
        "one catches every signal that can be caught, and spins",
        node("for (const s of ['SIGTERM', 'SIGXCPU', 'SIGINT', 'SIGHUP']) process.on(s, () => {}); for (;;);"),
        CPU,
        limits=limits(cpu_millis=300, wall_time_ms=10_000),
        facts=(used_up_cpu(300),),
    ),
    Case("the least that can be asked for", node("for (;;);"), CPU, limits=limits(cpu_millis=1, wall_time_ms=10_000)),
)
async def test_processor_time(sandbox: Sandbox, case: Case) -> None:
    case.judge(await sandbox.run(case))


@table(
    Case(
        "one ignores all signals and sleeps",
        hostile("longsleep"),
        WALL,
        limits=limits(wall_time_ms=600),
        facts=(took(600),),
    ),
    Case("the least time that can be asked for", hostile("longsleep"), WALL, limits=limits(wall_time_ms=100)),
    Case("one stops itself", hostile("stopself"), WALL, limits=limits(wall_time_ms=600), facts=(took(600),)),
    Case(
        "one waits for input that has ended, then forever",
        node("process.stdin.resume().on('end', () => setInterval(() => {}, 1e6))"),
        WALL,
        limits=limits(wall_time_ms=600),
        facts=(took(600),),
    ),
    Case("one sleeps in many threads", node(MANY_WORKERS.replace("500", "4")), WALL, limits=limits(wall_time_ms=800)),
    Case(
        "what was written before the end is kept",
        node("console.log('so far'); console.error('and here'); setInterval(() => {}, 1e6)"),
        WALL,
        says="so far\n",
        complains="and here\n",
        limits=limits(wall_time_ms=600),
    ),
)
async def test_time(sandbox: Sandbox, case: Case) -> None:
    case.judge(await sandbox.run(case))


async def test_a_run_of_twelve_seconds_ends_by_itself(sandbox: Sandbox) -> None:
    case = Case(
        "twelve seconds",
        node("setTimeout(() => console.log('done'), 12000)"),
        says="done\n",
        limits=limits(wall_time_ms=15_000),
        facts=(took(12_000, 1500),),
    )
    case.judge(await sandbox.run(case))


@pytest.mark.campaign
async def test_a_run_of_a_minute_ends_at_the_longest_limit(sandbox: Sandbox) -> None:
    case = Case("a minute", hostile("longsleep"), WALL, limits=limits(wall_time_ms=60_000), facts=(took(60_000),))
    case.judge(await sandbox.run(case))


@table(
    Case(
        "the disk is full at its limit",
        node(FILL, "/scratch/x"),
        says=f"{16 * MIB} ENOSPC\n",
        facts=(within("disk_bytes", 16 * MIB, 16 * MIB),),
    ),
    Case(
        "more disk than memory is given in full",
        node(FILL, "/scratch/x"),
        says=f"{128 * MIB} ENOSPC\n",
        limits=limits(disk_bytes=128 * MIB, memory_bytes=64 * MIB),
    ),
    Case(
        "a file of a terabyte that has no byte is refused",
        node(
            "const fs = require('fs'); fs.writeFileSync('s', '');"
            "try { fs.truncateSync('s', 2 ** 40) } catch (e) { console.log(e.code) }"
        ),
        says="EFBIG\n",
    ),
    Case(
        "/out is full at its limit",
        node(FILL, "/out/x"),
        says=f"{MIB} ENOSPC\n",
        artifacts=(Artifact("x", MIB, "30e14955ebf1352266dc2ff8067e68104607e750abb9d3b36582b8af909fcb58"),),
        facts=(within("artifact_bytes", MIB, MIB),),
    ),
    Case(
        "there is no other place to write to",
        node(WRITE, *READ_ONLY, *MISSING),
        says="".join(f"{path} EROFS\n" for path in READ_ONLY) + "".join(f"{path} ENOENT\n" for path in MISSING),
    ),
)
async def test_disk(sandbox: Sandbox, case: Case) -> None:
    case.judge(await sandbox.run(case))


async def test_nothing_is_found_of_the_run_before(sandbox: Sandbox) -> None:
    writes = node("for (const d of ['/scratch', '/out']) require('fs').writeFileSync(d + '/mine', 'x')")
    await sandbox.run(Case("it leaves files", writes, artifacts=None))
    looks = node("for (const d of ['/scratch', '/out']) console.log(require('fs').readdirSync(d).length)")
    case = Case("the next finds none", looks, says="0\n0\n")
    case.judge(await sandbox.run(case))


@pytest.mark.campaign
@table(
    Case(
        "the largest disk",
        node(FILL, "/scratch/x"),
        says=f"{1024 * MIB} ENOSPC\n",
        limits=limits(disk_bytes=1024 * MIB, cpu_millis=20_000, wall_time_ms=30_000),
    ),
    Case(
        "the largest memory",
        hostile("hold", "private", "480", "500"),
        says="held\n",
        limits=limits(memory_bytes=512 * MIB, cpu_millis=20_000, wall_time_ms=30_000),
    ),
    Case(
        "the most processes",
        hostile("forkcount"),
        says=f"fork: EAGAIN\nchildren: {64 * 16 + 2 - 3}\n",
        limits=limits(processes=64, memory_bytes=512 * MIB, cpu_millis=20_000, wall_time_ms=30_000),
    ),
)
async def test_the_largest_that_can_be_asked_for(sandbox: Sandbox, case: Case) -> None:
    case.judge(await sandbox.run(case))
