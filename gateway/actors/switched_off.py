"""A family that the operator of this node has switched off."""

from __future__ import annotations

from typing import Any, Never

import attrs

from gateway.errors import OperationUnavailable
from gateway.registry.execution import Work

REASON = "switched_off"


@attrs.frozen
class SwitchedOff:
    """Refuses whatever it is asked, before any price: the node does not sell it.  `name` is what callers know it by."""

    name: str

    def admit(self, operation: str, request: Any) -> Never:
        """Raise `OperationUnavailable`."""
        del operation, request
        raise self._refusal()

    def budget(self, operation: str, request: Any) -> None:
        """Return None: nothing is billed."""
        del operation, request

    async def execute(self, work: Work) -> Never:
        """Raise `OperationUnavailable`; the operation was claimed before it was switched off."""
        del work
        raise self._refusal()

    def _refusal(self) -> OperationUnavailable:
        return OperationUnavailable(f"This node does not sell {self.name}.", extra={"reason": REASON})
