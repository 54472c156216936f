"""Small runs that prove the sandbox on this machine, made like any other: what each tries, and what has to come of it.

A mechanism that is configured may yet contain nothing, and only a run shows it.  Each canary tries what the sandbox has
to refuse or to end, with nothing but the node of the image, and its judge reads the result.  All together take about a
second of CPU.  What they cannot try, for node makes no system call of one's own choosing, the launcher looks at from
outside before each run, and the tests try with a program of their own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import attrs

from gateway.sandbox.artifacts import Artifact, Skip
from gateway.sandbox.limits import Limits
from gateway.sandbox.outcome import Ending, Outcome
from gateway.sandbox.run_result import RunResult

Judge = Callable[[RunResult], str | None]
"""Returns None where the result proves what it should, else what was seen."""

SMALL = Limits(
    cpu_millis=2000,
    memory_bytes=2**26,
    processes=2,
    disk_bytes=2**20,
    output_bytes=4096,
    artifact_bytes=2**14,
    wall_time_ms=10_000,
)
"""What a canary may use unless it is about that limit: little, so that it fits beside sold runs."""
SLACK = 2**22
"""Bytes that the kernel may charge over a bound in memory, for what it cannot refuse."""
SHOWN = 300
"""Characters of what a run wrote that a finding shows."""
GIVEN = b"\x00\xff canary\n"


@attrs.frozen
class Canary:
    """A run and its judge.

    Attributes:
        name: one word.
        proves: what is known of the sandbox when the judge is content.
        command: for the pinned image.
        stdin: standard input.
        limits: of the run.
        judge: see `Judge`; also content only where nothing at all was left of the run.
    """

    name: str
    proves: str
    command: tuple[str, ...] = attrs.field(repr=False)
    stdin: bytes = attrs.field(repr=False)
    limits: Limits = attrs.field(repr=False)
    judge: Judge = attrs.field(repr=False)

    @property
    def reason(self) -> str:
        """The machine reason for which the sandbox is closed when this canary fails."""
        return f"sandbox.canary_{self.name}"


def _canary(name: str, proves: str, script: str, judge: Judge, *, stdin: bytes = b"", limits: Limits = SMALL) -> Canary:
    return Canary(name, proves, ("node", "-e", script), stdin, limits, partial(_with_cleanup, judge))


def _with_cleanup(judge: Judge, result: RunResult) -> str | None:
    found = judge(result)
    if found is None and not result.cleanup.verified:
        return f"something was left of it: {json.dumps(result.cleanup.as_json())}"
    return found


# -- judges ------------------------------------------------------------------------------------------------------------


def said(expected: Mapping[str, object]) -> Judge:
    """Return a judge of a run that exits with 0 and says exactly this as JSON; of a frozenset, any one member."""

    def judge(result: RunResult) -> str | None:
        if result.ending != Ending(Outcome.EXITED, 0):
            return _ended(result)
        try:
            told: Any = json.loads(result.stdout.kept)
        except ValueError:
            told = None
        if not isinstance(told, dict):
            return f"it said {_shown(result.stdout.kept)}"
        differing = [
            f"{name} is {json.dumps(told.get(name))}"
            for name in sorted({*expected, *told})
            if name not in expected or not _is(told.get(name), expected[name])
        ]
        return "; ".join(differing) or None

    return judge


def _is(value: object, expected: object) -> bool:
    if isinstance(expected, frozenset):
        return isinstance(value, str) and value in expected
    return type(value) is type(expected) and value == expected


def ended(expected: Ending, *more: Judge) -> Judge:
    """Return a judge of a run that ends so, and with which these others are content."""

    def judge(result: RunResult) -> str | None:
        if result.ending != expected:
            return _ended(result)
        return next((found for each in more if (found := each(result)) is not None), None)

    return judge


def _ended(result: RunResult) -> str:
    told = ", ".join(f"{name} {value}" for name, value in result.ending.as_json().items() if value is not None)
    wrote = result.stderr.kept or result.stdout.kept
    return f"it ended otherwise: {told}{f'; it wrote {_shown(wrote)}' if wrote else ''}"


def _shown(wrote: bytes) -> str:
    return ascii(wrote.decode(errors="replace")[:SHOWN])


def measured(what: str, *, least: int = 0, most: int | None = None) -> Judge:
    """Return a judge of a figure of `Usage`, both ends included; one that this kernel does not tell is none."""

    def judge(result: RunResult) -> str | None:
        figure: int | None = getattr(result.usage, what)
        if figure is None or (least <= figure and (most is None or figure <= most)):
            return None
        return f"{what} is {figure}, {f'less than {least}' if most is None else f'not {least} to {most}'}"

    return judge


def _task_denied(result: RunResult) -> str | None:
    return "the kernel counts no denied task" if result.denials.processes == 0 else None


def _exactly_as_much(most: int) -> Judge:
    def judge(result: RunResult) -> str | None:
        if result.stdout.kept == b"x" * most and result.stdout.truncated:
            return None
        return f"{len(result.stdout.kept)} bytes were kept of {most}, truncated: {result.stdout.truncated}"

    return judge


def _artifacts(result: RunResult) -> str | None:
    expected = (
        Artifact("link", skipped=Skip.SYMLINK),
        Artifact("proof", len(GIVEN), hashlib.sha256(GIVEN).hexdigest()),
    )
    if result.artifacts.artifacts == expected and result.artifacts.complete:
        return None
    return f"the artifacts are {json.dumps([each.as_json() for each in result.artifacts.artifacts])}"


# -- the canaries ------------------------------------------------------------------------------------------------------

_TELL = "const tell = (told) => console.log(JSON.stringify(told));"
_TRY = "const attempt = (deed) => { try { deed(); return 'done'; } catch (error) { return error.code; } };"

_IDENTITY = f"""{_TELL}
const fs = require('fs');
const status = {{}};
for (const line of fs.readFileSync('/proc/self/status', 'latin1').split('\\n')) {{
  const [name, ...value] = line.split(/\\s+/);
  status[name.slice(0, -1)] = value.join(' ').trim();
}}
const files = [];
for (const each of fs.readdirSync('/proc/self/fd')) {{
  let leads = '';
  try {{ leads = fs.readlinkSync(`/proc/self/fd/${{each}}`); }} catch {{ continue; }}
  if (each > 2 && leads.startsWith('/')) files.push(leads);
}}
tell({{
  uid: status.Uid, gid: status.Gid, groups: status.Groups, newPrivileges: status.NoNewPrivs, filter: status.Seccomp,
  capabilities: ['CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb'].map((each) => BigInt(`0x${{status[each]}}`)
    .toString()).join(' '),
  processes: fs.readdirSync('/proc').join(' '), environment: {{...process.env}}, files,
}});
"""

_WRITES = f"""{_TELL}{_TRY}
const fs = require('fs');
const told = {{}};
for (const at of ['/', '/usr/bin/', '/usr/lib/', '/etc/', '/dev/']) {{
  told[at] = attempt(() => fs.writeFileSync(`${{at}}written`, ''));
}}
told.node = attempt(() => fs.closeSync(fs.openSync('/usr/bin/node', 'r+')));
told.corePattern = attempt(() => fs.closeSync(fs.openSync('/proc/sys/kernel/core_pattern', 'r+')));
told.ofTheHost = ['/boot', '/home', '/root', '/run', '/sys', '/var', '/proc/kcore'].filter((at) => fs.existsSync(at));
tell(told);
"""

_EXECUTION = f"""{_TELL}
const fs = require('fs');
const {{ spawnSync }} = require('child_process');
const told = {{}};
for (const at of ['/scratch', '/out']) {{
  for (const [kind, content] of [['script', '#!/usr/bin/node\\n'], ['elf', Buffer.from('7f454c46', 'hex')]]) {{
    fs.writeFileSync(`${{at}}/${{kind}}`, content, {{ mode: 0o755 }});
    const {{ error, status }} = spawnSync(`${{at}}/${{kind}}`);
    told[`${{at}}/${{kind}}`] = error ? error.code : `ran, ${{status}}`;
  }}
}}
const library = fs.readdirSync('/usr/lib').find((each) => each.startsWith('libdl.'));
fs.copyFileSync(`/usr/lib/${{library}}`, '/scratch/library.node');
try {{
  process.dlopen({{ exports: {{}} }}, '/scratch/library.node');
}} catch (error) {{
  told.library = /failed to map segment/.test(error.message) ? 'not mapped' : error.message;
}}
tell(told);
"""

_NETWORK = f"""{_TELL}
const net = require('net');
const told = {{}};
const open = {{
  tcp4: () => net.connect(9, '127.0.0.1'),
  tcp6: () => net.connect(9, '::1'),
  listener: () => net.createServer().listen(0),
  udp4: () => require('dgram').createSocket('udp4').bind(0),
}};
let left = Object.keys(open).length;
const heard = (name, what) => {{ told[name] = what; left -= 1; if (!left) {{ tell(told); process.exit(0); }} }};
for (const [name, opened] of Object.entries(open)) {{
  const one = opened();
  one.on('error', (error) => heard(name, error.code));
  one.on('connect', () => heard(name, 'connected')).on('listening', () => heard(name, 'listening'));
}}
"""

# With full files what is left of the group's bound is the memory limit, so that it is the kernel that finds no more.
# Whether it counts a kill (`oom_kills`) is chance: the launcher may have ended all before the kernel has chosen one.
_MEMORY = """
const fs = require('fs');
for (const at of ['/scratch/file', '/out/file']) {
  const file = fs.openSync(at, 'w');
  try { for (;;) fs.writeSync(file, Buffer.alloc(2 ** 16)); } catch {}
}
const bomb = 'const kept = []; for (;;) kept.push(Buffer.alloc(2 ** 20, 1));';
require('child_process').spawnSync(process.execPath, ['-e', bomb]);
console.log('the child is dead, and its parent lives');
"""

_TASKS = """
process.env.UV_THREADPOOL_SIZE = '64';
require('fs').stat('/', () => console.log('64 threads more were made'));
"""

_SINGLE = f"""{_TELL}
const {{ error }} = require('child_process').spawnSync(process.execPath, ['-e', '0']);
require('fs').stat('/', () => tell({{ child: error ? error.code : 'ran', thread: 'ran' }}));
"""

_DISK = f"""{_TELL}
const fs = require('fs');
const file = fs.openSync('/scratch/file', 'w');
const block = Buffer.alloc(2 ** 16);
let written = 0;
let stopped = null;
while (stopped === null && written < 2 ** 22) {{
  try {{ written += fs.writeSync(file, block); }} catch (error) {{ stopped = error.code; }}
}}
tell({{ stopped, written }});
"""

_ARTIFACTS = """
const fs = require('fs');
fs.writeFileSync('/out/proof', fs.readFileSync(0));
fs.symlinkSync('/etc/passwd', '/out/link');
"""

_WALL = "for (const each of ['SIGTERM', 'SIGINT', 'SIGHUP']) process.on(each, () => {}); setInterval(() => {}, 1000);"

_MOST_OUTPUT = 1000

CANARIES: Sequence[Canary] = (
    _canary(
        "identity",
        "a command is nobody, without capabilities, under the filter, and sees its own processes and environment only",
        _IDENTITY,
        said(
            {
                "uid": "65534 65534 65534 65534",
                "gid": "65534 65534 65534 65534",
                "groups": "",
                "newPrivileges": "1",
                "filter": "2",
                "capabilities": "0 0 0 0 0",
                "processes": "1 2 self thread-self",
                "environment": {"PATH": "/usr/bin", "HOME": "/scratch", "TMPDIR": "/scratch", "PWD": "/scratch"},
                "files": [],
            }
        ),
    ),
    _canary(
        "writes",
        "neither the image nor the kernel's settings can be written, and no directory of the host is there",
        _WRITES,
        said(
            {
                **dict.fromkeys(("/", "/usr/bin/", "/usr/lib/", "/etc/", "/dev/"), "EROFS"),
                "node": frozenset({"EROFS", "EACCES"}),
                "corePattern": frozenset({"ENOENT", "EACCES", "EROFS"}),
                "ofTheHost": [],
            }
        ),
    ),
    _canary(
        "execution",
        "nothing that a command writes can be executed, nor loaded as code",
        _EXECUTION,
        said(
            {
                **dict.fromkeys(("/scratch/script", "/scratch/elf", "/out/script", "/out/elf"), "EACCES"),
                "library": "not mapped",
            }
        ),
    ),
    _canary(
        "network",
        "there is no network",
        _NETWORK,
        said(dict.fromkeys(("tcp4", "tcp6", "udp4", "listener"), "EAFNOSUPPORT")),
    ),
    _canary(
        "memory",
        "a run is ended as a whole where its memory ends, also where only a child of the command asks for more",
        _MEMORY,
        ended(
            Ending(Outcome.MEMORY_LIMIT),
            measured("peak_memory_bytes", least=SMALL.memory_bytes, most=SMALL.host_bytes + SLACK),
        ),
    ),
    _canary(
        "tasks",
        "no more tasks than the limit allows can be started",
        _TASKS,
        ended(
            Ending(Outcome.SIGNALED, signal=6),  # libuv aborts where it is refused a thread
            _task_denied,
            measured("processes_peak", most=SMALL.tasks),
        ),
    ),
    _canary(
        "single",
        "processes: 1 is exact: threads start, and children do not",
        _SINGLE,
        said({"child": "EAGAIN", "thread": "ran"}),
        limits=attrs.evolve(SMALL, processes=1),
    ),
    _canary(
        "cpu",
        "a run is ended at its CPU limit, long before its wall limit",
        "for (;;);",
        ended(Ending(Outcome.CPU_LIMIT), measured("cpu_millis", least=100)),
        limits=attrs.evolve(SMALL, cpu_millis=100),
    ),
    _canary(
        "wall",
        "a run is ended at its wall limit, whatever signals it ignores",
        _WALL,
        ended(Ending(Outcome.WALL_LIMIT), measured("wall_ms", least=150)),
        limits=attrs.evolve(SMALL, wall_time_ms=150),
    ),
    _canary(
        "disk",
        "exactly so much can be written to /scratch as the limit allows",
        _DISK,
        ended(
            Ending(Outcome.EXITED, 0),
            said({"stopped": "ENOSPC", "written": SMALL.disk_bytes}),
            measured("disk_bytes", least=SMALL.disk_bytes, most=SMALL.disk_bytes),
        ),
    ),
    _canary(
        "artifacts",
        "standard input arrives, and what a command leaves in /out is listed with its digest, no link followed",
        _ARTIFACTS,
        ended(Ending(Outcome.EXITED, 0), _artifacts),
        stdin=GIVEN,
    ),
    _canary(
        "output",
        "a run is ended when it writes one byte too many, and exactly the bytes up to the limit are kept",
        f"process.stdout.write('x'.repeat({_MOST_OUTPUT + 1})); setInterval(() => {{}}, 1000);",
        ended(Ending(Outcome.OUTPUT_LIMIT), _exactly_as_much(_MOST_OUTPUT)),
        limits=attrs.evolve(SMALL, output_bytes=_MOST_OUTPUT),
    ),
)
"""In the order in which they are to be run: what contains first, then what bounds."""

BY_NAME: Mapping[str, Canary] = MappingProxyType({each.name: each for each in CANARIES})
