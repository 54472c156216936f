"""What a finished run comes to, before it is put into an answer: for whoever sells runs, and for the canaries.

Source: spec/outputs for the names on the wire.
"""

from __future__ import annotations

from typing import Any

import attrs

from gateway.sandbox.artifacts import Listing
from gateway.sandbox.outcome import Cleanup, Denials, Ending, Usage
from gateway.sandbox.output_text import Text


@attrs.frozen
class RunResult:
    """A run that was released and is over, with nothing left to do about it.

    Attributes:
        ending: how it ended, with the command's own code or signal.
        stdout: what was kept of standard output.
        stderr: what was kept of standard error.
        artifacts: what it left in `/out`.
        usage: what was measured of it.
        denials: what the kernel refused it.
        cleanup: what was left of it after everything was removed.
        setup_ms: from the asking of the launcher until the command was ready to be let go, in milliseconds.
        laid_ahead: the sandbox was begun before it was asked for.
    """

    ending: Ending
    stdout: Text
    stderr: Text
    artifacts: Listing
    usage: Usage
    denials: Denials
    cleanup: Cleanup
    setup_ms: int
    laid_ahead: bool

    def output(self) -> dict[str, Any]:
        """Return the members of the answer's `output` that are the run's own."""
        return {
            **self.ending.as_json(),
            "stdout": self.stdout.as_json(),
            "stderr": self.stderr.as_json(),
            "artifacts": [each.as_json() for each in self.artifacts.artifacts],
        }

    def measured(self) -> dict[str, Any]:
        """Return the members of the answer's `execution` that were measured."""
        return {
            "usage": self.usage.as_json(),
            "denials": self.denials.as_json(),
            "cleanup": self.cleanup.as_json(),
            "artifactsComplete": self.artifacts.complete,
            "setupMs": self.setup_ms,
            "laidAhead": self.laid_ahead,
        }
