"""`gateway keys`: the node's key files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.commands import printing
from gateway.commands.exits import exit_codes
from gateway.commands.options import CONFIG, JSON

if TYPE_CHECKING:
    from gateway.config import Configuration

KINDS = ("pepper", "node", "quote", "receipt")

MEANWHILE = {
    "pepper": "Meanwhile each node finds what the others claimed, for claims are stored under every pepper.",
    "node": "Meanwhile what a restarted node has open is taken over by restarted nodes only.",
    "quote": "Meanwhile a quote of a restarted node is paid there, or its call is quoted anew by the others.",
    "receipt": "Meanwhile only restarted nodes publish the key in /.well-known/jwks.json.",
}
"""What holds while some nodes have a new key and some do not."""


@click.group()
def keys() -> None:
    """Make and rotate the node's keys."""


@keys.command()
@CONFIG
@JSON
def new(config_path: Path | None, *, as_json: bool) -> None:
    """Make the keys that a new node lacks; existing ones stay, and a store that misses its own is refused.

    Nodes of one store have the same keys: make them on one, and copy the directory to the others.
    """
    with exit_codes():
        from gateway.config import load
        from gateway.keys import open_shared_keys

        configuration = load(config_path)
        directory = configuration.keys_dir
        open_shared_keys(directory, _known(configuration))
        names = sorted(each.name for each in directory.glob("*.key"))
    if as_json:
        printing.document({"directory": str(directory), "keys": names})
    else:
        click.echo(f"{directory}: {', '.join(names)}")


def _known(configuration: Configuration) -> dict[str, str]:
    """Return the fingerprints of the keys that the store knows; none where there is no store yet."""
    from gateway.reading import NoStoreYet, open_store
    from gateway.shared_keys import SELECT_KNOWN, known_keys

    try:
        with open_store(configuration) as store:
            (facts,) = store.read([(SELECT_KNOWN, {})])
    except NoStoreYet:
        return {}
    return known_keys(facts)


@keys.command()
@click.argument("kind", type=click.Choice(KINDS))
@CONFIG
@JSON
def rotate(kind: str, config_path: Path | None, *, as_json: bool) -> None:
    """Add the next key of KIND; the node uses it from its next start, and keeps the older ones for what they made."""
    with exit_codes():
        from gateway.config import load
        from gateway.keys import rotate as add_next

        configuration = load(config_path)
        directory = configuration.keys_dir
        version = add_next(directory, kind)
    path = directory / f"{kind}-{version}.key"
    steps = _steps(path, kind, shared=configuration.shared_store)
    if as_json:
        printing.document({"kind": kind, "version": version, "file": str(path), "next": steps})
        return
    click.echo(f"{path} is the {kind} key from the node's next start on")
    for number, step in enumerate(steps, 1):
        click.echo(f"  {number}. {step}")


def _steps(path: Path, kind: str, *, shared: bool) -> list[str]:
    """Return what is to be done next, in this order."""
    back_up = f"Back up {path} with the other keys."
    if not shared:
        return [back_up, "Restart the node."]
    copy = f"Copy {path} to the keys directory of every node of the store, mode 0600, before any node is restarted"
    restart = "Restart the nodes one after another, the next one when the last is ready"
    return [
        back_up,
        f"{copy}: once one node uses it, no node starts without it.",
        f"{restart}. {MEANWHILE[kind]}",
    ]
