"""A held sandbox is hardened, and who hardens it ends with the reason where that cannot be done."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest

from gateway.sandbox import hardening as hardening_module
from gateway.sandbox.hardening import ROOT_KEPT, Hardening
from gateway.sandbox.launcher_child import RootKept
from tests.sandbox.in_groups import descriptors
from tests.sandbox.in_namespaces import sleeping
from tests.sandbox.launcher_driver import Driver


def code(hardening: Hardening) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(hardening.pid, 0)[1])


def test_nothing_that_is_written_can_be_executed_and_proc_tells_of_its_own_alone(driver: Driver) -> None:
    run = driver.spawn(["node", "-e", "0"])
    assert run.ready is not None
    pid = (Path(run.ready.places["pids"]) / "cgroup.procs").read_text().split()[-1]
    mounts = {}
    for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines():
        mounts[line.split()[4]] = line
    for place, access in (("/scratch", "rw"), ("/out", "rw"), ("/proc", "ro")):
        assert f"{access},nosuid,nodev,noexec" in mounts[place]
    assert "subset=pid" in mounts["/proc"]
    assert {each.name for each in Path(f"/proc/{pid}/root/proc").iterdir()} == {"1", "2", "self", "thread-self"}
    driver.stop(run)
    driver.failed(run)


def test_without_an_aim_it_ends() -> None:
    before = descriptors()
    hardening = Hardening(None)
    hardening.close()
    assert code(hardening) == 0
    assert descriptors() == before


def test_the_end_of_one_without_an_aim_is_no_success() -> None:
    hardening = Hardening(None)
    hardening._tells.close()
    assert not hardening.succeeded()
    assert code(hardening) == 0
    hardening.close()


def test_whose_aim_is_gone_says_so() -> None:
    with sleeping("-m") as pid:
        pass
    hardening = Hardening(None)
    hardening.aim(pid)
    assert not hardening.succeeded()
    assert code(hardening) == errno.ENOENT
    hardening.close()


def test_one_that_is_killed_before_it_has_an_aim_is_no_success() -> None:
    hardening = Hardening(None)
    os.kill(hardening.pid, signal.SIGKILL)
    os.waitid(os.P_PID, hardening.pid, os.WEXITED | os.WNOWAIT)
    hardening.aim(1)
    assert not hardening.succeeded()
    assert code(hardening) == -signal.SIGKILL
    hardening.close()


def test_who_cannot_stop_being_root_ends_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(_: int) -> None:
        raise RootKept("uid 0")

    monkeypatch.setattr(hardening_module, "stop_being_root", kept)
    hardening = Hardening(64400)
    assert code(hardening) == ROOT_KEPT
    hardening.close()
