"""The kernel is asked what Python has no names for, and what it refuses is told as Python tells it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.sandbox import kernel_calls
from gateway.sandbox.kernel_calls import (
    PR_SET_NO_NEW_PRIVS,
    exit_status,
    mount,
    mount_namespace_id,
    mounts_in,
    owner_of_namespace,
    prctl,
    setns,
)
from tests.sandbox.in_groups import unavailable
from tests.sandbox.in_namespaces import sleeping

TESTS = Path(__file__).parents[2]


def ended(code: str) -> tuple[int, int]:
    """A pidfd of a program that is over and reaped, and its wait status."""
    program = subprocess.Popen([sys.executable, "-I", "-S", "-c", code])
    pidfd = os.pidfd_open(program.pid)
    _, status = os.waitpid(program.pid, 0)
    program.returncode = 0
    return pidfd, status


@pytest.mark.parametrize("code", ["import os; os._exit(137)", "import os; os.kill(os.getpid(), 9)", ""])
def test_the_status_of_a_process_is_known_after_another_reaped_it(code: str) -> None:
    pidfd, status = ended(code)
    try:
        told = exit_status(pidfd)
        if told is None:
            pytest.skip("before Linux 6.15 the kernel tells nobody but the parent")
        assert told == status
    finally:
        os.close(pidfd)


def test_a_process_that_lives_has_no_status() -> None:
    pidfd = os.pidfd_open(os.getpid())
    try:
        assert exit_status(pidfd) is None
    finally:
        os.close(pidfd)


def test_a_mount_namespace_is_counted_until_it_is_no_more() -> None:
    if os.geteuid() != 0:
        unavailable("only root may look into another mount namespace")
    with sleeping("-m") as pid:
        namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
        number = mount_namespace_id(namespace)
        if number is None:
            os.close(namespace)
            pytest.skip("before Linux 6.11 there is no such number")
        assert (mounts_in(number) or 0) > 0
        os.close(namespace)
    assert mounts_in(number) == 0


def test_the_owner_of_a_namespace_is_the_user_namespace_that_it_was_made_in() -> None:
    with sleeping("-U", "-m") as pid:
        namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
        owner = owner_of_namespace(namespace)
        assert os.fstat(owner).st_ino == Path(f"/proc/{pid}/ns/user").stat().st_ino
        os.close(owner)
        os.close(namespace)


def test_what_the_kernel_refuses_is_an_error_with_its_number() -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="Invalid argument"):
            setns(null, 0)
    finally:
        os.close(null)
    with pytest.raises(OSError, match="mount /nothing: "):
        mount(b"proc", b"/nothing", 0, None)
    with pytest.raises(OSError, match="prctl 38: Invalid argument"):
        prctl(PR_SET_NO_NEW_PRIVS, 7)


def test_a_process_is_told_what_it_is_to_be() -> None:
    code = f"""
import sys; sys.path.append({str(TESTS)!r})
from gateway.sandbox.kernel_calls import *
prctl(PR_SET_NO_NEW_PRIVS, 1)
print([line for line in open("/proc/self/status") if line.startswith("NoNewPrivs")])
"""
    said = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, check=True, text=True)
    assert "NoNewPrivs:\\t1" in said.stdout


def test_signals_have_the_numbers_that_the_kernel_tells() -> None:
    assert os.WTERMSIG(9) == signal.SIGKILL
    assert kernel_calls.PIDFD_INFO.size == 64
