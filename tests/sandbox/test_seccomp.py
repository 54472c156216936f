"""The system-call filter: its bytes, what they answer to every call of both architectures, and the kernel under it."""

from __future__ import annotations

import errno
import json
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sandbox.seccomp import FILTERS, FilterUnavailable, load_filter, require_kernel_support
from tests.sandbox import classic_bpf
from tests.sandbox.under_filter import MACHINE, run_under

ROOT = Path(__file__).parent.parent.parent
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
VARIANTS = [(arch, single) for arch in AUDIT_ARCH for single in (False, True)]
FOREIGN = next(arch for arch in AUDIT_ARCH if arch != MACHINE)
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
NEW_NAMESPACE_FLAGS = (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
ONLY_X86_64 = pytest.mark.skipif(MACHINE != "x86_64", reason="a calling convention of x86_64")

POLICY = tomllib.loads((FILTERS / "policy.toml").read_text())
INSTRUCTIONS = {
    (arch, single): classic_bpf.decode(load_filter(arch, single=single).program) for arch, single in VARIANTS
}


def numbers(arch: str) -> dict[str, int]:
    head, *rows = [line.split("\t") for line in (FILTERS / "syscalls.tsv").read_text().splitlines()]
    return {row[0]: int(row[head.index(arch)]) for row in rows if row[head.index(arch)]}


NUMBERS = {arch: numbers(arch) for arch in AUDIT_ARCH}
NAMES = {arch: {number: name for name, number in NUMBERS[arch].items()} for arch in AUDIT_ARCH}


def answer(arch: str, single: bool, number: int, arguments: Sequence[int] = ()) -> int:
    return classic_bpf.answer(INSTRUCTIONS[arch, single], AUDIT_ARCH[arch], number, arguments)


def refused(code: int) -> int:
    return REFUSE | code


# -- bytes -----------------------------------------------------------------------------------------------------------


def test_the_script_makes_the_shipped_bytes_again_with_the_standard_library_alone(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-I", "-S", ROOT / "tools/make_seccomp_filters.py", "--into", tmp_path], check=True)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {name: (FILTERS / name).read_bytes() for name in made}
    assert set(made) == {path.name for path in FILTERS.glob("*.bpf")} | {"digests.json"}


@pytest.mark.parametrize(("arch", "single"), VARIANTS)
def test_a_filter_is_bound_to_its_digest(arch: str, single: bool) -> None:
    loaded = load_filter(arch, single=single)
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", loaded.digest)
    assert loaded.arch == arch


def test_the_four_filters_differ() -> None:
    assert len({load_filter(arch, single=single).digest for arch, single in VARIANTS}) == 4


def copied(into: Path) -> Path:
    for path in FILTERS.iterdir():
        if path.is_file():
            (into / path.name).write_bytes(path.read_bytes())
    return into


def test_an_altered_byte_is_no_filter(tmp_path: Path) -> None:
    program = bytearray((copied(tmp_path) / "x86_64.bpf").read_bytes())
    program[-1] ^= 1
    (tmp_path / "x86_64.bpf").write_bytes(program)
    with pytest.raises(FilterUnavailable) as caught:
        load_filter("x86_64", single=False, filters=tmp_path)
    assert caught.value.reason == "sandbox.filter_digest_mismatch"
    assert load_filter("x86_64", single=True, filters=tmp_path) == load_filter("x86_64", single=True)


@pytest.mark.parametrize("gone", ["aarch64.bpf", "digests.json"])
def test_a_missing_file_is_no_filter(tmp_path: Path, gone: str) -> None:
    (copied(tmp_path) / gone).unlink()
    with pytest.raises(FilterUnavailable) as caught:
        load_filter("aarch64", single=False, filters=tmp_path)
    assert caught.value.reason == "sandbox.filter_digest_mismatch"


def test_an_architecture_without_a_filter_is_unsupported() -> None:
    with pytest.raises(FilterUnavailable, match="riscv64") as caught:
        load_filter("riscv64", single=False)
    assert caught.value.reason == "sandbox.seccomp_unsupported"


def test_this_kernel_supports_the_filters() -> None:
    require_kernel_support()


@pytest.mark.parametrize(
    ("actions", "why"), [("kill_thread trap errno allow\n", "lacks kill_process"), (None, "cannot be read")]
)
def test_a_kernel_without_seccomp_is_unsupported(tmp_path: Path, actions: str | None, why: str) -> None:
    listed = tmp_path / "actions_avail"
    if actions is not None:
        listed.write_text(actions)
    with pytest.raises(FilterUnavailable, match=why) as caught:
        require_kernel_support(listed)
    assert caught.value.reason == "sandbox.seccomp_unsupported"


def test_the_numbers_are_those_of_the_kernel_headers() -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip("the kernel's headers are not installed")
    defined = {name: int(number) for name, number in re.findall(r"__NR_(\w+) (\d+)", header.read_text())}
    shared = defined.keys() & NUMBERS["x86_64"].keys()
    assert len(shared) > 350
    assert {name: defined[name] for name in shared} == {name: NUMBERS["x86_64"][name] for name in shared}


# -- what the programs answer, for both architectures on any machine -------------------------------------------------


def plain_answers(policy: Mapping[str, Any]) -> dict[str, int]:
    groups = [(ALLOW, policy.get("allow", {}))]
    groups += [(refused(getattr(errno, name)), group) for name, group in policy["refuse"].items()]
    return {name: verdict for verdict, group in groups for names in group.values() for name in names.split()}


def passes(test: Mapping[str, Any], arguments: Sequence[int]) -> bool:
    whole = arguments[test["argument"]]
    low = whole & 0xFFFFFFFF
    if "among" in test:
        return low in test["among"]
    if "clear" in test:
        return not low & test["clear"]
    return bool(low & test["set"]) if "set" in test else whole == 0


def expected(arch: str, single: bool, number: int, arguments: Sequence[int]) -> int:
    """What the policy says, read without the script."""
    if arch == "x86_64" and number >= 0x40000000:
        return KILL
    plain, checks = plain_answers(POLICY), dict(POLICY["check"])
    if single:
        plain |= plain_answers(POLICY["single"])
        checks |= POLICY["single"]["check"]
    name = NAMES[arch].get(number, "")
    for test in checks.get(name, ()):
        if not passes(test, arguments):
            return refused(getattr(errno, test["otherwise"]))
    return ALLOW if name in checks else plain.get(name, refused(errno.ENOSYS))


def edges() -> list[int]:
    """Arguments at, beside and 2**32 above everything that a test of the policy compares with."""
    tests = [test for part in (POLICY, POLICY["single"]) for tests in part["check"].values() for test in tests]
    compared = {value for test in tests for value in test.get("among", [test.get("clear", test.get("set", 0))])}
    compared |= {1 << bit for bit in range(32)} | {0xFFFFFFFF, 0}
    near = {value + step for value in compared for step in (-1, 0, 1)}
    return sorted({(value + high) % 2**64 for value in near for high in (0, 1 << 32, 1 << 63)})


@pytest.mark.parametrize(("arch", "single"), VARIANTS)
def test_every_number_and_argument_edge_is_answered_as_the_policy_says(arch: str, single: bool) -> None:
    checked = {NUMBERS[arch][name]: tests for name, tests in POLICY["check"].items() if name in NUMBERS[arch]}
    wrong = []
    for number in [*range(1024), 0x3FFFFFFF, 0x40000000, 0x40000027, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]:
        places = {test["argument"] for test in checked.get(number, ())}
        tried: list[list[int]] = [[0] * 6, [2**64 - 1] * 6]
        tried += [[edge if place == at else 0 for at in range(6)] for place in places for edge in edges()]
        wrong += [
            (number, arguments)
            for arguments in tried
            if answer(arch, single, number, arguments) != expected(arch, single, number, arguments)
        ]
    assert wrong == []


NUMBER = st.one_of(st.integers(0, 600), st.integers(0, 2**32 - 1), st.integers(0, 600).map(lambda each: each | 2**30))
ARGUMENT = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from(edges()))


@pytest.mark.parametrize(("arch", "single"), VARIANTS)
@given(number=NUMBER, arguments=st.lists(ARGUMENT, min_size=6, max_size=6))
def test_any_call_is_answered_as_the_policy_says(arch: str, single: bool, number: int, arguments: list[int]) -> None:
    assert answer(arch, single, number, arguments) == expected(arch, single, number, arguments)


@pytest.mark.parametrize(("arch", "single"), VARIANTS)
def test_of_all_numbers_only_the_named_ones_can_be_allowed(arch: str, single: bool) -> None:
    named = {name for name, verdict in plain_answers(POLICY).items() if verdict == ALLOW} | POLICY["check"].keys()
    if single:
        named -= plain_answers(POLICY["single"]).keys()
    walked = list(classic_bpf.verdicts(INSTRUCTIONS[arch, single], AUDIT_ARCH[arch]))
    assert min(first for first, _, _ in walked) == 0
    assert max(last for _, last, _ in walked) == 2**32 - 1
    allowed = [range(first, last + 1) for first, last, verdict in walked if verdict == ALLOW]
    assert sum(len(run) for run in allowed) < 500
    assert {number for run in allowed for number in run} == {
        NUMBERS[arch][name] for name in named if name in NUMBERS[arch]
    }


@pytest.mark.parametrize(("arch", "single"), VARIANTS)
@pytest.mark.parametrize("foreign", [0x40000003, 0x40000028, 0x80000016, 0, 0xFFFFFFFF])
def test_every_call_of_a_foreign_architecture_ends_the_process(arch: str, single: bool, foreign: int) -> None:
    walked = classic_bpf.verdicts(INSTRUCTIONS[arch, single], foreign)
    assert {verdict for _, _, verdict in walked} == {KILL}


@pytest.mark.parametrize(
    ("number", "verdict"),
    [
        *[(number, ALLOW) for number in (56, 57, 63, 64, 93, 94, 98, 135, 139, 215, 221, 226, 260, 278, 291)],
        *[(number, refused(errno.EPERM)) for number in (40, 97, 105, 117, 142, 144, 146, 241, 268, 270, 280, 425)],
        *[(number, refused(errno.ENOSYS)) for number in (0, 179, 279, 281, 435, 244, 1023, 0x40000000)],
    ],
)
def test_aarch64_answers_by_its_own_numbers(number: int, verdict: int) -> None:
    """Numbers as `asm-generic/unistd.h` has them, such as openat 56, ptrace 117, memfd_create 279."""
    assert answer("aarch64", False, number) == verdict


# -- the kernel under the filter -------------------------------------------------------------------------------------


def ask(calls: Sequence[tuple[str, tuple[int | str, ...]]], *, single: bool = False) -> list[tuple[int, int]]:
    listed = [[NUMBERS[MACHINE][name], *arguments] for name, arguments in calls]
    ran = run_under(MACHINE, "calls", single=single, stdin=json.dumps(listed))
    assert ran.returncode == 0, ran.stderr
    return [(result, code) for result, code in json.loads(ran.stdout)]


def names_in(text: str) -> list[str]:
    return text.split()


REFUSED = names_in("""
ptrace process_vm_readv process_vm_writev pidfd_getfd kcmp mount umount2 pivot_root chroot fsopen fsconfig fsmount
fspick open_tree move_mount mount_setattr unshare setns io_uring_setup io_uring_enter io_uring_register keyctl add_key
request_key bpf perf_event_open userfaultfd kexec_load init_module finit_module delete_module open_by_handle_at
name_to_handle_at fanotify_init personality syslog setuid setgid setgroups fchown fchownat mknodat
sched_setscheduler setpriority clock_settime sethostname mlock mlockall inotify_init1 inotify_add_watch
memfd_secret seccomp shmget mq_open reboot quotactl
""")
REFUSED_ON_X86_64 = names_in("modify_ldt iopl ioperm mknod inotify_init chown uselib")
UNKNOWN = names_in("memfd_create execveat sysinfo clone3 preadv2 splice io_setup pidfd_open cachestat")
INVALID = (-1,) * 6
"""Arguments that would do no harm if a call came through."""

AF_UNIX, AF_INET = 1, 2
OTHER_FAMILIES = (AF_INET, 10, 16, 17, 31, 38, 40, 44)
"""INET, INET6, NETLINK, PACKET, BLUETOOTH, ALG, VSOCK, XDP."""
EDGES: list[tuple[str, tuple[int | str, ...], int]] = [
    *[("socket", (family, 1, 0), errno.EAFNOSUPPORT) for family in OTHER_FAMILIES],
    ("socket", (AF_INET | 1 << 32, 1, 0), errno.EAFNOSUPPORT),
    ("socketpair", (AF_INET, 1, 0, "memory"), errno.EAFNOSUPPORT),
    ("socket", (AF_UNIX, 1, 0), 0),
    ("socketpair", (AF_UNIX, 1, 0, "memory"), 0),
    *[("clone", (flag | 17, 0, 0, 0, 0), errno.EPERM) for flag in NEW_NAMESPACE_FLAGS],
    ("clone", (0x10000000 | 1 << 40 | 17, 0, 0, 0, 0), errno.EPERM),
    ("ioctl", (0, 0x5412, "memory"), errno.EPERM),  # TIOCSTI
    ("ioctl", (0, 0x5412 | 1 << 32, "memory"), errno.EPERM),
    ("ioctl", (0, 0x541C, "memory"), errno.EPERM),  # TIOCLINUX
    ("ioctl", (0, 0x541B, "memory"), 0),  # FIONREAD
    ("prlimit64", (0, 7, 0, "memory"), 0),
    ("prlimit64", (0, 7, "memory", 0), errno.EPERM),
    ("prctl", (22, 2, "memory"), errno.ENOSYS),  # PR_SET_SECCOMP
    ("prctl", (24, 0), errno.ENOSYS),  # PR_CAPBSET_DROP
    ("prctl", (38, 0, 0, 0, 0), errno.EINVAL),  # PR_SET_NO_NEW_PRIVS cannot be taken back
    ("prctl", (39, 0, 0, 0, 0), 0),
    ("fcntl", (0, 1), 0),
    ("fcntl", (0, 1026, 1), errno.EPERM),  # F_NOTIFY
    ("fcntl", (0, 1031, 1 << 20), errno.EPERM),  # F_SETPIPE_SZ
    ("setsockopt", (0, 1, 26, "memory", 16), errno.EPERM),  # SO_ATTACH_FILTER
    ("setsockopt", (0, 1, 7, "memory", 4), errno.ENOTSOCK),  # SO_SNDBUF comes through
    ("mmap", (0, 4096, 3, 0x22, -1, 0), 0),
    ("mmap", (0, 4096, 3, 0x22 | 0x40000, -1, 0), errno.ENOMEM),  # MAP_HUGETLB
    ("madvise", ("memory", 0, 12), errno.EINVAL),  # MADV_MERGEABLE
    ("madvise", ("memory", 4096, 9999), errno.EINVAL),
]


@pytest.fixture(scope="module", params=[False, True], ids=["normal", "single"])
def answers(request: pytest.FixtureRequest) -> list[tuple[int, int]]:
    """The kernel's answers to `REFUSED`, `UNKNOWN` and `EDGES`, of one process that asks for all of them."""
    calls: list[tuple[str, tuple[int | str, ...]]] = [(name, INVALID) for name in [*REFUSED, *UNKNOWN]]
    return ask([*calls, *((name, arguments) for name, arguments, _ in EDGES)], single=request.param)


@pytest.mark.parametrize("name", REFUSED)
def test_a_dangerous_call_is_refused(answers: list[tuple[int, int]], name: str) -> None:
    assert answers[REFUSED.index(name)] == (-1, errno.EPERM)


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_call_that_is_not_named_does_not_exist(answers: list[tuple[int, int]], name: str) -> None:
    assert answers[len(REFUSED) + UNKNOWN.index(name)] == (-1, errno.ENOSYS)


@pytest.mark.parametrize("row", range(len(EDGES)), ids=[f"{name}-{arguments}" for name, arguments, _ in EDGES])
def test_arguments_decide_where_the_policy_says_so(answers: list[tuple[int, int]], row: int) -> None:
    result, code = answers[len(REFUSED) + len(UNKNOWN) + row]
    assert code == EDGES[row][2]
    assert (result == -1) == (code != 0)


@ONLY_X86_64
def test_the_dangerous_calls_of_x86_64_are_refused() -> None:
    assert ask([(name, INVALID) for name in REFUSED_ON_X86_64]) == [(-1, errno.EPERM)] * len(REFUSED_ON_X86_64)


@ONLY_X86_64
@pytest.mark.parametrize("single", [False, True])
def test_a_call_by_the_i386_gate_ends_the_process(single: bool) -> None:
    getpid_by_int_0x80 = "b814000000cd80c3"
    assert run_under(MACHINE, "code", getpid_by_int_0x80, single=single).returncode == -signal.SIGSYS


@ONLY_X86_64
@pytest.mark.parametrize("single", [False, True])
def test_an_x32_call_ends_the_process(single: bool) -> None:
    getpid = json.dumps([[0x40000000 | 39]])
    assert run_under(MACHINE, "calls", single=single, stdin=getpid).returncode == -signal.SIGSYS


@pytest.mark.parametrize("single", [False, True])
def test_the_kernel_takes_the_other_architectures_filter_which_then_ends_every_process(single: bool) -> None:
    ran = run_under(FOREIGN, "calls", single=single, stdin="[]")
    assert (ran.returncode, ran.stderr) == (-signal.SIGSYS, "")


@pytest.mark.parametrize("call", ["os.fork", "lambda: os.posix_spawn(sys.executable, [sys.executable, '-V'], {})"])
def test_a_single_process_starts_threads_and_no_child(call: str) -> None:
    story = f"""
import os, sys, threading
thread = threading.Thread(target=print, args=["a thread"])
thread.start()
thread.join()
try:
    ({call})()
except OSError as error:
    print(error.errno)
"""
    ran = run_under(MACHINE, "exec", sys.executable, "-I", "-c", story, single=True)
    assert ran.stdout == f"a thread\n{errno.EAGAIN}\n", ran.stderr
