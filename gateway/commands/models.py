"""`gateway models`: the models that the running node lists, with their prices and whether they can be called now."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from gateway.commands import printing
from gateway.commands.exits import CHECK_FAILED, UNREACHABLE, Stop, exit_codes
from gateway.commands.options import CONFIG, JSON

PATH = "/v1/models"
HEADINGS = ("id", "billing", "usd", "availability", "reason")


@click.command()
@click.argument("query", required=False, default="")
@CONFIG
@click.option("--node", metavar="URL", help="Address of the node; without it, where the configuration listens.")
@click.option("--available", is_flag=True, help="Only those that can be called now.")
@JSON
def models(query: str, config_path: Path | None, *, node: str | None, available: bool, as_json: bool) -> None:
    """List models whose id, name or a capability contains QUERY: the price of a chat, and why what is closed is.

    Asks the node's public list; nothing is paid.
    """
    with exit_codes():
        told = _listed(_address(node, config_path))
        try:
            found = [each for each in told["data"] if _asked(each, query, available=available)]
            rows = [_row(each) for each in found]
        except (KeyError, TypeError) as error:
            raise Stop(CHECK_FAILED, f"the answer is no list of models of this release ({error!r})") from error
    if as_json:
        printing.document(told | {"data": found})
    elif rows:
        printing.table(HEADINGS, rows, least=("billing",))
    else:
        click.echo("no models")


def _address(node: str | None, config_path: Path | None) -> str:
    from gateway.addresses import public_url
    from gateway.config import load

    return node.rstrip("/") if node else public_url(load(config_path))


def _listed(address: str) -> dict[str, Any]:
    from gateway.commands.calling import ask, problem_of

    answer = ask("GET", f"{address}{PATH}", headers={})
    if answer.status_code != 200:
        raise Stop(UNREACHABLE if answer.status_code == 503 else CHECK_FAILED, problem_of(answer))
    try:
        told = answer.json()
    except ValueError:
        told = None
    if not isinstance(told, dict) or not isinstance(told.get("data"), list):
        raise Stop(CHECK_FAILED, f"{address}{PATH} is no list of models; is that a node?")
    return told


def _asked(item: Mapping[str, Any], query: str, *, available: bool) -> bool:
    says = item["gateway"]
    texts = (item["id"], says["name"], *says["capabilities"])
    return any(query.lower() in text.lower() for text in texts) and (not available or says["commerce"]["callable"])


def _row(item: Mapping[str, Any]) -> list[object]:
    says = item["gateway"]
    availability = says["availability"] + (" (simulated)" if says.get("simulated") else "")
    price = says["pricing"]["usd"] if says["pricing"] else None
    return [item["id"], says["billing"], price, availability, says["commerce"]["reason"] or says["availabilityReason"]]
