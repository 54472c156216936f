"""What a format of a model provider is, as the provider's side sees it.

Each takes the members of a request that its own API documents and that a chat can be asked with, and refuses all
others, as strict upstreams do.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import attrs

from gateway.world.ai_text import Answer, Asked
from gateway.world.door import Call

MADE = 1_767_225_600
"""Every answer and every model is from the first second of 2026, so that the same call has the same answer."""


class Refused(Exception):
    """A request that the upstream does not take; `parameter` names the member at fault, if one is."""

    def __init__(self, detail: str, parameter: str = "", *, status: int = 400) -> None:
        super().__init__(detail)
        self.detail = detail
        self.parameter = parameter
        self.status = status


@attrs.frozen
class Served:
    """A model that a format serves; one that reasons spends tokens before it says anything."""

    name: str
    reasons: bool = False


class Format(Protocol):
    """How one provider is talked to; `other` is a model that nobody asked for."""

    models: ClassVar[tuple[Served, ...]]
    other: ClassVar[str]

    def key(self, call: Call) -> str:
        """Return the key that a call brings, empty where it brings none."""
        ...

    def asked(self, call: Call, model: str) -> Asked:
        """Read a call for a completion; `model` is the one that its path names, if it does.  Raises `Refused`."""
        ...

    def completion(self, model: str, answer: Answer) -> dict[str, Any]:
        """Return a completion by `model`."""
        ...

    def nothing(self, model: str, answer: Answer) -> dict[str, Any]:
        """Return a completion with nothing in it."""
        ...

    def model(self, served: Served) -> dict[str, Any]:
        """Return what is told of one model."""
        ...

    def listing(self) -> dict[str, Any]:
        """Return what is told of all models."""
        ...

    def error(self, refused: Refused) -> dict[str, Any]:
        """Return the body of an error."""
        ...
