"""A process that lives in namespaces of its own, for the length of a block."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.sandbox.in_groups import unavailable


@contextmanager
def sleeping(*options: str) -> Iterator[int]:
    """Start `unshare OPTIONS sleep`, and give its pid once it is in its namespaces."""
    program = subprocess.Popen(
        ["unshare", *options, "sh", "-c", "echo in; exec sleep 60"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert program.stdout is not None
        if program.stdout.readline() != b"in\n":
            unavailable(f"unshare {' '.join(options)}: {program.communicate()[1].decode()}")
        yield program.pid
    finally:
        program.kill()
        program.communicate()
