"""One check and its outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

Standing = Literal["fine", "note", "failed"]


def _one_line(text: str) -> str:
    return " ".join(text.split())


@attrs.frozen
class Check:
    """What was looked at and found; a note is worth knowing and no failure.

    `consequence` says what follows for the node, `fix` what to do, word for word; both are empty where all is fine.
    """

    name: str
    standing: Standing
    fact: str = attrs.field(converter=_one_line)
    consequence: str = attrs.field(default="", converter=_one_line)
    fix: str = attrs.field(default="", converter=_one_line)

    def line(self) -> str:
        """Return it as one line for a person."""
        so = f"; {self.consequence}" if self.consequence else ""
        return f"{self.name}: {self.fact}{so}" + (f". Fix: {self.fix}" if self.fix else "")


def fine(name: str, fact: str) -> Check:
    """Return a check that found nothing wrong."""
    return Check(name, "fine", fact)


def note(name: str, fact: str, consequence: str, fix: str = "") -> Check:
    """Return a check that found something worth knowing."""
    return Check(name, "note", fact, consequence, fix)


def failed(name: str, fact: str, consequence: str, fix: str) -> Check:
    """Return a check that failed."""
    return Check(name, "failed", fact, consequence, fix)


@attrs.frozen
class Examination:
    """All checks, and the configuration in force with its secrets redacted (None where it cannot be used)."""

    checks: Sequence[Check]
    configuration: Mapping[str, Any] | None

    @property
    def failed(self) -> bool:
        """True when a check failed."""
        return any(each.standing == "failed" for each in self.checks)

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        return {
            "ok": not self.failed,
            "checks": [attrs.asdict(each) for each in self.checks],
            "configuration": self.configuration,
        }
