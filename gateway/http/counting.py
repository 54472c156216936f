"""Counting calls on a caller's quotas, and giving back what was not the caller's doing."""

from __future__ import annotations

import attrs
import structlog

from gateway import errors
from gateway.actors import quota as quotas
from gateway.actors.runtime import ActorError, Ref, Unanswered
from gateway.actors.store import UNAVAILABLE

log = structlog.get_logger(__name__)

PAYMENT_ATTEMPTS = "payment_attempts"
RETRY_AFTER_S = 2.0


async def spend(quota: Ref[quotas.Message], policy: str, caller: str) -> quotas.Allowance:
    """Count one call; raises `QuotaExceeded`, and where none can be counted `StoreUnavailable` or `CapacityExhausted`.

    The actor waits for nothing but the store: its silence is the store's.
    """
    try:
        allowance = await quota.ask(quotas.Spend(policy, caller), within=5)
    except Unanswered as error:
        raise errors.StoreUnavailable(
            "The store did not answer in time; nothing was counted.",
            extra={"reason": UNAVAILABLE},
            retry_after=RETRY_AFTER_S,
        ) from error
    except ActorError as error:
        raise errors.CapacityExhausted(
            f"quotas cannot be counted ({type(error).__name__})", retry_after=RETRY_AFTER_S
        ) from error
    if not allowance.granted:
        raise errors.QuotaExceeded(
            f"over {allowance.policy.limit} calls in {allowance.policy.window_s} s",
            retry_after=allowance.reset_s,
            headers=allowance.headers,
            extra={"quota": policy},
        )
    return allowance


def give_back(quota: Ref[quotas.Message], policy: str, caller: str, counted_ms: int) -> None:
    """Give a call back to the window that it was counted in, which was open at `counted_ms`."""
    try:
        quota.tell(quotas.GiveBack(policy, caller, counted_ms))
    except ActorError as error:
        log.info("quota_not_given_back", policy=policy, error=type(error).__name__)


@attrs.define(eq=False)
class Attempt:
    """A payment that a caller's network presents: it costs one of `payment_attempts` before anybody is asked about it.

    Signatures cost nothing to make, and each costs the node a claim, a call of the facilitator and a look at the chain.
    The attempt is given back once the payment is verified, or cannot be for a reason that is not the payer's.
    """

    quota: Ref[quotas.Message]
    network: str
    allowance: quotas.Allowance
    _spent: bool = True

    @classmethod
    async def of(cls, quota: Ref[quotas.Message], network: str) -> Attempt:
        """Spend one; raises what `spend` raises."""
        return cls(quota, network, await spend(quota, PAYMENT_ATTEMPTS, network))

    def give_back(self) -> None:
        """Give it back, once."""
        if self._spent:
            self._spent = False
            give_back(self.quota, PAYMENT_ATTEMPTS, self.network, self.allowance.opened_ms)
