"""What the canaries try, for the node of the image; most tell what came of it as one JSON object."""

from __future__ import annotations

_TELL = "const tell = (told) => console.log(JSON.stringify(told));"
_TRY = "const attempt = (deed) => { try { deed(); return 'done'; } catch (error) { return error.code; } };"

IDENTITY = (
    _TELL
    + """
const fs = require('fs');
const status = {};
for (const line of fs.readFileSync('/proc/self/status', 'latin1').split('\\n')) {
  const [name, ...value] = line.split(/\\s+/);
  status[name.slice(0, -1)] = value.join(' ').trim();
}
const files = [];
for (const each of fs.readdirSync('/proc/self/fd')) {
  let leads = '';
  try { leads = fs.readlinkSync(`/proc/self/fd/${each}`); } catch { continue; }
  if (each > 2 && leads.startsWith('/')) files.push(leads);
}
tell({
  uid: status.Uid, gid: status.Gid, groups: status.Groups, newPrivileges: status.NoNewPrivs, filter: status.Seccomp,
  capabilities: ['CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb'].map((each) => BigInt(`0x${status[each]}`)
    .toString()).join(' '),
  processes: fs.readdirSync('/proc').join(' '), environment: {...process.env}, files,
});
"""
)

WRITES = (
    _TELL
    + _TRY
    + """
const fs = require('fs');
const told = {};
for (const at of ['/', '/usr/bin/', '/usr/lib/', '/etc/', '/dev/']) {
  told[at] = attempt(() => fs.writeFileSync(`${at}written`, ''));
}
told.node = attempt(() => fs.closeSync(fs.openSync('/usr/bin/node', 'r+')));
told.corePattern = attempt(() => fs.closeSync(fs.openSync('/proc/sys/kernel/core_pattern', 'r+')));
told.ofTheHost = ['/boot', '/home', '/root', '/run', '/sys', '/var', '/proc/kcore'].filter((at) => fs.existsSync(at));
tell(told);
"""
)

EXECUTION = (
    _TELL
    + _TRY
    + """
const fs = require('fs');
const { spawnSync } = require('child_process');
const told = {};
for (const at of ['/scratch', '/out']) {
  for (const [kind, content] of [['script', '#!/usr/bin/node\\n'], ['elf', Buffer.from('7f454c46', 'hex')]]) {
    fs.writeFileSync(`${at}/${kind}`, content, { mode: 0o755 });
    const { error, status } = spawnSync(`${at}/${kind}`);
    told[`${at}/${kind}`] = error ? error.code : `ran, ${status}`;
  }
}
const library = fs.readdirSync('/usr/lib').find((each) => each.startsWith('libdl.'));
fs.copyFileSync(`/usr/lib/${library}`, '/scratch/library.node');
try {
  process.dlopen({ exports: {} }, '/scratch/library.node');
} catch (error) {
  told.library = /failed to map segment/.test(error.message) ? 'not mapped' : error.message;
}
for (const at of ['/proc/self/mem', '/proc/1/mem']) {
  told[at] = attempt(() => fs.closeSync(fs.openSync(at, 'r+')));
}
tell(told);
"""
)

NETWORK = (
    _TELL
    + """
const net = require('net');
const told = {};
const open = {
  tcp4: () => net.connect(9, '127.0.0.1'),
  tcp6: () => net.connect(9, '::1'),
  listener: () => net.createServer().listen(0),
  udp4: () => require('dgram').createSocket('udp4').bind(0),
};
let left = Object.keys(open).length;
const heard = (name, what) => { told[name] = what; left -= 1; if (!left) { tell(told); process.exit(0); } };
for (const [name, opened] of Object.entries(open)) {
  const one = opened();
  one.on('error', (error) => heard(name, error.code));
  one.on('connect', () => heard(name, 'connected')).on('listening', () => heard(name, 'listening'));
}
"""
)

# With full files what is left of the group's bound is the memory limit, so that it is the kernel that finds no more.
# Whether it counts a kill (`oom_kills`) is chance: the launcher may have ended all before the kernel has chosen one.
MEMORY = """
const fs = require('fs');
for (const at of ['/scratch/file', '/out/file']) {
  const file = fs.openSync(at, 'w');
  try { for (;;) fs.writeSync(file, Buffer.alloc(2 ** 16)); } catch {}
}
const bomb = 'const kept = []; for (;;) kept.push(Buffer.alloc(2 ** 20, 1));';
require('child_process').spawnSync(process.execPath, ['-e', bomb]);
console.log('the child is dead, and its parent lives');
"""

TASKS = """
process.env.UV_THREADPOOL_SIZE = '64';
require('fs').stat('/', () => console.log('64 threads more were made'));
"""

SINGLE = (
    _TELL
    + """
const { error } = require('child_process').spawnSync(process.execPath, ['-e', '0']);
require('fs').stat('/', () => tell({ child: error ? error.code : 'ran', thread: 'ran' }));
"""
)

DISK = (
    _TELL
    + """
const fs = require('fs');
const file = fs.openSync('/scratch/file', 'w');
const block = Buffer.alloc(2 ** 16);
let written = 0;
let stopped = null;
while (stopped === null && written < 2 ** 22) {
  try { written += fs.writeSync(file, block); } catch (error) { stopped = error.code; }
}
tell({ stopped, written });
"""
)

ARTIFACTS = """
const fs = require('fs');
fs.writeFileSync('/out/proof', fs.readFileSync(0));
fs.symlinkSync('/etc/passwd', '/out/link');
"""

WALL = "for (const each of ['SIGTERM', 'SIGINT', 'SIGHUP']) process.on(each, () => {}); setInterval(() => {}, 1000);"
