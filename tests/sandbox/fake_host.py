"""Machines of files, as the host is examined: a sound one, which a test spoils."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from gateway.sandbox.host_machine import Machine, Ran, Wanted
from tests.sandbox.fake_cgroups import a_v1_machine, a_v2_machine

SOUND = {
    "meminfo": "MemTotal:       16777216 kB\nMemFree:         1000000 kB\n",
    "self/status": "Name:\tpython\nUid:\t0\t0\t0\t0\nCapEff:\t000001fffeffffff\n",
    "self/uid_map": "         0          0 4294967295\n",
    "sys/kernel/osrelease": "6.12.0-generic\n",
    "sys/kernel/seccomp/actions_avail": "kill_process kill_thread trap errno user_notif trace log allow\n",
    "sys/fs/inotify/max_user_instances": "128\n",
    "sys/fs/pipe-user-pages-soft": "16384\n",
    "1/status": "Name:\tinit\nUid:\t0\t0\t0\t0\n",
    "1/cgroup": "0::/init.scope\n",
}
NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")


@attrs.define
class Programs:
    """Answers for bubblewrap, and remembers as whom it was asked."""

    version: str = "bubblewrap 0.12.0"
    tried: Ran = attrs.field(factory=lambda: Ran(0, "bubblewrap 0.12.0"))
    asked: list[tuple[str, int | None]] = attrs.field(factory=list)

    def run(self, words: Sequence[str], uid: int | None) -> Ran:
        self.asked.append((words[1], uid))
        return Ran(0, self.version) if words[1:] == ["--version"] else self.tried


def a_bwrap(at: Path, mode: int = 0o755) -> str:
    program = at / "bwrap"
    program.write_text("bubblewrap")
    program.chmod(mode)
    return str(program)


def a_machine(
    at: Path, *, v1: bool = False, files: Mapping[str, str] | None = None, programs: Programs | None = None, **more: Any
) -> Machine:
    """Make a sound machine, with these files of /proc beside or in place of its own."""
    kernel, proc = a_v1_machine(at) if v1 else a_v2_machine(at, own="/")
    for name, text in (SOUND | dict(files or {})).items():
        (proc / name).parent.mkdir(parents=True, exist_ok=True)
        (proc / name).write_text(text)
    (proc / "self/ns").mkdir()
    for each in NAMESPACES:
        (proc / "self/ns" / each).symlink_to(f"{each}:[1]")
        most = proc / f"sys/user/max_{each}_namespaces"
        if not most.exists():
            most.parent.mkdir(exist_ok=True)
            most.write_text("96365\n")
    sound: dict[str, Any] = {
        "proc": proc,
        "cgroups": kernel.root,
        "files": kernel,
        "security": at / "security",
        "arch": "x86_64",
        "uid": 0,
        "cores": 2,
        "bubblewrap": a_bwrap(at),
        "account": {0: "root", 65534: "nobody"}.get,
        "run": (programs or Programs()).run,
    }
    return Machine(**(sound | more))


WANTED = Wanted()
