"""A PostgreSQL server of one's own: a new cluster in a directory, started, stopped, killed and started again at will.

It is durable while it is there (fsync is on), listens on 127.0.0.1 and trusts everybody.  All is synchronous, for
fixtures.  What waits may be handed to a thread, but `launch` (and what calls it) may not: the kernel ends the server
when the thread that launched it has ended.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import attrs
import psycopg
from psycopg import sql

from gateway.world import family
from gateway.world.child import ChildFailed
from gateway.world.leash import leashed
from gateway.world.npm import ToolUnavailable
from gateway.world.postgresql_programs import find_programs, reaches, server_user, within_reach

SUPERUSER = "postgres"
INITDB_S = 120.0
START_S = 60.0
STOP_S = 30.0
POLL_S = 0.02
OPEN_TO_ALL = "/tmp"  # noqa: S108 - mkdtemp makes a directory of its own in it
LONGEST_SOCKET_PATH = 107
REMAINS = "pre-existing shared memory block"
"""What the server says while processes of one that was killed have not all ended yet."""
SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "100",
    "shared_buffers": "32MB",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "logging_collector": "off",
    # In the cluster, so that a killed server leaves nothing in /dev/shm.
    "dynamic_shared_memory_type": "mmap",
}


@attrs.define(eq=False)
class PostgresqlServer:
    """A server whose cluster, log and socket are in `directory`; `port` stays the same over restarts.

    `programs` is the directory of its `postgres` and `initdb`, `user` whom it runs as (None: us).  Made by
    `make_server`.
    """

    directory: Path
    programs: Path
    user: str | None
    port: int
    _process: subprocess.Popen[bytes] | None = None
    _waker: subprocess.Popen[bytes] | None = None
    _log_before: int = 0

    @property
    def data(self) -> Path:
        """The directory of the cluster."""
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

    # -- its life ------------------------------------------------------------------------------------------------------

    def start(self, settings: Mapping[str, str] | None = None) -> None:
        """Serve, and return once connections are taken; `settings` are for this start only.

        Raises `ChildFailed` with its last words.
        """
        self.launch(settings)
        while not self.await_ready():
            self.launch(settings)

    def launch(self, settings: Mapping[str, str] | None = None) -> None:
        """Start the process and wait for nothing; one that runs is left alone."""
        if self.pid is not None:
            return
        command = [str(self.programs / "postgres"), "-D", str(self.data)]
        for name, value in (dict(SETTINGS) | self._places() | dict(settings or {})).items():
            command += ["-c", f"{name}={value}"]
        with self.log.open("ab") as log:
            self._log_before = log.tell()
            self._process = subprocess.Popen(  # noqa: S603 - the command is ours
                # SIGQUIT is an immediate shutdown: all its processes end, and nothing acknowledged is lost.
                leashed(command, signal.SIGQUIT, self.user),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=_environment(),
                cwd=self.directory,
            )

    def await_ready(self) -> bool:
        """Return True once it takes connections, False if it ended because of what remains of one that was killed.

        Raises `ChildFailed` with its last words.
        """
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self.pid is not None:
            if self._takes_connections():
                return True
            time.sleep(POLL_S)
        said = self.log.read_bytes()[self._log_before :].decode(errors="replace")
        if self.pid is None and REMAINS in said:
            time.sleep(POLL_S)
            return False
        raise ChildFailed(f"PostgreSQL takes no connections; it said:\n{_end_of(said)}")

    def stop(self) -> None:
        """End it as an administrator does: connections are cut, transactions rolled back; returns when it has ended."""
        process = self._process
        if process is None or self.pid is None:
            return
        self.resume()
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End all its processes with SIGKILL, as a crash does; returns when all are gone."""
        if self._process is not None:
            family.kill(self._process)
            self._let_the_waker_go()

    def restart(self, settings: Mapping[str, str] | None = None) -> None:
        """End it, if it has not been killed, and serve again."""
        self.stop()
        self.start(settings)

    def pause(self) -> None:
        """Stop all its processes where they are (SIGSTOP): connections stay open and nobody answers."""
        if self._process is not None and self._waker is None:
            self._waker = family.pause(self._process)

    def resume(self) -> None:
        """Let its processes go on after `pause`."""
        if self._process is not None:
            family.resume(self._process)
            self._let_the_waker_go()

    def _let_the_waker_go(self) -> None:
        if self._waker is not None:
            self._waker.communicate()
            self._waker = None

    # -- its databases -------------------------------------------------------------------------------------------------

    def create_database(self, name: str) -> str:
        """Make an empty database and return its address."""
        self._run(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, whoever is connected to it; nothing happens when there is none."""
        self._run(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def _run(self, command: sql.Composed) -> None:
        with psycopg.connect(self.url(), autocommit=True, connect_timeout=30) as connection:
            connection.execute(command)

    def _takes_connections(self) -> bool:
        try:
            with psycopg.connect(self.url(), connect_timeout=5) as connection:
                told = connection.execute("SHOW data_directory").fetchone()
        except psycopg.OperationalError:
            return False
        return told == (str(self.data),)  # and not another server on this port

    def _places(self) -> dict[str, str]:
        fits = len(str(self.directory / f".s.PGSQL.{self.port}")) <= LONGEST_SOCKET_PATH
        return {"port": str(self.port), "unix_socket_directories": str(self.directory) if fits else ""}


@contextmanager
def make_server(programs: Path | None = None, *, directory: Path | None = None) -> Iterator[PostgresqlServer]:
    """Make a cluster and its server, which is not started; when the block is left it has ended and its files are gone.

    `programs` as of `find_programs`; `directory` is made, by default as a temporary one.  Raises `ToolUnavailable` or
    `ChildFailed`.
    """
    programs, user = programs or find_programs(), server_user()
    directory = _make_directory(directory, user)
    try:
        with _held_port() as port:
            server = PostgresqlServer(directory, within_reach(programs, user, directory), user, port)
            _initdb(server)
            try:
                yield server
            finally:
                server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def open_server(programs: Path | None = None, *, directory: Path | None = None) -> Iterator[PostgresqlServer]:
    """Run a server over a new cluster for the length of a block; arguments and errors as of `make_server`."""
    with make_server(programs, directory=directory) as server:
        server.start()
        yield server


def _make_directory(directory: Path | None, user: str | None) -> Path:
    if directory is None:
        usual = tempfile.gettempdir()
        place = usual if reaches(user, Path(usual)) else OPEN_TO_ALL
        directory = Path(tempfile.mkdtemp(prefix="gateway-postgresql-", dir=place))
    else:
        directory.mkdir(mode=0o700)
    if user is not None:
        entry = pwd.getpwnam(user)
        os.chown(directory, entry.pw_uid, entry.pw_gid)
    if not reaches(user, directory):
        directory.rmdir()
        raise ToolUnavailable(f"the user {user}, whom PostgreSQL runs as, cannot reach {directory}")
    return directory


@contextmanager
def _held_port() -> Iterator[int]:
    """Keep a port from everybody but listeners: the server may leave it and come back."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def _initdb(server: PostgresqlServer) -> None:
    command = [str(server.programs / "initdb"), "--pgdata", str(server.data), "--username", SUPERUSER]
    command += ["--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
    done = subprocess.run(  # noqa: S603 - the command is ours
        leashed(command, signal.SIGKILL, server.user),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=INITDB_S,
        check=False,
        env=_environment(),
        cwd=server.directory,
    )
    if done.returncode:
        raise ChildFailed(f"initdb failed:\n{_end_of(done.stdout.decode(errors='replace'))}")


def _environment() -> dict[str, str]:
    """Nothing of ours that PostgreSQL reads (PGDATA, PGPORT, PGOPTIONS), and messages in English."""
    return {"PATH": os.defpath, "LC_ALL": "C"}


def _end_of(said: str) -> str:
    return "\n".join(said.splitlines()[-15:])
