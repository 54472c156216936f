"""Runs that try every door of the kernel; each finds the answer that the policy names."""

from __future__ import annotations

import platform
import secrets
import signal
import socket

import pytest

from gateway.sandbox.artifacts import Artifact, Skip
from tests.sandbox.battery.case import Case, all_say, dies_of, hostile, node, table
from tests.sandbox.battery.real_path import Sandbox

X86 = platform.machine() == "x86_64"
NAMESPACES = ("user", "mount", "pid", "net", "ipc", "uts", "cgroup", "time")
DOORS = (
    *("bpf", "perf_event_open", "userfaultfd", "kexec_load", "kexec_file_load", "init_module", "finit_module"),
    *("delete_module", "name_to_handle_at", "open_by_handle_at", "fanotify_init", "fanotify_mark", "inotify_init1"),
    *("inotify_add_watch", "personality", "syslog", "acct", "swapon", "swapoff", "reboot", "quotactl", "sethostname"),
    *("setdomainname", "settimeofday", "clock_settime", "adjtimex", "seccomp", "landlock_create_ruleset", "vhangup"),
    *(("modify_ldt", "iopl", "ioperm", "inotify_init") if X86 else ()),
)
UNNAMED = (
    *("memfd_create", "execveat", "sysinfo", "openat2", "preadv2", "splice", "tee", "timer_create", "timerfd_create"),
    *("signalfd4", "mincore", "remap_file_pages", "io_setup", "sync", "syncfs", "readahead", "getxattr", "setxattr"),
    *("cachestat", "statmount", "listmount", "call 1000"),
)


@table(
    Case(
        "other processes are out of reach",
        hostile("ptrace"),
        says=all_say("EPERM", "attach to init", "seize init", "traceme", "process_vm_readv", "process_vm_writev")
        + all_say("EPERM", "process_madvise", "kcmp")
        + "pidfd_open: ENOSYS\npidfd_getfd: EPERM\n"
        + all_say("ENOSYS", "pidfd_send_signal", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "process_mrelease"),
    ),
    Case("all processes are its own", hostile("killall"), says="kill(-1, SIGKILL): ESRCH\n"),
    Case("its process group ends with itself", hostile("killgroup"), dies_of(signal.SIGKILL)),
    Case("init lives on", hostile("killinit"), says="init lives: ok\nothers killed: 0\n"),
    Case("init cannot be stopped", hostile("sigstop_parent"), says="parent: 1\nSIGSTOP: ok\n"),
)
async def test_processes(sandbox: Sandbox, case: Case) -> None:
    case.judge(await sandbox.run(case))


