"""Whether the routes to models can be spoken to, and whether the embedded model is installed; no check is billed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import trio

from gateway.actors.ai import Call, prove
from gateway.back_ends import model_routes_of
from gateway.config import Configuration, ConfigurationError
from gateway.doctor._check import Check, failed, fine, note
from gateway.registry.ai.adapter import ModelRoute
from gateway.registry.ai.adapters import EMBEDDED_MODEL
from gateway.registry.ai.embedded_engine import NotInstalled, weights
from gateway.registry.ai.openai import OpenAiAdapter
from gateway.registry.qualification import Finding

PROBE_S = 10.0
IMPORT_S = 30.0
ENGINE = (sys.executable, "-c", "from xllamacpp import CommonParams, Server")
INSIDE = OpenAiAdapter("http://127.0.0.1:9", EMBEDDED_MODEL)
"""Stands for the model inside the node, which nobody asks here."""

FIXES = {
    "status_400": "put a valid key into its key_file",
    "status_401": "put a valid key into its key_file",
    "status_403": "put a key into its key_file that may use this model from this network",
    "status_402": "add credit to the account that its key belongs to",
    "status_404": "set base_url to the address of the API, and upstream_model to a name that the API lists",
    "status_429": "wait, or raise the limits of the account that its key belongs to",
    "model_not_listed": "set upstream_model to a name that the server's own list of models has",
    "wrong_model": "set upstream_model to the full name that the server's own list of models has",
    "model_retired": "set upstream_model to a model that is not retired, if it is the same one, or remove the route",
    "model_without_chat": "set upstream_model to a model that answers chats",
    "malformed_answer": "set base_url to the address of an API of the route's kind",
    "unreachable": "see that the server runs and that base_url names it",
    "timeout": "see that the server runs and is not overloaded, and that base_url names it",
}
"""What to do by the reason of a failed probe."""
ELSE = "see the server's own log or status page"


async def models(configuration: Configuration, call: Call) -> list[Check]:
    """Check that every route can be made, and look once whether its upstream lists its model."""
    inside = INSIDE if configuration.ai.embedded else None
    try:
        routes = model_routes_of(configuration, inside)
    except ConfigurationError as error:
        return [
            failed(
                "models",
                f"{each.pointer}: {each.detail}",
                "the node does not start",
                f"mend [[ai.route]] at {each.pointer}",
            )
            for each in error.violations
        ]
    asked = [route for route in routes if route.adapter is not inside]
    findings: dict[str, Finding] = {}

    async def one(route: ModelRoute) -> None:
        findings[route.route_id] = await _probe(route, call)

    async with trio.open_nursery() as nursery:
        for route in asked:
            nursery.start_soon(one, route)
    looked = [judged(route, findings[route.route_id]) for route in asked]
    return [*looked, *([await installed()] if inside else [switched_off()])]


def judged(route: ModelRoute, finding: Finding) -> Check:
    """Return what a probe's finding means."""
    if finding.ok:
        return fine(route.route_id, f"its upstream has {route.adapter.upstream_model}")
    reason = finding.reason or "probe_failed"
    return failed(
        route.route_id,
        f"its probe failed ({reason})",
        f"it is closed, and {route.model} answers 503 where no other route is left",
        f"{FIXES.get(reason, ELSE)} ([[ai.route]] with model {route.model!r})",
    )


async def installed(engine: Sequence[str] = ENGINE, find: Callable[[], Path] = weights) -> Check:
    """Check that the embedded model's engine can be imported, in a process of its own, and its weights are there."""
    try:
        size = find().stat().st_size
    except NotInstalled as missing:
        return _missing(f"its weights are not installed: {missing}", "requirements/weights.txt")
    if not await _runs(engine):
        return _missing("its engine xllamacpp is not installed or cannot be loaded on this machine", "'gateway[model]'")
    return fine("embedded model", f"{EMBEDDED_MODEL}, {size // 2**20} MiB of weights")


def switched_off() -> Check:
    """Return what it means that there is no embedded model."""
    return note("embedded model", "it is switched off", f"{EMBEDDED_MODEL} and gateway/fast need a route of their own")


def _missing(fact: str, package: str) -> Check:
    how = f"--no-deps --require-hashes -r {package}" if package.endswith(".txt") else package
    return failed(
        "embedded model",
        fact,
        f"{EMBEDDED_MODEL} is closed, and gateway/fast answers 503 where no other route is left",
        f"{sys.executable} -m pip install {how}; or set embedded = false in [ai]",
    )


async def _runs(engine: Sequence[str]) -> bool:
    with trio.move_on_after(IMPORT_S):
        try:
            done = await trio.run_process(
                list(engine), check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        except OSError:
            return False
        return done.returncode == 0
    return False


async def _probe(route: ModelRoute, call: Call) -> Finding:
    with trio.move_on_after(PROBE_S):
        try:
            return await prove(route, call)
        except Exception as error:  # noqa: BLE001 - whatever an upstream makes of a probe, the others are looked at
            return Finding(ok=False, reason=type(error).__name__)
    return Finding(ok=False, reason="timeout")
