"""`gateway keys`: the node's key files."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.commands import printing
from gateway.commands.exits import exit_codes
from gateway.commands.options import CONFIG, JSON

KINDS = ("pepper", "node", "quote", "receipt")
PEPPERS = "SELECT COUNT(*) FROM node_facts WHERE name LIKE 'pepper-%'"


@click.group()
def keys() -> None:
    """Make and rotate the node's keys."""


@keys.command()
@CONFIG
@JSON
def new(config_path: Path | None, *, as_json: bool) -> None:
    """Make the keys that a new node lacks; existing ones stay, and a store that misses its own is refused."""
    with exit_codes():
        from gateway.config import load
        from gateway.keys import open_keys
        from gateway.reading import open_store

        configuration = load(config_path)
        filled = False
        if configuration.store_path.exists():
            with open_store(configuration.store_path) as store:
                filled = store.read([(PEPPERS, {})]) != [[(0,)]]
        directory = configuration.data_dir / "keys"
        open_keys(directory, create=not filled)
        names = sorted(each.name for each in directory.glob("*.key"))
    if as_json:
        printing.document({"directory": str(directory), "keys": names})
    else:
        click.echo(f"{directory}: {', '.join(names)}")


@keys.command()
@click.argument("kind", type=click.Choice(KINDS))
@CONFIG
@JSON
def rotate(kind: str, config_path: Path | None, *, as_json: bool) -> None:
    """Add the next key of KIND; the node uses it from its next start, and keeps the older ones for what they made."""
    with exit_codes():
        from gateway.config import load
        from gateway.keys import rotate as add_next

        directory = load(config_path).data_dir / "keys"
        version = add_next(directory, kind)
    path = directory / f"{kind}-{version}.key"
    if as_json:
        printing.document({"kind": kind, "version": version, "file": str(path)})
    else:
        click.echo(f"{path} is the {kind} key from the node's next start on; back it up with the others")
