"""The launcher: a small program that starts bubblewrap for the node, and sees to it that nothing outlives anything.

`python -I -S launcher.py SETTINGS`, with the node's socket (SOCK_SEQPACKET) as its standard input; `launcher_messages`
is what they say, standard error is its log.  It has one thread and is the sole parent of bubblewrap: trio starts
programs from threads that end, and with such a thread ends, by PDEATHSIG, what it started.
"""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

PROGRAM = Path(__file__).resolve()
"""What is to be started; a zip or a frozen package cannot hold it."""


def main() -> int:
    """Launch for the node at standard input until it is gone; returns the exit code."""
    from gateway.sandbox.launcher_messages import Settings
    from gateway.sandbox.launching import launch

    return launch(socket.socket(fileno=0), Settings(**json.loads(sys.argv[1])))


if __name__ == "__main__":
    # Last, so that nothing that stands beside the package is taken for the standard library.
    sys.path.append(str(PROGRAM.parents[2]))
    sys.exit(main())