@table(
    Case(
        "no namespace in a namespace",
        hostile("namespaces"),
        says="".join(all_say("EPERM", f"{each} unshare", f"{each} clone", f"{each} setns") for each in NAMESPACES)
        + "clone with high bits: EPERM\nclone3: ENOSYS\n",
    ),
    Case(
        "no mount, and no other root",
        hostile("mounts"),
        says=all_say("EPERM", "mount tmpfs", "remount exec", "remount / writable", "umount2", "pivot_root", "chroot")
        + all_say("EPERM", "move_mount", "open_tree", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr"),
    ),
    Case(
        "no io_uring",
        hostile("io_uring"),
        says=all_say("EPERM", "io_uring_setup", "io_uring_enter", "io_uring_register"),
    ),
    Case("no keyring", hostile("keys"), says=all_say("EPERM", "keyctl", "add_key", "request_key")),
    Case("no other door", hostile("doors"), says=all_say("EPERM", *DOORS)),
    Case("what no policy names is not there", hostile("unnamed"), says=all_say("ENOSYS", *UNNAMED)),
    Case(
        "what is allowed is not allowed with every argument",
        hostile("arguments"),
        says="mmap MAP_HUGETLB: ENOMEM\nmadvise MADV_MERGEABLE: EINVAL\n"
        + all_say("EPERM", "fcntl F_SETPIPE_SZ", "fcntl F_SETOWN", "fcntl F_SETLEASE", "fcntl F_NOTIFY")
        + "fcntl F_ADD_SEALS: EPERM\nprlimit64 to set: EPERM\nprlimit64 to read: ok\nsetrlimit: EPERM\n"
        "SO_ATTACH_FILTER: EPERM\nSO_SNDBUFFORCE: EPERM\n",
    ),
    Case(
        "nothing is typed into a terminal",
        hostile("terminals"),
        says=all_say("EPERM", "TIOCSTI", "TIOCSTI with high bits", "TIOCLINUX", "TIOCLINUX with high bits")
        + "TIOCSCTTY: EPERM\nTIOCNOTTY: EPERM\nFIONREAD: ok\nopen /dev/tty: ENOENT\nopen a new terminal: ENOENT\n",
    ),
    Case(
        "no scheduling of its own",
        hostile("scheduling"),
        says=all_say("EPERM", "sched_setscheduler", "sched_setparam", "sched_setattr", "sched_setaffinity")
        + all_say("EPERM", "setpriority", "ioprio_set", "mbind", "move_pages"),
    ),
    Case(
        "no memory that outlives it or cannot be paged",
        hostile("locked"),
        says=all_say("EPERM", "mlock", "mlock2", "mlockall", "memfd_secret", "shmget", "msgget", "semget", "mq_open")
        + "vmsplice: EPERM\nmap locked: EAGAIN\nopen in /dev/shm: ENOENT\n",
    ),
    Case(
        "its chains cannot be taken off",
        hostile("prctls"),
        says=all_say("ENOSYS", "PR_SET_SECCOMP", "PR_CAPBSET_DROP", "PR_CAP_AMBIENT", "PR_SET_SECUREBITS")
        + all_say("ENOSYS", "PR_SET_KEEPCAPS", "PR_SET_CHILD_SUBREAPER", "PR_SET_MM", "PR_SET_TIMERSLACK", "PR_SET_TSC")
        + "PR_SET_NO_NEW_PRIVS off: EINVAL\nPR_GET_NO_NEW_PRIVS: 1\nPR_GET_SECCOMP: 2\n"
        "capabilities in the bounding set: 0\n",
    ),
    Case(
        "it stays who it is",
        hostile("identity"),
        says=all_say("EPERM", "setuid", "setgid", "setreuid", "setresuid", "setresgid", "setgroups", "setfsuid")
        + "capset: EPERM\nchown: EPERM\nchmod u+s: ok\nuid 65534, gid 65534, groups 0\n",
    ),
    Case(
        "no device and no fifo",
        hostile("nodes"),
        says=all_say("EPERM", "block device", "character device", "fifo", "file"),
    ),
    Case(
        "every place has its flags",
        hostile("places"),
        says=all_say("ro nosuid nodev", "/", "/usr")
        + all_say("rw nosuid nodev noexec", "/scratch", "/out")
        + all_say("ro nosuid nodev noexec", "/proc")
        + "/dev: ro nosuid nodev\n/dev/shm: ENOENT\n/sys: ENOENT\n",
    ),
    Case(
        "limits of a process",
        hostile("rlimits"),
        says="core: 0 0\nnofile: 256 256\nmemlock: 65536 65536\nmsgqueue: 0 0\nsigpending: 64 64\n"
        "rtprio: 0 0\nnice: 0 0\n",
    ),
)
async def test_doors(sandbox: Sandbox, case: Case) -> None:
    case.judge(await sandbox.run(case))


@pytest.mark.skipif(not X86, reason="only x86_64 has other conventions of calling beside its own")
@table(
    Case("no call of i386", hostile("int80"), dies_of(signal.SIGSYS)),
    Case("no call of x32", hostile("x32"), dies_of(signal.SIGSYS)),
)
async def test_foreign_calls(sandbox: Sandbox, case: Case) -> None:
    case.judge(await sandbox.run(case))


@table(
    Case(
        "what it wrote is not executed",
        hostile("exec_written"),
        says="/scratch/program: EACCES\n/out/program: EACCES\n/scratch/script: EACCES\n/proc/self/fd/9: EACCES\n"
        "map executable: EPERM\nmake executable: EACCES\nexecveat: ENOSYS\nmemfd_create: ENOSYS\n"
        "/proc/self/exe: hello\n",
    ),
    Case(
        "the loader maps no library that it wrote",
        node(
            "require('fs').copyFileSync('/usr/lib/libm.so.6', '/scratch/lib.so');"
            "const env = {LD_PRELOAD: '/scratch/lib.so'};"
            "const ran = require('child_process').spawnSync('/usr/bin/node', ['-p', '1'], {env});"
            "console.log(ran.status, String(ran.stdout).trim(), /failed to map segment/.test(ran.stderr))"
        ),
        says="0 1 true\n",
    ),
    Case("memory that is written and executed, for the JIT", hostile("mapexec"), says="mmap rwx: ok\n"),
)
async def test_programs(sandbox: Sandbox, case: Case) -> None:
    case.judge(await sandbox.run(case))


@table(
    Case(
        "no family but unix",
        hostile("sockets"),
        says="refused: 630\ninet with high bits: EAFNOSUPPORT\ninet pair: EAFNOSUPPORT\nnetlink: EAFNOSUPPORT\n"
        "unix: ok\n",
    ),
    Case(
        "node connects nowhere",
        node("require('net').connect(80, '127.0.0.1').on('error', e => console.log(e.code))"),
        says="EAFNOSUPPORT\n",
    ),
    Case(
        "node finds no name",
        node("fetch('http://example.com').catch(e => console.log(e.cause?.code ?? String(e)))"),
        says="ENOTFOUND\n",
    ),
    Case(
        "node asks no name server",
        node("require('dns').resolve('example.com', e => console.log(e.code))"),
        says="ECONNREFUSED\n",
    ),
    Case(
        "node sends no datagram",
        node("require('dgram').createSocket('udp4').on('error', e => console.log(e.code)).send('x', 9, '127.0.0.1')"),
        says="EAFNOSUPPORT\n",
    ),
    Case(
        "the inspector cannot listen",
        ("node", "--inspect=127.0.0.1:9229", "-e", "console.log(1)"),
        says="1\n",
        complains="Starting inspector on 127.0.0.1:9229 failed: address family not supported\n",
    ),
)
async def test_network(sandbox: Sandbox, case: Case) -> None:
    case.judge(await sandbox.run(case))


async def test_unix_sockets_of_the_host_are_out_of_reach(sandbox: Sandbox) -> None:
    name = f"gateway-battery-{secrets.token_hex(8)}"
    case = Case(
        "an abstract socket, two with a path, and one of its own that is no artifact",
        hostile("unix_sockets", name),
        says="abstract: ECONNREFUSED\nsystem bus: ENOENT\njournal: ENOENT\nbind in /out: ok\n",
        artifacts=(Artifact("socket", skipped=Skip.SOCKET),),
    )
    with socket.socket(socket.AF_UNIX) as outside:
        outside.bind(f"\0{name}")
        outside.listen()
        outside.setblocking(False)
        case.judge(await sandbox.run(case))
        with pytest.raises(BlockingIOError):
            outside.accept()
