"""Bubblewrap: what is known of the program, and the arguments that set one run up.

Standard library only: the launcher imports this.  Source: bwrap(1).
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OLDEST = (0, 8)
"""The first version with `--disable-userns`."""
USER = 65534
"""The user and group that a command sees itself as."""
SCRATCH, OUT = "/scratch", "/out"
ENVIRONMENT = {"PATH": "/usr/bin", "HOME": SCRATCH, "TMPDIR": SCRATCH}
"""What every command finds in its environment; `starter` adds what depends on the limits of the run."""
DEVICES = ("null", "zero", "full", "random", "urandom")
STREAMS = {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}
VERSION_WITHIN_S = 10.0

ARGUMENTS_AT, BLOCK_AT, STATUS_AT, STARTER_AT, ORDERS_AT, FILTER_AT = 3, 4, 5, 6, 7, 8
"""The numbers of the descriptors that bubblewrap is started with beside the three standard ones.

The starter and where it hears its order are handed on to it; the starter's own source has their numbers.
"""
COMMAND = b"/proc/self/fd/%d" % STARTER_AT
"""What bubblewrap executes."""


@dataclass(frozen=True)
class Program:
    """The program: its version, as it says it and as numbers, and whether it takes root's rights for itself."""

    path: Path
    version: str
    numbers: tuple[int, ...]
    setuid: bool

    @property
    def too_old(self) -> bool:
        """Whether it lacks something that a run needs."""
        return self.numbers < OLDEST


def examine(path: Path, user: int | None = None) -> Program:
    """Ask the program at `path` for its version, as the host's user `user` (None: this one).

    It is run as those who run it later, and never with more rights: whoever names it to a privileged launcher gains
    none.

    Raises:
        OSError: there is none, or it cannot be run.
        ValueError: it does not answer as bubblewrap does.
    """
    mode = path.stat().st_mode
    try:
        asked = subprocess.run(  # noqa: S603 - the operator's own path
            [path, "--version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=VERSION_WITHIN_S,
            env={},
            user=user,
            group=user,
            extra_groups=None if user is None else (),
        )
    except subprocess.TimeoutExpired as late:
        raise ValueError(f"{path} does not say its version") from late
    told = re.fullmatch(r"bubblewrap (\d+(?:\.\d+)*)\S*\s*", asked.stdout)
    if told is None:
        raise ValueError(f"{path} does not say its version as bubblewrap does")
    numbers = tuple(int(each) for each in told[1].split("."))
    return Program(path, told[1], numbers, setuid=bool(mode & (stat.S_ISUID | stat.S_ISGID)))


def image_arguments(image: Path) -> list[str]:
    """Return the arguments that put the image's directories and links under the root of the sandbox, read-only."""
    arguments: list[str] = []
    with os.scandir(image) as entries:
        for each in sorted(entries, key=lambda entry: entry.name):
            if each.is_symlink():
                arguments += ["--symlink", str(Path(each.path).readlink()), f"/{each.name}"]
            else:
                arguments += ["--ro-bind", each.path, f"/{each.name}"]
    return arguments


def arguments(image: list[str], *, disk_bytes: int, artifact_bytes: int, filtered: bool) -> bytes:
    """Return what bubblewrap reads at `--args FD`, each argument ended by NUL; the command is no part of it.

    `image` is what `image_arguments` returned.
    """
    return b"".join(os.fsencode(each) + b"\0" for each in _arguments(image, disk_bytes, artifact_bytes, filtered))


def _arguments(image: list[str], disk_bytes: int, artifact_bytes: int, filtered: bool) -> Iterator[str]:  # noqa: FBT001
    # Each kind by its name: `--unshare-all` goes on without those that cannot be had.
    for kind in ("user", "ipc", "pid", "net", "uts", "cgroup"):
        yield f"--unshare-{kind}"
    yield from ("--uid", str(USER), "--gid", str(USER), "--disable-userns", "--hostname", "sandbox")
    yield from ("--die-with-parent", "--new-session", "--clearenv")
    for name, value in ENVIRONMENT.items():
        yield from ("--setenv", name, value)
    yield from image
    yield from ("--proc", "/proc")
    # Not `--dev`, which adds terminals and a place that can be written.
    yield from ("--tmpfs", "/dev")
    for name in DEVICES:
        yield from ("--dev-bind", f"/dev/{name}", f"/dev/{name}")
    for name, below in STREAMS.items():
        yield from ("--symlink", f"/proc/self/fd{below}", f"/dev/{name}")
    # Programs that ignore TMPDIR write to /tmp.
    yield from ("--symlink", SCRATCH, "/tmp")  # noqa: S108 - a link in the sandbox
    for place, size in ((SCRATCH, disk_bytes), (OUT, artifact_bytes)):
        yield from ("--perms", "0700", "--size", str(size), "--tmpfs", place)
    yield from ("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", SCRATCH)
    yield from ("--json-status-fd", str(STATUS_AT), "--block-fd", str(BLOCK_AT))
    if filtered:
        yield from ("--seccomp", str(FILTER_AT))
