from __future__ import annotations

import os
import signal
import subprocess
import sys

from gateway.world import leash


def leashed(parent: int, *command: str) -> list[str]:
    return [sys.executable, "-I", "-S", leash.__file__, str(parent), str(int(signal.SIGKILL)), *command]


def test_it_becomes_the_program_under_the_same_process_id() -> None:
    with subprocess.Popen(
        leashed(os.getpid(), sys.executable, "-c", "import os; print(os.getpid())"), stdout=subprocess.PIPE
    ) as process:
        told, _ = process.communicate(timeout=20)
    assert int(told) == process.pid


def test_it_starts_nothing_for_a_parent_that_is_gone() -> None:
    done = subprocess.run(leashed(1, "/bin/echo", "started"), capture_output=True, timeout=20, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
