"""What one of several nodes knows of the callers' windows: its shares of them, and which are full.

A share is calls that the store has counted already; the node spends them without asking.  All times are on trio's
clock, in seconds, and a window is held for ended no later than the store's clock ends it: what was counted in one
window is never spent in the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import final

import attrs

from gateway.actors.quota.counters import Taken
from gateway.actors.quota.policy import Allowance, GiveBack, Policy

LOOK_AGAIN_S = 1.0
"""How long a full window is taken for full without asking: other nodes may have given calls back meanwhile."""

MAX_WINDOWS = 200_000
"""Windows remembered at once; beyond it the oldest are let go, and with them what was left of their shares."""


@attrs.define(eq=False)
class _Window:
    opened_ms: int
    ends: float
    room: int  # that the store had left
    taken: int = 0  # from the store, by this node
    left: int = 0  # of what was taken
    full_until: float = -math.inf


@attrs.frozen
class Decided:
    """Allowances for those who waited, and how many calls are to be returned to the store, for nobody needs them."""

    allowances: list[Allowance]
    spare: int


@attrs.frozen
class Unspent:
    """What is left of a share."""

    policy: str
    caller: str
    opened_ms: int
    calls: int


@final
@attrs.define(eq=False)
class Windows:
    """The windows that a node remembers."""

    policies: Mapping[str, Policy]
    _known: dict[tuple[str, str], _Window] = attrs.field(factory=dict)

    def __len__(self) -> int:
        return len(self._known)

    def allow(self, policy: Policy, caller: str, now: float) -> Allowance | None:
        """Decide a call from memory; None where the store must be asked."""
        if policy.limit <= 0:
            return Allowance(policy, granted=False, remaining=0, reset_s=policy.window_s)
        window = self._known.get((policy.name, caller))
        if window is None or now >= window.ends:
            return None
        if window.left == 0 and now >= window.full_until:
            return None
        return _spend(policy, window, now)

    def wanted(self, policy: Policy, waiting: int) -> int:
        """How many calls to ask of the store for so many that wait: whole shares, where there are shares."""
        share = policy.share or 1
        return min(-(-waiting // share) * share, policy.limit)

    def decide(self, policy: Policy, taken: Taken, waiting: int, *, sent: float, now: float) -> Decided:
        """Decide those who waited, by what the store answered to a question that was sent at `sent`."""
        key = policy.name, taken.caller
        # The store looked at its clock after `sent`, so its window ends no earlier than this.
        ends = sent + (taken.opened_ms - taken.now_ms) / 1000 + policy.window_s
        window = self._known.get(key)
        if window is None or window.opened_ms != taken.opened_ms:
            self._known.pop(key, None)
            window = _Window(taken.opened_ms, ends, 0)
        window.ends = max(window.ends, ends)
        window.room = max(policy.limit - taken.used, 0)
        window.taken += taken.calls
        window.left += taken.calls
        allowances = [_spend(policy, window, now) for _ in range(waiting)]
        spare = max(window.left - policy.share, 0)
        window.left -= spare
        window.taken -= spare
        window.full_until = now + LOOK_AGAIN_S if window.room + spare == 0 else -math.inf
        if policy.share > 0 or window.full_until > now:
            self._remember(key, window)
        else:
            self._known.pop(key, None)
        return Decided(allowances, spare)

    def keep_back(self, call: GiveBack, now: float) -> bool:
        """Put a call that was given back into the node's share of its window; False where the store must have it."""
        window = self._known.get((call.policy, call.caller))
        if window is None or now >= window.ends:
            return False
        if call.counted_ms is not None and window.opened_ms > call.counted_ms:
            return False
        if window.left >= min(window.taken, self.policies[call.policy].share):
            return False
        window.left += 1
        return True

    def returned(self, policy: str, caller: str) -> None:
        """Take note that calls went back to the store: a window that was full may have room again."""
        window = self._known.get((policy, caller))
        if window is not None:
            window.full_until = -math.inf

    def sweep(self, now: float) -> None:
        """Forget the windows that have ended."""
        for key in [key for key, window in self._known.items() if now >= window.ends]:
            del self._known[key]

    def unspent(self, now: float) -> Iterator[Unspent]:
        """What is left of the shares in windows that are open."""
        for (policy, caller), window in self._known.items():
            if window.left > 0 and now < window.ends:
                yield Unspent(policy, caller, window.opened_ms, window.left)

    def _remember(self, key: tuple[str, str], window: _Window) -> None:
        self._known[key] = window
        if len(self._known) > MAX_WINDOWS:
            del self._known[next(iter(self._known))]


def _spend(policy: Policy, window: _Window, now: float) -> Allowance:
    granted = window.left > 0
    if granted:
        window.left -= 1
    reset_s = max(math.ceil(window.ends - now), 1)
    remaining = window.room + window.left if granted else 0
    return Allowance(policy, granted, remaining, reset_s, window.opened_ms)
