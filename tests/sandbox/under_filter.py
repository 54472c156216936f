"""Runs a program of the test's own under a filter, on the kernel at hand."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

from gateway.sandbox.seccomp import FILTERS

CHILD = Path(__file__).with_name("seccomp_child.py")
MACHINE = platform.machine()


def run_under(arch: str, *arguments: str, single: bool = False, stdin: str = "") -> subprocess.CompletedProcess[str]:
    program = FILTERS / (f"{arch}.single.bpf" if single else f"{arch}.bpf")
    command: list[str | Path] = [sys.executable, "-I", CHILD, program, *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
