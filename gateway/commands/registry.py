"""`gateway registry`: what can be sold now and why not, as the running node has proved it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from gateway.commands import printing
from gateway.commands.exits import CHECK_FAILED, exit_codes, leave
from gateway.commands.options import CONFIG, JSON, WIDE

WHY = "what can be sold is proved by the running node"
OPEN = frozenset({"available", "degraded"})
HEADINGS = {
    "route": "route",
    "model": "model",
    "availability": "availability",
    "reason": "reason",
    "last probe": "lastProbeAt",
    "valid until": "validUntil",
    "p50 ms": "p50Ms",
    "errors": "errorRate",
}

LEAST = ("last probe", "p50 ms", "errors", "valid until", "model")
"""The columns that a narrow terminal goes without, the first of them first."""


@click.group()
def registry() -> None:
    """List the routes of the running node with their proofs, and have them proved anew."""


@registry.command("list")
@CONFIG
@WIDE
@JSON
def list_routes(config_path: Path | None, *, wide: bool, as_json: bool) -> None:
    """List every route: what it is to, whether it can be sold now, until when that is proved, or why it is closed.

    --json tells of the last day of each as well.
    """
    with exit_codes():
        from gateway.commands.operator_calling import ask_operator
        from gateway.config import load

        told = ask_operator(load(config_path), "GET", "/models", why=WHY)
    if as_json:
        printing.document(told)
    elif told["routes"]:
        _print(told["routes"], wide=wide)
    else:
        click.echo("no routes")


@registry.command()
@click.argument("route_or_model", required=False, metavar="[ID]")
@CONFIG
@JSON
def probe(route_or_model: str | None, config_path: Path | None, *, as_json: bool) -> None:
    """Probe the route ID, all routes to the model or alias ID, or everything, now, and show what is proved then.

    Exit code 1 when what was probed is closed: a route, or a model none of whose routes is open.
    """
    with exit_codes():
        from gateway.commands.operator_calling import ask_operator
        from gateway.config import load

        body = {"id": route_or_model} if route_or_model else {}
        told = ask_operator(load(config_path), "POST", "/registry/probe", body, why=WHY)
    if as_json:
        printing.document(told)
    else:
        _print(told["routes"])
    if closed(told["routes"]):
        leave(CHECK_FAILED)


def closed(routes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the models that no route of these is open to, and the closed routes that are to no model."""
    names = dict.fromkeys(each["model"] or each["route"] for each in routes)
    open_ = {each["model"] or each["route"] for each in routes if each["availability"] in OPEN}
    return [name for name in names if name not in open_]


def _print(routes: Sequence[Mapping[str, Any]], *, wide: bool = False) -> None:
    rows = [[each.get(name) for name in HEADINGS.values()] for each in routes]
    printing.table(tuple(HEADINGS), rows, wide=wide, least=LEAST)
