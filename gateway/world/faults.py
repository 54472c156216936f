"""What is wrong with the world on purpose, and how often its upstreams were called: what `{faults}` sets and tells."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

OK = "ok"
REFUSE = "refuse"
"""Of what has an address of its own: nobody listens there."""
FACILITATOR = "facilitator"
SEARCH = "search"
AI = "ai"
RPC = "rpc"
STORE = "store"

FACILITATOR_MODES = (
    OK,
    "verify_500",
    "verify_hang",
    "settle_500_before",
    "settle_500_after",
    "settle_hang_before",
    "settle_hang_after",
    "settle_pending",
    "settle_wrong_payer",
    "settle_no_tx",
    "garbage",
    REFUSE,
)
RPC_MODES = (OK, "lag", "wrong_chain", "null_block", "http_429", "html", "hang", "range_limit", "drop_logs")
SEARCH_MODES = (OK, "blocked", "hang", "http_500", "empty")
AI_MODES = (OK, "hang", "http_500", "http_429", "empty_choices", "wrong_model", "invalid_json", REFUSE)
STORE_MODES = (OK, "kill", "pause")
"""Of a store that the world started: its processes run, are gone (SIGKILL), or stand still (SIGSTOP)."""

LATE = (AI,)
"""The targets whose answers may be delayed."""
MOST_LATENCY_MS = 120_000


class FaultRefused(Exception):
    """No such target or mode; `allowed` lists what there is."""

    def __init__(self, detail: str, allowed: tuple[str, ...]) -> None:
        super().__init__(detail)
        self.detail = detail
        self.allowed = allowed


class Faults:
    """The mode in force and the calls counted, by target: `facilitator`, `search`, `ai`, `rpc/eip155:8453`, ...

    A call counts when it reaches the upstream's door, whatever then happens to it.
    """

    def __init__(self, targets: Mapping[str, tuple[str, ...]], calls: Mapping[str, tuple[str, ...]]) -> None:
        """Start with every target at `ok`; `calls` names the kinds of call that are shown even before the first."""
        self._allowed = dict(targets)
        self._modes = dict.fromkeys(targets, OK)
        self._latencies: dict[str, int] = {}
        self._counts = {target: defaultdict[str, int](int) for target in targets}
        for target, kinds in calls.items():
            self._counts[target].update(dict.fromkeys(kinds, 0))

    def mode(self, target: str) -> str:
        """Return the mode of a known target."""
        return self._modes[target]

    def latency_ms(self, target: str) -> int:
        """Return the milliseconds by which a target's answers are late."""
        return self._latencies.get(target, 0)

    def set(self, target: str, mode: object, latency_ms: object = 0) -> None:
        """Put a target into a mode, and make its answers late from now on; raises `FaultRefused`."""
        if target not in self._allowed:
            raise FaultRefused(f"there is no target {target!r}", tuple(self._allowed))
        if not isinstance(mode, str) or mode not in self._allowed[target]:
            raise FaultRefused(f"{target} has no mode {mode!r}", self._allowed[target])
        if type(latency_ms) is not int or not 0 <= latency_ms <= MOST_LATENCY_MS:
            raise FaultRefused(f"a latency is 0 to {MOST_LATENCY_MS} milliseconds", self._allowed[target])
        if latency_ms and target not in LATE:
            raise FaultRefused(f"{target} is never late", LATE)
        self._modes[target] = mode
        self._latencies[target] = latency_ms

    def count(self, target: str, kind: str) -> None:
        """Count one call of a known target."""
        self._counts[target][kind] += 1

    def state(self) -> dict[str, Any]:
        """Return `{"modes": {target: mode}, target: {kind: calls}}`; a target `a/b` nests as `{"a": {"b": ...}}`.

        Where answers are late, `latencyMs` says by target how much.
        """
        told: dict[str, Any] = {"modes": dict(self._modes)}
        if late := {target: each for target, each in self._latencies.items() if each}:
            told["latencyMs"] = late
        for target, counts in self._counts.items():
            family, _, member = target.partition("/")
            if member:
                told.setdefault(family, {})[member] = dict(counts)
            else:
                told[family] = dict(counts)
        return told
