from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest

from gateway.world import leash
from gateway.world.leash import leashed


def test_it_becomes_the_program_under_the_same_process_id() -> None:
    with subprocess.Popen(
        leashed([sys.executable, "-c", "import os; print(os.getpid())"], signal.SIGKILL), stdout=subprocess.PIPE
    ) as process:
        told, _ = process.communicate(timeout=20)
    assert int(told) == process.pid


def test_it_starts_nothing_for_a_parent_that_is_gone() -> None:
    command = leashed(["/bin/echo", "started"], signal.SIGKILL)
    command[command.index(leash.__file__) + 1] = "1"
    done = subprocess.run(command, capture_output=True, timeout=20, check=False)
    assert (done.returncode, done.stdout) == (1, b"")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_root_becomes_another_user_with_none_of_its_own_groups() -> None:
    done = subprocess.run(leashed(["id", "-un"], signal.SIGKILL, "nobody"), capture_output=True, timeout=20, check=True)
    groups = subprocess.run(
        leashed(["id", "-G"], signal.SIGKILL, "nobody"), capture_output=True, timeout=20, check=True
    )
    assert done.stdout == b"nobody\n"
    assert b"0" not in groups.stdout.split()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_another_users_program_ends_with_its_parent_too() -> None:
    parent = """
import subprocess, signal, sys
from gateway.world.leash import leashed
with subprocess.Popen(leashed(["sh", "-c", "echo $$; exec sleep 600"], signal.SIGKILL, "nobody")) as process:
    process.wait()
"""
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        fd = os.pidfd_open(int(process.stdout.readline()))
        process.kill()
        process.wait(20)
    try:
        assert select.select([fd], [], [], 10)[0]
    finally:
        os.close(fd)
