"""What the node sells, told in its log: one block at the start, then one line for each opening and closing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import attrs
import structlog
import trio

from gateway.composition import Parts

log = structlog.get_logger(__name__)

PAYMENTS = "payments"
PASSING = frozenset({"not_probed", "starting", "unproven"})
"""Reasons that a start brings along and that pass within seconds."""
START_S = 10.0
LOOK_EVERY_S = 1.0
DOCTOR = "gateway doctor"
FIXES: tuple[tuple[str, str], ...] = (
    (r"payment_not_configured", "set pay_to, facilitator_url and rpc_urls in [payment]"),
    (r"key_missing|status_40[13]|route_refused", "correct its key_file"),
    (r"model_not_listed|wrong_model|status_404", "correct its upstream_model"),
    (r"unreachable|tls_failed|timeout|connection_broken", "start what answers at its base_url, or correct that"),
    (r"extra_not_installed", "install the extra: pip install 'gateway[ddgs]'"),
    (r"model_not_installed", "install the extra: pip install 'gateway[model]'"),
    (r"rate_limited|status_429|blocked", "wait, or ask its provider for more"),
    (r"sandbox\..*", "gateway sandbox check"),
    (r"facilitator_.*", "correct facilitator_url in [payment], or wait until it answers"),
    (r"rpc_.*", "correct rpc_urls in [payment], or add an end point"),
)

States = Mapping[str, str | None]
"""By name: None of what can be sold now, else the machine reason why not."""


def states_of(parts: Parts) -> States:
    """Return whether payments settle, and each route that the prober looks at."""
    payments = "payment_not_configured" if parts.node.terms is None else parts.path.closed
    routes = {name: None if each.open else each.reason or "unproven" for name, each in parts.proofs.snapshot().items()}
    return {PAYMENTS: payments, **dict(sorted(routes.items()))}


def fix_of(reason: str) -> str:
    """Return what an operator can do about a reason."""
    return next((fix for pattern, fix in FIXES if re.fullmatch(pattern, reason)), DOCTOR)


@attrs.frozen
class SellingLog:
    """Watches `states` and tells of them."""

    states: Callable[[], States]

    async def watch(self) -> None:
        """Tell what is sold once the start is over, and what opens and closes from then on."""
        with trio.move_on_after(START_S):
            while not self._settled():  # noqa: ASYNC110 - several parts publish, and none rings a bell
                await trio.sleep(LOOK_EVERY_S / 10)
        before = self.states()
        closed = {name: reason for name, reason in before.items() if reason is not None}
        log.info(
            "selling",
            open=[name for name, reason in before.items() if reason is None],
            closed=[{"what": name, "reason": reason, "fix": fix_of(reason)} for name, reason in closed.items()],
        )
        while True:
            await trio.sleep(LOOK_EVERY_S)
            now = self.states()
            for name, reason in now.items():
                if reason != before.get(name, ""):
                    _tell(name, reason)
            before = now

    def _settled(self) -> bool:
        """Return whether the prober has looked at all routes."""
        now = self.states()
        return bool(now.keys() - {PAYMENTS}) and not PASSING & set(now.values())


def _tell(name: str, reason: str | None) -> None:
    if reason is None:
        log.info("opened", what=name)
    else:
        log.warning("closed", what=name, reason=reason, fix=fix_of(reason))
