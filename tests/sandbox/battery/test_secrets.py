"""Runs that look around: what they see of the host, of each other and of what started them."""

from __future__ import annotations

import json

from tests.sandbox.battery.case import Case, hostile, node, table
from tests.sandbox.battery.real_path import Sandbox

OF_THE_HOST = (
    *(
        "/proc/cpuinfo",
        "/proc/meminfo",
        "/proc/version",
        "/proc/cmdline",
        "/proc/uptime",
        "/proc/loadavg",
        "/proc/stat",
    ),
    *("/proc/partitions", "/proc/diskstats", "/proc/modules", "/proc/interrupts", "/proc/kallsyms", "/proc/keys"),
    *("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/random/boot_id", "/proc/sysrq-trigger", "/proc/kcore"),
    *("/proc/net/dev", "/proc/mounts.host", "/etc/machine-id", "/etc/shadow", "/etc/hostname", "/etc/resolv.conf"),
    *("/sys/class/dmi/id/product_uuid", "/sys/fs/cgroup/cgroup.procs", "/var/log", "/home", "/root", "/dev/mem"),
    *("/dev/kmsg", "/dev/sda", "/dev/vda", "/dev/fuse", "/dev/kvm", "/dev/net/tun", "/dev/loop-control"),
)
READ = """
for (const path of process.argv.slice(1)) try {
    require('fs').statSync(path); console.log(path, String(require('fs').readFileSync(path)).slice(0, 60));
} catch (e) { console.log(path, e.code) }
"""


@table(
    Case(
        "figures and files of the host are not there",
        node(READ, *OF_THE_HOST[:30]),
        says="".join(f"{path} ENOENT\n" for path in OF_THE_HOST[:30]),
    ),
    Case(
        "devices of the host are not there",
        node(READ, *OF_THE_HOST[30:]),
        says="".join(f"{path} ENOENT\n" for path in OF_THE_HOST[30:]),
    ),
    Case(
        "the only processes are init and itself",
        node("console.log(require('fs').readdirSync('/proc').join())"),
        says="1,2,self,thread-self\n",
    ),
    Case(
        "its group is the root of all groups that it sees",
        node(
            "console.log(require('fs').readFileSync('/proc/self/cgroup', 'utf8').split('\\n')"
            ".filter(line => line && !line.endsWith(':/')).length)"
        ),
        says="0\n",
    ),
    Case(
        "the machine has another name, and its user no more than a number",
        node("const os = require('os'); console.log(os.hostname(), os.userInfo().username, os.cpus().length)"),
        says="sandbox sandbox 0\n",
    ),
    Case(
        "the environment is five words",
        node("console.log(JSON.stringify(Object.entries(process.env).sort()))"),
        says=json.dumps(
            [
                ["HOME", "/scratch"],
                ["NODE_OPTIONS", "--max-old-space-size=88 --max-semi-space-size=8"],
                ["PATH", "/usr/bin"],
                ["PWD", "/scratch"],
                ["TMPDIR", "/scratch"],
            ],
            separators=(",", ":"),
        )
        + "\n",
    ),
    Case(
        "it has three descriptors",
        hostile("fds"),
        says="0 1 2 \n",
    ),
    Case(
        "descriptors end at a limit",
        hostile("fdexhaust"),
        says="open: EMFILE\nopened: 253\n",
    ),
    Case(
        "it begins in scratch, which is empty, as is /out",
        node(
            "const count = path => require('fs').readdirSync(path).length;"
            "console.log(process.cwd(), count('.'), count('/out'))"
        ),
        says="/scratch 0 0\n",
    ),
    Case(
        "the root has the image, scratch, out and what the kernel gives",
        node("console.log(require('fs').readdirSync('/').join())"),
        says="dev,etc,lib,lib64,out,proc,scratch,tmp,usr\n",
    ),
    Case(
        "devices are the harmless ones",
        node("console.log(require('fs').readdirSync('/dev').join())"),
        says="fd,full,null,random,stderr,stdin,stdout,urandom,zero\n",
    ),
    Case(
        "nothing is written to what the kernel shows of it",
        hostile(
            "write_to",
            *("/proc/self/oom_score_adj", "-1000", "/proc/self/uid_map", "0 0 1", "/proc/self/gid_map", "0 0 1"),
            *("/proc/self/setgroups", "allow", "/proc/sys/kernel/core_pattern", "|/scratch/x"),
            *("/proc/1/oom_score_adj", "-1000", "/proc/sysrq-trigger", "h"),
            *("/proc/self/mem", "x", "/proc/1/mem", "x"),
        ),
        says="/proc/self/oom_score_adj: EROFS\n/proc/self/uid_map: EROFS\n/proc/self/gid_map: EROFS\n"
        "/proc/self/setgroups: EROFS\n/proc/sys/kernel/core_pattern: ENOENT\n"
        "/proc/1/oom_score_adj: EROFS\n/proc/sysrq-trigger: ENOENT\n"
        "/proc/self/mem: EROFS\n/proc/1/mem: EROFS\n",
    ),
    Case(
        "init, whose memory a process of the same user may write, can do no more than itself",
        node(
            "const told = require('fs').readFileSync('/proc/1/status', 'utf8').split('\\n');"
            "for (const name of ['CapEff', 'CapBnd', 'NoNewPrivs', 'Seccomp', 'Uid'])"
            " console.log(told.find(line => line.startsWith(name + ':')))"
        ),
        says="CapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n"
        "Uid:\t65534\t65534\t65534\t65534\n",
    ),
    Case(
        "init has no descriptor of the host and no environment",
        node(
            "const fs = require('fs'); for (const fd of fs.readdirSync('/proc/1/fd'))"
            " console.log(fs.readlinkSync('/proc/1/fd/' + fd).replace(/[0-9]+/, 'N'));"
            "console.log(fs.readFileSync('/proc/1/environ').length, fs.readlinkSync('/proc/1/root'))"
        ),
        says="pipe:[N]\npipe:[N]\npipe:[N]\nanon_inode:[eventfd]\n0 /\n",
    ),
)
async def test_secrets(sandbox: Sandbox, case: Case) -> None:
    case.judge(await sandbox.run(case))


async def test_the_command_line_of_init_tells_nothing_of_the_host(sandbox: Sandbox) -> None:
    script = "process.stdout.write(require('fs').readFileSync('/proc/1/cmdline'))"
    result = await sandbox.run(Case("", node(script)))
    assert str(sandbox.image.path).encode() not in result.stdout.kept
    assert b"--bind" not in result.stdout.kept
    assert result.stdout.kept == b"bwrap\0--args\x003\0--\0/proc/self/fd/6\0"
