from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import gateway
from gateway.actors import failpoints
from gateway.actors.failpoints import LABELS, RUN_LABELS, Armed, failpoint

PROGRAM = "from gateway.actors.failpoints import failpoint\n"


def run(program: str, setting: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "GATEWAY_FAILPOINT": setting}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM + program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        cwd=Path(gateway.__file__).parent.parent,
    )


def test_an_unarmed_failpoint_does_nothing() -> None:
    assert failpoints.armed is None
    for label in LABELS + RUN_LABELS:
        failpoint(label)


def test_an_armed_failpoint_kills_the_process_at_its_label_only() -> None:
    killed = run(
        "print('before', flush=True); failpoint('keep.after'); failpoint('keep.before'); print('x')", "keep.before"
    )
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "before\n")


def test_a_count_kills_at_that_pass() -> None:
    passing = "\nfor each in range(5): print(each, flush=True); failpoint('look.after')"
    assert run(passing, "look.after:3").stdout.split() == ["0", "1", "2"]


@pytest.mark.parametrize("setting", ["keep", "keep.befor", "nothing:1", ":1"])
def test_a_label_that_does_not_exist_is_refused_at_the_start(setting: str) -> None:
    with pytest.raises(ValueError, match="no failpoint"):
        Armed.of(setting)


@pytest.mark.parametrize(
    "setting", ["keep.before:", "keep.before:0", "keep.before:x", "keep.before:-1", "keep.before:²"]
)
def test_a_count_that_is_none_is_refused(setting: str) -> None:
    with pytest.raises(ValueError, match="which pass"):
        Armed.of(setting)


def test_every_label_stands_somewhere_and_every_failpoint_has_a_label() -> None:
    package = Path(gateway.__file__).parent
    standing = [
        label
        for path in package.rglob("*.py")
        if path.name != "failpoints.py"
        for label in re.findall(r"failpoint\(\"([^\"]+)\"\)", path.read_text())
    ]
    assert sorted(set(standing)) == sorted(LABELS + RUN_LABELS)
