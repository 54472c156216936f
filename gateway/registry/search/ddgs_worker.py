"""The program that runs `ddgs` once: a JSON task on standard input, a JSON answer on standard output, nothing else.

The task is {"query", "region", "max_results"}; the answer is {"results": [...]} as the library gives them, or
{"error": ...} with `rate_limited`, `timed_out`, `no_results` or `failed`.  Memory, processor time and wall time are
limited from inside as well, so that a worker whose node has died ends by itself.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import resource
import signal
import sys
from typing import Any

BACKENDS = "duckduckgo,brave,mojeek,startpage"  # those of the library's engines that heed the region
WALL_S = 15
CPU_S = 10
MEMORY_BYTES = 2**30
FIELD_CHARS = 8192


def main() -> None:
    """Serve one task."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(WALL_S)
    logging.disable(logging.CRITICAL)
    task = json.loads(sys.stdin.buffer.read())
    with contextlib.redirect_stdout(io.StringIO()):
        answer = search(task)
    sys.stdout.write(json.dumps(answer))


def search(task: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a task."""
    from ddgs.ddgs import DDGS
    from ddgs.exceptions import DDGSException, RatelimitException, TimeoutException

    try:
        found = DDGS(timeout=5).text(
            task["query"], region=task["region"], max_results=task["max_results"], backend=BACKENDS
        )
    except RatelimitException:
        return {"error": "rate_limited"}
    except TimeoutException:
        return {"error": "timed_out"}
    except DDGSException as problem:
        return {"error": "no_results" if "No results" in str(problem) else "failed"}
    return {"results": [{name: str(value)[:FIELD_CHARS] for name, value in each.items()} for each in found]}


if __name__ == "__main__":
    main()
