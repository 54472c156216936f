"""What is counted, and the messages of who counts."""

from __future__ import annotations

import attrs

from gateway.actors.runtime import Ask

IN_SHARES = frozenset({"unpaid_quotes", "paid", "payment_attempts"})
"""Policies that bound a caller's haste, not what is given away: they stand on the road of every 402 and every paid
call, where a write to a shared store for each would cost more than the answer."""

_SHARES = 10


@attrs.frozen
class Policy:
    """At most `limit` calls in `window_s` seconds."""

    name: str
    limit: int
    window_s: int = 60

    @property
    def share(self) -> int:
        """How many calls of a caller's window a node takes from a shared store at a time, to spend them in memory.

        A tenth of the limit and at least 1; 0 where every call is decided by the store.
        """
        return max(self.limit // _SHARES, 1) if self.name in IN_SHARES else 0


@attrs.frozen
class Allowance:
    """What is left: `granted` for this call, `remaining` calls more, `reset_s` seconds until the window ends.

    On a shared store `remaining` is over all nodes, as of the store's last answer.  `opened_ms` names the window: when
    it opened, by the clock that counts; 0 where the limit is.
    """

    policy: Policy
    granted: bool
    remaining: int
    reset_s: int
    opened_ms: int = 0

    @property
    def headers(self) -> dict[str, str]:
        """The `RateLimit` and `RateLimit-Policy` fields (draft-ietf-httpapi-ratelimit-headers)."""
        name = self.policy.name
        return {
            "RateLimit-Policy": f'"{name}";q={self.policy.limit};w={self.policy.window_s}',
            "RateLimit": f'"{name}";r={self.remaining};t={self.reset_s}',
        }


@attrs.frozen
class Spend(Ask[Allowance]):
    """Count one call of a caller against a policy; refused with `StoreUnavailable` where the store cannot decide."""

    policy: str
    caller: str


@attrs.frozen
class GiveBack:
    """Take one call back: a quote that was redeemed, or a free call that nothing could serve.

    `counted_ms` is its allowance's `opened_ms`, or any later time in that window by which it had been counted: no
    window that opened after it gets anything back.  None means whichever window is open.
    """

    policy: str
    caller: str
    counted_ms: int | None = None


Message = Spend | GiveBack
