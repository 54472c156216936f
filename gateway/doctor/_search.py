"""Whether the search engines can be spoken to and prove themselves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from gateway.actors.prober import Route
from gateway.actors.search import search_routes
from gateway.back_ends import adapters_of
from gateway.config import Configuration, ConfigurationError
from gateway.doctor._check import Check, failed, fine, note
from gateway.registry.http_call import HttpAnswer, HttpCall
from gateway.registry.qualification import Finding

PROBE_S = 10.0


async def search(configuration: Configuration, call: Callable[[HttpCall], Awaitable[HttpAnswer]]) -> list[Check]:
    """Check that every adapter can be made, and look once whether it works; no engine bills for that."""
    try:
        adapters = adapters_of(configuration)
    except ConfigurationError as error:
        return [
            failed("search", f"{each.pointer}: {each.detail}", "the node does not start", "mend [[search.adapter]]")
            for each in error.violations
        ]
    routes = search_routes(adapters, call)
    findings: dict[str, Finding] = {}

    async def one(route: Route) -> None:
        findings[route.route_id] = await _probe(route)

    async with trio.open_nursery() as nursery:
        for route in routes:
            nursery.start_soon(one, route)
    return [judged(route.route_id, findings[route.route_id]) for route in routes]


def judged(route_id: str, finding: Finding) -> Check:
    """Return what a probe's finding means."""
    if not finding.ok:
        return failed(
            route_id,
            f"its probe failed ({finding.reason})",
            "it is skipped, and search answers 503 where no other engine is left",
            "see that the engine runs and that its base_url and key_file in [[search.adapter]] are right",
        )
    if finding.degraded:
        return note(
            route_id, f"it works in part ({finding.reason})", "results may be fewer", "see the engine's own log"
        )
    if finding.basis == "configuration":
        return note(route_id, "its key is there", "only real calls prove it, for it bills each one")
    return fine(route_id, "its probe succeeded")


async def _probe(route: Route) -> Finding:
    with trio.move_on_after(PROBE_S):
        try:
            return await route.probe()
        except Exception as error:  # noqa: BLE001 - whatever an engine makes of a probe, the others are looked at
            return Finding(ok=False, reason=type(error).__name__)
    return Finding(ok=False, reason="timeout")
