"""What the launcher's child has given up when it has become bubblewrap, seen from outside while its command waits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.sandbox.launcher_child import Descriptors, RootKept, stop_being_root
from gateway.sandbox.outside_check import status_of
from tests.sandbox.in_groups import unavailable
from tests.sandbox.launcher_driver import FIRST_UID, MIB, Driver, bounded


@pytest.fixture(scope="module")
def bubblewrap(driver: Driver) -> Iterator[int]:
    bounds = bounded(cpu_us=1_200_000, disk_bytes=8 * MIB, artifact_bytes=MIB, tasks=34)
    run = driver.spawn(["node", "-e", "0"], bounds)
    assert run.ready is not None
    pids = [int(each) for each in (Path(run.ready.places["pids"]) / "cgroup.procs").read_text().split()]
    yield next(each for each in pids if len(status_of(each)["NSpid"].split()) == 1)
    driver.stop(run)
    driver.failed(run)


def test_it_is_the_slot_s_user_and_in_no_other_group(bubblewrap: int) -> None:
    told = status_of(bubblewrap)
    assert set(told["Uid"].split()) == set(told["Gid"].split()) == {str(FIRST_UID)}
    assert told["Groups"] == ""
    assert told["NoNewPrivs"] == "1"


def test_it_is_the_launcher_s_own_child_in_a_session_of_its_own(bubblewrap: int, driver: Driver) -> None:
    assert status_of(bubblewrap)["PPid"] == str(driver.process.pid)
    assert os.getsid(bubblewrap) == bubblewrap


def test_it_ignores_no_signal_and_blocks_none_but_bubblewrap_s_own(bubblewrap: int) -> None:
    told = status_of(bubblewrap)
    child = 1 << 16
    assert int(told["SigIgn"], 16) == 0
    assert int(told["SigBlk"], 16) in {0, child}


def test_it_has_limits_of_its_own_beside_its_group_s(bubblewrap: int) -> None:
    lines = Path(f"/proc/{bubblewrap}/limits").read_text().splitlines()[1:]
    told = {line[:26].strip(): line[26:].split()[:2] for line in lines}
    assert told["Max core file size"] == ["0", "0"]
    assert told["Max open files"] == ["256", "256"]
    assert told["Max cpu time"] == ["3", "3"]
    assert told["Max file size"] == [str(9 * MIB)] * 2
    assert told["Max locked memory"] == ["65536", "65536"]
    assert told["Max msgqueue size"] == ["0", "0"]
    assert told["Max pending signals"] == ["64", "64"]


def test_it_goes_first_where_the_machine_runs_out_of_memory(bubblewrap: int) -> None:
    assert Path(f"/proc/{bubblewrap}/oom_score_adj").read_text().strip() == "1000"


def test_its_command_line_tells_nothing_of_the_image_s_place(bubblewrap: int) -> None:
    said = Path(f"/proc/{bubblewrap}/cmdline").read_bytes()
    assert said == b"bwrap\0--args\x003\0--\0/proc/self/fd/6\0"


def test_its_environment_is_empty(bubblewrap: int) -> None:
    assert Path(f"/proc/{bubblewrap}/environ").read_bytes() == b""


def test_who_cannot_become_another_user_is_told() -> None:
    if os.geteuid() != 0:
        unavailable("only root becomes another user")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            stop_being_root(FIRST_UID)
            code = 2 if os.getresuid() != (FIRST_UID,) * 3 or os.getgroups() else 3
            stop_being_root(0)
        except RootKept as kept:
            code = code if str(kept) != "uid 0 and become 0: Operation not permitted" else code + 10
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 13


def test_every_descriptor_has_a_number_of_its_own() -> None:
    placed = Descriptors((40, 41, 42), 43, 44, 45, 46, 47, 48).places()
    assert [at for _, at in placed] == list(range(9))
    assert [each for each, _ in placed] == list(range(40, 49))
    assert len(Descriptors((40, 41, 42), 43, 44, 45, 46, 47, None).places()) == 8
