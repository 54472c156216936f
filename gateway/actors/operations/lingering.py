"""Results that have just been released: for who looked the operation up while it ran and asks for it once it ended."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from gateway.actors.operations.order import Ended

LINGER_S = 10.0
LINGER_BYTES = 8 * 1024 * 1024


@attrs.define(eq=False)
class Lingering:
    """The last results, by operation; each for `LINGER_S` seconds, `LINGER_BYTES` of JSON in all."""

    clock: Callable[[], float]
    size: int = 0
    _kept: dict[str, tuple[float, int, Ended]] = attrs.field(factory=dict)

    def add(self, ended: Ended, size: int) -> list[str]:
        """Keep a result of `size` bytes a little; return the operations that had to make way."""
        self._kept[ended.operation_id] = self.clock() + LINGER_S, size, ended
        self.size += size
        return self.prune()

    def get(self, operation_id: str) -> Ended | None:
        """Return the result of an operation that ended a moment ago, as a replay."""
        kept = self._kept.get(operation_id)
        return None if kept is None or kept[0] <= self.clock() else attrs.evolve(kept[2], replayed=True)

    def prune(self) -> list[str]:
        """Let go of what is too old or too much, the oldest first; return its operations."""
        gone = []
        now = self.clock()
        for operation_id, (until, size, _) in self._kept.items():
            if until > now and self.size <= LINGER_BYTES:
                break
            gone.append(operation_id)
            self.size -= size
        for operation_id in gone:
            del self._kept[operation_id]
        return gone
