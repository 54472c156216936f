"""Trees of cgroups made of ordinary files, which answer as a kernel does where the tests ask it."""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from gateway.sandbox.cgroup_files import Files

V2_GROUP = {
    "cgroup.controllers": "cpu memory pids\n",
    "cgroup.subtree_control": "\n",
    "cgroup.procs": "",
    "cgroup.events": "populated 0\nfrozen 0\n",
    "cgroup.kill": "",
    "cgroup.freeze": "0\n",
    "cpu.stat": "usage_usec 0\nuser_usec 0\nsystem_usec 0\nnr_periods 0\n",
    "cpu.max": "max 100000\n",
    "memory.current": "0\n",
    "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n",
    "memory.max": "max\n",
    "memory.oom.group": "0\n",
    "memory.peak": "0\n",
    "memory.stat": "anon 0\nfile 0\nshmem 0\n",
    "memory.swap.max": "max\n",
    "pids.events": "max 0\n",
    "pids.max": "max\n",
    "pids.peak": "0\n",
}
V1_GROUPS = {
    "memory": {
        "cgroup.procs": "",
        "cgroup.event_control": "",
        "memory.limit_in_bytes": "9223372036854771712\n",
        "memory.max_usage_in_bytes": "0\n",
        "memory.memsw.limit_in_bytes": "9223372036854771712\n",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
        "memory.stat": "cache 0\nshmem 0\ntotal_shmem 0\n",
        "memory.swappiness": "60\n",
        "memory.usage_in_bytes": "0\n",
    },
    "pids": {"cgroup.procs": "", "pids.events": "max 0\n", "pids.max": "max\n", "pids.peak": "0\n"},
    "cpu": {"cgroup.procs": "", "cpu.cfs_period_us": "100000\n", "cpu.cfs_quota_us": "-1\n"},
    "cpuacct": {"cgroup.procs": "", "cpuacct.usage": "0\n"},
    "freezer": {"cgroup.procs": "", "freezer.state": "THAWED\n"},
}
V1_APART = tuple(V1_GROUPS)
V1_GROUPS["cpu,cpuacct"] = V1_GROUPS["cpu"] | V1_GROUPS["cpuacct"]


class FakeFiles(Files):
    """Keeps what was written, makes a group's files with its directory, and refuses where a test says so.

    `refuse("write", "memory.max", EACCES)` has the next such write refused; `times=-1` has all of them.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.written: list[tuple[str, str]] = []
        self.rmdirs = 0
        self.absent: set[str] = set()
        self._refusals: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._always: dict[tuple[str, str], int] = {}

    def refuse(self, deed: str, name: str, number: int, times: int = 1) -> None:
        if times < 0:
            self._always[deed, name] = number
        self._refusals[deed, name] += [number] * times

    def _refused(self, deed: str, path: Path) -> None:
        waiting = self._refusals[deed, path.name]
        number = waiting.pop() if waiting else self._always.get((deed, path.name))
        if number is not None:
            raise OSError(number, os.strerror(number), str(path))

    def read(self, path: Path) -> str:
        self._refused("read", path)
        return super().read(path)

    def write(self, path: Path, text: str) -> None:
        self._refused("write", path)
        if not path.exists():
            raise FileNotFoundError(path)
        match path.name:
            case "cgroup.subtree_control":
                self._enable(path, text)
            case "cgroup.procs":
                self._move(path, text)
            case "cgroup.kill":
                path.with_name("cgroup.procs").write_text("")
                path.with_name("cgroup.events").write_text("populated 0\nfrozen 0\n")
            case _:
                path.write_text(text)
        self.written.append((str(path.relative_to(self.root)), text))

    def _enable(self, path: Path, text: str) -> None:
        # The root of the whole tree may have processes; no other group that hands controllers down.
        if path.parent != self.root and path.with_name("cgroup.procs").read_text():
            raise OSError(errno.EBUSY, "the group has processes", str(path))
        path.write_text(" ".join(each.removeprefix("+") for each in text.split()) + "\n")

    def _move(self, path: Path, pid: str) -> None:
        for each in self.root.rglob("cgroup.procs"):
            each.write_text("".join(f"{line}\n" for line in each.read_text().split() if line != pid))
        path.write_text(path.read_text() + f"{pid}\n")

    def mkdir(self, path: Path) -> None:
        self._refused("mkdir", path)
        super().mkdir(path)
        self._fill(path)

    def _fill(self, path: Path) -> None:
        tree = path.relative_to(self.root).parts[0]
        for name, text in (V1_GROUPS.get(tree) or V2_GROUP).items():
            if name not in self.absent:
                (path / name).write_text(text)

    def rmdir(self, path: Path) -> None:
        self.rmdirs += 1
        self._refused("rmdir", path)
        if (path / "cgroup.procs").exists() and (path / "cgroup.procs").read_text():
            raise OSError(errno.EBUSY, "the group has processes", str(path))
        for each in path.iterdir():
            if each.is_file():
                each.unlink()
        super().rmdir(path)

    def put(self, group: str, contents: Mapping[str, str]) -> None:
        """Make a group, or change the files of one, as the kernel or another program would."""
        place = self.root / group
        if not place.exists():
            place.mkdir(parents=True)
            self._fill(place)
        for name, text in contents.items():
            (place / name).write_text(text)


def a_v2_machine(at: Path, *, own: str, controllers: str = "cpuset cpu io memory pids") -> tuple[FakeFiles, Path]:
    """Make the tree of a v2 machine and its /proc, with this process in the group `own`; return both."""
    root, proc = at / "cgroup", _proc(at, f"0::{own}\n")
    root.mkdir()
    files = FakeFiles(root)
    for name in ("cgroup.controllers", "cgroup.subtree_control", "cgroup.procs", "cpu.stat"):
        (root / name).write_text(V2_GROUP[name])
    (root / "cgroup.controllers").write_text(f"{controllers}\n")
    return files, proc


def a_v1_machine(at: Path, *, mounted: tuple[str, ...] = V1_APART) -> tuple[FakeFiles, Path]:
    """Make the trees of a v1 machine, one a controller, with this process at the root of each; return root and proc."""
    root = at / "cgroup"
    proc = _proc(at, "".join(f"{n}:{each}:/\n" for n, each in enumerate(mounted, 1)))
    for each in mounted:
        (root / each).mkdir(parents=True)
        for name, text in V1_GROUPS[each].items():
            (root / each / name).write_text(text)
        for controller in each.split(",") if "," in each else ():
            (root / controller).symlink_to(each)
    return FakeFiles(root), proc


def _proc(at: Path, own: str) -> Path:
    proc = at / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text(own)
    (proc / "cgroups").write_text("#subsys_name\thierarchy\tnum_cgroups\tenabled\nmemory\t0\t1\t1\npids\t0\t1\t1\n")
    (proc / "swaps").write_text("Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n")
    return proc
